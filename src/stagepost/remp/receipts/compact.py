"""Many receipts of one source in one packet: each block id stands in it once, and receipts point at it by
number.

Signatures cover the full receipt, never the compact one: the receiver of a packet rebuilds each receipt and
verifies that. Levels have numbers of their own here, in alphabetical order.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence

import msgspec

from stagepost.errors import LocalProtocolError, TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id
from stagepost.remp.receipts.message_status import (
    ERROR_TEXT_BYTES_MAX,
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    SentToValidators,
    Timeout,
)
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BLOCK_ID_BYTES, BlockId, read_block_id

BLOCK_IDS_MAX = 256
RECEIPTS_MAX = 1_024
RECEIPT_BYTES_MIN = 48
COUNT_MAX = 255

LEVEL_BYTES = {
    Level.COLLATOR: 1,
    Level.FULLNODE: 2,
    Level.MASTERCHAIN: 3,
    Level.QUEUE: 4,
    Level.SHARDCHAIN: 5,
}
_LEVEL_BY_BYTE = {byte: level for level, byte in LEVEL_BYTES.items()}

_TYPE = "= tonNode.RempMessageStatusCompact"
SENT_TO_VALIDATORS_ID = constructor_id(
    f"tonNode.rempSentToValidatorsCompact sent_to:byte total_validators:byte {_TYPE}"
)
NEW_ID = constructor_id(f"tonNode.rempNewCompact {_TYPE}")
REJECTED_ID = constructor_id(
    f"tonNode.rempRejectedCompact level:byte block_id_index:byte error:string {_TYPE}"
)
ACCEPTED_ID = constructor_id(
    f"tonNode.rempAcceptedCompact level:byte block_id_index:byte master_id_index:byte {_TYPE}"
)
IGNORED_ID = constructor_id(f"tonNode.rempIgnoredCompact level:byte block_id_index:byte {_TYPE}")
DUPLICATE_ID = constructor_id(f"tonNode.rempDuplicateCompact block_id_index:byte {_TYPE}")
TIMEOUT_ID = constructor_id(f"tonNode.rempTimeoutCompact {_TYPE}")

COMBINED_ID = constructor_id(
    "tonNode.rempCombinedReceipt source_id:int256 ids:(vector tonNode.blockIdExt) "
    "receipts:(vector tonNode.RempReceiptCompact) = tonNode.RempCombinedReceipt"
)
COMPACT_ID = constructor_id(
    "tonNode.rempReceiptCompact message_id:int256 receipt:tonNode.RempMessageStatusCompact timestamp:long "
    "= tonNode.RempReceiptCompact"
)
SIGNED_COMPACT_ID = constructor_id(
    "tonNode.rempSignedReceiptCompact message_id:int256 receipt:tonNode.RempMessageStatusCompact "
    "timestamp:long signature:int512 = tonNode.RempSignedReceiptCompact"
)


class CombinedReceipt(msgspec.Struct, frozen=True):
    """Receipts of one source. Each of them is signed, or not, by itself."""

    source_id: bytes
    receipts: tuple[Receipt, ...]

    def encode(self) -> bytes:
        blocks: dict[BlockId, int] = {}
        body = Writer()
        body.write_vector_count(len(self.receipts))
        for receipt in self.receipts:
            if receipt.source_id != self.source_id:
                raise LocalProtocolError("a combined receipt has one source, found a receipt of another")
            _write_receipt(body, receipt, blocks)
        if len(blocks) > BLOCK_IDS_MAX:
            raise LocalProtocolError(
                f"a combined receipt names at most {BLOCK_IDS_MAX} blocks", limit=BLOCK_IDS_MAX
            )
        writer = Writer()
        writer.write_constructor(COMBINED_ID)
        writer.write_int256(self.source_id)
        writer.write_vector_count(len(blocks))
        for block in blocks:
            block.write(writer)
        writer.write_raw(body.written())
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> CombinedReceipt:
        reader = Reader(data)
        reader.read_constructor(COMBINED_ID)
        source_id = reader.read_int256()
        count = reader.read_vector_count(BLOCK_IDS_MAX, BLOCK_ID_BYTES)
        blocks = [read_block_id(reader) for _ in range(count)]
        count = reader.read_vector_count(RECEIPTS_MAX, RECEIPT_BYTES_MIN)
        receipts = tuple(_read_receipt(reader, source_id, blocks) for _ in range(count))
        reader.expect_end()
        return cls(source_id, receipts)


def _write_receipt(writer: Writer, receipt: Receipt, blocks: dict[BlockId, int]) -> None:
    signature = receipt.signature if receipt.signature_text else None
    writer.write_constructor(COMPACT_ID if signature is None else SIGNED_COMPACT_ID)
    writer.write_int256(receipt.message_id)
    _write_status(writer, receipt.status, blocks)
    writer.write_long(receipt.timestamp_ms)
    if signature is not None:
        writer.write_int512(signature)


def _write_status(writer: Writer, status: MessageStatus, blocks: dict[BlockId, int]) -> None:
    def number(block: BlockId) -> int:
        return blocks.setdefault(block, len(blocks))

    match status:
        case SentToValidators(sent_to, total_validators):
            writer.write_constructor(SENT_TO_VALIDATORS_ID)
            writer.write_byte(min(sent_to, COUNT_MAX))
            writer.write_byte(min(total_validators, COUNT_MAX))
        case New():
            writer.write_constructor(NEW_ID)
        case Rejected(level, error, block_id):
            writer.write_constructor(REJECTED_ID)
            writer.write_byte(LEVEL_BYTES[level])
            writer.write_byte(number(block_id))
            writer.write_string(error)
        case Accepted(level, block_id, master_id):
            writer.write_constructor(ACCEPTED_ID)
            writer.write_byte(LEVEL_BYTES[level])
            writer.write_byte(number(block_id))
            writer.write_byte(number(master_id))
        case Ignored(level, block_id):
            writer.write_constructor(IGNORED_ID)
            writer.write_byte(LEVEL_BYTES[level])
            writer.write_byte(number(block_id))
        case Duplicate(block_id):
            writer.write_constructor(DUPLICATE_ID)
            writer.write_byte(number(block_id))
        case Timeout():
            writer.write_constructor(TIMEOUT_ID)


def _read_receipt(reader: Reader, source_id: bytes, blocks: Sequence[BlockId]) -> Receipt:
    identifier = reader.read_constructor(COMPACT_ID, SIGNED_COMPACT_ID)
    message_id = ExternalMessageId(reader.read_int256())
    status = _READERS[reader.read_constructor(*_READERS)](reader, blocks)
    timestamp_ms = reader.read_long()
    signature = "" if identifier == COMPACT_ID else b64encode(reader.read_int512()).decode("ascii")
    return Receipt(message_id, status, timestamp_ms, source_id, signature)


def _level(reader: Reader) -> Level:
    offset = reader.offset
    byte = reader.read_byte()
    level = _LEVEL_BY_BYTE.get(byte)
    if level is None:
        raise TlDecodeError(
            f"TL level at offset {offset} is {byte}; 1 to 5 are known", offset=offset, found=byte
        )
    return level


def _block(reader: Reader, blocks: Sequence[BlockId]) -> BlockId:
    offset = reader.offset
    index = reader.read_byte()
    if index >= len(blocks):
        raise TlDecodeError(
            f"block number {index} at offset {offset}; the packet names {len(blocks)}",
            offset=offset,
            found=index,
        )
    return blocks[index]


def _read_rejected(reader: Reader, blocks: Sequence[BlockId]) -> Rejected:
    level, block = _level(reader), _block(reader, blocks)
    return Rejected(level, reader.read_string(ERROR_TEXT_BYTES_MAX), block)


_READERS: dict[int, Callable[[Reader, Sequence[BlockId]], MessageStatus]] = {
    SENT_TO_VALIDATORS_ID: lambda reader, _: SentToValidators(reader.read_byte(), reader.read_byte()),
    NEW_ID: lambda reader, _: New(),
    REJECTED_ID: _read_rejected,
    ACCEPTED_ID: lambda reader, blocks: Accepted(
        _level(reader), _block(reader, blocks), _block(reader, blocks)
    ),
    IGNORED_ID: lambda reader, blocks: Ignored(_level(reader), _block(reader, blocks)),
    DUPLICATE_ID: lambda reader, blocks: Duplicate(_block(reader, blocks)),
    TIMEOUT_ID: lambda reader, _: Timeout(),
}
