"""The checkers can fail: each of these defects, planted into publisher, queue, store or receiver, is caught."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from stagepost.delivery import errors, outbox
from stagepost.delivery.answers import Answers
from stagepost.delivery.attempts import Attempts
from stagepost.delivery.entry import NEVER, ClockTimes, OutboxEntry, Phase
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.outbox import Outbox
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.receiver import ACCEPTED, Action, ReceiverCore, receipt_of
from stagepost.delivery.settlement import Settlement
from stagepost.delivery.shell.inbox_keeper import InboxKeeper
from stagepost.delivery.shell.receiver import Handler, Receiver
from stagepost.delivery.status import AckType, DeliveryResult, DeliveryStatus
from stagepost.delivery.stores.inbox_stores import MemoryInbox
from stagepost.delivery.stores.outbox_stores import MemoryOutbox
from stagepost.delivery.transport import Incoming, SendFailed
from tests.simulation import delivery_worlds
from tests.simulation.delivery_worlds import SCENARIOS, faults_found, run_delivery

SEEDS_TRIED = 6

Plant = Callable[[pytest.MonkeyPatch], None]


def answers_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delivery_worlds, "MemoryOutbox", partial(MemoryOutbox, is_safe=False))


def forgets_the_outbox_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PublisherCore, "recover", lambda core, stored, now: [])


def evicts_silently(patch: pytest.MonkeyPatch) -> None:
    end = Settlement.end

    def end_or_forget(
        settlement: Settlement, entry: OutboxEntry, error: Any, now: ClockTimes, **options: Any
    ) -> None:
        if isinstance(error, errors.ErrQueueEvicted):
            settlement._outbox.remove(entry)
            settlement.counters.published -= 1
        else:
            end(settlement, entry, error, now, **options)

    patch.setattr(Settlement, "end", end_or_forget)


def evicts_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outbox, "_is_idle", lambda entry: entry.phase in (Phase.READY, Phase.AWAITING))


def reports_the_end_twice(patch: pytest.MonkeyPatch) -> None:
    settle = Settlement.settle

    def settle_twice(settlement: Settlement, entry: OutboxEntry, *details: Any) -> DeliveryResult:
        outcome = settle(settlement, entry, *details)
        settlement.effects.append(settlement.effects[-1])
        return outcome

    patch.setattr(Settlement, "settle", settle_twice)


def loses_a_message_whose_send_failed(patch: pytest.MonkeyPatch) -> None:
    failed = Attempts.send_failed

    def failed_for_ever(attempts: Attempts, entry: OutboxEntry, error: SendFailed, now: ClockTimes) -> Any:
        effects = failed(attempts, entry, error, now)
        if entry.phase is Phase.BACKING_OFF:
            attempts._outbox.enter(entry, Phase.HELD)
            entry.wait_until = NEVER
        return effects

    patch.setattr(Attempts, "send_failed", failed_for_ever)


def wakes_the_caller_as_acked_when_time_is_over(patch: pytest.MonkeyPatch) -> None:
    make = Settlement.result

    def rosy(
        settlement: Settlement, entry: OutboxEntry, status: Any, error: Any, at_ms: int
    ) -> DeliveryResult:
        if isinstance(error, errors.ErrAckTimeout):
            status, error = DeliveryStatus.ACKED, None
        return make(settlement, entry, status, error, at_ms)

    patch.setattr(Settlement, "result", rosy)


def takes_a_nack_for_an_ack(patch: pytest.MonkeyPatch) -> None:
    weigh = Answers._weigh

    def kindly(
        answers: Answers, entry: OutboxEntry, tally: Any, peer: str, receipt: AckReceipt, now: ClockTimes
    ) -> None:
        weigh(answers, entry, tally, peer, AckReceipt(receipt.message_id, 0, AckType.ACK), now)

    patch.setattr(Answers, "_weigh", kindly)


def sends_the_newest_first(patch: pytest.MonkeyPatch) -> None:
    def take_newest(queue: Outbox) -> OutboxEntry | None:
        ready = [entry for entry in queue if entry.phase is Phase.READY]
        return ready[-1] if ready else None

    patch.setattr(Outbox, "take", take_newest)


def miscounts(patch: pytest.MonkeyPatch) -> None:
    accept = PublisherCore.accept

    def accept_uncounted(core: PublisherCore, entry: OutboxEntry, now: ClockTimes) -> Any:
        core.counters.published -= bool(entry.evicted)
        return accept(core, entry, now)

    patch.setattr(PublisherCore, "accept", accept_uncounted)


def acknowledges_before_the_handler(patch: pytest.MonkeyPatch) -> None:
    take = Receiver._take

    def hasty(
        receiver: Receiver, message_id: bytes, message: Incoming, handler: Handler, now: ClockTimes
    ) -> None:
        if receiver._core.is_asked(message):
            receiver._receipts.put(receipt_of(message_id, ACCEPTED, now))
        take(receiver, message_id, message, handler, now)

    patch.setattr(Receiver, "_take", hasty)


def forgets_what_it_has_seen(patch: pytest.MonkeyPatch) -> None:
    received = ReceiverCore.received

    def always_new(core: ReceiverCore, message_id: bytes, message: Incoming, now: ClockTimes) -> Action:
        core._seen.pop(message_id, None)
        return received(core, message_id, message, now)

    patch.setattr(ReceiverCore, "received", always_new)


def grants_every_claim(patch: pytest.MonkeyPatch) -> None:
    async def yes(inbox: MemoryInbox, delivery_id: object, keep_until_ms: int | None = None) -> bool:
        return True

    patch.setattr(MemoryInbox, "claim", yes)
    # A receiver that stores its verdicts seldom needs a claim: let it forget them in a crash.
    patch.setattr(InboxKeeper, "_recall", lambda keeper: None)


@pytest.mark.parametrize(
    ("plant", "scenario", "rules"),
    [
        (answers_before_it_is_on_disk, "crashes", {"whatever_was_returned_comes_to_a_reported_end"}),
        (forgets_the_outbox_at_a_restart, "crashes", {"whatever_was_returned_comes_to_a_reported_end"}),
        (evicts_silently, "overload", {"whatever_was_returned_comes_to_a_reported_end"}),
        (evicts_what_is_in_flight, "overload", {"nothing_is_dropped_silently"}),
        (reports_the_end_twice, "lossy", {"statuses_follow_the_graph"}),
        (loses_a_message_whose_send_failed, "lossy", {"whatever_was_returned_comes_to_a_reported_end"}),
        (wakes_the_caller_as_acked_when_time_is_over, "lossy", {"every_waiting_call_ends_once"}),
        (takes_a_nack_for_an_ack, "lossy", {"acked_means_processed_by_enough_critical_peers"}),
        (sends_the_newest_first, "order", {"order_is_kept"}),
        (miscounts, "overload", {"nothing_is_dropped_silently"}),
        (acknowledges_before_the_handler, "lossy", {"acked_means_processed_by_enough_critical_peers"}),
        (forgets_what_it_has_seen, "lossy", {"effects_happen_once"}),
        (grants_every_claim, "crashes", {"effects_happen_once"}),
    ],
)
def test_planted_defect_is_caught(
    plant: Plant, scenario: str, rules: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(delivery_worlds, "ENDING_S_MAX", 90)
    logging.disable(logging.CRITICAL)
    try:
        broken: set[str] = set()
        for seed in range(SEEDS_TRIED):
            broken |= faults_found(SCENARIOS[scenario], run_delivery(SCENARIOS[scenario], seed)).keys()
            if rules <= broken:
                return
    finally:
        logging.disable(logging.NOTSET)
    pytest.fail(f"{rules - broken} did not notice it; noticed: {broken or 'nothing'}")
