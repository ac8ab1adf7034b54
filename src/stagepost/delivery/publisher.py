"""The publisher's core: calls, answers of the network, receipts and time in; reports, marks and wake-ups out.

The core awaits nothing. A message is offered, stored by the shell, accepted, handed out to be sent in its turn, and
followed through retries to exactly one end; or the core recovers it from the store after a restart. Each method
returns the effects of what happened, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random

from stagepost.delivery import endings
from stagepost.delivery.acks import AckTally
from stagepost.delivery.answers import Answers
from stagepost.delivery.attempts import Attempts, SendingConditions
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.deadlines import Deadlines
from stagepost.delivery.effects import DropDeadLetter, Effect, Wake
from stagepost.delivery.endings import FailedMessage
from stagepost.delivery.entry import (
    AWAITING,
    BACKING_OFF,
    ENDED,
    HELD,
    LEAVING,
    NEVER,
    READY,
    SENDING,
    STORING,
    ClockTimes,
    OutboxEntry,
)
from stagepost.delivery.identity import identity_bytes
from stagepost.delivery.offers import Offers, StoredMessage
from stagepost.delivery.outbox import Outbox
from stagepost.delivery.settlement import Settlement
from stagepost.delivery.status import MUST_WAIT, DeliveryResult, Tier
from stagepost.delivery.transport import IncomingAcks, Outgoing
from stagepost.errors import LocalProtocolError

EDGES_MERGED_S = 0.5
"""Seconds, at least, between two resets of every back-off, however often connections come and go."""

_WAITING = (READY, BACKING_OFF, HELD)


class PublisherCore:
    """The rules of a publisher: `Offers` makes entries, `Outbox` holds them, `Attempts` sends them, `Answers` judges what comes
    back, `Settlement` ends the messages, `Deadlines` knows their times."""

    def __init__(
        self,
        config: ReliablePublisherConfig,
        self_id: str,
        *,
        nonce_prefix: bytes,
        volatile_prefix: bytes,
        random: Random,
        is_stored: bool = False,
    ) -> None:
        """`nonce_prefix` belongs to the outbox; `volatile_prefix` to this run, for messages that are not stored."""
        self.config = config
        self.outbox = Outbox(
            size_max=config.queue_size,
            bytes_max=config.queue_max_bytes,
            in_flight_max=config.max_in_flight,
            is_strict=config.strict_order,
            may_evict=config.overflow == "evict_lru",
        )
        self._settlement = Settlement(self.outbox, config.dead_letters_max, is_stored=is_stored)
        self.counters = self._settlement.counters
        self.ended = self._settlement.ended
        sender = identity_bytes(self_id)
        self._is_stored = is_stored
        self._deadlines = Deadlines(self.outbox.entries)
        self._offers = Offers(config, self.outbox, self._settlement, sender, nonce_prefix)
        self._answers = Answers(config, self.outbox, self._settlement, self._deadlines, random)
        self.conditions = SendingConditions()
        self.attempts = Attempts(
            config,
            self.outbox,
            self._settlement,
            self._deadlines,
            self._answers,
            self.conditions,
            sender,
            volatile_prefix,
            is_stored=is_stored,
        )
        self._cleared_at = -NEVER
        self._clear_at = NEVER
        self._tick_at = NEVER
        self._gate = self.conditions.gate

    def watch(self, is_watched: bool) -> None:
        """Make reports of new statuses from now on, or no longer."""
        self._settlement.is_watched = is_watched

    @property
    def has_effects(self) -> bool:
        return bool(self._settlement.effects)

    def take_effects(self) -> list[Effect]:
        """Return the effects of methods that return something else."""
        return self._settlement.take_effects()

    # Acceptance: offered, stored by the shell, accepted; or recovered after a restart.

    def offer(
        self,
        tier: Tier,
        topic: str,
        payload: bytes,
        now: ClockTimes,
        *,
        key_hash: bytes | None = None,
        ackers: tuple[str, ...] = (),
        required: int = 0,
        budget_s: float = NEVER,
        outwaits_pace: bool = False,
        traceparent: str = "",
    ) -> OutboxEntry | DeliveryResult:
        """Return a new entry, to be stored and then accepted; or the live entry, or the result, of the same key.
        `outwaits_pace`: the budget does not run out while the network's pace holds the message back.

        Raise `DeliveryError` if the message cannot be taken; then nothing has happened. A caller waits for the end
        of a message of the acked tier: see `unawait` and `abandon`.
        """
        offers = self._offers
        nonce, message_id = offers.identity(topic, payload, key_hash)
        if key_hash is not None:
            known = offers.known(key_hash, message_id, tier)
            if known is not None:
                return known
        tally = AckTally(ackers, required) if ackers else None
        entry = OutboxEntry(
            offers.next_counter,
            message_id,
            tier,
            topic,
            payload,
            nonce,
            now.unix_ms,
            tally,
            key_hash,
            traceparent,
        )
        entry.budget_at = now.mono_s + budget_s
        entry.outwaits_pace = outwaits_pace
        entry.is_awaited = tier is Tier.ACKED
        if entry.must_be_stamped and tier is Tier.ACKED and self._is_free_to_send(entry):
            # It leaves at once, so the row that is stored before holds the stamp.
            entry.stamped_ms, entry.is_stamp_stored = now.unix_ms, True
        return offers.admit(entry, now)

    def offer_again(
        self, letter: FailedMessage, now: ClockTimes, *, is_stamped_again: bool = False
    ) -> OutboxEntry:
        """Return a new entry for a dead letter, under its old id; or the live entry of that id, for `join`.

        `is_stamped_again`: it is proved that the message was never executed under its stamp, so the next transmission
        stamps it anew.
        """
        message_id = bytes.fromhex(letter.message_id)
        if (live := self.outbox.by_id.get(message_id)) is not None:
            return live
        entry = self._offers.again(letter, message_id)
        if not is_stamped_again:
            entry.stamped_ms, entry.is_stamp_stored = letter.stamped_ms, letter.stamped_ms > 0
        return self._offers.admit(entry, now)

    def join(self, letter: FailedMessage, live: OutboxEntry) -> list[Effect]:
        """Drop a dead letter whose message `live` carries, if `live` promises the same; otherwise keep the letter.

        Equal ids mean equal topic and payload, so that nothing is lost: if `live` fails, it leaves a letter of its own.
        """
        promised = live.tier, live.critical, live.required
        if promised == (letter.tier, letter.ackers, letter.required):
            is_held = self.ended.dead_letters.pop(letter.sequence) is not None
            if is_held and self._is_stored:
                self._settlement.effects.append(DropDeadLetter(letter.sequence))
        return self._settlement.take_effects()

    def accept(self, entry: OutboxEntry, now: ClockTimes) -> list[Effect]:
        """Publish an entry that is stored, together with the end of the entries that made room for it."""
        self._accepted(entry, now)
        self._line_up(entry, now)
        return self._settlement.take_effects()

    def accept_to_send(self, entry: OutboxEntry, now: ClockTimes) -> Outgoing | None:
        """Accept an entry; return what the caller has to send at once, or None if the entry has to wait its turn."""
        self._accepted(entry, now)
        tally = entry.tally
        is_unstamped = entry.must_be_stamped and not entry.is_stamp_stored
        if tally is None or is_unstamped or not self._is_free_to_send(entry):
            self._line_up(entry, now)
            return None
        self.outbox.begin_send_at_once(entry)
        # The wait for receipts begins about now: one look at that time covers everything that can be due before.
        self._deadlines.look_at(entry, min(entry.budget_at, now.mono_s + self.config.ack_timeout))
        return self.attempts.outgoing(entry, tally.critical)

    def _is_free_to_send(self, entry: OutboxEntry) -> bool:
        return self.conditions.may_send and not self.outbox.must_wait_its_turn(entry)

    def _accepted(self, entry: OutboxEntry, now: ClockTimes) -> None:
        if entry.evicted:
            for victim in entry.evicted:
                self._settlement.end(victim, endings.evicted(victim, entry.id_text), now, is_saved=True)
            entry.evicted = ()
        self.counters.published += 1
        if entry.replayed is not None:
            self.ended.dead_letters.pop(entry.replayed)
        self._settlement.report(entry, None, now)

    def _line_up(self, entry: OutboxEntry, now: ClockTimes) -> None:
        if not self._is_free_to_send(entry):
            pace = self._gate.closed_by
            cause = None if pace is None else endings.send_failed(entry, pace)
            self._settlement.become(entry, MUST_WAIT, cause, now)
        self.outbox.make_ready(entry)
        self._deadlines.set(entry)

    def withdraw(self, entry: OutboxEntry) -> None:
        """Forget an entry that could not be stored: nothing has happened."""
        victims, entry.evicted = entry.evicted, ()
        self.outbox.remove(entry)
        for victim in victims:
            self.outbox.restore(victim)
            self._deadlines.set(victim)

    def resume(self, next_counter: int, *, acked: int, sent_final: int, failed: Mapping[str, int]) -> None:
        """Continue the counters where the former run of this outbox ended."""
        self._offers.next_counter = next_counter
        self.counters.acked = acked
        self.counters.sent_final = sent_final
        self.counters.failed = dict(failed)
        self.counters.published = self.counters.ended

    def recover(self, stored: Iterable[StoredMessage], now: ClockTimes) -> list[Effect]:
        """Queue the messages of a former run again, in the old order, under the old ids."""
        for record in stored:
            entry = self._offers.recover(record, now)
            self._settlement.become(entry, MUST_WAIT, None, now)
            self.outbox.make_ready(entry)
            self._deadlines.set(entry)
            self.counters.published += 1
        return self._settlement.take_effects()

    # Receipts.

    def receipts(self, acks: IncomingAcks, now: ClockTimes) -> list[Effect]:
        self._answers.receive(acks, now)
        return self._settlement.take_effects()

    # A flush that a caller asks for.

    def begin_flush(self) -> int:
        """Try every message once that is unsent now, whatever its back-off; return how many there are: none while the
        network's pace holds them back.
        """
        if self._settlement.is_flushing:
            raise LocalProtocolError("a flush began while another one is under way", reason="FlushTwice")
        if self._gate.closed_by is not None:
            return 0
        chosen = [entry for entry in self.outbox if entry.phase in _WAITING and not entry.is_sent]
        sending = [entry for entry in self.outbox if entry.phase is SENDING and not entry.is_sent]
        for entry in chosen:
            if entry.phase is BACKING_OFF:
                self.outbox.make_ready(entry)
        if chosen or sending:
            self._settlement.begin_flush(entry.sequence for entry in chosen + sending)
        return len(chosen) + len(sending)

    # Time and connections.

    @property
    def next_at(self) -> float:
        """Return when to call `on_time` next, by the monotonic clock; `NEVER` if there is no need."""
        at = self._deadlines.next_at
        if self._clear_at < at:
            at = self._clear_at
        if self._tick_at < at and self.outbox.waiting:
            at = self._tick_at
        if self._gate.opens_at < at:
            at = self._gate.opens_at
        return at

    def on_time(self, now: ClockTimes) -> list[Effect]:
        """Do everything that is due. The shell then sends the messages that have become ready."""
        self._gate.is_closed(now)
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
        return self._settlement.take_effects()

    def tick_begins(self, now: ClockTimes) -> None:
        """Set the idle tick to `flush_interval` from now; it matters only if a message waits then."""
        self._tick_at = now.mono_s + self.config.flush_interval

    def _look_at(self, entry: OutboxEntry, now: ClockTimes) -> None:
        at = now.mono_s
        if entry.phase in (STORING, LEAVING):
            return  # the deadline is set again when the storing is over
        if entry.budget_at <= at and self._is_waiting_for_pace(entry, now):
            entry.budget_at = self._gate.opens_at + self.config.budget_s
        elif entry.budget_at <= at:
            conditions = self.conditions
            absent = self._gate.closed_by if conditions.is_connected else conditions.absence
            error = endings.out_of_time(entry, conditions.is_connected, absent or entry.last_cause)
            self._settlement.end(entry, error, now)
        elif entry.expires_at <= at and entry.phase in _WAITING:
            self._settlement.end(entry, endings.too_old(entry, self.config.message_max_age), now)
        elif entry.wait_until <= at:
            if entry.phase is AWAITING:
                self._answers.time_out(entry, now)
            elif entry.phase is BACKING_OFF:
                self.outbox.make_ready(entry)

    def _is_waiting_for_pace(self, entry: OutboxEntry, now: ClockTimes) -> bool:
        """Return whether the network's pace alone holds back a message that may outwait it, up to the dedup window."""
        if self._gate.closed_by is None or not entry.outwaits_pace or entry.phase not in _WAITING:
            return False
        waits_until_ms = self._gate.opens_ms + self.config.budget_s * 1_000
        return waits_until_ms - entry.created_ms <= self.config.dedup_window * 1_000

    def connectivity(self, peers: int, now: ClockTimes) -> list[Effect]:
        was_connected, is_connected = self.conditions.is_connected, peers > 0
        self.conditions.is_connected = is_connected
        if is_connected and not was_connected:
            self._clear_at = max(now.mono_s, self._cleared_at + EDGES_MERGED_S)
            if self._clear_at <= now.mono_s:
                self._clear_back_off(now)
        elif was_connected and not is_connected:
            self._settlement.end_flush(is_cut_short=True)
        return self._settlement.take_effects()

    def _clear_back_off(self, now: ClockTimes) -> None:
        self._clear_at = NEVER
        self._cleared_at = now.mono_s
        for entry in self.outbox:
            if entry.phase is BACKING_OFF:
                self.outbox.make_ready(entry)

    # Ending.

    def cancel(self, message_id: bytes, now: ClockTimes) -> tuple[bool, list[Effect]]:
        """Cancel a message that waits in the queue; return whether it did."""
        entry = self.outbox.by_id.get(message_id)
        if entry is None or entry.is_sent or entry.phase not in _WAITING:
            return False, self._settlement.take_effects()
        self._settlement.end(entry, endings.cancelled(entry), now)
        return True, self._settlement.take_effects()

    def unawait(self, entry: OutboxEntry) -> None:
        """Note that no caller waits for the end of a message any more; the message goes on."""
        entry.is_awaited = False

    def abandon(self, entry: OutboxEntry, now: ClockTimes) -> list[Effect]:
        """Cancel a message because the last caller who waited for its end has gone."""
        if entry.phase is LEAVING:
            entry.budget_at = now.mono_s  # the message fails either way
        elif entry.phase is not ENDED:
            self._settlement.end(entry, endings.cancelled(entry), now)
        return self._settlement.take_effects()

    def close(self, now: ClockTimes) -> list[Effect]:
        """End every message if there is no store; with a store messages stay, and only waiting calls end."""
        self._settlement.end_flush(is_cut_short=True)
        for entry in self.outbox:
            if entry.phase is STORING:
                continue
            error = endings.closed(entry)
            if not self._is_stored:
                self._settlement.end(entry, error, now)
            elif entry.is_awaited:
                self._settlement.effects.append(
                    Wake(entry, self._settlement.result(entry, entry.status, error, now.unix_ms))
                )
        return self._settlement.take_effects()

    # Looking.

    def result_of(self, message_id: bytes) -> DeliveryResult | None:
        """Return what is known of a message now; None for an id that is unknown, or forgotten."""
        entry = self.outbox.by_id.get(message_id)
        if entry is not None and entry.phase is not STORING:
            return self._settlement.result(entry, entry.status, entry.last_cause, entry.timestamp_ms)
        return self.ended.results.get(message_id)

    @property
    def live(self) -> int:
        """Return how many messages are accepted and not ended."""
        return len(self.outbox) - self.outbox.storing + self.attempts.trying_once

    @property
    def is_quiet(self) -> bool:
        """Return whether nothing is in flight, and nothing that waits could be sent now."""
        return not self.outbox.in_flight and not (self.conditions.may_send and self.outbox.has_ready)

    @property
    def oldest_ms(self) -> int | None:
        """Return when the message was created that waits longest to be sent."""
        return next((entry.created_ms for entry in self.outbox if entry.phase in _WAITING), None)

    def stats(self) -> dict[str, int | dict[str, int] | None]:
        counters, outbox = self.counters, self.outbox
        return {
            "published": counters.published,
            "queued": counters.queued,
            "sent": counters.sent,
            "sent_final": counters.sent_final,
            "acked": counters.acked,
            "failed": dict(counters.failed),
            "live": self.live,
            "evicted": counters.evicted,
            "retries": counters.retries,
            "ack_timeouts": counters.ack_timeouts,
            "late_acks": counters.late_acks,
            "bad_acks": counters.bad_acks,
            "outside_acks": counters.outside_acks,
            "duplicates_in": counters.duplicates_in,
            "queue_len": outbox.waiting,
            "queue_bytes": outbox.bytes_held,
            "in_flight": outbox.in_flight,
            "dead_letters": len(self.ended.dead_letters),
            "oldest_ms": self.oldest_ms,
            "sends_again_ms": None if self._gate.closed_by is None else self._gate.opens_ms,
        }
