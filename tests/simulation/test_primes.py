"""Primes: distinct sums to contracts without any replay protection of their own, sent and sent again by several full
nodes, through loss, crashes, session switches, a split and a merge. Every sum is exact, every message final once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from stagepost.chain.accounts import Account, Inclusion
from stagepost.chain.agreement.messages import FinalBlock
from stagepost.chain.contracts import CallResult
from stagepost.chain.execution import Execution
from stagepost.chain.proofs.proof_form import KeyBlockPart, MasterPart
from stagepost.chain.proofs.proof_making import MadeProof, ProofMaker, SealBook, SealedMaster
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.message_record import RecordState
from stagepost.full_node.proof_keeping import made_end
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.effects import QueueEffect
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.receipts.message_status import Accepted
from stagepost.remp.verdict.state import ProvedEnd
from stagepost.validator.queue_bridge import QueueBridge
from tests.worlds.chain.chain_world import a_genesis
from tests.worlds.remp.primes_proofs import ProofShelf
from tests.worlds.remp.primes_runs import PrimesPlan, run_primes
from tests.worlds.remp.primes_world import FAULTS

SEEDS = 4
PLAN = PrimesPlan()
ENDING = PrimesPlan(accounts=4, messages=8, expiring=0.6, refused=0.2, twins=0.2, cuts=2)
"""Messages that are executed, that expire, that are refused, and bodies under two ids."""

ENDING_SEEDS = 2


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


@pytest.mark.parametrize("number", range(ENDING_SEEDS))
def test_every_end_is_proved_once_and_the_second_verifier_accepts_it(number: int, run_seed: int) -> None:
    seed = run_seed + SEEDS + len(FAULTS) + number
    print(f"seed {seed}")
    outcome = run_primes(seed, ENDING)
    assert outcome.proved["executed"] == outcome.final


# The runs can tell


def test_an_end_without_a_proof_is_found(run_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProofMaker, "ready", lambda self: [])
    with pytest.raises(AssertionError, match="has ended, and there is no proof"):
        run_primes(run_seed, SMALL)


def test_a_proof_that_does_not_hold_is_found(run_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def notarised(self: SealBook, waiting: list[Any], final: FinalBlock) -> Iterator[SealedMaster]:
        for sealed in seals(self, waiting, final):
            yield msgspec.structs.replace(sealed, part=_unsigned(sealed.part))

    seals = SealBook._sealed
    monkeypatch.setattr(SealBook, "_sealed", notarised)
    with pytest.raises(AssertionError, match=r"the proof of message \w+ is refused"):
        run_primes(run_seed, SMALL)


def _unsigned(part: KeyBlockPart | MasterPart) -> KeyBlockPart | MasterPart:
    """Return the part with the signatures of other bytes."""
    assert isinstance(part, MasterPart)
    seal = msgspec.structs.replace(part.master.seal, slot=part.master.seal.slot + 1)
    return msgspec.structs.replace(part, master=msgspec.structs.replace(part.master, seal=seal))


def test_a_proved_end_that_the_chain_contradicts_is_found(
    run_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(made: MadeProof) -> ProvedEnd:
        return msgspec.structs.replace(made_end(made), kind="never")

    monkeypatch.setattr("stagepost.full_node.proof_keeping.made_end", never)
    with pytest.raises(AssertionError, match="is proved never, and is in the chain"):
        run_primes(run_seed, SMALL)


def test_an_end_that_turns_back_is_found() -> None:
    shelf = ProofShelf(a_genesis())
    shelf.keeper.on_proved(bytes(32), ProvedEnd("never", 5, 3, 4))
    shelf.keeper.on_proved(bytes(32), ProvedEnd("never", 5, 3, 4))
    assert shelf.faults == []
    shelf.keeper.on_proved(bytes(32), ProvedEnd("executed", 6, 3, 4))
    assert len(shelf.faults) == 1


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
        self: Execution,
        address: bytes,
        account: Account,
        ran: CallResult,
        places: tuple[bytes, ...],
        inclusion: Inclusion,
    ) -> None:
        noted(self, address, account, ran, (), inclusion)

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
