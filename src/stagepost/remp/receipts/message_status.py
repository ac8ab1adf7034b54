"""A status with its particulars, and its binary form: the part of a receipt that says what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from stagepost.errors import LocalProtocolError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id
from stagepost.remp.receipts.status import KIND_OF, Kind, Level, Status
from stagepost.remp.shard import UNKNOWN_BLOCK, BlockId, read_block_id

ERROR_TEXT_BYTES_MAX = 60_000


class SentToValidators(msgspec.Struct, frozen=True, gc=False):
    sent_to: int
    total_validators: int

    status = Status.SENT_TO_VALIDATORS
    level = Level.FULLNODE


class New(msgspec.Struct, frozen=True, gc=False):
    status = Status.NEW
    level = Level.QUEUE


class Rejected(msgspec.Struct, frozen=True, gc=False):
    level: Level
    error: str
    block_id: BlockId = UNKNOWN_BLOCK

    status = Status.REJECTED


class Accepted(msgspec.Struct, frozen=True, gc=False):
    level: Level
    block_id: BlockId = UNKNOWN_BLOCK
    master_id: BlockId = UNKNOWN_BLOCK

    status = Status.ACCEPTED


class Ignored(msgspec.Struct, frozen=True, gc=False):
    level: Level
    block_id: BlockId = UNKNOWN_BLOCK

    status = Status.IGNORED


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    block_id: BlockId = UNKNOWN_BLOCK

    status = Status.DUPLICATE
    level = Level.QUEUE


class Timeout(msgspec.Struct, frozen=True, gc=False):
    status = Status.TIMEOUT
    level = Level.QUEUE


MessageStatus: TypeAlias = SentToValidators | New | Rejected | Accepted | Ignored | Duplicate | Timeout


def kind_of(status: MessageStatus) -> Kind:
    return KIND_OF[status.status, status.level]


def block_of(status: MessageStatus) -> BlockId:
    return getattr(status, "block_id", UNKNOWN_BLOCK)


# Binary form

_LEVEL_TYPE = "= tonNode.RempMessageLevel"
LEVEL_IDS = {
    Level.FULLNODE: constructor_id(f"tonNode.rempFullnode {_LEVEL_TYPE}"),
    Level.QUEUE: constructor_id(f"tonNode.rempQueue {_LEVEL_TYPE}"),
    Level.COLLATOR: constructor_id(f"tonNode.rempCollator {_LEVEL_TYPE}"),
    Level.SHARDCHAIN: constructor_id(f"tonNode.rempShardchain {_LEVEL_TYPE}"),
    Level.MASTERCHAIN: constructor_id(f"tonNode.rempMasterchain {_LEVEL_TYPE}"),
}
_LEVEL_BY_ID = {identifier: level for level, identifier in LEVEL_IDS.items()}

_TYPE = "= tonNode.RempMessageStatus"
SENT_TO_VALIDATORS_ID = constructor_id(
    f"tonNode.rempSentToValidators sent_to:int total_validators:int {_TYPE}"
)
NEW_ID = constructor_id(f"tonNode.rempNew {_TYPE}")
REJECTED_ID = constructor_id(
    f"tonNode.rempRejected level:tonNode.RempMessageLevel block_id:tonNode.blockIdExt error:string {_TYPE}"
)
ACCEPTED_ID = constructor_id(
    "tonNode.rempAccepted level:tonNode.RempMessageLevel block_id:tonNode.blockIdExt "
    f"master_id:tonNode.blockIdExt {_TYPE}"
)
IGNORED_ID = constructor_id(
    f"tonNode.rempIgnored level:tonNode.RempMessageLevel block_id:tonNode.blockIdExt {_TYPE}"
)
DUPLICATE_ID = constructor_id(f"tonNode.rempDuplicate block_id:tonNode.blockIdExt {_TYPE}")
TIMEOUT_ID = constructor_id(f"tonNode.rempTimeout {_TYPE}")


def write_status(writer: Writer, status: MessageStatus) -> None:
    """Write the boxed form."""
    match status:
        case SentToValidators(sent_to, total_validators):
            writer.write_constructor(SENT_TO_VALIDATORS_ID)
            writer.write_int(sent_to)
            writer.write_int(total_validators)
        case New():
            writer.write_constructor(NEW_ID)
        case Rejected(level, error, block_id):
            writer.write_constructor(REJECTED_ID)
            writer.write_constructor(LEVEL_IDS[level])
            block_id.write(writer)
            writer.write_string(error)
        case Accepted(level, block_id, master_id):
            writer.write_constructor(ACCEPTED_ID)
            writer.write_constructor(LEVEL_IDS[level])
            block_id.write(writer)
            master_id.write(writer)
        case Ignored(level, block_id):
            writer.write_constructor(IGNORED_ID)
            writer.write_constructor(LEVEL_IDS[level])
            block_id.write(writer)
        case Duplicate(block_id):
            writer.write_constructor(DUPLICATE_ID)
            block_id.write(writer)
        case Timeout():
            writer.write_constructor(TIMEOUT_ID)
        case _:
            raise LocalProtocolError(f"{type(status).__name__} is not a status of a message")


def read_status(reader: Reader) -> MessageStatus:
    """Read the boxed form."""
    return _READERS[reader.read_constructor(*_READERS)](reader)


def _read_level(reader: Reader) -> Level:
    return _LEVEL_BY_ID[reader.read_constructor(*_LEVEL_BY_ID)]


def _read_rejected(reader: Reader) -> Rejected:
    level, block_id = _read_level(reader), read_block_id(reader)
    return Rejected(level, reader.read_string(ERROR_TEXT_BYTES_MAX), block_id)


_READERS: dict[int, Callable[[Reader], MessageStatus]] = {
    SENT_TO_VALIDATORS_ID: lambda reader: SentToValidators(reader.read_int(), reader.read_int()),
    NEW_ID: lambda reader: New(),
    REJECTED_ID: _read_rejected,
    ACCEPTED_ID: lambda reader: Accepted(_read_level(reader), read_block_id(reader), read_block_id(reader)),
    IGNORED_ID: lambda reader: Ignored(_read_level(reader), read_block_id(reader)),
    DUPLICATE_ID: lambda reader: Duplicate(read_block_id(reader)),
    TIMEOUT_ID: lambda reader: Timeout(),
}
