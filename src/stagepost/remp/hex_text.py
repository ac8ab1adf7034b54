"""Texts of hashes and shards as files, receipts and headers write them, and a strict reader of one JSON
object.

`read_object` refuses whatever two readers could understand differently. It keeps every value that a name was
given, so that a caller can see a repeated name.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from stagepost.ground.wire.foreign_json import TOO_DEEP, is_too_deep

HASH_DIGITS = 64
SHARD_DIGITS = 16

_HASH = re.compile(rf"[0-9a-fA-F]{{{HASH_DIGITS}}}", re.ASCII)
_SHARD = re.compile(rf"[0-9a-fA-F]{{{SHARD_DIGITS}}}", re.ASCII)


def read_hash(value: object) -> bytes | None:
    """Return the 32 bytes of 64 hexadecimal digits, in either case; None for anything else."""
    if isinstance(value, str) and _HASH.fullmatch(value) is not None:
        return bytes.fromhex(value)
    return None


def read_shard(value: object) -> int | None:
    """Return the tagged prefix of 16 hexadecimal digits; None for anything else."""
    if isinstance(value, str) and _SHARD.fullmatch(value) is not None:
        return int(value, 16)
    return None


class JsonFault(ValueError):
    """The text says what is wrong with the JSON."""


class _Pairs(list[tuple[str, Any]]):
    """An object below the top, or the top itself: its members in order."""


def read_object(data: bytes | str) -> list[tuple[str, Any]]:
    """Return the members of the one JSON object in `data`, in order; `JsonFault` for anything else."""
    text = _text(data)
    if is_too_deep(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")):
        raise JsonFault(TOO_DEEP)
    try:
        found = json.loads(text, object_pairs_hook=_Pairs, parse_constant=_refuse_constant)
    except JsonFault:
        raise
    except ValueError as error:
        raise JsonFault(f"not one JSON value: {error}") from None
    if not isinstance(found, _Pairs):
        raise JsonFault("not a JSON object")
    _refuse_surrogates(found)
    return found


def _text(data: bytes | str) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonFault(f"not UTF-8 at byte {error.start}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise JsonFault(f"{name} is not a JSON number")


def _refuse_surrogates(value: Any) -> None:
    """Refuse half of a surrogate pair: it cannot be written as UTF-8, so nobody could repeat what was signed."""
    pending = [value]
    while pending:
        match pending.pop():
            case str() as text if not text.isascii():
                try:
                    text.encode("utf-8")
                except UnicodeEncodeError:
                    raise JsonFault("a lone surrogate in a text") from None
            case list() as items:
                pending += items
            case tuple() as pair:
                pending += pair
