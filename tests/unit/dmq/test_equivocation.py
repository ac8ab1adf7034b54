"""Two bodies of one pool for one slot: every case is found, no forgery is blamed, and what is refused leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from stagepost.dmq.equivocation import (
    BODIES_PER_SLOT_MAX,
    POOLS_REMEMBERED_MAX,
    Equivocation,
    Equivocations,
    slot_key,
)
from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.memory_store import MemoryDisk, MemoryStore
from stagepost.dmq.outcome import ACCEPTED, Outcome, Reason, Rejected
from stagepost.dmq.peer_standing import Consequence, Offer, RelayRecord
from stagepost.dmq.validation import MessageValidator, ValidationRules
from stagepost.errors import ErrorCode
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.signatures.verifier import InlineVerifier
from stagepost.simulation.pools import simulated_pool
from tests.worlds.dmq.pool_signers import NOW, KnownPools, Signer, decoded

FREE = ValidationRules(message_gap_s=0)


class Node:
    """The production intake, with or without refusal."""

    def __init__(self, *, refuses: bool, rules: ValidationRules = FREE) -> None:
        self.disk = MemoryDisk()
        store = MemoryStore(self.disk)
        store.load()
        self.found: list[Equivocation] = []
        self.equivocations = Equivocations()
        self.equivocations.on_found.append(self.found.append)
        pools = KnownPools()
        self.validator = MessageValidator(rules, pools, self.equivocations if refuses else None)
        self.mempool = Mempool()
        self.clock = LoopClock(NOW)
        self.intake = Intake(self.validator, self.mempool, store, self.clock, verifier=InlineVerifier())
        self.intake.on_accepted.append(lambda entry: self._hold(entry.message))
        self.intake.on_expired.append(
            lambda entries: self.equivocations.forget(entry.message for entry in entries)
        )

    def _hold(self, message: DmqMessage) -> None:
        self.equivocations.hold(message)

    async def submit(self, *messages: DmqMessage) -> list[Outcome]:
        return await self.intake.submit_many(messages, "a peer")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_in_virtual_time(test())


def code_of(outcome: Outcome) -> ErrorCode | None:
    return outcome.code if isinstance(outcome, Rejected) else None


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize("are_together", [False, True])
def test_every_second_body_is_flagged_and_refused_if_that_is_wanted(
    refuses: bool, are_together: bool, run_seed: int
) -> None:
    """Pairs of all kinds, one by one and in one batch: all are found, and nothing else is."""
    random = Random(run_seed)
    pairs = [(random.randrange(4), random.randrange(3), NOW + 100 + number, number) for number in range(60)]

    async def test() -> None:
        node = Node(refuses=refuses)
        seconds: list[DmqMessage] = []
        for pool, evolution, expires_at, number in pairs:
            first, second = (
                Signer(pool).sign(tag, expires_at=expires_at, evolution=evolution)
                for tag in (2 * number, 2 * number + 1)
            )
            seconds.append(second)
            if are_together:
                outcomes = await node.submit(first, second)
            else:
                outcomes = [*(await node.submit(first)), *(await node.submit(second))]
            assert outcomes[0] == ACCEPTED
            assert code_of(outcomes[1]) == (ErrorCode.POOL_NOT_ELIGIBLE if refuses else None)

        assert [found.second for found in node.found] == [message.message_id for message in seconds]
        assert node.equivocations.count == len(pairs)
        assert node.equivocations.refused == (len(pairs) if refuses else 0)
        assert node.mempool.count == len(pairs) * (1 if refuses else 2)
        assert all(found.is_refused is refuses for found in node.found)

    run(test)


def test_a_slot_is_pool_certificate_number_period_and_expiry() -> None:
    messages = [
        Signer().sign(0),
        Signer(1).sign(1),
        Signer(issue_number=2).sign(2),
        Signer().sign(3, evolution=1),
        Signer().sign(4, expires_at=NOW + 601),
    ]
    equivocations = Equivocations()

    assert len({slot_key(message) for message in messages}) == len(messages)
    assert [equivocations.hold(message) for message in messages] == [None] * len(messages)
    assert equivocations.count == 0


def test_one_body_in_two_wrappings_is_no_equivocation() -> None:
    """The older layout signs an id of its own beside the same body."""
    pool = simulated_pool(1)
    old = pool.message_in_old_layout(b"\x01" * 32, b"b" * 100, NOW)
    equivocations = Equivocations()
    equivocations.hold(old)

    assert equivocations.hold(pool.message_in_old_layout(b"\x02" * 32, b"b" * 100, NOW)) is None
    assert equivocations.hold(pool.message_in_old_layout(b"\x03" * 32, b"c" * 100, NOW)) is not None


@pytest.mark.parametrize("refuses", [False, True])
def test_nobody_can_blame_a_pool_with_a_forged_second_body(refuses: bool) -> None:
    async def test() -> None:
        node = Node(refuses=refuses)
        genuine = Signer().sign(2)
        at = genuine.raw.index(genuine.kes_signature) + 3
        assert await node.submit(Signer().sign(1)) == [ACCEPTED]

        (outcome,) = await node.submit(decoded(genuine, flip_at=at))

        assert code_of(outcome) is ErrorCode.KES_SIGNATURE
        assert node.found == []
        assert len(node.equivocations) == 1

    run(test)


def test_the_same_second_body_again_counts_once() -> None:
    async def test() -> None:
        node = Node(refuses=True)
        await node.submit(Signer().sign(1))
        for _ in range(3):
            (outcome,) = await node.submit(Signer().sign(2))
            assert code_of(outcome) is ErrorCode.POOL_NOT_ELIGIBLE
        assert node.equivocations.count == 1
        await node.submit(Signer().sign(3))
        assert node.equivocations.count == 2

    run(test)


def test_the_refusal_says_why_and_names_the_other_message() -> None:
    async def test() -> None:
        node = Node(refuses=True)
        first = Signer().sign(1)
        outcomes = await node.submit(first, Signer().sign(2))

        refusal = outcomes[1]
        assert isinstance(refusal, Rejected)
        assert refusal.reason is Reason.INVALID
        assert not refusal.is_transient
        assert refusal.text.startswith("POOL_NOT_ELIGIBLE: pool " + Signer().pool_id.hex())
        assert refusal.text.endswith(f"expiry {first.expires_at}): message {first.message_id.hex()}")

    run(test)


def test_a_peer_that_relays_a_second_body_is_not_cut_off_for_it() -> None:
    """It may have accepted that one first, as another half of the network did."""
    equivocations = Equivocations()
    equivocations.hold(Signer().sign(1))
    refusal = equivocations.check(Signer().sign(2))

    assert refusal is not None
    ruling = RelayRecord(60).rule(Signer().sign(2), Offer(1, 0.0, None), refusal, 0.0, 0, 0.0)
    assert ruling.consequence is Consequence.COUNT


def test_what_was_refused_changes_nothing_for_those_that_follow() -> None:
    async def test() -> None:
        node = Node(refuses=True, rules=ValidationRules(message_gap_s=60))
        await node.submit(Signer().sign(1))
        node.clock.step(0)
        before = node.validator.pools_remembered.get(Signer().pool_id)
        slots = len(node.equivocations)
        fault = node.validator.commit(Signer().sign(2), 1e6)

        assert fault is not None
        assert fault.code is ErrorCode.POOL_NOT_ELIGIBLE
        assert node.validator.pools_remembered.get(Signer().pool_id) == before
        assert len(node.equivocations) == slots

    run(test)


def test_a_first_body_that_could_not_be_written_does_not_have_its_slot() -> None:
    async def test() -> None:
        node = Node(refuses=True)
        node.disk.is_full = True
        (outcome,) = await node.submit(Signer().sign(1))
        assert code_of(outcome) is ErrorCode.STORAGE_UNAVAILABLE
        assert len(node.equivocations) == 0

        node.disk.is_full = False

        assert await node.submit(Signer().sign(2)) == [ACCEPTED]
        assert node.equivocations.count == 0

    run(test)


def test_slots_are_forgotten_with_their_messages() -> None:
    async def test() -> None:
        node = Node(refuses=False)
        for tag in range(5):
            await node.submit(Signer().sign(tag, expires_at=NOW + 10 + tag))
            await node.submit(Signer().sign(100 + tag, expires_at=NOW + 10 + tag))
        assert len(node.equivocations) == 5

        node.clock.step(12.5)
        node.intake.sweep()
        assert len(node.equivocations) == 2

        node.clock.step(100)
        node.intake.sweep()
        assert len(node.equivocations) == 0
        assert node.equivocations.count == 5

    run(test)


def test_bodies_of_one_slot_are_counted_up_to_a_limit_and_refused_beyond_it() -> None:
    equivocations = Equivocations()
    equivocations.hold(Signer().sign(0))
    for tag in range(1, BODIES_PER_SLOT_MAX + 1):
        assert equivocations.check(Signer().sign(tag)) is not None
    assert equivocations.count == BODIES_PER_SLOT_MAX

    assert equivocations.check(Signer().sign(BODIES_PER_SLOT_MAX + 1)) is not None
    assert equivocations.count == BODIES_PER_SLOT_MAX


def test_pools_are_remembered_up_to_a_limit_with_their_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagepost.dmq.equivocation.POOLS_REMEMBERED_MAX", 2)
    equivocations = Equivocations()
    for pool, tags in ((0, (1, 2, 3)), (1, (1, 2)), (0, (4,)), (2, (1, 2))):
        for tag in tags:
            equivocations.hold(Signer(pool).sign(tag))

    assert [(pool, found.count) for pool, found in equivocations.pools.items()] == [
        (Signer(0).pool_id, 3),
        (Signer(2).pool_id, 1),
    ]
    assert equivocations.count == 5
    assert POOLS_REMEMBERED_MAX == 1_024
