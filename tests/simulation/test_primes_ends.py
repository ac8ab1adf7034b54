"""Ends that bind: whatever faults there are, no message that a committed state proves never executed is ever executed, every
expired message gets its end, and times rise. Networks with short windows forget what they took while the run lasts.
"""

from __future__ import annotations

import msgspec
import pytest

from rigs.chain_messages import some_primes
from stagepost.chain.execution import Execution
from stagepost.chain.master_block import decode_master_block
from stagepost.chain.shard_state import TakenMessages
from tests.worlds.chain.chain_world import START_MS, DecidedChain
from tests.worlds.chain.proved_chain import second
from tests.worlds.remp.primes_ends import EndsWatch, times_that_fall
from tests.worlds.remp.primes_runs import EXPIRING, HELD, SHORT, PrimesPlan, ends_plan, run_primes, storm_plan

SEEDS = 2
FIXED_SEED = 7
"""Where messages expire before they are taken, and where the chain forgets some of those that it took."""

TOO_LATE_SEED = 700_033
"""Where a full node is given a message when the chain remembers too little to prove its end."""

REMEMBERING_SEED = 512_071
"""Where a liar announces messages that an honest validator saw in a block before its restart, and forgot after it."""

STORMS = 700_010, 700_012, 700_022
"""Where receipts wait until the chain has forgotten what came before them, and where chains come back late."""

FORGETFUL_SEED = 5
"""Where the chain forgets executions while full nodes still have the messages."""


@pytest.mark.parametrize("number", range(SEEDS))
@pytest.mark.parametrize("plan", [EXPIRING, SHORT], ids=["long windows", "short windows"])
def test_every_expired_message_has_one_end(plan: PrimesPlan, number: int, run_seed: int) -> None:
    seed = run_seed + number
    print(f"seed {seed}")
    outcome = run_primes(seed, plan)
    assert outcome.final > 0
    assert outcome.false_proofs["an earlier state"] > 0


def test_messages_that_expire_before_anybody_takes_them_are_proved_never_executed() -> None:
    assert run_primes(FIXED_SEED, msgspec.structs.replace(SHORT, crashes=0)).never > 0


@pytest.mark.parametrize(
    "fault", ["backdates", "foredates", "withholds", "BackdaterSeat", "ExpiredResubmitter"]
)
def test_a_dishonest_validator_turns_no_end_round(fault: str, run_seed: int) -> None:
    print(f"seed {run_seed}")
    outcome = run_primes(run_seed, msgspec.structs.replace(SHORT, fault=fault, crashes=0))
    assert outcome.final > 0


def test_what_all_others_refused_and_a_leader_proposes_has_one_end(run_seed: int) -> None:
    print(f"seed {run_seed}")
    plan = msgspec.structs.replace(EXPIRING, refused=1.0, twins=0.0, crashes=0, cuts=0)
    assert run_primes(run_seed, plan).final == 0
    assert run_primes(run_seed, msgspec.structs.replace(plan, fault="revives")).final > 0


@pytest.mark.parametrize("fault", [None, "Resubmitter"])
def test_sessions_that_liars_hold_end_no_message_twice_and_stop_nobody(
    fault: str | None, run_seed: int
) -> None:
    print(f"seed {run_seed}")
    outcome = run_primes(run_seed, msgspec.structs.replace(HELD, fault=fault))
    assert outcome.final > 0
    assert outcome.shown > 0


def test_a_message_that_comes_after_the_chain_forgot_its_time_is_not_awaited_for_ever() -> None:
    plan = ends_plan(TOO_LATE_SEED)
    assert plan.window_ms
    assert run_primes(TOO_LATE_SEED, plan).never > 0


def test_a_restarted_validator_says_nothing_of_an_old_message_that_a_liar_announces_again() -> None:
    plan = ends_plan(REMEMBERING_SEED)
    assert plan.fault == "ExpiredResubmitter"
    assert run_primes(REMEMBERING_SEED, plan).crashes == 1


@pytest.mark.parametrize("seed", STORMS)
def test_power_cuts_around_switches_splits_and_merges_end_no_message_twice_and_convict_nobody(
    seed: int,
) -> None:
    assert run_primes(seed, storm_plan(seed)).crashes > 1


# The runs can tell


def test_a_verifier_that_leaves_a_rule_out_believes_a_false_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = second.need

    def lenient(holds: bool, rule: str) -> None:
        honest(holds or "may have forgotten" in rule, rule)

    monkeypatch.setattr(second, "need", lenient)
    with pytest.raises(AssertionError, match="a false proof is believed"):
        run_primes(FORGETFUL_SEED, SHORT)


def test_a_chain_that_forgets_by_the_blocks_own_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(self: Execution) -> tuple[list[TakenMessages], int]:
        start, kept = self._start, list[TakenMessages]()
        for taken in start.recent:
            if taken.time_ms + self._configuration.expiry_ahead_max_ms >= self._time_ms:
                kept.append(taken)
                continue
            for address, place in taken.places:
                account = self._account(address)
                forgotten = account.recent.without(place)
                self._changed[address] = msgspec.structs.replace(account, recent=forgotten)
        return kept, start.remembers_from_ms

    monkeypatch.setattr(Execution, "_still_remembered", forgets)
    with pytest.raises(AssertionError, match="a message has two ends"):
        run_primes(FIXED_SEED, msgspec.structs.replace(SHORT, crashes=0, loss=0.0))


def test_two_ends_are_told() -> None:
    watch = EndsWatch()
    watch.executed([bytes(32)])
    assert watch.contradictions() == []
    watch.ends[bytes(32)]["never", b""] = None
    assert len(watch.contradictions()) == 1
    assert watch.end_of(bytes(32)) == "executed"
    assert watch.end_of(bytes(31) + b"1") is None


def test_a_time_that_falls_is_told() -> None:
    chain = DecidedChain()
    for number in range(2):
        chain.shard_block(chain.whole.session_id, [some_primes(number)])
        chain.master_block()
    payloads = chain.payloads()
    assert times_that_fall(payloads, START_MS) == []
    assert times_that_fall(payloads, START_MS + 1_000_000) != []
    late = decode_master_block(payloads[-1])
    fallen = msgspec.structs.replace(late, time_ms=START_MS)
    assert len(times_that_fall([*payloads[:-1], fallen.encode()], START_MS)) == 2
