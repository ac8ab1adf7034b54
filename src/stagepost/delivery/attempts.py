"""Attempts to send: what goes out, and what the network's answer means for the message."""

from __future__ import annotations

from stagepost.delivery import endings
from stagepost.delivery.answers import Answers
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.deadlines import Deadlines, PaceGate
from stagepost.delivery.effects import Effect
from stagepost.delivery.entry import BACKING_OFF, NEVER, SENDING, ClockTimes, OutboxEntry
from stagepost.delivery.errors import DeliveryError
from stagepost.delivery.identity import counted_nonce, delivery_id
from stagepost.delivery.outbox import Outbox
from stagepost.delivery.settlement import Settlement
from stagepost.delivery.status import FAILED, MUST_WAIT, SENT, Tier
from stagepost.delivery.transport import Outgoing, Published, SendFailed, SendPaced
from stagepost.errors import StagepostError


class SendingConditions:
    """Conditions under which anything can be sent: a connected peer, and a pace of the network that allows it."""

    def __init__(self) -> None:
        self.is_connected = False
        self.absence: StagepostError | None = None
        """Reason why no peer is connected, where the transport tells it."""
        self.gate = PaceGate()

    @property
    def may_send(self) -> bool:
        return self.is_connected and self.gate.closed_by is None


class Attempts:
    """The sender of entries: it hands them out in their turn, and follows each attempt to its result.

    `volatile_prefix` belongs to this run, for messages that are not stored.
    """

    def __init__(
        self,
        config: ReliablePublisherConfig,
        outbox: Outbox,
        settlement: Settlement,
        deadlines: Deadlines,
        answers: Answers,
        conditions: SendingConditions,
        sender: bytes,
        volatile_prefix: bytes,
        *,
        is_stored: bool,
    ) -> None:
        self.trying_once = 0
        self._config = config
        self._outbox = outbox
        self._settlement = settlement
        self._deadlines = deadlines
        self._answers = answers
        self._conditions = conditions
        self._sender = sender
        self._volatile_prefix = volatile_prefix
        self._next_volatile = 1
        self._is_stored = is_stored

    # Best effort: one attempt, nothing stored.

    def begin_once(self, topic: str, payload: bytes, now: ClockTimes, traceparent: str = "") -> OutboxEntry:
        nonce = counted_nonce(self._volatile_prefix, self._next_volatile)
        self._next_volatile += 1
        message_id = delivery_id(self._sender, topic, nonce, payload)
        entry = OutboxEntry(
            0, message_id, Tier.BEST_EFFORT, topic, payload, nonce, now.unix_ms, None, None, traceparent
        )
        self._settlement.counters.published += 1
        self.trying_once += 1
        self._settlement.report(entry, None, now)
        return entry

    def outgoing_once(self, entry: OutboxEntry) -> Outgoing:
        return Outgoing(entry.topic, entry.nonce, entry.created_ms, 0, (), entry.payload, entry.traceparent)

    def end_once(
        self, entry: OutboxEntry, published: Published | None, error: DeliveryError | None, now: ClockTimes
    ) -> list[Effect]:
        self.trying_once -= 1
        if published is not None:
            entry.network_id = published.network_id
            entry.attempts = entry.sends = 1
            self._settlement.counters.sent += 1
        status = SENT if error is None else FAILED
        self._settlement.settle(entry, status, error, now)
        return self._settlement.take_effects()

    def outgoing(self, entry: OutboxEntry, ackers: tuple[str, ...]) -> Outgoing:
        created_ms = entry.stamped_ms or entry.created_ms
        return Outgoing(
            entry.topic,
            entry.nonce,
            created_ms,
            entry.attempt_number,
            ackers,
            entry.payload,
            entry.traceparent,
        )

    # In the turn of the outbox.

    def next_to_send(self, now: ClockTimes) -> OutboxEntry | None:
        if not self._conditions.is_connected or self._conditions.gate.is_closed(now):
            return None
        entry = self._outbox.take()
        while self._outbox.must_be_told:
            self._settlement.become(self._outbox.must_be_told.pop(), MUST_WAIT, None, now)
        return entry

    def begin_send(self, entry: OutboxEntry, now: ClockTimes) -> Outgoing:
        self._outbox.begin_send(entry)
        entry.wait_until = NEVER
        if entry.must_be_stamped and not entry.stamped_ms:
            entry.stamped_ms, entry.is_stamp_stored = now.unix_ms, not self._is_stored
        if entry.attempts:
            self._settlement.counters.retries += 1
        if now.unix_ms - entry.created_ms > self._config.dedup_window * 1_000:
            entry.maybe_duplicate = True
        tally = entry.tally
        if tally is None:
            ackers: tuple[str, ...] = ()
        else:
            tally.begin_attempt()
            ackers = tally.missing
        return self.outgoing(entry, ackers)

    def sent(self, entry: OutboxEntry, published: Published, now: ClockTimes) -> list[Effect]:
        """Note that the network took a message."""
        if entry.phase is not SENDING:
            return self._settlement.take_effects()
        entry.sends += 1
        entry.network_id = published.network_id
        if entry.tally is None:
            entry.attempts += 1
            self._settlement.count_flushed(entry)
            self._settlement.counters.sent += 1
            self._settlement.end(entry, None, now)
            return self._settlement.take_effects()
        tally = entry.tally
        if entry.status is not SENT:
            self._settlement.count_flushed(entry)
            self._settlement.counters.sent += 1
            self._outbox.await_answers(entry)
            self._settlement.report(entry, None, now)
        else:
            self._outbox.await_answers(entry)
        entry.attempts += 1
        entry.expires_at = NEVER
        if tally.acked and tally.is_complete:
            self._settlement.end(entry, None, now)
        elif tally.refused and tally.is_out_of_reach:
            self._settlement.end(entry, endings.nacked(entry), now)
        else:
            entry.wait_until = now.mono_s + self._config.ack_timeout
            if entry.wait_until < entry.timer_at:
                self._deadlines.set(entry)
            if self._is_stored:
                self._settlement.save(entry)
            if tally.refused_for_now:
                self._answers.try_again_soon(entry, None, now)
        return self._settlement.take_effects()

    def send_failed(self, entry: OutboxEntry, error: SendFailed, now: ClockTimes) -> list[Effect]:
        """Note that the network did not take a message this time. Losing the connection costs no attempt."""
        if entry.phase is not SENDING:
            return self._settlement.take_effects()
        cause = endings.send_failed(entry, error)
        entry.last_cause = cause
        costs = error.costs_attempt and self._conditions.is_connected
        if costs:
            entry.attempts += 1
            if entry.attempts >= self._config.attempts_max:
                self._settlement.end(entry, endings.attempts_used_up(entry, cause), now)
                return self._settlement.take_effects()
        self._outbox.send_failed(entry)
        if isinstance(error, SendPaced):
            self._conditions.gate.close(error, now)
            # A caller who asked for a flush need not wait for minutes: what can be sent now was sent.
            self._settlement.end_flush(is_cut_short=False)
        delay_s = self._answers.delay(entry) if costs else self._config.retry_delay
        if error.retry_after_s is not None:
            delay_s = max(delay_s, error.retry_after_s) if costs else error.retry_after_s
        if not self._conditions.may_send:
            self._outbox.make_ready(entry)
        else:
            self._outbox.enter(entry, BACKING_OFF)
            entry.wait_until = now.mono_s + delay_s
        self._settlement.become(entry, MUST_WAIT, cause, now)
        self._deadlines.set(entry)
        self._settlement.leave_flush(entry)
        self._settlement.save(entry)
        return self._settlement.take_effects()

    def send_refused(self, entry: OutboxEntry, error: Exception, now: ClockTimes) -> list[Effect]:
        """Note that the network will never take a message."""
        if entry.phase is SENDING:
            self._settlement.end(entry, endings.rejected(entry, error), now)
        return self._settlement.take_effects()

    def send_interrupted(self, entry: OutboxEntry) -> None:
        """Put a message back whose send the shell broke off; the network may have it all the same."""
        if entry.phase is SENDING:
            entry.is_fate_unknown = True
            self._outbox.send_failed(entry)
            self._outbox.make_ready(entry)
            self._deadlines.set(entry)
