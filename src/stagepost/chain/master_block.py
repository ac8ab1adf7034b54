"""A block of the masterchain: the shard blocks that it commits, its plans, and the hash of the state after
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec

from stagepost.chain.accounts import WORKCHAIN
from stagepost.chain.configuration import BLOCK_BYTES_MAX
from stagepost.chain.hash_tree import HashTree, tree_of
from stagepost.chain.master_state import SHARDS_MAX, PlanKind
from stagepost.chain.rotation import Plan
from stagepost.chain.shard_block import SHARD_BLOCK_ID, shard_root
from stagepost.errors import DecodeError, ErrorCode, TlDecodeError
from stagepost.ground.wire.tl import (
    CONSTRUCTOR_BYTES,
    ZERO_INT256,
    Reader,
    Writer,
    constructor_bytes,
    constructor_id,
)
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import BLOCK_ID_BYTES, MASTERCHAIN, WHOLE_SHARD, BlockId, read_block_id

COMMIT_BLOCKS_MAX = 64
"""Blocks of one shard in one master block, at most; the others wait for the next."""

COMMITTED_MAX = 1_024
"""Blocks of all shards in one master block, at most."""

PLANS_MAX = 64
CONFIGURATION_BYTES_MAX = 160 * 1024

_FIELDS = "session:int256 seqno:int previous:tonNode.blockIdExt time:long"
MASTER_BLOCK_ID = constructor_id(
    f"stagepost.chain.masterBlock {_FIELDS} commits:(vector stagepost.chain.commit) "
    "plans:(vector stagepost.chain.plan) configuration:bytes state_hash:int256 = stagepost.chain.Block"
)
MASTER_ROOT_ID = constructor_id(
    f"stagepost.chain.masterRoot {_FIELDS} last_hash:int256 commits_hash:int256 plans_hash:int256 "
    "configuration_hash:int256 state_hash:int256 = stagepost.chain.Root"
)
_PLAN_BYTES = 20
_FIELDS_BYTES = 32 + 4 + BLOCK_ID_BYTES + 8
_SHARD_BLOCK = constructor_bytes(SHARD_BLOCK_ID)
_COMMIT_BYTES_MIN = 4 + BLOCK_ID_BYTES


class MasterBlock(msgspec.Struct, frozen=True):
    """`commits`: for each shard with new blocks, these in order. `configuration`: a new one, encoded, or nothing."""

    session_id: bytes
    seqno: int
    previous: BlockId
    time_ms: int
    commits: tuple[tuple[BlockId, ...], ...]
    plans: tuple[Plan, ...]
    configuration: bytes
    state_hash: bytes

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(MASTER_BLOCK_ID)
        writer.write_int256(self.session_id)
        writer.write_unsigned_int(self.seqno)
        self.previous.write(writer)
        writer.write_long(self.time_ms)
        writer.write_vector_count(len(self.commits))
        for commit in self.commits:
            writer.write_vector_count(len(commit))
            for block_id in commit:
                block_id.write(writer)
        writer.write_vector_count(len(self.plans))
        for plan in self.plans:
            writer.write_unsigned_int(plan.kind)
            writer.write_unsigned_long(plan.shard.prefix)
            writer.write_long(plan.at_ms)
        writer.write_bytes(self.configuration)
        writer.write_int256(self.state_hash)
        return writer.written()

    def block_id(self, file: bytes) -> BlockId:
        """Return the block's id. `file` is its encoding, as it came."""
        root = sha256(master_root(file)).digest()
        return BlockId(MASTERCHAIN, WHOLE_SHARD, self.seqno, root, sha256(file).digest())


def root_hash(payload: bytes) -> bytes:
    """Return the root hash of the shard or master block in `payload`; zero if it is not a block."""
    try:
        return sha256((shard_root if payload[:4] == _SHARD_BLOCK else master_root)(payload)).digest()
    except DecodeError:
        return ZERO_INT256


