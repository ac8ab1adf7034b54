"""A block of the masterchain: the shard blocks that it commits, its plans, and the hash of the state after
it.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from stagepost.chain.accounts import WORKCHAIN
from stagepost.chain.configuration import BLOCK_BYTES_MAX
from stagepost.chain.master_state import SHARDS_MAX, PlanKind
from stagepost.chain.rotation import Plan
from stagepost.errors import ErrorCode, TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id
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
_ROOT_ID = constructor_id(
    f"stagepost.chain.masterRoot {_FIELDS} content_hash:int256 state_hash:int256 = stagepost.chain.Root"
)
_PLAN_BYTES = 20
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
        self._write_fields(writer)
        self._write_content(writer)
        writer.write_int256(self.state_hash)
        return writer.written()

    def block_id(self, file: bytes) -> BlockId:
        """Return the block's id. `file` is its encoding, as it came."""
        content = Writer()
        self._write_content(content)
        writer = Writer()
        writer.write_constructor(_ROOT_ID)
        self._write_fields(writer)
        writer.write_int256(sha256(content.written()).digest())
        writer.write_int256(self.state_hash)
        root = sha256(writer.written()).digest()
        return BlockId(MASTERCHAIN, WHOLE_SHARD, self.seqno, root, sha256(file).digest())

    def _write_fields(self, writer: Writer) -> None:
        writer.write_int256(self.session_id)
        writer.write_unsigned_int(self.seqno)
        self.previous.write(writer)
        writer.write_long(self.time_ms)

    def _write_content(self, writer: Writer) -> None:
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
