"""CBOR for an attacker: a writer that also writes what nobody should, and a reader of what a node answers."""

from __future__ import annotations

from typing import Any

FALSE = b"\xf4"
TRUE = b"\xf5"
NULL = b"\xf6"
BREAK = b"\xff"

_WIDTH_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}


def head(major: int, argument: int, low: int | None = None) -> bytes:
    """The shortest head, or the one of the given width: 24, 25, 26 or 27."""
    if low is None:
        if argument < 24:
            return bytes([major << 5 | argument])
        low = next(low for low, width in _WIDTH_BYTES.items() if argument < 256**width)
    return bytes([major << 5 | low]) + argument.to_bytes(_WIDTH_BYTES[low], "big")


def uint(value: int, low: int | None = None) -> bytes:
    return head(0, value, low)


def octets(value: bytes) -> bytes:
    return head(2, len(value)) + value


def text(value: str) -> bytes:
    return head(3, len(value.encode())) + value.encode()


def boolean(value: bool) -> bytes:
    return TRUE if value else FALSE


def array(*items: bytes) -> bytes:
    return head(4, len(items)) + b"".join(items)


def endless(*items: bytes) -> bytes:
    """An array of indefinite length."""
    return b"\x9f" + b"".join(items) + BREAK


def mapping(*pairs: tuple[bytes, bytes]) -> bytes:
    return head(5, len(pairs)) + b"".join(key + value for key, value in pairs)


DEPTH_MAX = 32
"""Levels of lists and maps within each other."""
_SIMPLE = {20: False, 21: True, 22: None}


class Unfinished(Exception):
    """More bytes are needed."""


class AlienBytes(ValueError):
    """Bytes that no node writes."""


def read(data: bytes, at: int = 0, depth: int = 0) -> tuple[Any, int]:
    """The value that begins at `at`, and where the next one begins. Only what a node writes."""
    if at >= len(data):
        raise Unfinished
    if depth > DEPTH_MAX:
        raise AlienBytes(f"more than {DEPTH_MAX} levels")
    major, low = data[at] >> 5, data[at] & 0x1F
    at += 1
    if (major == 7 and low not in _SIMPLE) or 28 <= low < 31 or major == 6 or (low == 31 and major != 4):
        raise AlienBytes(f"byte {data[at - 1]:#04x} where a value begins")
    if major == 7:
        return _SIMPLE[low], at
    if low == 31:
        return _read_endless(data, at, depth + 1)
    argument = low
    if low >= 24:
        width = _WIDTH_BYTES[low]
        if at + width > len(data):
            raise Unfinished
        argument = int.from_bytes(data[at : at + width], "big")
        at += width
    if major == 0:
        return argument, at
    if major in (2, 3):
        if at + argument > len(data):
            raise Unfinished
        raw = data[at : at + argument]
        return (raw if major == 2 else _text(raw)), at + argument
    values: list[Any] = []
    for _ in range(argument * (2 if major == 5 else 1)):
        value, at = read(data, at, depth + 1)
        values.append(value)
    return (values if major == 4 else _mapping(values)), at


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise AlienBytes("a text that is not UTF-8") from None


def _mapping(values: list[Any]) -> dict[Any, Any]:
    try:
        return dict(zip(values[::2], values[1::2], strict=True))
    except TypeError:
        raise AlienBytes("a map with a list or a map for a key") from None


def _read_endless(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    while data[at : at + 1] != BREAK:
        value, at = read(data, at, depth)
        values.append(value)
    return values, at + 1
