"""The members of a receipt's JSON object, both ways: the members that each kind has, and the values that each
may hold.

`read_usual` reads a receipt in the usual spelling in one go; any other spelling is read member by member.
Both readers agree: the fast one accepts only a receipt that has each member of its kind once, spelled
plainly, and nothing else. A repeated name would show as too many quotation marks, so these are counted
instead of looking at every name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec

from stagepost.remp.hex_text import HASH_DIGITS, SHARD_DIGITS, JsonFault, read_hash, read_shard
from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    SentToValidators,
    Timeout,
    kind_of,
)
from stagepost.remp.receipts.status import KINDS, Fields, Kind, Status, is_finally_accepted, kind_named
from stagepost.remp.shard import MASTERCHAIN, UNKNOWN_BLOCK, WHOLE_SHARD, BlockId

BLOCK_FIELDS = ("block_id", "block_file_hash", "block_seqno", "shard", "wc")
MASTER_FIELDS = ("mc_block_id", "mc_block_file_hash", "mc_block_seqno")
TIMESTAMP_MAX = (1 << 63) - 1

Members = Sequence[tuple[str, Any]]


class CommonFields(msgspec.Struct, frozen=True):
    """The members that every kind has, and all given members by name. `kind` is None for a word that is not a
    known kind.
    """

    kind: Kind | None
    kind_text: str
    message_id: bytes
    timestamp_ms: int
    source_id: bytes
    signature: str
    given: Mapping[str, Any]


def read_common(members: Members) -> CommonFields:
    """Read the five common fields, and refuse a name that is given twice; the kind decides about all other
    fields.
    """
    found = _by_name(members)
    kind_text = _string(found, "kind")
    return CommonFields(
        kind_named(kind_text),
        kind_text,
        _hash(found, "message_id"),
        _integer(found, "timestamp", 0, TIMESTAMP_MAX),
        _hash(found, "source_id"),
        _string(found, "signature"),
        found,
    )


def _by_name(members: Members) -> dict[str, Any]:
    found: dict[str, Any] = {}
    file_hashes = [value for name, value in members if name == "block_file_hash"]
    is_old_finalized = len(file_hashes) == 2 and _is_finalized_without_master_hash(members)
    for name, value in members:
        if name not in found:
            found[name] = value
        elif not (name == "block_file_hash" and is_old_finalized):
            raise JsonFault(f"{name} is given twice")
    if is_old_finalized:
        # An early form writes both under one name, the master block's first.
        found["mc_block_file_hash"], found["block_file_hash"] = file_hashes
    return found


def _is_finalized_without_master_hash(members: Members) -> bool:
    if any(name == "mc_block_file_hash" for name, _ in members):
        return False
    kinds = [value for name, value in members if name == "kind"]
    kind = kind_named(kinds[0]) if len(kinds) == 1 and isinstance(kinds[0], str) else None
    return kind is not None and is_finally_accepted(kind)


def read_status(kind: Kind, found: Mapping[str, Any]) -> MessageStatus:
    match kind.fields:
        case Fields.NOTHING:
            return New() if kind.status is Status.NEW else Timeout()
        case Fields.COUNTS:
            return SentToValidators(_int32(found, "sent_to"), _int32(found, "total_validators"))
        case Fields.ERROR:
            return Rejected(kind.level, _string(found, "error"))
        case Fields.ERROR_AND_NAMED_BLOCK:
            return Rejected(kind.level, _string(found, "error"), _block(found, is_required=False))
        case Fields.BLOCK:
            block_id = _block(found, is_required=True)
            return Duplicate(block_id) if kind.status is Status.DUPLICATE else Ignored(kind.level, block_id)
        case Fields.BLOCK_AND_NAMED_MASTER:
            return Accepted(
                kind.level, _block(found, is_required=True), _master_block(found, is_required=False)
            )
        case Fields.BLOCK_AND_MASTER:
            return Accepted(
                kind.level, _block(found, is_required=True), _master_block(found, is_required=True)
            )


def write(status: MessageStatus) -> dict[str, object]:
    kind = kind_of(status)
    match status:
        case SentToValidators(sent_to, total_validators):
            return {"sent_to": sent_to, "total_validators": total_validators}
        case Rejected(_, error, block_id):
            has_block = kind.fields is Fields.ERROR_AND_NAMED_BLOCK and block_id.is_named
            return {**(_write_block(block_id) if has_block else {}), "error": error}
        case Accepted(_, block_id, master_id):
            has_master = kind.fields is Fields.BLOCK_AND_MASTER or master_id.is_named
            return _write_block(block_id) | (_write_master(master_id) if has_master else {})
        case Ignored(_, block_id) | Duplicate(block_id):
            return _write_block(block_id)
        case _:
            return {}


def _write_block(block: BlockId) -> dict[str, object]:
    return {
        "block_id": block.root_hash.hex(),
        "block_file_hash": block.file_hash.hex(),
        "block_seqno": block.seqno,
        "shard": f"{block.shard:016x}",
        "wc": block.workchain,
    }


def _write_master(block: BlockId) -> dict[str, object]:
    return {
        "mc_block_id": block.root_hash.hex(),
        "mc_block_file_hash": block.file_hash.hex(),
        "mc_block_seqno": block.seqno,
    }


def _block(found: Mapping[str, Any], *, is_required: bool) -> BlockId:
    if not is_required and not any(name in found for name in BLOCK_FIELDS):
        return UNKNOWN_BLOCK
    return BlockId(
        _int32(found, "wc"),
        _shard(found),
        _integer(found, "block_seqno", 0, 0xFFFF_FFFF),
        _hash(found, "block_id"),
        _hash(found, "block_file_hash"),
    )


def _master_block(found: Mapping[str, Any], *, is_required: bool) -> BlockId:
    if not is_required and not any(name in found for name in MASTER_FIELDS):
        return UNKNOWN_BLOCK
    return BlockId(
        MASTERCHAIN,
        WHOLE_SHARD,
        _integer(found, "mc_block_seqno", 0, 0xFFFF_FFFF),
        _hash(found, "mc_block_id"),
        _hash(found, "mc_block_file_hash"),
    )


def _given(found: Mapping[str, Any], name: str) -> Any:
    if name not in found:
        raise JsonFault(f"{name} is missing")
    return found[name]


def _string(found: Mapping[str, Any], name: str) -> str:
    value = _given(found, name)
    if not isinstance(value, str):
        raise JsonFault(f"{name} is not a text")
    return value


def _integer(found: Mapping[str, Any], name: str, least: int, greatest: int) -> int:
    value = _given(found, name)
    if type(value) is not int:
        raise JsonFault(f"{name} is not an integer")
    if not least <= value <= greatest:
        raise JsonFault(f"{name} is {value}, expected {least} to {greatest}")
    return value


def _int32(found: Mapping[str, Any], name: str) -> int:
    return _integer(found, name, -(1 << 31), (1 << 31) - 1)


def _hash(found: Mapping[str, Any], name: str) -> bytes:
    value = read_hash(_given(found, name))
    if value is None:
        raise JsonFault(f"{name} is not {HASH_DIGITS} hexadecimal digits")
    return value


def _shard(found: Mapping[str, Any]) -> int:
    value = read_shard(_given(found, "shard"))
    if value is None:
        raise JsonFault(f"shard is not {SHARD_DIGITS} hexadecimal digits")
    return value


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
"""The content of a receipt: message id, status, time in Unix milliseconds, source id, signature."""


class _Shape(NamedTuple):
    """A kind with exactly these members: its number of quotation marks, and the function that makes its
    status.
    """

    quotes: int
    status: Callable[[Any], MessageStatus]


def read_usual(data: bytes) -> Usual | None:
    """Read a receipt in its usual spelling; None for one that has to be read, or refused with a reason,
    member by member.
    """
    try:
        given = decode_members(data)
        return (
            _receipt_shapes_hash(given.message_id),
            _SHAPES[type(given)].status(given),
            given.timestamp,
            _receipt_shapes_hash(given.source_id),
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


def _receipt_shapes_hash(digits: str) -> bytes:
    value = bytes.fromhex(digits)
    if 2 * len(value) != HASH_DIGITS:  # spaces between the digits
        raise ValueError
    return value


def _receipt_shapes_block(given: Any) -> BlockId:
    shard = bytes.fromhex(given.shard)
    if 2 * len(shard) != SHARD_DIGITS:
        raise ValueError
    return BlockId(
        given.wc,
        int.from_bytes(shard, "big"),
        given.block_seqno,
        _receipt_shapes_hash(given.block_id),
        _receipt_shapes_hash(given.block_file_hash),
    )


def _master(given: Any) -> BlockId:
    return BlockId(
        MASTERCHAIN,
        WHOLE_SHARD,
        given.mc_block_seqno,
        _receipt_shapes_hash(given.mc_block_id),
        _receipt_shapes_hash(given.mc_block_file_hash),
    )


def _member_groups(kind: Kind) -> tuple[tuple[tuple[str, Any], ...], Callable[[Any], MessageStatus]]:
    """Return the members that a kind usually has beside the common ones, and the function that makes its
    status of them.
    """
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
                return _BLOCK, lambda given: Duplicate(_receipt_shapes_block(given))
            return _BLOCK, lambda given: Ignored(level, _receipt_shapes_block(given))
        case Fields.BLOCK_AND_NAMED_MASTER:
            return _BLOCK, lambda given: Accepted(level, _receipt_shapes_block(given), UNKNOWN_BLOCK)
        case Fields.BLOCK_AND_MASTER:
            return (*_BLOCK, *_MASTER), lambda given: Accepted(
                level, _receipt_shapes_block(given), _master(given)
            )


def _quotes(members: tuple[tuple[str, Any], ...]) -> int:
    """Return the number of quotation marks: two for each name, two more where the value is a text; the kind
    is both.
    """
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