def master_root(file: bytes) -> bytes:
    """Return the boxed root of a block: commits, plans and configuration as a hash each, so that a proof
    can show one of them. `DecodeError` unless `file` has the form of a master block.
    """
    reader = Reader(file)
    reader.read_constructor(MASTER_BLOCK_ID)
    reader.read_raw(_FIELDS_BYTES, "place of the block")
    fields, start = file[CONSTRUCTOR_BYTES : reader.offset], reader.offset
    count = reader.read_vector_count(SHARDS_MAX, _COMMIT_BYTES_MIN)
    last = [_read_commit(reader)[-1] for _ in range(count)]
    commits, start = file[start : reader.offset], reader.offset
    reader.read_raw(_PLAN_BYTES * reader.read_vector_count(PLANS_MAX, _PLAN_BYTES), "plans")
    plans = file[start : reader.offset]
    configuration = reader.read_bytes(CONFIGURATION_BYTES_MAX, "configuration")
    state_hash = reader.read_int256()
    reader.expect_end()
    hashes = (sha256(part).digest() for part in (commits, plans, configuration))
    return b"".join((constructor_bytes(MASTER_ROOT_ID), fields, last_blocks(last).hash, *hashes, state_hash))


def last_blocks(last: Iterable[BlockId]) -> HashTree[bytes]:
    """Return the tree of the last block of each commit, from its root hash to its file hash."""
    return tree_of(_itself, ((block_id.root_hash, block_id.file_hash) for block_id in last))


def _itself(value: bytes) -> bytes:
    return value


def decode_master_block(data: bytes) -> MasterBlock:
    if len(data) > BLOCK_BYTES_MAX:
        raise TlDecodeError(
            f"the block has {len(data)} bytes; at most {BLOCK_BYTES_MAX} are accepted",
            code=ErrorCode.TL_LIMIT,
            limit=BLOCK_BYTES_MAX,
            found=len(data),
        )
    reader = Reader(data)
    reader.read_constructor(MASTER_BLOCK_ID)
    session, seqno = reader.read_int256(), reader.read_unsigned_int()
    previous, time_ms = read_block_id(reader), reader.read_long()
    count = reader.read_vector_count(SHARDS_MAX, _COMMIT_BYTES_MIN)
    commits = tuple(_read_commit(reader) for _ in range(count))
    if sum(map(len, commits)) > COMMITTED_MAX:
        raise TlDecodeError(
            f"the master block commits {sum(map(len, commits))} blocks; at most {COMMITTED_MAX} are accepted",
            code=ErrorCode.TL_LIMIT,
            limit=COMMITTED_MAX,
            found=sum(map(len, commits)),
        )
    plans = tuple(_read_plan(reader) for _ in range(reader.read_vector_count(PLANS_MAX, _PLAN_BYTES)))
    configuration = reader.read_bytes(CONFIGURATION_BYTES_MAX, "configuration")
    state_hash = reader.read_int256()
    reader.expect_end()
    return MasterBlock(session, seqno, previous, time_ms, commits, plans, configuration, state_hash)


def _read_commit(reader: Reader) -> tuple[BlockId, ...]:
    count = reader.read_vector_count(COMMIT_BLOCKS_MAX, BLOCK_ID_BYTES)
    if not count:
        raise TlDecodeError(f"the commit before offset {reader.offset} holds no block", offset=reader.offset)
    return tuple(read_block_id(reader) for _ in range(count))


def _read_plan(reader: Reader) -> Plan:
    kind, prefix, at_ms = reader.read_unsigned_int(), reader.read_unsigned_long(), reader.read_long()
    if kind not in (PlanKind.SPLIT, PlanKind.MERGE):
        raise TlDecodeError(
            f"the plan before offset {reader.offset} is of kind {kind}, neither split nor merge"
        )
    return Plan(PlanKind(kind), Shard(WORKCHAIN, prefix), at_ms)
