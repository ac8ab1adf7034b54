"""Answers that a program under test gets on the kit's local socket: true ones, and ones that no node may give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stagepost.dmq.conform.attacker import (
    HANDSHAKE,
    LOCAL_SUBMISSION,
    LOCAL_VERSION,
    NOTIFICATION,
    OTHER_SIDE,
    local_data,
    segment,
    segments,
)
from stagepost.dmq.conform.cbor_bytes import FALSE, array, endless, head, text, uint
from stagepost.dmq.conform.forged_messages import Forger, message

Item = Callable[[int, Any], bytes]
"""Bytes of an answer, from the network's magic number and from the client's words."""


@dataclass(frozen=True)
class ServedAnswer:
    """Connection of a program. `lane` is that of the words which are answered with `item`; a program that may go on does
    so, any other leaves within `within_s`. `is_raw`: `item` holds whole segments."""

    name: str
    rule: str
    lane: int
    item: Item
    goes_on: bool = False
    within_s: float = 2.0
    is_raw: bool = False


_WAITS = [0, True]


def _plain(*items: bytes) -> Item:
    return lambda magic, heard: b"".join(items)


def _accepts(version: int | None = None, offset: int = 0, behind: bytes = b"") -> Item:
    """Accept the program's highest version, or the given one."""

    def item(magic: int, heard: Any) -> bytes:
        return accepted(magic + offset, heard, version) + behind

    return item


def accepted(magic: int, heard: Any, version: int | None = None) -> bytes:
    offered = heard[1] if isinstance(heard, list) and len(heard) == 2 and isinstance(heard[1], dict) else {}
    chosen = LOCAL_VERSION if LOCAL_VERSION in offered or not offered else max(offered)
    return array(uint(1), uint(chosen if version is None else version), local_data(magic))


def _told(magic: int, heard: Any) -> bytes:
    """Reply with a message, in the kind that was asked for."""
    told = endless(message(Forger()).raw)
    return array(uint(2), told) if heard == _WAITS else array(uint(1), told, FALSE)


def _told_otherwise(magic: int, heard: Any) -> bytes:
    """Reply in the kind that was not asked for."""
    return _told(magic, [0, False] if heard == _WAITS else _WAITS)


def _told_twice(magic: int, heard: Any) -> bytes:
    return _told(magic, heard) * 2


def _told_malformed(magic: int, heard: Any) -> bytes:
    broken = array(uint(1), uint(2), uint(3))
    return array(uint(2), endless(broken)) if heard == _WAITS else array(uint(1), endless(broken), FALSE)


def _rows() -> Iterator[ServedAnswer]:
    shaken, submitted, asked = HANDSHAKE, LOCAL_SUBMISSION, NOTIFICATION

    def refuses(*reason: bytes) -> Item:
        return _plain(array(uint(2), array(*reason)))

    yield ServedAnswer("accepts a version that was not proposed", "client.version", shaken, _accepts(4_099))
    yield ServedAnswer("accepts on another network", "client.network", shaken, _accepts(offset=1))
    yield ServedAnswer("accepts with bytes behind", "client.strict", shaken, _accepts(behind=b"\x00"))
    yield ServedAnswer(
        "refuses every version", "client.refused", shaken, refuses(uint(0), array(uint(4_242)))
    )
    yield ServedAnswer(
        "refuses the network",
        "client.refused",
        shaken,
        refuses(uint(2), uint(LOCAL_VERSION), text("another network")),
    )
    yield ServedAnswer(
        "answers the handshake with an unknown word", "client.shape", shaken, _plain(b"\x81\x08")
    )
    yield ServedAnswer(
        "answers the handshake in bytes that are no CBOR", "client.shape", shaken, _plain(b"\x1c")
    )
    endless_item = _plain(array(uint(1), uint(LOCAL_VERSION), head(2, 1 << 40)))
    yield ServedAnswer("answers the handshake without end", "client.early", shaken, endless_item)
    yield ServedAnswer(
        "speaks before it was asked",
        "client.state",
        shaken,
        lambda magic, heard: (
            segments(HANDSHAKE | OTHER_SIDE, accepted(magic, heard))
            + segment(LOCAL_SUBMISSION | OTHER_SIDE, b"\x81\x01")
        ),
        is_raw=True,
    )
    yield ServedAnswer("never answers the handshake", "client.time-local", shaken, _plain(), within_s=10.0)
    yield ServedAnswer("accepts a message", "client.answered", submitted, _plain(b"\x81\x01"), goes_on=True)
    for reason, name in (
        ((uint(0), text("a wrong signature")), "invalid"),
        ((uint(1),), "already received"),
        ((uint(2),), "expired"),
        ((uint(3), text("busy")), "other"),
    ):
        yield ServedAnswer(
            f"rejects a message as {name}", "client.answered", submitted, refuses(*reason), goes_on=True
        )
    for name, rule, item in (
        ("rejects with an unknown reason", "client.shape", refuses(uint(9))),
        ("answers a submission with an unknown word", "client.shape", _plain(b"\x81\x07")),
        ("answers a submission in bytes that are no CBOR", "client.shape", _plain(b"\x1c")),
        ("answers a submission twice", "client.state", _plain(b"\x81\x01\x81\x01")),
        ("says Done in the program's place", "client.state", _plain(b"\x81\x03")),
        ("rejects with a text without end", "client.early", _plain(b"\x82\x02\x82\x00", head(3, 1 << 40))),
    ):
        yield ServedAnswer(name, rule, submitted, item)
    yield ServedAnswer("replies with a message", "client.told", asked, _told, goes_on=True)
    for name, rule, item in (
        ("replies in the kind that was not asked for", "client.state", _told_otherwise),
        ("replies twice", "client.state", _told_twice),
        ("replies with something that is no message", "client.shape", _told_malformed),
        ("replies with an unknown word", "client.shape", _plain(b"\x81\x07")),
        ("replies in bytes that are no CBOR", "client.shape", _plain(b"\x1c")),
        ("replies with a message without end", "client.early", _plain(b"\x83\x01\x9f\x85", head(2, 1 << 40))),
    ):
        yield ServedAnswer(name, rule, asked, item)


SERVED_ANSWERS = tuple(_rows())
