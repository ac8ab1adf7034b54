"""The publisher's core: calls, answers of the network, receipts and time in; reports, marks and wake-ups out.

Nothing is awaited here. A message is offered, stored by the shell, accepted, handed out to be sent in its turn, and
followed through retries to exactly one end. Each method returns the effects of what happened, in order.
"""

from __future__ import annotations

from stagepost.delivery import endings
from stagepost.delivery.acks import AckTally
from stagepost.delivery.backoff import delay_before, spread
from stagepost.delivery.effects import Effect, Wake
from stagepost.delivery.entry import (
    AWAITING,
    BACKING_OFF,
    ENDED,
    LEAVING,
    NEVER,
    SENDING,
    STORING,
    Entry,
    Moment,
)
from stagepost.delivery.receipts import RETRY_AFTER_MS_MAX, AckReceipt
from stagepost.delivery.settling import WAITING
from stagepost.delivery.status import ACK, MUST_WAIT, SENT
from stagepost.delivery.taking_in import TakingIn
from stagepost.delivery.transport import IncomingAcks, Outgoing, Published, SendFailed

EDGES_MERGED_S = 0.5
"""Connections that come and go more often than this reset the back-off of all messages only this often."""

RECEIPT_AHEAD_MAX_MS = 60_000
"""A receipt from further in the future is dropped."""


