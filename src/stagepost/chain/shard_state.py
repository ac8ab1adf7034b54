"""The state of a shard after a block: a value, with one hash for all of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

import msgspec

from stagepost.chain.accounts import (
    EMPTY_ACCOUNT,
    SUPPLY_MAX,
    WORKCHAIN,
    Account,
    Inclusion,
    Transfer,
    account_hash,
    inclusion_hash,
    part_of,
)
from stagepost.chain.hash_tree import HashTree, tree_of
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id
from stagepost.remp.queue.session_switch import CATCHAINS_OF_LIFE, Shard
from stagepost.remp.shard import BlockId

ACCOUNTS_MAX = 10_000_000
RECENT_MAX = 10_000_000
MEMORY_BYTES_MAX = 1_024
PREVIOUS_MAX = 16
"""Blocks, at most, that one block may stand upon: a single one, or more after merges."""

SHARD_STATE_ID = constructor_id(
    "stagepost.chain.shardState workchain:int shard:long seqno:int time:long remembers_from:long master_seqno:int "
    "accounts:int256 = stagepost.chain.State"
)
_SNAPSHOT_ID = constructor_id(
    "stagepost.chain.shardSnapshot workchain:int shard:long seqno:int time:long remembers_from:long "
    "master_seqno:int accounts:(vector stagepost.chain.accountSnapshot) = stagepost.chain.State"
)
_ACCOUNT_BYTES_MIN = 48
_RECENT_BYTES = 76


class TakenMessages(msgspec.Struct, frozen=True, gc=False):
    """Keys of messages of one block among the recent messages of accounts."""

    catchain_seqno: int
    time_ms: int
    places: tuple[tuple[bytes, bytes], ...]


class Due(msgspec.Struct, frozen=True):
    """The transfers that a master block brought on their way."""

    master_seqno: int
    transfers: tuple[Transfer, ...]


class ShardState(msgspec.Struct, frozen=True):
    """`previous`: the blocks that the next block stands upon. `master_seqno`: all transfers due by that
    master block have been credited. `recent` repeats, in the order of time, what the accounts remember, so
    that it can be forgotten in that order. `remembers_from_ms`: one more than the latest time of an inclusion
    that was ever forgotten; what was included then or later is in `accounts`. `parent_ms`: the time of the block
    that the next one stands upon, of the oldest where there are more; unlike `time_ms`, it is never that of a
    master block.
    """

    shard: Shard
    seqno: int
    previous: tuple[BlockId, ...]
    time_ms: int
    master_seqno: int
    accounts: HashTree[Account]
    recent: tuple[TakenMessages, ...] = ()
    remembers_from_ms: int = 0
    parent_ms: int = 0

    @property
    def hash(self) -> bytes:
        writer = Writer()
        writer.write_constructor(SHARD_STATE_ID)
        self._write_facts(writer)
        writer.write_int256(self.accounts.hash)
        return sha256(writer.written()).digest()

    def _write_facts(self, writer: Writer) -> None:
        writer.write_int(self.shard.workchain)
        writer.write_unsigned_long(self.shard.prefix)
        writer.write_unsigned_int(self.seqno)
        writer.write_long(self.time_ms)
        writer.write_long(self.remembers_from_ms)
        writer.write_unsigned_int(self.master_seqno)

    def encode(self) -> bytes:
        """Encode the whole state, for a restart."""
        writer = Writer()
        writer.write_constructor(_SNAPSHOT_ID)
        self._write_facts(writer)
        accounts = list(self.accounts.items())
        writer.write_vector_count(len(accounts))
        for address, account in accounts:
            writer.write_int256(address)
            writer.write_long(account.balance)
            writer.write_bytes(account.memory)
            recent = list(account.recent.items())
            writer.write_vector_count(len(recent))
            for place, inclusion in recent:
                writer.write_int256(place)
                writer.write_int256(inclusion.message_id)
                writer.write_unsigned_int(inclusion.catchain_seqno)
                writer.write_long(inclusion.time_ms)
        return writer.written()


def decode_state(data: bytes, block_id: BlockId) -> ShardState:
    """Decode a state without trusting it: the caller compares its hash with the one in the block."""
    reader = Reader(data)
    reader.read_constructor(_SNAPSHOT_ID)
    shard = Shard(reader.read_int(), reader.read_unsigned_long())
    seqno, time_ms = reader.read_unsigned_int(), reader.read_long()
    remembers_from_ms, master_seqno = reader.read_long(), reader.read_unsigned_int()
    accounts = dict(_read_accounts(reader))
    reader.expect_end()
    tree = tree_of(account_hash, accounts.items())
    recent = recent_of(accounts)
    return ShardState(
        shard, seqno, (block_id,), time_ms, master_seqno, tree, recent, remembers_from_ms, time_ms
    )


def _read_accounts(reader: Reader) -> Iterator[tuple[bytes, Account]]:
    last = b""
    for _ in range(reader.read_vector_count(ACCOUNTS_MAX, _ACCOUNT_BYTES_MIN)):
        address, balance = reader.read_int256(), reader.read_long()
        memory = reader.read_bytes(MEMORY_BYTES_MAX, "memory")
        count = reader.read_vector_count(RECENT_MAX, _RECENT_BYTES)
        recent = [
            (
                reader.read_int256(),
                Inclusion(reader.read_int256(), reader.read_unsigned_int(), reader.read_long()),
            )
            for _ in range(count)
        ]
        places = [place for place, _ in recent]
        if address <= last or not 0 <= balance <= SUPPLY_MAX or places != sorted(set(places)):
            raise TlDecodeError(
                f"account {address.hex()} or what it remembers stands out of order, or its balance is {balance}"
            )
        last = address
        yield address, Account(balance, memory, tree_of(inclusion_hash, recent))


def recent_of(accounts: Mapping[bytes, Account]) -> tuple[TakenMessages, ...]:
    """Return the recent messages of all accounts, oldest first."""
    return _in_order(
        TakenMessages(inclusion.catchain_seqno, inclusion.time_ms, ((address, place),))
        for address, account in accounts.items()
        for place, inclusion in account.recent.items()
    )


def first_state(shard: Shard, time_ms: int, balances: Mapping[bytes, int], block_id: BlockId) -> ShardState:
    accounts = tree_of(
        account_hash,
        (
            (address, msgspec.structs.replace(EMPTY_ACCOUNT, balance=amount))
            for address, amount in balances.items()
            if amount
        ),
    )
    return ShardState(shard, 0, (block_id,), time_ms, 0, accounts, parent_ms=time_ms)


# From one session to the next


class Source(msgspec.Struct, frozen=True):
    """The last block for a part of a shard: for the whole shard, unless shards were split or merged since."""

    part: Shard
    block_id: BlockId
    credited_to: int


def start_state(
    shard: Shard,
    sources: Iterable[Source],
    states: Mapping[BlockId, ShardState],
    *,
    dues: Sequence[Due],
    master_seqno: int,
    time_ms: int,
) -> ShardState:
    """Return the state in which a session starts: the parts of the states that it comes from, brought up to
    the master block that starts it.
    """
    parts = list(sources)
    accounts: HashTree[Account] = tree_of(account_hash)
    recent: list[TakenMessages] = []
    for source in parts:
        state = states[source.block_id]
        whole = part_of(state.accounts, source.part)
        due = dues_between(dues, state.master_seqno, master_seqno, source.part)
        accounts = accounts.joined_with(credited(whole, due))
        recent += _within(state.recent, source.part)
    return ShardState(
        shard,
        max(states[source.block_id].seqno for source in parts),
        tuple(dict.fromkeys(source.block_id for source in parts)),
        max(time_ms, *(states[source.block_id].time_ms for source in parts)),
        master_seqno,
        accounts,
        _in_order(recent),
        max(states[source.block_id].remembers_from_ms for source in parts),
        min(states[source.block_id].time_ms for source in parts),
    )


def dues_between(dues: Iterable[Due], after: int, up_to: int, shard: Shard) -> Iterator[Transfer]:
    for due in dues:
        if after < due.master_seqno <= up_to:
            for transfer in due.transfers:
                if shard.holds(WORKCHAIN, transfer.account):
                    yield transfer


def credited(accounts: HashTree[Account], transfers: Iterable[Transfer]) -> HashTree[Account]:
    amounts: dict[bytes, int] = {}
    for transfer in transfers:
        amounts[transfer.account] = amounts.get(transfer.account, 0) + transfer.amount
    for address, amount in amounts.items():
        account = accounts.get(address) or EMPTY_ACCOUNT
        accounts = accounts.with_value(
            address, msgspec.structs.replace(account, balance=account.balance + amount)
        )
    return accounts


def is_forgotten(taken: TakenMessages, catchain_seqno: int, parent_ms: int, remembered_ms: int) -> bool:
    """Return whether included messages may be forgotten: two further catchains have begun, and the parent of
    the block that forgets is so late that the ends of these messages could be proved before.

    The block's own time must not count: its author chooses it, and the first block after an outage would forget
    a message in the very moment in which absence proves that it was never executed.
    """
    return (
        taken.catchain_seqno + CATCHAINS_OF_LIFE <= catchain_seqno
        and taken.time_ms + remembered_ms < parent_ms
    )


def _within(recent: Iterable[TakenMessages], part: Shard) -> Iterator[TakenMessages]:
    for taken in recent:
        places = tuple(place for place in taken.places if part.holds(WORKCHAIN, place[0]))
        if places:
            yield TakenMessages(taken.catchain_seqno, taken.time_ms, places)


def _in_order(recent: Iterable[TakenMessages]) -> tuple[TakenMessages, ...]:
    """Return the entries oldest first, with all messages of one time in one entry: the same accounts give the
    same result.
    """
    found: dict[tuple[int, int], list[tuple[bytes, bytes]]] = {}
    for taken in recent:
        found.setdefault((taken.catchain_seqno, taken.time_ms), []).extend(taken.places)
    return tuple(TakenMessages(*moment, tuple(sorted(places))) for moment, places in sorted(found.items()))
