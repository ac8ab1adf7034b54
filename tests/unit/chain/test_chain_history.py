"""Restarts and replays: what was kept leads back to the same state, and what was altered is noticed."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigs.chain_messages import a_transfer, address, some_primes
from stagepost.chain.contracts import ContractKind
from stagepost.chain.history import KeptBlock, KeptSessions, MemoryHistory
from stagepost.chain.master_state import PlanKind
from stagepost.chain.rotation import Plan
from stagepost.chain.shard_state import decode_state
from stagepost.chain.snapshots import restored, snapshot_of
from stagepost.errors import DecodeError, StorageError
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import WHOLE_SHARD
from tests.worlds.chain.chain_oracle import Oracle
from tests.worlds.chain.chain_replay import replay
from tests.worlds.chain.chain_world import DecidedChain, a_genesis

WHOLE = Shard(0, WHOLE_SHARD)
RICH = address(ContractKind.BALANCE, 1, first_bits=0x10)
POOR = address(ContractKind.BALANCE, 2, first_bits=0xF0)


def a_chain(blocks: int = 6) -> DecidedChain:
    """With a split, transfers under way, and blocks that wait for the masterchain."""
    chain = DecidedChain(a_genesis(balances=[(RICH, 1_000)]))
    chain.shard_block(chain.whole.session_id, [some_primes(0), a_transfer(RICH, POOR, 5)])
    chain.master_block([Plan(PlanKind.SPLIT, WHOLE, chain.now_ms)])
    for number in range(1, blocks):
        for session in chain.ledger.sessions():
            mine = [one for one in (RICH, POOR) if session.shard.holds(0, one)]
            chain.shard_block(session.session_id, [a_transfer(one, RICH, number, number) for one in mine])
        if number % 2:
            chain.master_block()
    return chain


def assert_same(chain: DecidedChain, history: MemoryHistory) -> None:
    again = restored(chain.genesis, history)
    assert again.master == chain.ledger.master
    assert again.sessions() == chain.ledger.sessions()
    assert again.master_session() == chain.ledger.master_session()
    assert again.events() == []
    for session in chain.ledger.sessions():
        here, there = chain.ledger.chain(session.session_id), again.chain(session.session_id)
        assert here is not None
        assert there is not None
        assert (here.top, here.top_hash) == (there.top, there.top_hash)
        assert [one.block_id for _, one in here.final] == [one.block_id for _, one in there.final]


@pytest.mark.parametrize("blocks", range(2, 8))
def test_a_restart_goes_on_from_the_blocks_alone(blocks: int) -> None:
    chain = a_chain(blocks)

    assert_same(chain, chain.kept)


@pytest.mark.parametrize("blocks", range(2, 8))
def test_a_restart_goes_on_from_a_snapshot_and_what_was_kept_after_it(blocks: int) -> None:
    chain = a_chain(blocks)
    chain.kept.keep_snapshot(snapshot_of(chain.ledger))
    assert_same(chain, chain.kept)
    for session in chain.ledger.sessions():
        chain.shard_block(session.session_id, [some_primes(50, salt=1)])
    chain.master_block([Plan(PlanKind.MERGE, WHOLE, chain.now_ms)])
    chain.shard_block(chain.whole.session_id, [])

    assert_same(chain, chain.kept)


def test_a_restart_before_the_first_block_is_a_start() -> None:
    chain = DecidedChain()
    chain.kept.keep_snapshot(snapshot_of(chain.ledger))

    assert_same(chain, chain.kept)


def test_a_restarted_ledger_keeps_what_comes_next() -> None:
    chain = a_chain()
    chain.ledger = restored(chain.genesis, chain.kept)
    chain.master_block()

    assert_same(chain, chain.kept)


def test_a_snapshot_of_another_network_is_refused() -> None:
    chain = a_chain()
    chain.kept.keep_snapshot(snapshot_of(chain.ledger))

    with pytest.raises(StorageError, match="is of network"):
        restored(a_genesis(name="another"), chain.kept)


def test_a_snapshot_whose_state_was_altered_is_refused() -> None:
    chain = a_chain()
    snapshot = snapshot_of(chain.ledger)
    (block_id, data), *others = snapshot.states
    altered = bytearray(data)
    altered[data.index(RICH) + 32] ^= 1
    chain.kept.keep_snapshot(msgspec.structs.replace(snapshot, states=((block_id, bytes(altered)), *others)))

    with pytest.raises(StorageError, match="is not the one in it"):
        restored(chain.genesis, chain.kept)


def test_a_snapshot_whose_master_state_was_altered_is_refused() -> None:
    chain = a_chain()
    snapshot = snapshot_of(chain.ledger)
    state = msgspec.structs.replace(chain.ledger.master, time_ms=chain.ledger.master.time_ms + 1)
    chain.kept.keep_snapshot(msgspec.structs.replace(snapshot, master=state.encode()))

    with pytest.raises(StorageError, match="is not the one in it"):
        restored(chain.genesis, chain.kept)


def test_what_is_kept_is_read_as_it_was_written() -> None:
    chain = a_chain()
    snapshot = snapshot_of(chain.ledger)

    assert KeptSessions.decode(snapshot.sessions).encode() == snapshot.sessions
    for kept in chain.kept.blocks():
        assert KeptBlock.decode(kept.encode()) == kept
        with pytest.raises(DecodeError):
            KeptBlock.decode(kept.encode()[:-1])
    for block_id, data in snapshot.states:
        assert decode_state(data, block_id).encode() == data
        with pytest.raises(DecodeError):
            decode_state(data + b"\0", block_id)


# Replay


@settings(max_examples=15)
@given(st.integers(0, 2**32))
def test_a_replay_does_not_mind_the_order_nor_what_came_to_nothing(seed: int) -> None:
    chain = CHAIN
    payloads = [*chain.payloads(), LOST]
    Random(seed).shuffle(payloads)
    again = replay(chain.genesis, payloads)

    assert again.master == chain.ledger.master
    assert again.master.seqno == 5
    assert len(again.order) == 11


def _with_one_lost() -> tuple[DecidedChain, bytes]:
    chain = a_chain()
    chain.master_block()
    lost = chain.propose(chain.ledger.sessions()[0].session_id, [])
    assert lost is not None
    return chain, lost.payload


CHAIN, LOST = _with_one_lost()


def test_a_block_that_is_missing_is_named() -> None:
    payloads = CHAIN.payloads()

    with pytest.raises(DecodeError, match="not among the blocks"):
        replay(CHAIN.genesis, payloads[1:])


def test_two_master_blocks_at_one_place_are_named() -> None:
    chain = DecidedChain()
    other = chain.master_payload()
    chain.master_block()

    with pytest.raises(DecodeError, match="two master blocks follow number 0"):
        replay(chain.genesis, [*chain.payloads(), other])


def test_another_genesis_leads_nowhere() -> None:
    assert replay(a_genesis(name="another"), CHAIN.payloads()).master.seqno == 0


@pytest.mark.parametrize("number", range(len(CHAIN.payloads())))
def test_no_block_can_be_altered_unnoticed(number: int) -> None:
    """The replay, and the plain reckoning beside it, both find it: or the block is not there any more."""
    payloads = CHAIN.payloads()
    good = payloads[number]
    payloads[number] = good[:-1] + bytes([good[-1] ^ 1])
    try:
        again = replay(CHAIN.genesis, payloads)
    except DecodeError:
        return

    assert again.master.seqno < CHAIN.ledger.master.seqno


def test_the_plain_reckoning_agrees() -> None:
    oracle = Oracle(CHAIN.genesis)
    oracle.run(CHAIN.payloads())

    assert set(oracle.taken.values()) == {1}
    assert oracle.supply == 1_000
