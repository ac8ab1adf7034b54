"""Receipt chains in a whole network: what all full nodes hold together proves nothing against an honest validator, through
session switches, forwards, crashes and lost frames; and a validator whose chains are not kept is found."""

from __future__ import annotations

import asyncio
import copy
from functools import partial
from typing import Any

import pytest

from stagepost.catchain.payloads import upper_part
from stagepost.chain.contracts import primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.remp.queue.records import LinkAnswer, decode_payload
from stagepost.remp.receipts.statements import StatementLink, empty_chain
from stagepost.validator.receipt_chains import ReceiptChains
from stagepost.validator.receipts import Statements
from stagepost.validator.session_store import SessionsDisk, SessionStore
from stagepost.validator.sessions import HOLD_MAX_S, Validator
from tests.simulation.test_remp_crashes import SUMS, crash_and_return, in_world, lane, undecided
from tests.worlds.chain.chain_world import EXPIRES_AT_S
from tests.worlds.remp.primes_runs import PrimesPlan, run_primes, session_plan
from tests.worlds.remp.primes_world import PrimesWorld, ValidatorHouse

SEEDS = 3
PLAN = PrimesPlan(accounts=3, messages=8, crashes=3, cuts=1, challenges=20)


@pytest.mark.parametrize("number", range(SEEDS))
def test_no_honest_validator_is_ever_convicted(number: int, run_seed: int) -> None:
    """`run_primes` looks at every pair of neighbouring links on the topics of all full nodes."""
    seed = run_seed + number
    print(f"seed {seed}")
    outcome = run_primes(seed, PLAN)
    assert outcome.switches >= 2


AS_A_SESSION_BEGINS = 5_003
"""Seed of a run in which a validator crashes just after its first block of a session, and its chain comes back without
the session.
"""


@pytest.mark.parametrize("seed", [5_008, 5_009])
def test_receipts_that_waited_for_a_quorum_leave_in_their_order(seed: int) -> None:
    """They once waited in each session by itself: what one session said last was sent after the end that another said."""
    assert run_primes(seed, session_plan(seed)).crashes == 2


def test_a_validator_that_crashes_as_a_session_begins_goes_on_from_its_own_blocks() -> None:
    assert run_primes(AS_A_SESSION_BEGINS, session_plan(AS_A_SESSION_BEGINS)).crashes == 1


# The runs can tell


def test_a_validator_that_takes_such_a_session_for_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionStore, "look_at", SessionStore.load)
    monkeypatch.setattr(Validator, "mute", lambda self: None)
    with pytest.raises(AssertionError, match="lost blocks of its own"):
        run_primes(AS_A_SESSION_BEGINS, session_plan(AS_A_SESSION_BEGINS))


def test_a_validator_that_forgets_its_chains_in_a_crash_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Statements.__init__

    def forget(self: Statements, *arguments: Any) -> None:
        read(self, *arguments)
        self.chains = ReceiptChains()

    monkeypatch.setattr(Statements, "__init__", forget)
    with pytest.raises(AssertionError, match="equivocation"):
        in_world(undecided)


# Challenges


def answers_of(house: ValidatorHouse, number: int) -> list[StatementLink]:
    """Return the answers of validator `number` in the blocks that `house` holds."""
    key = house.world.validators[number].key_id
    return [
        record.newest
        for runner in house.running.queues.sessions.values()
        for vertex in list(runner.graph._vertices.values())
        if vertex.block is not None and runner.graph.key_ids[vertex.source] == key
        for record in decode_payload(upper_part(vertex.block.payload) or b"")
        if isinstance(record, LinkAnswer)
    ]


