"""The state of the masterchain after a block: the configuration, every shard's last block and session, the
transfers that are due; and the choice of the validators that work for a shard, which every node computes
alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from hashlib import sha256

import msgspec

from stagepost.chain.accounts import WORKCHAIN, Transfer
from stagepost.chain.configuration import SHARD_BITS_MAX, ChainValidator, Configuration
from stagepost.chain.execution import MasterView, are_crowded
from stagepost.chain.shard_state import PREVIOUS_MAX, Due, Source
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.sessions import Member, SessionFacts, session_id
from stagepost.remp.shard import MASTERCHAIN, WHOLE_SHARD, BlockId, read_block_id

_SUBSET_ID = constructor_id(
    "stagepost.chain.subset workchain:int shard:long catchain_seqno:int public_key:int256 = stagepost.chain.Subset"
)


def subset(
    configuration: Configuration, shard: Shard, catchain_seqno: int, *, of_next: bool = False
) -> tuple[ChainValidator, ...]:
    """Return the validators that work for `shard` under this catchain number, in the order of their indexes
    in the session. All weigh the same here, since all counting is by head. The masterchain's session is the
    whole set: proofs rest on its certificates, and with subsets a number could be sought under which liars hold
    most of them.
    """
    chosen = configuration.next if of_next else configuration.current
    assert chosen is not None, "there is a next set, or nobody asks for it"
    wanted = 0 if shard.workchain == MASTERCHAIN else configuration.shard_validators
    drawn = sorted(chosen.validators, key=lambda one: _lot(shard, catchain_seqno, one))
    return tuple(drawn[: wanted or len(drawn)])


def session_facts(
    network: bytes,
    configuration: Configuration,
    shard: Shard,
    catchain_seqno: int,
    last_key_block_seqno: int,
    members: tuple[ChainValidator, ...],
) -> SessionFacts:
    """Return the facts of a session. `network` is the hash of the genesis: sessions of different chains never
    share an id.
    """
    return SessionFacts(
        shard.workchain,
        shard.prefix,
        0,
        last_key_block_seqno,
        catchain_seqno,
        sha256(network + configuration.hash).digest(),
        tuple(Member(one.key_id, one.adnl, one.weight) for one in members),
    )


def _lot(shard: Shard, catchain_seqno: int, validator: ChainValidator) -> bytes:
    writer = Writer()
    writer.write_constructor(_SUBSET_ID)
    writer.write_int(shard.workchain)
    writer.write_unsigned_long(shard.prefix)
    writer.write_unsigned_int(catchain_seqno)
    writer.write_int256(validator.public_key)
    return sha256(writer.written()).digest()


MASTER_SHARD = Shard(MASTERCHAIN, WHOLE_SHARD)
SHARDS_MAX = 1 << SHARD_BITS_MAX
DUES_KEPT_MAX = 1_000_000

_STATE_ID = constructor_id(
    "stagepost.chain.masterState network:int256 seqno:int time:long configuration:bytes last_key_block_seqno:int "
    "session:stagepost.chain.session shards:(vector stagepost.chain.shardEntry) dues:(vector stagepost.chain.due) "
    "= stagepost.chain.State"
)
_ENTRY_BYTES_MIN = 96
_SOURCE_BYTES = 92
_DUE_BYTES_MIN = 8
_TRANSFER_BYTES = 40


class PlanKind(IntEnum):
    NONE = 0
    SPLIT = 1
    MERGE = 2


class SessionEntry(msgspec.Struct, frozen=True):
    """A session that is at work. `started_by` is the number of the master block that started it."""

    session_id: bytes
    catchain_seqno: int
    started_by: int
    from_ms: int
    ends_ms: int


class ShardEntry(msgspec.Struct, frozen=True):
    """`seqno` and `time_ms` are of the last block that was committed. A merge is planned in both children."""

    shard: Shard
    sources: tuple[Source, ...]
    seqno: int
    time_ms: int
    session: SessionEntry
    plan: PlanKind = PlanKind.NONE
    plan_at_ms: int = 0

    @property
    def tops(self) -> tuple[BlockId, ...]:
        """The blocks that the session's next block to be committed stands upon."""
        return tuple(dict.fromkeys(source.block_id for source in self.sources))


