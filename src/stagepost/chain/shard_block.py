"""A block of a shard: the blocks that it stands upon, its external messages whole, and the hash of the state
after it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Protocol

import msgspec

from stagepost.chain.configuration import BLOCK_BYTES_MAX, BLOCK_MESSAGES_MAX, Ordering
from stagepost.chain.shard_state import PREVIOUS_MAX
from stagepost.errors import DecodeError, ErrorCode, TlDecodeError
from stagepost.ground.wire.tl import CONSTRUCTOR_BYTES, Reader, Writer, constructor_bytes, constructor_id
from stagepost.remp.message import MESSAGE_BYTES_MAX
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import BLOCK_ID_BYTES, BlockId, read_block_id

_FIELDS = (
    "session:int256 workchain:int shard:long seqno:int previous:(vector tonNode.blockIdExt) "
    "master:tonNode.blockIdExt time:long ordering:int"
)
SHARD_BLOCK_ID = constructor_id(
    f"stagepost.chain.shardBlock {_FIELDS} messages:(vector bytes) state_hash:int256 = stagepost.chain.Block"
)
SHARD_ROOT_ID = constructor_id(
    f"stagepost.chain.shardRoot {_FIELDS} messages_hash:int256 state_hash:int256 = stagepost.chain.Root"
)
_PLACE_BYTES = 32 + 4 + 8 + 4
_MOMENT_BYTES = BLOCK_ID_BYTES + 8 + 4


class ShardHead(Protocol):
    """Fields that a shard block and its root begin with."""

    @property
    def session_id(self) -> bytes: ...
    @property
    def shard(self) -> Shard: ...
    @property
    def seqno(self) -> int: ...
    @property
    def previous(self) -> tuple[BlockId, ...]: ...
    @property
    def master(self) -> BlockId: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def ordering(self) -> int: ...


def write_head(writer: Writer, head: ShardHead) -> None:
    writer.write_int256(head.session_id)
    writer.write_int(head.shard.workchain)
    writer.write_unsigned_long(head.shard.prefix)
    writer.write_unsigned_int(head.seqno)
    writer.write_vector_count(len(head.previous))
    for block_id in head.previous:
        block_id.write(writer)
    head.master.write(writer)
    writer.write_long(head.time_ms)
    writer.write_unsigned_int(head.ordering)


class ShardBlock(msgspec.Struct, frozen=True):
    """`master` is the master block in whose view it was made."""

    session_id: bytes
    shard: Shard
    seqno: int
    previous: tuple[BlockId, ...]
    master: BlockId
    time_ms: int
    ordering: Ordering
    messages: tuple[bytes, ...]
    state_hash: bytes

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(SHARD_BLOCK_ID)
        write_head(writer, self)
        writer.write_vector_count(len(self.messages))
        for message in self.messages:
            writer.write_bytes(message)
        writer.write_int256(self.state_hash)
        return writer.written()

    def block_id(self, file: bytes) -> BlockId:
        """Return the block's id. `file` is its encoding, as it came."""
        root = sha256(shard_root(file)).digest()
        return BlockId(self.shard.workchain, self.shard.prefix, self.seqno, root, sha256(file).digest())


def shard_root(file: bytes) -> bytes:
    """Return the boxed root of a block, which holds each message as a hash: proofs can leave the messages
    out. `DecodeError` unless `file` has the form of a shard block.
    """
    reader = Reader(file)
    reader.read_constructor(SHARD_BLOCK_ID)
    reader.read_raw(_PLACE_BYTES, "place of the block")
    reader.read_raw(BLOCK_ID_BYTES * reader.read_vector_count(PREVIOUS_MAX, BLOCK_ID_BYTES), "previous")
    reader.read_raw(_MOMENT_BYTES, "master block, time and ordering")
    fields = file[CONSTRUCTOR_BYTES : reader.offset]
    hashes = sha256()
    for _ in range(reader.read_vector_count(BLOCK_MESSAGES_MAX, 4)):
        hashes.update(sha256(reader.read_bytes(MESSAGE_BYTES_MAX, "message")).digest())
    state_hash = reader.read_int256()
    reader.expect_end()
    return constructor_bytes(SHARD_ROOT_ID) + fields + hashes.digest() + state_hash


def decode_shard_block(data: bytes) -> ShardBlock:
    if len(data) > BLOCK_BYTES_MAX:
        raise TlDecodeError(
            f"the block has {len(data)} bytes; at most {BLOCK_BYTES_MAX} are accepted",
            code=ErrorCode.TL_LIMIT,
            limit=BLOCK_BYTES_MAX,
            found=len(data),
        )
    reader = Reader(data)
    reader.read_constructor(SHARD_BLOCK_ID)
    session, workchain, shard = reader.read_int256(), reader.read_int(), reader.read_unsigned_long()
    seqno = reader.read_unsigned_int()
    count = reader.read_vector_count(PREVIOUS_MAX, BLOCK_ID_BYTES)
    previous = tuple(read_block_id(reader) for _ in range(count))
    master, time_ms, ordering = read_block_id(reader), reader.read_long(), reader.read_unsigned_int()
    count = reader.read_vector_count(BLOCK_MESSAGES_MAX, 4)
    messages = tuple(reader.read_bytes(MESSAGE_BYTES_MAX, "message") for _ in range(count))
    state_hash = reader.read_int256()
    reader.expect_end()
    if ordering > max(Ordering):
        raise TlDecodeError(
            f"ordering {ordering} is not one of {[int(one) for one in Ordering]}", found=ordering
        )
    return ShardBlock(
        session,
        Shard(workchain, shard),
        seqno,
        previous,
        master,
        time_ms,
        Ordering(ordering),
        messages,
        state_hash,
    )


def id_of(payload: bytes) -> BlockId | None:
    """Return the id of the block in `payload`; None if it is not a shard block."""
    try:
        return decode_shard_block(payload).block_id(payload)
    except DecodeError:
        return None
