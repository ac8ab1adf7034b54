"""Receipts as they are written nearly always, read in one go; whatever is written otherwise is read member by member.

Both ways agree: this one says yes only to what has each member of its kind once, spelled plainly, and nothing else. A
repeated name would show as quotation marks too many, so they are counted instead of looking at every name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from stagepost.remp.block_id import MASTERCHAIN, UNKNOWN_BLOCK, WHOLE_SHARD, BlockId
from stagepost.remp.hex_text import HASH_DIGITS, SHARD_DIGITS
from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    SentToValidators,
    Timeout,
)
from stagepost.remp.receipts.status import KINDS, Fields, Kind, Status

_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
_Uint32 = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
_Time = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Hash = Annotated[str, msgspec.Meta(min_length=HASH_DIGITS, max_length=HASH_DIGITS)]
_Shard = Annotated[str, msgspec.Meta(min_length=SHARD_DIGITS, max_length=SHARD_DIGITS)]

_COMMON: tuple[tuple[str, Any], ...] = (
    ("message_id", _Hash),
    ("timestamp", _Time),
    ("source_id", _Hash),
    ("signature", str),
)
_BLOCK: tuple[tuple[str, Any], ...] = (
    ("block_id", _Hash),
    ("block_file_hash", _Hash),
    ("block_seqno", _Uint32),
    ("shard", _Shard),
    ("wc", _Int32),
)
_MASTER: tuple[tuple[str, Any], ...] = (
    ("mc_block_id", _Hash),
    ("mc_block_file_hash", _Hash),
    ("mc_block_seqno", _Uint32),
)
_ERROR: tuple[tuple[str, Any], ...] = (("error", str),)
_COUNTS: tuple[tuple[str, Any], ...] = (("sent_to", _Int32), ("total_validators", _Int32))


Usual: TypeAlias = tuple[bytes, MessageStatus, int, bytes, str]
"""What a receipt says: message id, status, time, source id, signature."""


class _Shape(NamedTuple):
    """One kind with exactly these members: how many quotation marks it has, and how its status is made of it."""

    quotes: int
    status: Callable[[Any], MessageStatus]


def read_usual(data: bytes) -> Usual | None:
    """None for what has to be read, or refused with its reason, by the long way."""
    try:
        given = decode_members(data)
        return (
            _hash(given.message_id),
            _SHAPES[type(given)].status(given),
            given.timestamp,
            _hash(given.source_id),
            given.signature,
        )
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def decode_members(data: bytes) -> Any:
    """The members of a receipt in its usual shape, each of its type and in its range; `ValueError` for other shapes."""
    given = _DECODER.decode(data)
    # A quotation mark more than needed begins a repeated name, or stands in a text behind a backslash.
    if data.count(b'"') != _SHAPES[type(given)].quotes:
        raise ValueError
    return given


def _hash(digits: str) -> bytes:
    value = bytes.fromhex(digits)
    if 2 * len(value) != HASH_DIGITS:  # spaces between the digits
        raise ValueError
    return value


def _block(given: Any) -> BlockId:
    shard = bytes.fromhex(given.shard)
    if 2 * len(shard) != SHARD_DIGITS:
        raise ValueError
    return BlockId(
        given.wc,
        int.from_bytes(shard, "big"),
        given.block_seqno,
        _hash(given.block_id),
        _hash(given.block_file_hash),
    )


def _master(given: Any) -> BlockId:
    return BlockId(
        MASTERCHAIN,
        WHOLE_SHARD,
        given.mc_block_seqno,
        _hash(given.mc_block_id),
        _hash(given.mc_block_file_hash),
    )


def _member_groups(kind: Kind) -> tuple[tuple[tuple[str, Any], ...], Callable[[Any], MessageStatus]]:
    """What a kind has beside the common members when nothing is left out that it usually has."""
    level = kind.level
    match kind.fields:
        case Fields.NOTHING:
            nothing: MessageStatus = New() if kind.status is Status.NEW else Timeout()
            return (), lambda given: nothing
        case Fields.COUNTS:
            return _COUNTS, lambda given: SentToValidators(given.sent_to, given.total_validators)
        case Fields.ERROR | Fields.ERROR_AND_NAMED_BLOCK:
            return _ERROR, lambda given: Rejected(level, given.error, UNKNOWN_BLOCK)
        case Fields.BLOCK:
            if kind.status is Status.DUPLICATE:
                return _BLOCK, lambda given: Duplicate(_block(given))
            return _BLOCK, lambda given: Ignored(level, _block(given))
        case Fields.BLOCK_AND_NAMED_MASTER:
            return _BLOCK, lambda given: Accepted(level, _block(given), UNKNOWN_BLOCK)
        case Fields.BLOCK_AND_MASTER:
            return (*_BLOCK, *_MASTER), lambda given: Accepted(level, _block(given), _master(given))


def _quotes(members: tuple[tuple[str, Any], ...]) -> int:
    """Two for each name, two more where the value is a text; the kind is both."""
    texts = (str, _Hash, _Shard)
    return 4 + sum(4 if value in texts else 2 for _, value in members)


def _make_shapes() -> dict[type[Any], _Shape]:
    shapes: dict[type[Any], _Shape] = {}
    for kind in KINDS:
        members, status_of = _member_groups(kind)
        members = (*_COMMON, *members)
        shape = msgspec.defstruct(
            kind.name, members, tag_field="kind", tag=kind.name, forbid_unknown_fields=True, gc=False
        )
        shapes[shape] = _Shape(_quotes(members), status_of)
    return shapes


_SHAPES = _make_shapes()
_any_shape: Any = None
for _shape in _SHAPES:
    _any_shape = _shape if _any_shape is None else _any_shape | _shape
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_any_shape)
