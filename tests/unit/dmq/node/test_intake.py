"""The way into the mempool, in virtual time: what is accepted is on disk and in the mempool, what is not left no trace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stagepost.dmq.mempool import Mempool, MempoolEntry, MempoolLimits
from stagepost.dmq.message import FIVE_ONLY, DmqMessage
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.memory_store import MemoryDisk, MemoryStore
from stagepost.dmq.node.status import clock_fault
from stagepost.dmq.outcome import ACCEPTED, Accepted, Outcome, Rejected
from stagepost.dmq.validation import MessageValidator, ValidationRules, rules_for
from stagepost.errors import ConfigError, ErrorCode, StorageError
from stagepost.ground.crypto.bounded_cache import BoundedCache
from stagepost.ground.loop.clock import BELIEVED_AFTER_S, LEAD_MAX_S, FlooredClock, LoopClock, SystemClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.signatures.verifier import (
    Errand,
    InlineVerifier,
    M,
    Request,
    SignatureVerifier,
    V,
    Verifier,
)
from tests.worlds.dmq.altered_messages import altered
from tests.worlds.dmq.pool_signers import NOW, KnownPools, Signer

PRIVATE = rules_for(42)
PUBLIC = ValidationRules()


@dataclass
class Node:
    """The parts of a node that take messages in. `again` is the same node after a restart."""

    rules: ValidationRules = PRIVATE
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    limits: MempoolLimits = field(default_factory=MempoolLimits)
    verifier: SignatureVerifier = field(default_factory=InlineVerifier)
    clock: LoopClock = field(default_factory=lambda: LoopClock(NOW))

    def __post_init__(self) -> None:
        self.store = MemoryStore(self.disk)
        self.mempool = Mempool(self.limits)
        self.validator = MessageValidator(self.rules, KnownPools())
        self.intake = Intake(self.validator, self.mempool, self.store, self.clock, verifier=self.verifier)
        self.restored = self.intake.restore()

    def state(self) -> object:
        entries = self.mempool.after(0, 10_000, FIVE_ONLY)
        return entries, self.validator.pools_remembered.export(0, 0), self.disk.messages_synced

    def again(self) -> Node:
        return Node(self.rules, self.disk, self.limits, self.verifier, self.clock)

    async def submit(self, *messages: DmqMessage) -> list[ErrorCode | None]:
        return codes(await self.intake.submit_many(messages, "local"))


def codes(outcomes: list[Outcome]) -> list[ErrorCode | None]:
    return [outcome.code if isinstance(outcome, Rejected) else None for outcome in outcomes]


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_in_virtual_time(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def forged(message: DmqMessage) -> DmqMessage:
    """The same id, another signature."""
    return altered(message, kes_signature=bytes(448))


@in_virtual_time
async def test_an_accepted_message_is_on_disk_and_in_the_mempool_when_the_answer_comes() -> None:
    node = Node(disk=MemoryDisk(sync_s=lambda: 0.25))
    message = Signer().sign(1)

    outcome = await node.intake.submit(message, "local")

    assert outcome is ACCEPTED
    assert asyncio.get_running_loop().time() == pytest.approx(0.25)
    assert node.disk.messages_synced == 1
    assert node.mempool.get(message.key) == MempoolEntry(1, message, NOW * 1_000, "local")


@in_virtual_time
async def test_a_batch_gets_one_answer_each_in_its_own_order() -> None:
    node = Node()
    good, other = Signer().sign(1), Signer().sign(2)

    outcomes = await node.submit(forged(other), good, good, Signer().sign(3, expires_at=NOW - 6), other)

    assert outcomes == [
        ErrorCode.KES_SIGNATURE,
        None,
        ErrorCode.MSG_DUPLICATE,
        ErrorCode.MSG_EXPIRED,
        # The same id came first with a forged signature; that must not shut the real one out.
        None,
    ]
    assert node.mempool.count == 2
    assert node.intake.is_under_way == 0


@in_virtual_time
async def test_an_empty_batch_is_answered_with_nothing() -> None:
    assert await Node().submit() == []


@in_virtual_time
async def test_a_copy_that_comes_meanwhile_waits_for_the_fate_of_the_first() -> None:
    node = Node(disk=MemoryDisk(sync_s=lambda: 1.0))
    message = Signer().sign(1)

    outcomes = await asyncio.gather(*(node.submit(message) for _ in range(3)))

    assert sorted(outcomes, key=str) == [[ErrorCode.MSG_DUPLICATE], [ErrorCode.MSG_DUPLICATE], [None]]
    assert node.mempool.count == node.disk.messages_synced == 1


@in_virtual_time
async def test_a_copy_is_no_duplicate_of_one_that_the_disk_refused() -> None:
    node = Node(disk=MemoryDisk(sync_s=lambda: 1.0))
    node.disk.fail_next()
    message = Signer().sign(1)

    first, second = await asyncio.gather(node.submit(message), node.submit(message))

    assert (first, second) == ([ErrorCode.STORAGE_UNAVAILABLE], [None])
    assert node.mempool.count == 1


@in_virtual_time
async def test_what_arrives_while_the_disk_is_busy_is_written_together() -> None:
    node = Node(disk=MemoryDisk(sync_s=lambda: 1.0))

    outcomes = await asyncio.gather(*(node.submit(Signer().sign(tag)) for tag in range(50)))

    assert outcomes == [[None]] * 50
    assert node.disk.syncs <= 2
    assert [entry.index for entry in node.mempool.after(0, 99, FIVE_ONLY)] == list(range(1, 51))


@in_virtual_time
async def test_a_failing_disk_refuses_and_changes_nothing() -> None:
    node = Node(rules=PUBLIC)
    assert await node.submit(Signer(0).sign(0)) == [None]
    before = node.state()
    node.disk.is_full = True

    outcomes = await node.intake.submit_many([Signer(1).sign(1), Signer(2).sign(2)], "local")

    assert codes(outcomes) == [ErrorCode.STORAGE_UNAVAILABLE] * 2
    for outcome in outcomes:
        assert isinstance(outcome, Rejected)
        assert outcome.is_transient
        assert "no space left" in outcome.text
    assert node.state() == before
    assert node.store.fault is not None

    node.disk.is_full = False
    assert await node.submit(Signer(1).sign(1), Signer(2).sign(2)) == [None, None]
    assert node.store.fault is None


@in_virtual_time
async def test_a_failed_group_does_not_blame_messages_on_one_another() -> None:
    """The second is refused on account of the first; when the first does not count, neither does that reason."""
    node = Node(rules=PUBLIC)
    node.disk.fail_next()

    assert await node.submit(Signer().sign(1), Signer().sign(2)) == [ErrorCode.STORAGE_UNAVAILABLE] * 2
    assert await node.submit(Signer().sign(2), Signer().sign(1)) == [None, ErrorCode.MSG_TOO_FREQUENT]


@in_virtual_time
async def test_a_caller_who_goes_away_does_not_stop_the_writing() -> None:
    node = Node(disk=MemoryDisk(sync_s=lambda: 1.0))
    message = Signer().sign(1)
    caller = asyncio.create_task(node.submit(message))
    await asyncio.sleep(0.5)
    caller.cancel()

    copy = await node.submit(message)

    assert copy == [ErrorCode.MSG_DUPLICATE]
    assert caller.cancelled()
    assert node.mempool.count == node.disk.messages_synced == 1
    assert node.intake.is_under_way == 0


class SlowVerifier(InlineVerifier):
    """Takes a second for whatever it is asked."""

    def verify(self, requests: Sequence[Request[M, V]], errand: Errand[M, V]) -> None:
        asyncio.get_running_loop().call_later(1, super().verify, requests, errand)


@in_virtual_time
async def test_a_caller_who_goes_away_during_verification_takes_nothing_back() -> None:
    node = Node(verifier=SlowVerifier())
    message = Signer().sign(1)
    caller = asyncio.create_task(node.submit(message))
    await asyncio.sleep(0.5)
    caller.cancel()

    assert await node.submit(message) == [ErrorCode.MSG_DUPLICATE]
    assert caller.cancelled()
    assert node.mempool.count == node.disk.messages_synced == 1
    assert node.intake.is_under_way == 0


@in_virtual_time
async def test_closing_waits_for_what_is_being_verified() -> None:
    node = Node(verifier=SlowVerifier())
    outcomes: list[list[Outcome]] = []
    node.intake.offer([Signer().sign(1)], "peer", outcomes.append)

    await node.intake.close()

    assert outcomes == [[ACCEPTED]]
    assert node.disk.messages_synced == 1


@in_virtual_time
async def test_an_offer_is_settled_once_and_what_needs_no_signature_at_once() -> None:
    node = Node()
    outcomes: list[list[Outcome]] = []
    held, late, good = Signer().sign(1), Signer().sign(2, expires_at=NOW - 9), Signer().sign(3)
    assert await node.submit(held) == [None]

    node.intake.offer([held, late], "peer", outcomes.append)
    assert [codes(settled) for settled in outcomes] == [[ErrorCode.MSG_DUPLICATE, ErrorCode.MSG_EXPIRED]]
    node.intake.offer([late, good], "peer", outcomes.append)
    assert len(outcomes) == 1
    await asyncio.sleep(1)

    assert [codes(settled) for settled in outcomes[1:]] == [[ErrorCode.MSG_EXPIRED, None]]


@in_virtual_time
async def test_offers_of_one_turn_are_written_together_and_each_is_told_its_own() -> None:
    node = Node(disk=MemoryDisk(sync_s=lambda: 1.0))
    told: dict[int, list[ErrorCode | None]] = {}

    def tell(number: int, outcomes: list[Outcome]) -> None:
        told[number] = codes(outcomes)

    for number in range(8):
        messages = [Signer().sign(10 * number), forged(Signer().sign(10 * number + 1))]
        node.intake.offer(messages, "peer", partial(tell, number))
    await asyncio.sleep(1.5)

    assert told == {number: [None, ErrorCode.KES_SIGNATURE] for number in range(8)}
    assert node.disk.syncs == 1


@in_virtual_time
async def test_a_caller_that_fails_when_told_does_not_keep_others_from_hearing() -> None:
    node = Node()
    told: list[list[Outcome]] = []

    def fail(outcomes: list[Outcome]) -> None:
        raise ValueError(len(outcomes))

    node.intake.offer([Signer().sign(1)], "peer", fail)
    node.intake.offer([Signer().sign(2)], "peer", told.append)
    await asyncio.sleep(1)

    assert told == [[ACCEPTED]]
    assert node.mempool.count == 2


def test_a_bug_in_a_check_refuses_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(validator: MessageValidator, message: DmqMessage) -> Rejected | None:
        raise ZeroDivisionError

    async def submit() -> None:
        node = Node()
        (outcome,) = await node.intake.submit_many([Signer().sign(1)], "local")

        assert isinstance(outcome, Rejected)
        assert outcome.code is None
        assert (node.intake.is_under_way, node.mempool.count) == (0, 0)

    monkeypatch.setattr(MessageValidator, "check_signatures", broken)
    run_in_virtual_time(submit())


@in_virtual_time
async def test_a_full_mempool_refuses_and_takes_again_after_expiry() -> None:
    node = Node(limits=MempoolLimits(messages_max=3))
    messages = [Signer().sign(tag, expires_at=NOW + 10) for tag in range(6)]

    assert await node.submit(*messages) == [None] * 3 + [ErrorCode.QUEUE_FULL] * 3
    assert [entry.message for entry in node.mempool.after(0, 9, FIVE_ONLY)] == messages[:3]
    assert await node.submit(messages[3]) == [ErrorCode.QUEUE_FULL]

    sweeping = asyncio.create_task(node.intake.expire_loop())
    await asyncio.sleep(16)
    assert await node.submit(Signer().sign(9)) == [None]
    sweeping.cancel()


@in_virtual_time
async def test_sweeps_come_when_something_expires() -> None:
    node = Node(rules=PUBLIC)
    sweeping = asyncio.create_task(node.intake.expire_loop())
    await node.submit(Signer(0).sign(1, expires_at=NOW + 500))
    await asyncio.sleep(1)
    # Sooner than what the loop waits for.
    await node.submit(Signer(1).sign(1, expires_at=NOW + 3))

    await asyncio.sleep(1.9)
    assert node.mempool.count == 2
    await asyncio.sleep(0.2)
    assert node.mempool.count == 1
    await asyncio.sleep(496.8)
    assert node.mempool.count == 1
    await asyncio.sleep(0.2)
    assert node.mempool.count == 0
    sweeping.cancel()


@in_virtual_time
async def test_a_clock_that_is_set_forward_is_noticed_by_the_sweeper() -> None:
    node = Node()
    sweeping = asyncio.create_task(node.intake.expire_loop())
    await node.submit(Signer().sign(1, expires_at=NOW + 200))
    await asyncio.sleep(1)
    node.clock.step(250)

    await asyncio.sleep(10)

    assert node.mempool.count == 0
    sweeping.cancel()


@in_virtual_time
async def test_messages_stay_as_long_as_they_could_be_accepted_again() -> None:
    """With an allowance for clocks a message is taken up to 5 s after its expiry; so long it must be a duplicate."""
    node = Node()
    sweeping = asyncio.create_task(node.intake.expire_loop())
    message = Signer().sign(1, expires_at=NOW + 2)
    answers = await node.submit(message)
    for _ in range(90):
        await asyncio.sleep(0.1)
        answers += await node.submit(message)
    sweeping.cancel()

    assert answers[0] is None
    assert set(answers[1:]) == {ErrorCode.MSG_DUPLICATE, ErrorCode.MSG_EXPIRED}
    assert answers[1:] == sorted(answers[1:], key=lambda code: code is ErrorCode.MSG_EXPIRED)


@in_virtual_time
async def test_the_bell_and_the_listeners_hear_of_what_happens() -> None:
    node = Node()
    heard: list[object] = []
    node.intake.on_accepted.append(lambda entry: heard.append(entry.message))
    node.intake.on_rejected.append(lambda message, source, why: heard.append((message, source, why.code)))
    waiting = asyncio.create_task(node.intake.bell.wait())
    await asyncio.sleep(0)
    good, bad = Signer().sign(1), Signer().sign(2, expires_at=NOW - 9)

    await node.submit(bad, good)
    await waiting

    assert heard == [good, (bad, "local", ErrorCode.MSG_EXPIRED)]


@in_virtual_time
async def test_a_listener_that_fails_does_not_harm_the_message() -> None:
    node = Node()

    def fail(entry: MempoolEntry) -> None:
        raise ValueError(entry.index)

    node.intake.on_accepted.append(fail)

    assert await node.submit(Signer().sign(1)) == [None]
    assert node.mempool.count == 1


# Restarts


@in_virtual_time
async def test_after_a_crash_everything_accepted_is_there_and_nothing_is_accepted_twice() -> None:
    node = Node(disk=MemoryDisk(sync_s=lambda: 1.0))
    accepted = [Signer().sign(tag) for tag in range(5)]
    assert await node.submit(*accepted) == [None] * 5
    lost = asyncio.create_task(node.submit(Signer().sign(9)))
    await asyncio.sleep(0.5)
    node.disk.crash()
    assert await lost == [ErrorCode.STORAGE_UNAVAILABLE]

    again = node.again()

    assert again.restored.messages == 5
    assert [entry.message for entry in again.mempool.after(0, 9, FIVE_ONLY)] == accepted
    assert await again.submit(*accepted) == [ErrorCode.MSG_DUPLICATE] * 5
    assert await again.submit(Signer().sign(9)) == [None]


@in_virtual_time
async def test_the_gap_and_the_certificate_number_survive_restart_and_expiry() -> None:
    node = Node(rules=PUBLIC)
    assert await node.submit(Signer(issue_number=5).sign(1, expires_at=NOW + 10)) == [None]
    await asyncio.sleep(20)
    assert len(node.intake.sweep()) == 1
    await node.store.close()

    again = node.again()

    assert (again.restored.messages, again.restored.pools) == (0, 1)
    assert await again.submit(Signer(issue_number=5).sign(2)) == [ErrorCode.MSG_TOO_FREQUENT]
    await asyncio.sleep(40)
    assert await again.submit(Signer(issue_number=4).sign(2)) == [ErrorCode.OPCERT_COUNTER]
    assert await again.submit(Signer(issue_number=5).sign(2)) == [None]


@pytest.mark.parametrize("back_s", [600, 86_400])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_is_set_back_does_not_reopen_replay(back_s: float, restarts: bool) -> None:
    async def main() -> None:
        node = Node(rules=PUBLIC)
        message = Signer().sign(1, expires_at=NOW + 10)
        assert await node.submit(message) == [None]
        await asyncio.sleep(30)
        node.intake.sweep()
        await node.submit(Signer(1).sign(1, expires_at=NOW + 60))
        node.clock.step(-back_s)
        if restarts:
            await node.store.close()
            if back_s > 3_600:
                with pytest.raises(ConfigError):
                    node.again()
                node.clock.step(back_s - 3_600)
                node.disk.crash()
            node = node.again()

        assert await node.submit(message) == [ErrorCode.MSG_EXPIRED]
        assert node.intake.clock.behind_s > 0

    run_in_virtual_time(main())


@in_virtual_time
async def test_a_stored_time_far_ahead_is_refused_naming_both_times() -> None:
    node = Node()
    await node.submit(Signer().sign(1))
    await node.store.close()
    node.clock.step(-3_600.0)
    await node.again().store.close()
    node.clock.step(-1.0)

    with pytest.raises(ConfigError) as refused:
        node.again()

    assert refused.value.code is ErrorCode.CONFIG_INVALID
    assert f"{NOW}," in refused.value.text
    assert f"{NOW - 3_601};" in refused.value.text
    assert "unsafe-accept-stored-time" in refused.value.advice


@in_virtual_time
async def test_the_override_believes_the_clock_and_drops_what_lies_in_the_future() -> None:
    node = Node()
    await node.submit(Signer().sign(1))
    await node.store.close()
    node.clock.step(-7_200.0)

    store, mempool = MemoryStore(node.disk), Mempool()
    validator = MessageValidator(PRIVATE, KnownPools())
    intake = Intake(validator, mempool, store, node.clock, verifier=InlineVerifier())
    restored = intake.restore(accept_stored_time=True)

    assert (restored.messages, restored.unkept) == (0, 1)
    assert intake.clock.behind_s == 0
    assert await intake.submit(Signer().sign(1, expires_at=NOW - 7_000), "local") is ACCEPTED
    await store.close()
    assert node.again().restored.messages == 1


@in_virtual_time
async def test_a_limit_that_was_lowered_does_not_drop_what_was_accepted() -> None:
    node = Node()
    await node.submit(*(Signer().sign(tag) for tag in range(5)))
    await node.store.close()
    node.limits = MempoolLimits(messages_max=3)

    again = node.again()

    assert again.mempool.count == 5
    assert await again.submit(Signer().sign(9)) == [ErrorCode.QUEUE_FULL]


# Any mixture


@example(steps=[("submit", [0]), ("wait", [30.0]), ("crash", []), ("back", [600.0])])
@settings(max_examples=60)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("submit"), st.lists(st.integers(0, 11), min_size=1, max_size=4)),
            st.tuples(st.just("forge"), st.lists(st.integers(0, 11), min_size=1, max_size=2)),
            st.tuples(
                st.just("wait"), st.lists(st.sampled_from((0.05, 0.2, 5.0, 30.0)), min_size=1, max_size=1)
            ),
            st.tuples(st.just("fail"), st.just([])),
            st.tuples(st.just("crash"), st.just([])),
            st.tuples(st.just("back"), st.sampled_from(([600.0], [3_000.0]))),
        ),
        max_size=25,
    )
)
def test_accepted_means_held_until_expiry_and_never_accepted_again(
    steps: list[tuple[str, list[Any]]],
) -> None:
    async def main() -> None:
        node = Node(disk=MemoryDisk(sync_s=lambda: 0.1))
        accepted: dict[bytes, DmqMessage] = {}
        calls: list[asyncio.Task[list[Outcome]]] = []

        async def submit(*messages: DmqMessage) -> list[Outcome]:
            outcomes = await node.intake.submit_many(messages, "local")
            for message, outcome in zip(messages, outcomes, strict=True):
                if isinstance(outcome, Accepted):
                    assert message.message_id not in accepted, "accepted twice"
                    accepted[message.message_id] = message
            return outcomes

        for what, values in steps:
            if what in ("submit", "forge"):
                messages = [Signer(tag % 3).sign(tag, expires_at=NOW + 10 + 4 * tag) for tag in values]
                if what == "forge":
                    messages = [forged(message) for message in messages]
                calls.append(asyncio.create_task(submit(*messages)))
                await asyncio.sleep(0.03)
            elif what == "wait":
                await asyncio.sleep(values[0])
                node.intake.sweep()
            elif what == "fail":
                node.disk.fail_next()
            elif what == "back":
                node.clock.step(-values[0])
            else:
                node.disk.crash()
                await asyncio.gather(*calls)
                try:
                    node = node.again()
                except ConfigError:
                    return
            now = node.intake.clock.unix_s()
            for message in accepted.values():
                if message.expires_at > now:
                    assert message.key in node.mempool
        await asyncio.gather(*calls)

    run_in_virtual_time(main())


# Processes and real clocks


def test_the_verifier_keeps_the_order_across_pieces_and_processes() -> None:
    messages = [Signer(tag % 3).sign(tag) for tag in range(25)]
    bad = {4, 17, 24}
    validator = MessageValidator(PRIVATE, KnownPools())

    async def main() -> None:
        verifier = Verifier(processes=2)
        wanted = [index in bad for index in range(25)]
        given = [forged(message) if index in bad else message for index, message in enumerate(messages)]
        check = validator.check_signatures
        assert [verdict is not None for verdict in await verifier.check(given, check, validator)] == wanted
        single = await asyncio.gather(*(verifier.check([message], check, validator) for message in given))
        assert [verdicts[0] is not None for verdicts in single] == wanted
        await verifier.close()

    asyncio.run(main())


def test_a_bug_in_a_check_reaches_its_caller_only() -> None:
    def check(message: DmqMessage) -> Rejected | None:
        raise ZeroDivisionError

    async def main() -> None:
        verifier = Verifier(processes=1)
        message = Signer().sign(1)
        broken, fine = await asyncio.gather(
            verifier.check([message], check),
            verifier.check([message], lambda _: None),
            return_exceptions=True,
        )
        assert isinstance(broken, ZeroDivisionError)
        assert fine == [None]
        await verifier.close()

    asyncio.run(main())


def test_nodes_of_a_simulation_check_a_valid_message_once_between_them() -> None:
    memory: BoundedCache[bytes, bool] = BoundedCache(16)
    checked: list[bytes] = []
    validator = MessageValidator(PRIVATE, KnownPools())

    def check(message: DmqMessage) -> Rejected | None:
        checked.append(message.raw)
        return validator.check_signatures(message)

    async def main() -> None:
        good, bad = Signer().sign(1), forged(Signer().sign(2))
        for _ in range(3):
            verdicts = await InlineVerifier(memory).check([good, bad], check)
            assert [verdict is None for verdict in verdicts] == [True, False]
        assert checked.count(good.raw) == 1
        assert checked.count(bad.raw) == 3

    asyncio.run(main())


def test_a_floored_clock_stands_still_until_the_other_has_caught_up() -> None:
    async def main() -> None:
        base = LoopClock(NOW)
        clock = FlooredClock(base)
        clock.raise_floor(NOW + 100)
        clock.raise_floor(NOW + 50)
        assert (clock.unix_s(), clock.behind_s) == (NOW + 100, 100)
        await asyncio.sleep(60)
        assert (clock.unix_s(), clock.behind_s, clock.mono_s()) == (NOW + 100, 40, 60)
        await asyncio.sleep(60)
        assert (clock.unix_s(), clock.behind_s) == (NOW + 120, 0)

    run_in_virtual_time(main())


def test_the_system_clock_follows_the_loop_where_there_is_one() -> None:
    async def main() -> float:
        await asyncio.sleep(1_000)
        return SystemClock().mono_s()

    assert run_in_virtual_time(main()) == pytest.approx(1_000)
    assert SystemClock().mono_s() == pytest.approx(time.monotonic(), abs=60)
    assert SystemClock().unix_s() > 1_600_000_000


def test_closing_waits_for_what_is_being_written() -> None:
    async def main() -> None:
        node = Node(disk=MemoryDisk(sync_s=lambda: 1.0))
        call = asyncio.create_task(node.submit(Signer().sign(1)))
        await asyncio.sleep(0.5)
        await node.intake.close()
        assert node.disk.messages_synced == 1
        assert await call == [None]
        await node.intake.close()
        with pytest.raises(StorageError):
            MemoryStore(node.disk)

    run_in_virtual_time(main())


def test_a_clock_that_goes_far_ahead_at_once_lifts_the_floor_by_five_minutes_until_it_is_believed() -> None:
    async def main() -> None:
        base = LoopClock(NOW)
        clock = FlooredClock(base)
        base.step(LEAD_MAX_S)
        assert (clock.lead_s, clock.sure_s) == (0.0, NOW + LEAD_MAX_S), "a step up to the limit is believed"
        base.step(86_400)
        assert (clock.unix_s(), clock.lead_s) == (base.unix_s(), 86_400)
        assert clock.sure_s == NOW + 2 * LEAD_MAX_S
        await asyncio.sleep(BELIEVED_AFTER_S - 1)
        assert clock.sure_s == base.unix_s() - 86_400 + LEAD_MAX_S
        await asyncio.sleep(1)
        assert (clock.sure_s, clock.lead_s) == (base.unix_s(), 0.0), "a machine that stood still is right"
        base.step(86_400)
        assert clock.lead_s == 86_400
        base.step(-86_400)
        await asyncio.sleep(BELIEVED_AFTER_S)
        assert (clock.lead_s, clock.sure_s) == (0.0, base.unix_s()), "it came back in time"

    run_in_virtual_time(main())


@pytest.mark.parametrize("stays_s", [60, 3_600])
def test_a_message_accepted_while_the_clock_is_a_day_ahead_costs_others_no_day(stays_s: int) -> None:
    async def main() -> None:
        node = Node()
        held = Signer().sign(1, expires_at=NOW + 1_500)
        assert await node.submit(held) == [None]
        node.clock.step(86_400)
        early = Signer(1).sign(1, expires_at=NOW + 86_400 + 60)
        assert await node.submit(early) == [None]
        sweeping = asyncio.create_task(node.intake.expire_loop())
        await asyncio.sleep(stays_s)
        sweeping.cancel()
        node.clock.step(-86_400)
        fresh = Signer(2).sign(1, expires_at=NOW + stays_s + 1_500)
        is_believed = stays_s >= BELIEVED_AFTER_S
        assert await node.submit(fresh) == [ErrorCode.MSG_EXPIRED if is_believed else None]
        assert await node.submit(held) != [None]
        assert await node.submit(early) != [None]
        assert (node.intake.clock.behind_s > LEAD_MAX_S) is is_believed
        assert "--recover" in str(clock_fault(node.intake.clock)), "while the clock stands still"
        if not is_believed:
            await node.store.close()
            again = node.again()
            assert again.restored.messages == 3, (
                "what came by the wrong clock is kept: it must not come again"
            )
            assert await again.submit(early) == [ErrorCode.MSG_DUPLICATE]

    run_in_virtual_time(main())
