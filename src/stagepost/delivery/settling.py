"""What every path through the publisher comes to: reports of new statuses, one end for each message, and the numbers.

What a publisher has done so far, in numbers that balance: published = acked + sent-final + failed + live.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from stagepost.delivery import endings
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.deadlines import Deadlines
from stagepost.delivery.effects import Effect, FlushEnded, Report, SaveEnd, SaveProgress, Wake
from stagepost.delivery.ended import Ended
from stagepost.delivery.entry import BACKING_OFF, HELD, READY, SENDING, STORING, Entry, Moment
from stagepost.delivery.errors import DeliveryError
from stagepost.delivery.identity import identity_bytes
from stagepost.delivery.outbox import Outbox
from stagepost.delivery.result import Outcome
from stagepost.delivery.status import (
    ACKED,
    CONFIRMED,
    DELIVERY,
    GAVE_UP,
    QUEUED,
    WRITTEN,
    DeliveryStatus,
    Step,
)
from stagepost.errors import LocalProtocolError


@dataclass(slots=True)
class Counters:
    published: int = 0
    queued: int = 0
    sent: int = 0
    sent_final: int = 0
    acked: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    """By the name of the error."""
    evicted: int = 0
    retries: int = 0
    ack_timeouts: int = 0
    late_acks: int = 0
    bad_acks: int = 0
    outside_acks: int = 0
    """From nodes that were not asked."""
    duplicates_in: int = 0
    """Receipts that said nothing new."""

    def count_failure(self, name: str) -> None:
        self.failed[name] = self.failed.get(name, 0) + 1

    @property
    def ended(self) -> int:
        return self.acked + self.sent_final + sum(self.failed.values())


WAITING = (READY, BACKING_OFF, HELD)


class Settling:
    """The state of a publisher, and how it changes in the end. Its subclasses say when."""

    def __init__(
        self,
        config: ReliablePublisherConfig,
        self_id: str,
        *,
        nonce_prefix: bytes,
        volatile_prefix: bytes,
        random: Random,
        is_stored: bool = False,
        outcome_type: type[Outcome] = Outcome,
    ) -> None:
        """`nonce_prefix` belongs to the outbox, `volatile_prefix` to this run: what is not stored needs its own."""
        self.config = config
        self.counters = Counters()
        self.ended = Ended(config.dead_letters_max)
        self.is_connected = False
        self.outbox = Outbox(
            size_max=config.queue_size,
            bytes_max=config.queue_max_bytes,
            in_flight_max=config.max_in_flight,
            is_strict=config.strict_order,
            may_evict=config.overflow == "evict_lru",
        )
        self._sender = identity_bytes(self_id)
        self._nonce_prefix = nonce_prefix
        self._volatile_prefix = volatile_prefix
        self._random = random
        self._is_stored = is_stored
        self._outcome_type = outcome_type
        self._deadlines = Deadlines()
        self._deadlines.watch(self.outbox.entries)
        self._live_keys: dict[bytes, Entry] = {}
        self._trying_once = 0
        self._flushing: set[int] | None = None
        self._flush_sent = 0
        self._effects: list[Effect] = []
        self.is_watched = True
        """Whether somebody wants to hear of new statuses: without him there is nothing to report."""

    def _now_sent(self, entry: Entry, now: Moment) -> None:
        if not entry.is_sent:
            self._count_flushed(entry)
            if entry.phase is not SENDING:
                # Confirmed without a send of ours, after a restart: it takes its place among those in flight.
                self.outbox.begin_send(entry)
            self.counters.sent += 1
            self._become(entry, WRITTEN, None, now)

    def _end(self, entry: Entry, error: DeliveryError | None, now: Moment, *, is_saved: bool = False) -> None:
        """The one way out. Without an error: Acked if that was wanted, else Sent."""
        self.outbox.remove(entry)
        if entry.key_hash is not None:
            self._forget_key(entry.key_hash, entry)
        if error is not None:
            step = GAVE_UP
        elif entry.tally is not None:
            step = CONFIRMED
        else:
            step = WRITTEN
        status = DELIVERY.after(entry.status, step)
        outcome = self._settle(entry, status, error, now)
        if error is not None:
            letter = endings.dead_letter(entry, error, now.unix_ms)
            self.ended.dead_letters.put(entry.sequence, letter)
        elif entry.key_hash is not None:
            self.ended.done_keys.put(entry.key_hash, outcome)
        if self._is_stored and not is_saved:
            self._effects.append(SaveEnd(entry, outcome))
        if entry.waiters:
            self._effects.append(Wake(entry, outcome))
        if self._flushing is not None:
            self._leave_flush(entry)

    def _settle(
        self, entry: Entry, status: DeliveryStatus, error: DeliveryError | None, now: Moment
    ) -> Outcome:
        counters = self.counters
        if error is not None:
            counters.count_failure(type(error).__name__)
            counters.evicted += type(error) is endings.EVICTED
        elif status is ACKED:
            counters.acked += 1
        else:
            counters.sent_final += 1
        entry.status = status
        outcome = self._outcome(entry, status, error, now.unix_ms)
        if error is not None:
            error.message_id = entry.id_text
            error.result = outcome
        self.ended.outcomes.put(entry.delivery_id, outcome)
        self._report(entry, error, now)
        return outcome

    def _forget_key(self, key_hash: bytes, entry: Entry) -> None:
        if self._live_keys.get(key_hash) is entry:
            del self._live_keys[key_hash]

    # Effects.

    def _become(self, entry: Entry, step: Step, error: DeliveryError | None, now: Moment) -> None:
        """A status that observers have not seen yet; what they have seen is not repeated."""
        status = DELIVERY.next_status(entry.status, step)
        if status is None:
            return
        if status is QUEUED:
            self.counters.queued += 1
        self.outbox.become(entry, status)
        self._report(entry, error, now)

    def _report(self, entry: Entry, error: DeliveryError | None, now: Moment) -> None:
        entry.timestamp_ms = now.unix_ms
        if not self.is_watched:
            return
        self._effects.append(
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

    def _save(self, entry: Entry) -> None:
        if self._is_stored:
            self._effects.append(SaveProgress(entry))

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

    def take_effects(self) -> list[Effect]:
        """What methods that return something else have left behind."""
        return self._done()

    def _done(self) -> list[Effect]:
        effects = self._effects
        if effects:
            self._effects = []
        return effects

    def _outcome(self, entry: Entry, status: DeliveryStatus, error: Exception | None, at_ms: int) -> Outcome:
        tally = entry.tally
        if tally is None:
            return self._outcome_type(
                entry.id_text, status, entry.tier, at_ms, error=error, attempts=entry.attempts
            )
        return self._outcome_type(
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

    # Looking.

    def outcome_of(self, message_id: bytes) -> Outcome | None:
        """As far as is known now; None for an id that was never seen, or is forgotten."""
        entry = self.outbox.by_id.get(message_id)
        if entry is not None and entry.phase is not STORING:
            return self._outcome(entry, entry.status, entry.last_cause, entry.timestamp_ms)
        return self.ended.outcomes.get(message_id)

    @property
    def live(self) -> int:
        """Accepted and not ended."""
        return len(self.outbox) - self.outbox.storing + self._trying_once

    @property
    def is_quiet(self) -> bool:
        """Nothing is in flight, and nothing that waits could be sent now."""
        return not self.outbox.in_flight and not (self.is_connected and self.outbox.has_ready)

    @property
    def oldest_ms(self) -> int | None:
        """When the message was made that waits longest for being sent."""
        return next((entry.created_ms for entry in self.outbox if entry.phase in WAITING), None)

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
        }

    # Flushing on request.

    def begin_flush(self) -> int:
        """Everything that is unsent now shall be tried once, whatever its back-off; says how many that are."""
        if self._flushing is not None:
            raise LocalProtocolError("a flush began while another one is under way", reason="FlushTwice")
        chosen = [entry for entry in self.outbox if entry.phase in WAITING and not entry.is_sent]
        sending = [e.sequence for e in self.outbox if e.phase is SENDING and not e.is_sent]
        for entry in chosen:
            if entry.phase is BACKING_OFF:
                self.outbox.make_ready(entry)
        if chosen or sending:
            self._flushing = {entry.sequence for entry in chosen}.union(sending)
            self._flush_sent = 0
        return len(chosen) + len(sending)

    def _count_flushed(self, entry: Entry) -> None:
        if self._flushing is not None and entry.sequence in self._flushing:
            self._flush_sent += 1
            self._leave_flush(entry)

    def _leave_flush(self, entry: Entry) -> None:
        if self._flushing is not None:
            self._flushing.discard(entry.sequence)
            if not self._flushing:
                self._end_flush(is_cut_short=False)

    def _end_flush(self, *, is_cut_short: bool) -> None:
        self._flushing = None
        self._effects.append(FlushEnded(self._flush_sent, is_cut_short))
