"""The end of every path through the publisher: reports of new statuses, one end for each message, and the counters.

Invariant of the counters, at every instant: published = acked + sent_final + failed + live.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from stagepost.delivery import endings
from stagepost.delivery.effects import Effect, FlushEnded, Report, SaveEnd, SaveProgress, Wake
from stagepost.delivery.endings import EndedMessages
from stagepost.delivery.entry import SENDING, ClockTimes, OutboxEntry
from stagepost.delivery.errors import DeliveryError
from stagepost.delivery.outbox import Outbox
from stagepost.delivery.status import (
    ACKED,
    CONFIRMED,
    DELIVERY,
    GAVE_UP,
    QUEUED,
    WRITTEN,
    DeliveryResult,
    DeliveryStatus,
    Step,
)


@dataclass(slots=True)
class Counters:
    published: int = 0
    queued: int = 0
    sent: int = 0
    sent_final: int = 0
    acked: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    """Failed messages by the name of the error."""
    evicted: int = 0
    retries: int = 0
    ack_timeouts: int = 0
    late_acks: int = 0
    bad_acks: int = 0
    outside_acks: int = 0
    """Receipts from nodes that no message asked."""
    duplicates_in: int = 0
    """Receipts that said nothing new."""

    def count_failure(self, name: str) -> None:
        self.failed[name] = self.failed.get(name, 0) + 1

    @property
    def ended(self) -> int:
        return self.acked + self.sent_final + sum(self.failed.values())


class Settlement:
    """The changes of a message's status up to its end, and the effects that they ask for.

    The publisher's core decides when a status changes. Effects wait here, in order, until the core hands them out.
    """

    def __init__(self, outbox: Outbox, dead_letters_max: int, *, is_stored: bool) -> None:
        self.counters = Counters()
        self.ended = EndedMessages(dead_letters_max)
        self.is_stored = is_stored
        self.is_watched = True
        """False if nobody wants to hear of new statuses: then no report is made."""
        self.effects: list[Effect] = []
        self._outbox = outbox
        self._flushing: set[int] | None = None
        self._flush_sent = 0

    def take_effects(self) -> list[Effect]:
        """Return the effects since the last call, in order."""
        effects = self.effects
        if effects:
            self.effects = []
        return effects

    # Statuses.

    def report(self, entry: OutboxEntry, error: DeliveryError | None, now: ClockTimes) -> None:
        entry.timestamp_ms = now.unix_ms
        if not self.is_watched:
            return
        self.effects.append(
            Report(
                entry,
                entry.status,
                error,
                now.unix_ms,
                entry.attempt_number,
                entry.network_id,
                entry.acked_by,
            )
        )

    def become(self, entry: OutboxEntry, step: Step, error: DeliveryError | None, now: ClockTimes) -> None:
        """Report the status that `step` leads to, unless observers have seen that status already."""
        status = DELIVERY.next_status(entry.status, step)
        if status is None:
            return
        if status is QUEUED:
            self.counters.queued += 1
        self._outbox.become(entry, status)
        self.report(entry, error, now)

    def become_sent(self, entry: OutboxEntry, now: ClockTimes) -> None:
        """Report Sent for a message whose receipt proves that it was sent."""
        if not entry.is_sent:
            self.count_flushed(entry)
            if entry.phase is not SENDING:
                # A receipt after a restart: this process did not send, so the entry takes its place in flight now.
                self._outbox.begin_send(entry)
            self.counters.sent += 1
            self.become(entry, WRITTEN, None, now)

    def save(self, entry: OutboxEntry) -> None:
        if self.is_stored:
            self.effects.append(SaveProgress(entry))

    # The end.

    def end(
        self, entry: OutboxEntry, error: DeliveryError | None, now: ClockTimes, *, is_saved: bool = False
    ) -> None:
        """End a message of the outbox; there is no other way out.

        Without an error the message ends as Acked if it asked for receipts, otherwise as Sent. `is_saved`: the store
        holds the end already.
        """
        self._outbox.remove(entry)
        if error is not None:
            step = GAVE_UP
        elif entry.tally is not None:
            step = CONFIRMED
        else:
            step = WRITTEN
        outcome = self.settle(entry, DELIVERY.after(entry.status, step), error, now)
        if error is not None:
            letter = endings.dead_letter(entry, error, now.unix_ms)
            self.ended.dead_letters.put(entry.sequence, letter)
        elif entry.key_hash is not None:
            self.ended.done_keys.put(entry.key_hash, outcome)
        if self.is_stored and not is_saved:
            self.effects.append(SaveEnd(entry, outcome))
        if entry.is_awaited:
            self.effects.append(Wake(entry, outcome))
        if self._flushing is not None:
            self.leave_flush(entry)

    def settle(
        self, entry: OutboxEntry, status: DeliveryStatus, error: DeliveryError | None, now: ClockTimes
    ) -> DeliveryResult:
        """Count, remember and report the last status of a message; return its result."""
        counters = self.counters
        if error is not None:
            counters.count_failure(type(error).__name__)
            counters.evicted += type(error) is endings.EVICTED
        elif status is ACKED:
            counters.acked += 1
        else:
            counters.sent_final += 1
        entry.status = status
        outcome = self.result(entry, status, error, now.unix_ms)
        if error is not None:
            error.message_id = entry.id_text
            error.result = outcome
        self.ended.results.put(entry.delivery_id, outcome)
        self.report(entry, error, now)
        return outcome

    def result(
        self, entry: OutboxEntry, status: DeliveryStatus, error: Exception | None, at_ms: int
    ) -> DeliveryResult:
        tally = entry.tally
        if tally is None:
            return DeliveryResult(
                entry.id_text, status, entry.tier, at_ms, error=error, attempts=entry.attempts
            )
        return DeliveryResult(
            entry.id_text,
            status,
            entry.tier,
            at_ms,
            tuple(tally.acked),
            error,
            tally.missing,
            tally.nacked_by,
            entry.attempts,
        )

    # The flush that a caller asked for.

    @property
    def is_flushing(self) -> bool:
        return self._flushing is not None

    def begin_flush(self, sequences: Iterable[int]) -> None:
        self._flushing = set(sequences)
        self._flush_sent = 0

    def count_flushed(self, entry: OutboxEntry) -> None:
        if self._flushing is not None and entry.sequence in self._flushing:
            self._flush_sent += 1
            self.leave_flush(entry)

    def leave_flush(self, entry: OutboxEntry) -> None:
        if self._flushing is not None:
            self._flushing.discard(entry.sequence)
            if not self._flushing:
                self.end_flush(is_cut_short=False)

    def end_flush(self, *, is_cut_short: bool) -> None:
        """End the flush that is under way, if there is one."""
        if self._flushing is not None:
            self._flushing = None
            self.effects.append(FlushEnded(self._flush_sent, is_cut_short))
