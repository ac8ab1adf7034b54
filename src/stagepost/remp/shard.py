"""A part of a workchain, to which sessions are bound, and the full id of a shard or master block, as receipts
name it.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from stagepost.ground.wire.tl import ZERO_INT256, Reader, Writer


class Shard(msgspec.Struct, frozen=True):
    """A part of a workchain: all accounts that begin with the bits above the lowest one that is set."""

    workchain: int
    prefix: int

    @property
    def bits(self) -> int:
        """Number of splits of the workchain that led to this shard."""
        return 63 - ((self.prefix & -self.prefix).bit_length() - 1)

    def holds(self, workchain: int, account: bytes) -> bool:
        if workchain != self.workchain:
            return False
        below = ((self.prefix & -self.prefix) << 1) - 1
        beginning = int.from_bytes(account[:8], "big")
        return (beginning ^ self.prefix) | below == below

    @property
    def children(self) -> tuple[Shard, Shard]:
        lowest = self.prefix & -self.prefix
        half = lowest >> 1
        return Shard(self.workchain, self.prefix - half), Shard(self.workchain, self.prefix + half)

    @property
    def parent(self) -> Shard:
        lowest = self.prefix & -self.prefix
        return Shard(self.workchain, (self.prefix & ~lowest) | (lowest << 1) & ((1 << 64) - 1))


BLOCK_ID_BYTES = 80
MASTERCHAIN = -1
WHOLE_SHARD = 0x8000_0000_0000_0000
"""The tagged prefix of a workchain that is not split."""


BLOCKS_REMEMBERED = 1_024
"""Block ids, at most, whose bytes are kept: each receipt of each message of a block contains them."""


class BlockId(msgspec.Struct, frozen=True, cache_hash=True):
    """`shard` is the tagged prefix, unsigned. Seqno 0 means that no block is named."""

    workchain: int = 0
    shard: int = WHOLE_SHARD
    seqno: int = 0
    root_hash: bytes = ZERO_INT256
    file_hash: bytes = ZERO_INT256

    @property
    def is_named(self) -> bool:
        return self.seqno != 0

    def write(self, writer: Writer) -> None:
        """Write the bare form."""
        writer.write_raw(_bytes_of(self))


@lru_cache(BLOCKS_REMEMBERED)
def _bytes_of(block_id: BlockId) -> bytes:
    writer = Writer()
    writer.write_int(block_id.workchain)
    writer.write_unsigned_long(block_id.shard)
    writer.write_unsigned_int(block_id.seqno)
    writer.write_int256(block_id.root_hash)
    writer.write_int256(block_id.file_hash)
    return writer.written()


UNKNOWN_BLOCK = BlockId()
"""Stands where a receipt has no block; signatures cover it as it is here."""


def read_block_id(reader: Reader) -> BlockId:
    return BlockId(
        reader.read_int(),
        reader.read_unsigned_long(),
        reader.read_unsigned_int(),
        reader.read_int256(),
        reader.read_int256(),
    )
