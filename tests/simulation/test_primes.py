"""Primes: distinct sums to contracts without any replay protection of their own, sent and sent again by several full
nodes, through loss, crashes, session switches, a split and a merge. Every sum is exact, every message final once."""

from __future__ import annotations

import pytest

from stagepost.node.queue_bridge import QueueBridge
from stagepost.node.remp_full_node import RempFullNode
from stagepost.remp.message_status import Accepted
from tests.primes_runs import PrimesPlan, run_primes
from tests.primes_world import FAULTS

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


# The runs can tell


def test_a_full_node_that_says_final_twice_is_found(run_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told = RempFullNode._final

    def twice(self: RempFullNode, message_id: bytes, status: Accepted) -> None:
        told(self, message_id, status)
        if message_id in self._handed:
            self._receipt_came(self._signed(message_id, status))

    monkeypatch.setattr(RempFullNode, "_final", twice)
    with pytest.raises(AssertionError, match="Finalized is published once"):
        run_primes(run_seed, SMALL)


def test_queues_that_hear_nothing_of_the_chain_are_found(
    run_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on collating what stands in blocks, and refuse it in the end: nobody believes their receipts."""
    monkeypatch.setattr(QueueBridge, "heard", lambda self, events: None)
    with pytest.raises(AssertionError):
        run_primes(run_seed, SMALL)


SMALL = PrimesPlan(accounts=2, messages=5, crashes=0, loss=0.0)
