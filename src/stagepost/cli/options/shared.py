"""Bytes that a person hands to a command: a file or standard input, raw or written as hex."""

from __future__ import annotations

import sys
from pathlib import Path

from stagepost.errors import ConfigError, DecodeError, ErrorCode, StorageError
from stagepost.ground.files.local_paths import require_local_path

INPUT_BYTES_MAX = 64 * 1024 * 1024
_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")
_BLANKS = b" \t\r\n"


def read_input(source: str, bytes_max: int = INPUT_BYTES_MAX) -> bytes:
    """All of a file, or of standard input for `-`; no more than `bytes_max`."""
    require_local_path(source)
    try:
        if source == "-":
            content = sys.stdin.buffer.read(bytes_max + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(bytes_max + 1)
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise StorageError(
            f"could not read {source}: {reason}", advice="check the path and its permissions"
        ) from error
    if len(content) > bytes_max:
        text = f"{source} has more than {bytes_max} bytes"
        raise ConfigError(text, advice="give a smaller piece", limit=bytes_max)
    return content


def looks_like_hex(content: bytes) -> bool:
    """Text made of hex digits only. CBOR and segments hold bytes that no such text has."""
    digits = content.translate(None, _BLANKS)
    return bool(digits) and _HEX_DIGITS.issuperset(digits)


def from_hex(content: bytes, source: str) -> bytes:
    digits = content.translate(None, _BLANKS)
    stray = next((at for at, byte in enumerate(digits) if byte not in _HEX_DIGITS), None)
    if stray is not None:
        text = f"{source} is no hex: digit {stray} is {chr(digits[stray])!r}"
        raise ConfigError(text, advice="give hex digits, or the raw bytes", offset=stray)
    if len(digits) % 2:
        text = f"the hex in {source} ends in the middle of a byte: {len(digits)} digits"
        raise DecodeError(
            text, code=ErrorCode.CBOR_TRUNCATED, advice="copy it again, whole", offset=len(digits) // 2
        )
    return bytes.fromhex(digits.decode("ascii"))


def read_bytes(source: str) -> bytes:
    """The bytes meant by `source`, whichever way they are written."""
    content = read_input(source)
    return from_hex(content, source) if looks_like_hex(content) else content