class PublisherCore(TakingIn):
    _cleared_at = -NEVER
    _clear_at = NEVER
    _tick_at = NEVER

    # Going out.

    def next_to_send(self, now: Moment) -> Entry | None:
        if not self.is_connected:
            return None
        entry = self.outbox.take()
        while self.outbox.must_be_told:
            self._become(self.outbox.must_be_told.pop(), MUST_WAIT, None, now)
        return entry

    def begin_send(self, entry: Entry, now: Moment) -> Outgoing:
        self.outbox.begin_send(entry)
        entry.wait_until = NEVER
        if entry.attempts:
            self.counters.retries += 1
        if now.unix_ms - entry.created_ms > self.config.dedup_window * 1_000:
            entry.maybe_duplicate = True
        tally = entry.tally
        if tally is None:
            ackers: tuple[str, ...] = ()
        else:
            tally.begin_attempt()
            ackers = tally.missing
        return Outgoing(
            entry.topic, entry.nonce, entry.created_ms, entry.attempt_number, ackers, entry.payload
        )

    def sent(self, entry: Entry, published: Published, now: Moment) -> list[Effect]:
        """The network took it."""
        if entry.phase is not SENDING:
            return self._done()
        entry.sends += 1
        entry.network_id = published.network_id
        if entry.tally is None:
            entry.attempts += 1
            self._count_flushed(entry)
            self.counters.sent += 1
            self._end(entry, None, now)
            return self._done()
        tally = entry.tally
        if entry.status is not SENT:
            if self._flushing is not None:
                self._count_flushed(entry)
            self.counters.sent += 1
            self.outbox.await_answers(entry)
            self._report(entry, None, now)
        else:
            self.outbox.await_answers(entry)
        entry.attempts += 1
        entry.expires_at = NEVER
        if tally.acked and tally.is_complete:
            self._end(entry, None, now)
        elif tally.refused and tally.is_out_of_reach:
            self._end(entry, endings.nacked(entry), now)
        else:
            entry.wait_until = now.mono_s + self.config.ack_timeout
            if entry.wait_until < entry.timer_at:
                self._deadlines.set(entry)
            if self._is_stored:
                self._save(entry)
            if tally.refused_for_now:
                self._try_again_soon(entry, None, now)
        return self._done()

    def send_failed(self, entry: Entry, error: SendFailed, now: Moment) -> list[Effect]:
        """The network did not take it this time. Losing the connection costs no attempt."""
        if entry.phase is not SENDING:
            return self._done()
        cause = endings.send_failed(entry, error)
        entry.last_cause = cause
        costs = error.costs_attempt and self.is_connected
        if costs:
            entry.attempts += 1
            if entry.attempts >= self.config.attempts_max:
                self._end(entry, endings.attempts_used_up(entry, cause), now)
                return self._done()
        self.outbox.send_failed(entry)
        delay_s = self._delay(entry) if costs else self.config.retry_delay
        if error.retry_after_s is not None:
            delay_s = max(delay_s, error.retry_after_s) if costs else error.retry_after_s
        if not self.is_connected:
            self.outbox.make_ready(entry)
        else:
            self.outbox.enter(entry, BACKING_OFF)
            entry.wait_until = now.mono_s + delay_s
        self._become(entry, MUST_WAIT, cause, now)
        self._deadlines.set(entry)
        self._leave_flush(entry)
        self._save(entry)
        return self._done()

    def send_refused(self, entry: Entry, error: Exception, now: Moment) -> list[Effect]:
        """The network will never take it."""
        if entry.phase is SENDING:
            self._end(entry, endings.rejected(entry, error), now)
        return self._done()

    def send_interrupted(self, entry: Entry) -> None:
        """The shell stopped in the middle of it: it goes back to its place, and may be out all the same."""
        if entry.phase is SENDING:
            entry.is_fate_unknown = True
            self.outbox.send_failed(entry)
            self.outbox.make_ready(entry)
            self._deadlines.set(entry)

    def _delay(self, entry: Entry) -> float:
        config = self.config
        delay_s = delay_before(max(1, entry.attempts), config.retry_delay, config.retry_delay_max)
        return spread(delay_s, config.retry_jitter, self._random)

    # Receipts.

    def receipts(self, acks: IncomingAcks, now: Moment) -> list[Effect]:
        if acks.sender != acks.carrier:
            self.counters.bad_acks += len(acks.receipts)
            return self._done()
        peer, live, outcomes = acks.sender, self.outbox.by_id, self.ended.outcomes
        latest_ms = now.unix_ms + RECEIPT_AHEAD_MAX_MS
        for receipt in acks.receipts:
            entry = live.get(receipt.message_id)
            if entry is None and outcomes.get(receipt.message_id) is None:
                continue  # somebody else's: the network carries them to everybody
            if receipt.timestamp_ms > latest_ms:
                self.counters.bad_acks += 1
            elif entry is None:
                self.counters.late_acks += 1
            elif entry.tally is None or peer not in entry.tally.critical:
                self.counters.outside_acks += 1
            elif entry.phase is not STORING and entry.phase is not LEAVING:
                self._weigh(entry, entry.tally, peer, receipt, now)
        return self._done()

    def _weigh(self, entry: Entry, tally: AckTally, peer: str, receipt: AckReceipt, now: Moment) -> None:
        if receipt.ack_type is ACK:
            is_news = tally.acknowledge(peer)
        else:
            is_news = tally.refuse(peer, receipt.reason, for_now=receipt.is_transient)
        if not is_news:
            self.counters.duplicates_in += 1
        elif tally.is_complete:
            if entry.status is not SENT:
                # An answer can overtake the network's own, or come after a restart: it proves that it was sent.
                self._now_sent(entry, now)
            self._end(entry, None, now)
        elif tally.is_out_of_reach:
            self._now_sent(entry, now)
            self._end(entry, endings.nacked(entry), now)
        elif receipt.is_transient:
            self._try_again_soon(entry, receipt.retry_after_ms, now)

    def _try_again_soon(self, entry: Entry, retry_after_ms: int | None, now: Moment) -> None:
        """A refusal for now does not wait for the time-out. At the last attempt it counts as one for good."""
        assert entry.tally is not None
        asked_s = min(retry_after_ms or 0, RETRY_AFTER_MS_MAX) / 1_000
        if entry.phase is BACKING_OFF and entry.is_sent:
            entry.wait_until = max(entry.wait_until, now.mono_s + asked_s)
        elif entry.phase is AWAITING:
            if entry.attempts < self.config.attempts_max:
                self.outbox.enter(entry, BACKING_OFF)
                entry.wait_until = now.mono_s + max(self._delay(entry), asked_s)
                self._deadlines.set(entry)
            elif entry.tally.is_out_of_reach_for_now:
                self._end(entry, endings.nacked(entry), now)

    # Time and connections.

    @property
    def next_at(self) -> float:
        """When `on_time` is to be called next, by the monotonic clock; `NEVER` if there is no need."""
        at = self._deadlines.next_at
        if self._clear_at < at:
            at = self._clear_at
        if self._tick_at < at and self.outbox.waiting:
            at = self._tick_at
        return at

    def on_time(self, now: Moment) -> list[Effect]:
        """Whatever is due. The shell then sends what has become ready."""
        if now.mono_s >= self._clear_at:
            self._clear_back_off(now)
        for entry in self._deadlines.due(now.mono_s):
            self._look_at(entry, now)
            if entry.phase not in (ENDED, SENDING, LEAVING, STORING):
                self._deadlines.set(entry)
            elif entry.phase is SENDING and entry.budget_at < NEVER:
                expires_at, entry.expires_at = entry.expires_at, NEVER
                self._deadlines.set(entry)
                entry.expires_at = expires_at
        if now.mono_s >= self._tick_at:
            self.tick_begins(now)
        return self._done()

    def tick_begins(self, now: Moment) -> None:
        """The idle tick: `flush_interval` from now, if anything waits then."""
        self._tick_at = now.mono_s + self.config.flush_interval

    def _look_at(self, entry: Entry, now: Moment) -> None:
        at = now.mono_s
        if entry.phase in (STORING, LEAVING):
            return  # set again when that is over
        if entry.budget_at <= at:
            self._end(entry, endings.out_of_time(entry, self.is_connected), now)
        elif entry.expires_at <= at and entry.phase in WAITING:
            self._end(entry, endings.too_old(entry, self.config.message_max_age), now)
        elif entry.wait_until <= at:
            if entry.phase is AWAITING:
                self._ack_timed_out(entry, now)
            elif entry.phase is BACKING_OFF:
                self.outbox.make_ready(entry)

    def _ack_timed_out(self, entry: Entry, now: Moment) -> None:
        self.counters.ack_timeouts += 1
        if entry.attempts < self.config.attempts_max:
            self.outbox.enter(entry, BACKING_OFF)
            entry.wait_until = now.mono_s + self._delay(entry)
            return
        assert entry.tally is not None
        is_refused = entry.tally.is_out_of_reach_for_now
        self._end(entry, endings.nacked(entry) if is_refused else endings.ack_timeout(entry), now)

    def connectivity(self, peers: int, now: Moment) -> list[Effect]:
        was_connected, self.is_connected = self.is_connected, peers > 0
        if self.is_connected and not was_connected:
            self._clear_at = max(now.mono_s, self._cleared_at + EDGES_MERGED_S)
            if self._clear_at <= now.mono_s:
                self._clear_back_off(now)
        elif was_connected and not self.is_connected and self._flushing is not None:
            self._end_flush(is_cut_short=True)
        return self._done()

    def _clear_back_off(self, now: Moment) -> None:
        self._clear_at = NEVER
        self._cleared_at = now.mono_s
        for entry in self.outbox:
            if entry.phase is BACKING_OFF:
                self.outbox.make_ready(entry)

    # Ending.

    def cancel(self, message_id: bytes, now: Moment) -> tuple[bool, list[Effect]]:
        """Only what waits in the queue can be taken back."""
        entry = self.outbox.by_id.get(message_id)
        if entry is None or entry.is_sent or entry.phase not in WAITING:
            return False, self._done()
        self._end(entry, endings.cancelled(entry), now)
        return True, self._done()

    def abandon(self, entry: Entry, now: Moment) -> list[Effect]:
        """Whoever waited for it has gone."""
        if entry.phase is LEAVING:
            entry.budget_at = now.mono_s  # it fails either way
        elif entry.phase is not ENDED:
            self._end(entry, endings.cancelled(entry), now)
        return self._done()

    def close(self, now: Moment) -> list[Effect]:
        """Without a store everything fails now; with one it stays, and only the waiting calls end."""
        if self._flushing is not None:
            self._end_flush(is_cut_short=True)
        for entry in self.outbox:
            if entry.phase is STORING:
                continue
            error = endings.closed(entry)
            if not self._is_stored:
                self._end(entry, error, now)
            elif entry.waiters:
                self._effects.append(Wake(entry, self._outcome(entry, entry.status, error, now.unix_ms)))
        return self._done()