async def challenged(world: PrimesWorld) -> None:
    """Two validators challenge a third about a message, which answers also after a crash, with what its disk holds."""
    message_id = world.full_nodes[0].node.submit(
        CanonicalMessage(SUMS, primes_body(10), EXPIRES_AT_S).encode()
    )
    (node,), accused = world.full_nodes, world.validators[2]
    said = partial(lane, world, message_id, accused)
    await world.until(lambda: bool(said()), "it is announced", 10.0)
    session_id, runner = next(
        (session_id, runner)
        for session_id, runner in world.validators[0].running.queues.sessions.items()
        if message_id in runner.queue
    )
    last = accused.running.queues.statements.chains.newest(session_id, message_id)
    assert last is not None
    place = runner.graph.key_ids.index(accused.key_id)
    runner.challenge(place, last)
    runner.challenge(place, last)
    await world.until(lambda: len(answers_of(world.validators[1], 2)) == 1, "it is answered once", 10.0)
    world.validators[3].running.queues.sessions[session_id].challenge(place, last)
    await asyncio.sleep(0.06)
    await crash_and_return(accused)
    await world.until(lambda: len(answers_of(world.validators[1], 2)) >= 2, "it is answered again", 20.0)
    for newest in answers_of(world.validators[1], 2):
        assert newest.chain == (session_id, message_id)
        assert newest.number >= last.number
        assert newest.receipt in {one.hash for one in node.receipts if one.source_id == accused.key_id}
    assert not any(one.blamed for one in world.validators)


def test_a_challenged_validator_shows_the_newest_receipt_that_its_disk_holds() -> None:
    in_world(challenged)


def test_an_answer_that_names_no_receipt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Statements, "newest", lambda self, session, message, then: then(empty_chain(session, message))
    )
    with pytest.raises(AssertionError):
        in_world(challenged)


# Older disks


async def an_older_disk(world: PrimesWorld) -> None:
    """Somebody puts an older copy of the sessions' store in its place, and tells nobody: its receipts are missing."""
    victim, (node,) = world.validators[2], world.full_nodes
    for house in world.validators:
        house.switches.ignores = lambda block_id: True
    older = copy.deepcopy(victim.sessions_disk.synced)
    message_id = node.node.submit(CanonicalMessage(SUMS, primes_body(10), EXPIRES_AT_S).encode())
    await world.until(lambda: len(lane(world, message_id, victim)) >= 1, "it has signed receipts", 10.0)
    await asyncio.sleep(1.0)
    victim.crash()
    victim.sessions_disk = SessionsDisk(lambda: 0.001)
    for name, rows in older.items():
        victim.sessions_disk.synced[name].update(rows)
    await asyncio.sleep(0.5)
    victim.start()
    frame = node.node._records[message_id].frame
    assert frame is not None
    # A full node sends the message again, before any member has said what this validator lost.
    victim.running.queues.message_came(node.key_id, frame)
    await asyncio.sleep(5.0)
    for house in world.validators:
        house.switches.ignores = lambda block_id: False
    await world.until(lambda: node.count_of(message_id, "Finalized") == 1, "it is final", 60.0)
    assert any(one.running.queues.receipts.signed for one in world.validators if one is not victim)
    assert not any(one.blamed for one in world.validators)


def test_a_validator_with_an_older_disk_signs_nothing_that_contradicts_what_it_lost() -> None:
    in_world(an_older_disk)


DEFECTS: dict[str, tuple[type, str, Any]] = {
    "it signs although others know more of it": (Validator, "mute", lambda self: None),
    "it signs before a quorum has answered": (
        Validator,
        "_tell",
        lambda self, session_id, tellings: self.receipts.tell(session_id, tellings),
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_validator_that_takes_its_older_disk_for_complete_is_found(
    defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*DEFECTS[defect])
    with pytest.raises(AssertionError):
        in_world(an_older_disk)


async def nobody_answers(world: PrimesWorld) -> None:
    """A validator comes back from a crash, and no other member can be reached."""
    house, (node,) = world.validators[2], world.full_nodes
    for one in world.validators:
        one.switches.ignores = lambda block_id: True
    message_id = node.node.submit(CanonicalMessage(SUMS, primes_body(10), EXPIRES_AT_S).encode())
    await world.until(lambda: bool(lane(world, message_id, house)), "it has signed receipts", 10.0)
    other = node.node.submit(CanonicalMessage(SUMS, primes_body(20), EXPIRES_AT_S).encode())
    second = node.node._records[other].frame
    assert second is not None
    house.crash()
    world.overlays.cut.add(house.number)
    house.start()
    house.running.queues.message_came(node.key_id, second)
    await asyncio.sleep(HOLD_MAX_S - 1.0)
    assert house.running.queues.receipts.signed == 0
    await asyncio.sleep(2.0)
    assert house.running.queues.receipts.signed > 0
    world.overlays.cut.clear()


def test_receipts_wait_for_a_quorum_for_so_long_and_no_longer() -> None:
    in_world(nobody_answers)