class MasterState(msgspec.Struct, frozen=True):
    """`block_id` is the block that this is the state after; the state's hash does not cover it, for the block
    holds that hash.
    """

    network: bytes
    block_id: BlockId
    seqno: int
    time_ms: int
    configuration: Configuration
    last_key_block_seqno: int
    session: SessionEntry
    shards: tuple[ShardEntry, ...]
    dues: tuple[Due, ...] = ()

    @property
    def hash(self) -> bytes:
        return sha256(self.encode()).digest()

    @property
    def catchain_seqno(self) -> int:
        return self.session.catchain_seqno

    @property
    def view(self) -> MasterView:
        return MasterView(
            self.block_id,
            self.catchain_seqno,
            self.time_ms,
            frozenset(entry.session.session_id for entry in self.shards),
            are_crowded(self.dues),
            self.dues,
        )

    def entry_of(self, shard: Shard) -> ShardEntry | None:
        return next((entry for entry in self.shards if entry.shard == shard), None)

    def entry_for(self, workchain: int, account: bytes) -> ShardEntry | None:
        """Return the entry of the shard that serves an account; None if there is none."""
        return next((entry for entry in self.shards if entry.shard.holds(workchain, account)), None)

    def facts(self, shard: Shard, catchain_seqno: int) -> SessionFacts:
        """Return the facts of a session that starts under the present configuration."""
        members = subset(self.configuration, shard, catchain_seqno)
        return session_facts(
            self.network, self.configuration, shard, catchain_seqno, self.last_key_block_seqno, members
        )

    def new_session(self, shard: Shard, catchain_seqno: int) -> SessionEntry:
        """Return a session started by this very block. It ends at the next multiple of its lifetime."""
        is_master = shard == MASTER_SHARD
        lifetime_ms = (
            self.configuration.master_lifetime_ms if is_master else self.configuration.shard_lifetime_ms
        )
        return SessionEntry(
            session_id(self.facts(shard, catchain_seqno)),
            catchain_seqno,
            self.seqno,
            self.time_ms,
            (self.time_ms // lifetime_ms + 1) * lifetime_ms,
        )

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(_STATE_ID)
        writer.write_int256(self.network)
        writer.write_unsigned_int(self.seqno)
        writer.write_long(self.time_ms)
        writer.write_bytes(self.configuration.encode())
        writer.write_unsigned_int(self.last_key_block_seqno)
        _write_session(writer, self.session)
        writer.write_vector_count(len(self.shards))
        for entry in self.shards:
            _write_entry(writer, entry)
        writer.write_vector_count(len(self.dues))
        for due in self.dues:
            writer.write_unsigned_int(due.master_seqno)
            writer.write_vector_count(len(due.transfers))
            for transfer in due.transfers:
                writer.write_int256(transfer.account)
                writer.write_long(transfer.amount)
        return writer.written()


def decode_master_state(data: bytes, block_id: BlockId) -> MasterState:
    """Decode a state without trusting it: the caller compares its hash with the one in the block."""
    reader = Reader(data)
    reader.read_constructor(_STATE_ID)
    network, seqno, time_ms = reader.read_int256(), reader.read_unsigned_int(), reader.read_long()
    configuration = Configuration.decode(reader.read_bytes(name="configuration"))
    last_key_block_seqno, session = reader.read_unsigned_int(), _read_session(reader)
    shards = tuple(_read_entry(reader) for _ in range(reader.read_vector_count(SHARDS_MAX, _ENTRY_BYTES_MIN)))
    dues: list[Due] = []
    for _ in range(reader.read_vector_count(DUES_KEPT_MAX, _DUE_BYTES_MIN)):
        master_seqno = reader.read_unsigned_int()
        count = reader.read_vector_count(DUES_KEPT_MAX, _TRANSFER_BYTES)
        transfers = tuple(Transfer(reader.read_int256(), reader.read_long()) for _ in range(count))
        dues.append(Due(master_seqno, transfers))
    reader.expect_end()
    return MasterState(
        network,
        block_id,
        seqno,
        time_ms,
        configuration,
        last_key_block_seqno,
        session,
        shards,
        tuple(dues),
    )


def still_due(dues: Iterable[Due], shards: Sequence[ShardEntry]) -> tuple[Due, ...]:
    """Return `dues` without the transfers that the shard of their account has credited in a committed block."""
    sources = sorted(
        (source for entry in shards for source in entry.sources), key=lambda source: _first(source.part)
    )
    starts = [_first(source.part) for source in sources]
    kept: list[Due] = []
    for due in dues:
        transfers = tuple(
            transfer
            for transfer in due.transfers
            if sources[bisect_right(starts, int.from_bytes(transfer.account[:8], "big")) - 1].credited_to
            < due.master_seqno
        )
        if transfers:
            kept.append(due if len(transfers) == len(due.transfers) else Due(due.master_seqno, transfers))
    return tuple(kept)


def in_order(shards: Iterable[ShardEntry]) -> tuple[ShardEntry, ...]:
    return tuple(sorted(shards, key=lambda entry: entry.shard.prefix))


def _first(shard: Shard) -> int:
    """Return the first account of a shard, by its first 64 bits."""
    return shard.prefix & (shard.prefix - 1)


def _write_session(writer: Writer, session: SessionEntry) -> None:
    writer.write_int256(session.session_id)
    writer.write_unsigned_int(session.catchain_seqno)
    writer.write_unsigned_int(session.started_by)
    writer.write_long(session.from_ms)
    writer.write_long(session.ends_ms)


def _read_session(reader: Reader) -> SessionEntry:
    return SessionEntry(
        reader.read_int256(),
        reader.read_unsigned_int(),
        reader.read_unsigned_int(),
        reader.read_long(),
        reader.read_long(),
    )


def _write_entry(writer: Writer, entry: ShardEntry) -> None:
    writer.write_unsigned_long(entry.shard.prefix)
    writer.write_vector_count(len(entry.sources))
    for source in entry.sources:
        writer.write_unsigned_long(source.part.prefix)
        source.block_id.write(writer)
        writer.write_unsigned_int(source.credited_to)
    writer.write_unsigned_int(entry.seqno)
    writer.write_long(entry.time_ms)
    _write_session(writer, entry.session)
    writer.write_unsigned_int(entry.plan)
    writer.write_long(entry.plan_at_ms)


def _read_entry(reader: Reader) -> ShardEntry:
    shard = Shard(WORKCHAIN, reader.read_unsigned_long())
    sources = tuple(
        Source(
            Shard(WORKCHAIN, reader.read_unsigned_long()), read_block_id(reader), reader.read_unsigned_int()
        )
        for _ in range(reader.read_vector_count(PREVIOUS_MAX, _SOURCE_BYTES))
    )
    seqno, time_ms, session = reader.read_unsigned_int(), reader.read_long(), _read_session(reader)
    plan, plan_at_ms = reader.read_unsigned_int(), reader.read_long()
    if plan > max(PlanKind):
        raise TlDecodeError(f"plan {plan} is not one of {[int(one) for one in PlanKind]}", found=plan)
    return ShardEntry(shard, sources, seqno, time_ms, session, PlanKind(plan), plan_at_ms)
