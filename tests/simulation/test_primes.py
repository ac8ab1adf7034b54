"""Primes: distinct sums to contracts without any replay protection of their own, sent and sent again by several full
nodes, through loss, crashes, session switches, a split and a merge. Every sum is exact, every message final once."""

from __future__ import annotations

import msgspec
import pytest

from stagepost.chain.accounts import Account
from stagepost.chain.contracts import CallResult
from stagepost.chain.execution import Execution
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.message_record import RecordState
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.effects import QueueEffect
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.receipts.message_status import Accepted
from stagepost.validator.queue_bridge import QueueBridge
from tests.worlds.remp.primes_runs import PrimesPlan, run_primes
from tests.worlds.remp.primes_world import FAULTS

SEEDS = 10
PLAN = PrimesPlan()


@pytest.mark.parametrize("number", range(SEEDS))
def test_every_sum_is_exact_and_every_message_has_its_end(number: int, run_seed: int) -> None:
    seed = run_seed + number
    print(f"seed {seed}")
    outcome = run_primes(seed, PLAN)
    assert outcome.final + outcome.closed == PLAN.accounts * PLAN.messages
    assert outcome.shards_seen == 2
    assert outcome.switches >= 2


@pytest.mark.parametrize(("number", "fault"), list(enumerate(FAULTS)))
def test_one_of_four_validators_may_be_dishonest(number: int, fault: str, run_seed: int) -> None:
    seed = run_seed + SEEDS + number
    print(f"seed {seed}")
    outcome = run_primes(seed, PrimesPlan(accounts=3, messages=8, crashes=0, fault=fault))
    assert outcome.final == 24
    assert bool(outcome.replays) == (fault == "replays")


# The runs can tell


def test_a_full_node_that_says_final_twice_is_found(run_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    finalize = FullNode._finalize

    def twice(self: FullNode, message_id: bytes, end: Accepted) -> None:
        finalize(self, message_id, end)
        if self._records[message_id].state is RecordState.ENDED:
            self._publish_counted(self._signed(message_id, end))

    monkeypatch.setattr(FullNode, "_finalize", twice)
    with pytest.raises(AssertionError, match="Finalized is published once"):
        run_primes(run_seed, SMALL)


def test_queues_that_hear_nothing_of_the_chain_are_found(
    run_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on collating what stands in blocks, and refuse it in the end: nobody believes their receipts."""
    monkeypatch.setattr(QueueBridge, "heard", lambda self, events: None)
    with pytest.raises(AssertionError):
        run_primes(run_seed, SMALL)


def take_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody's accounts forget at once what they took."""

    def note(
        self: Execution, address: bytes, account: Account, ran: CallResult, places: tuple[bytes, ...]
    ) -> None:
        noted(self, address, account, ran, ())

    noted = Execution._note
    monkeypatch.setattr(Execution, "_note", note)
    monkeypatch.setattr(QueueBridge, "fault_in", lambda self, session_id, messages: None)


REPLAYED_SEED = 1_633_389_805
"""Where it is this that shows first: with others the chain itself stops at an assertion before."""


def test_a_message_in_two_blocks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_replays(monkeypatch)
    with pytest.raises(AssertionError, match="a message stands in two blocks"):
        run_primes(REPLAYED_SEED, msgspec.structs.replace(SMALL, fault="replays"))


def test_a_vote_for_a_replay_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_replays(monkeypatch)
    monkeypatch.setattr("tests.worlds.remp.primes_runs.twice_included", lambda blocks: [])
    with pytest.raises(AssertionError, match="an honest validator voted for a replay"):
        run_primes(REPLAYED_SEED, msgspec.structs.replace(SMALL, fault="replays"))


def test_a_block_in_another_order_is_found(run_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = ReliableQueue.take

    def backwards(
        self: ReliableQueue, now: float, count_max: int
    ) -> tuple[list[ExternalMessage], list[QueueEffect]]:
        messages, effects = taken(self, now, count_max)
        return messages[::-1], effects

    monkeypatch.setattr(ReliableQueue, "take", backwards)
    monkeypatch.setattr(ReliableQueue, "check_candidate", lambda self, message_ids: None)
    with pytest.raises(AssertionError, match="not in the order that was promised"):
        run_primes(run_seed, PrimesPlan(accounts=5, messages=20, crashes=0, loss=0.0))


SMALL = PrimesPlan(accounts=2, messages=5, crashes=0, loss=0.0)
