"""How messages come in: offered, stored by the shell, accepted; or found again after a restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from stagepost.delivery import endings
from stagepost.delivery.acks import AckTally
from stagepost.delivery.effects import DropDeadLetter, Effect
from stagepost.delivery.ended import FailedMessage
from stagepost.delivery.entry import NEVER, STORING, Entry, Moment
from stagepost.delivery.errors import DeliveryError, ErrKeyConflict, ErrMessageTooLarge, ErrQueueFull
from stagepost.delivery.identity import counted_nonce, delivery_id
from stagepost.delivery.result import Outcome
from stagepost.delivery.settling import Settling
from stagepost.delivery.status import FAILED, MUST_WAIT, SENT, Tier
from stagepost.delivery.transport import Outgoing, Published


class StoredMessage(Protocol):
    """What a store gives back after a restart."""

    @property
    def sequence(self) -> int: ...
    @property
    def delivery_id(self) -> bytes: ...
    @property
    def tier(self) -> Tier: ...
    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def nonce(self) -> bytes: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def key_hash(self) -> bytes | None: ...
    @property
    def ackers(self) -> tuple[str, ...]: ...
    @property
    def required(self) -> int: ...
    @property
    def attempts(self) -> int: ...
    @property
    def last_used(self) -> int: ...


class TakingIn(Settling):
    _next_counter = 1
    _next_volatile = 1

    # Best effort: one attempt, nothing kept.

    def begin_once(self, topic: str, payload: bytes, now: Moment) -> Entry:
        nonce = counted_nonce(self._volatile_prefix, self._next_volatile)
        self._next_volatile += 1
        message_id = delivery_id(self._sender, topic, nonce, payload)
        entry = Entry(0, message_id, Tier.BEST_EFFORT, topic, payload, nonce, now.unix_ms, None)
        self.counters.published += 1
        self._trying_once += 1
        self._report(entry, None, now)
        return entry

    def outgoing_once(self, entry: Entry) -> Outgoing:
        return Outgoing(entry.topic, entry.nonce, entry.created_ms, 0, (), entry.payload)

    def end_once(
        self, entry: Entry, published: Published | None, error: DeliveryError | None, now: Moment
    ) -> list[Effect]:
        self._trying_once -= 1
        if published is not None:
            entry.network_id = published.network_id
            entry.attempts = entry.sends = 1
            self.counters.sent += 1
        status = SENT if error is None else FAILED
        self._settle(entry, status, error, now)
        return self._done()

    # Coming in.

    def offer(
        self,
        tier: Tier,
        topic: str,
        payload: bytes,
        now: Moment,
        *,
        key_hash: bytes | None = None,
        ackers: tuple[str, ...] = (),
        required: int = 0,
        budget_s: float = NEVER,
    ) -> Entry | Outcome:
        """A new entry, to be stored and then accepted; or the live entry, or the outcome, of the same key.

        `DeliveryError` if it cannot be taken; then nothing has happened.
        """
        counter = self._next_counter
        nonce = key_hash if key_hash is not None else counted_nonce(self._nonce_prefix, counter)
        message_id = delivery_id(self._sender, topic, nonce, payload)
        if key_hash is not None:
            known = self._known(key_hash, message_id, tier)
            if known is not None:
                return known
        tally = AckTally(ackers, required) if ackers else None
        entry = Entry(counter, message_id, tier, topic, payload, nonce, now.unix_ms, tally, key_hash)
        entry.budget_at = now.mono_s + budget_s
        return self._admitted(entry, now)

    def offer_again(self, letter: FailedMessage, now: Moment) -> Entry:
        """A dead letter, in a new life under its old id; or the live entry of that id, which `join` may merge it with."""
        tally = AckTally(letter.ackers, letter.required) if letter.ackers else None
        message_id = bytes.fromhex(letter.message_id)
        if (live := self.outbox.by_id.get(message_id)) is not None:
            return live
        entry = Entry(
            self._next_counter,
            message_id,
            letter.tier,
            letter.topic,
            letter.payload,
            letter.nonce,
            letter.created_ms,
            tally,
            letter.key_hash,
        )
        entry.attempt_first = letter.attempts
        entry.replayed = letter.sequence
        return self._admitted(entry, now)

    def join(self, letter: FailedMessage, live: Entry) -> list[Effect]:
        """Drop a dead letter whose message `live` carries, if `live` promises the same; otherwise keep the letter.

        Equal ids mean equal topic and payload, so that nothing is lost: if `live` fails, it leaves a letter of its own.
        """
        promised = live.tier, live.critical, live.required
        if promised == (letter.tier, letter.ackers, letter.required):
            is_held = self.ended.dead_letters.pop(letter.sequence) is not None
            if is_held and self._is_stored:
                self._effects.append(DropDeadLetter(letter.sequence))
        return self._done()

    def _known(self, key_hash: bytes, message_id: bytes, tier: Tier) -> Entry | Outcome | None:
        live = self._live_keys.get(key_hash)
        known: Entry | Outcome | None = live if live is not None else self.ended.done_keys.get(key_hash)
        if known is None:
            return None
        known_id = known.delivery_id if isinstance(known, Entry) else bytes.fromhex(known.message_id)
        if known_id != message_id:
            raise ErrKeyConflict(
                "this key was used for another message before",
                message_id=message_id.hex(),
                advice="use one key for one topic and one content",
            )
        if known.tier is not tier:
            raise ErrKeyConflict(
                f"this key was used with tier {known.tier} before, not {tier}",
                message_id=message_id.hex(),
                advice="publish it the same way again, or use another key",
            )
        if live is not None and live.phase is not STORING:
            self.outbox.use(live)
            self._save(live)
        return known

    def _admitted(self, entry: Entry, now: Moment) -> Entry:
        most = self.config.queue_max_bytes
        if most and entry.size > most:
            raise ErrMessageTooLarge(
                f"the message has {entry.size} bytes with its topic, the queue holds {most} in all",
                limit=most,
                found=entry.size,
                advice="raise queue_max_bytes or send less",
            )
        victims = self.outbox.room_for(entry.size)
        if victims is None:
            raise ErrQueueFull(
                f"the queue is full: {len(self.outbox)} of {self.config.queue_size} messages, "
                f"{self.outbox.bytes_held} bytes, and none may be dropped",
                limit=self.config.queue_size,
                found=len(self.outbox),
                message_id=entry.id_text,
                advice="try again later, or raise queue_size",
            )
        self._next_counter += 1
        entry.evicted = victims
        self.outbox.add_used(entry)
        if entry.key_hash is not None:
            self._live_keys[entry.key_hash] = entry
        if self.config.message_max_age:
            entry.expires_at = now.mono_s + self.config.message_max_age
        return entry

    def accept(self, entry: Entry, now: Moment) -> list[Effect]:
        """It is stored, and with it the end of those that made room."""
        self._accepted(entry, now)
        self._line_up(entry, now)
        return self._done()

    def accept_to_send(self, entry: Entry, now: Moment) -> Outgoing | None:
        """As `accept`; if it may go at once it is taken, and whoever publishes it hands it over himself."""
        self._accepted(entry, now)
        tally = entry.tally
        if tally is None or not self.is_connected or self.outbox.must_wait_its_turn(entry):
            self._line_up(entry, now)
            return None
        self.outbox.begin_send_at_once(entry)
        # Its answers are waited for from about now on: one look at that time does for all that can be due until then.
        self._deadlines.look_at(entry, min(entry.budget_at, now.mono_s + self.config.ack_timeout))
        return Outgoing(
            entry.topic, entry.nonce, entry.created_ms, entry.attempt_number, tally.critical, entry.payload
        )

    def _accepted(self, entry: Entry, now: Moment) -> None:
        if entry.evicted:
            for victim in entry.evicted:
                self._end(victim, endings.evicted(victim, entry.id_text), now, is_saved=True)
            entry.evicted = ()
        self.counters.published += 1
        if entry.replayed is not None:
            self.ended.dead_letters.pop(entry.replayed)
        self._report(entry, None, now)

    def _line_up(self, entry: Entry, now: Moment) -> None:
        if not self.is_connected or self.outbox.must_wait_its_turn(entry):
            self._become(entry, MUST_WAIT, None, now)
        self.outbox.make_ready(entry)
        self._deadlines.set(entry)

    def withdraw(self, entry: Entry) -> None:
        """It could not be stored: nothing has happened."""
        victims, entry.evicted = entry.evicted, ()
        if entry.key_hash is not None:
            self._forget_key(entry.key_hash, entry)
        self.outbox.remove(entry)
        for victim in victims:
            self.outbox.restore(victim)
            self._deadlines.set(victim)

    def resume(self, next_counter: int, *, acked: int, sent_final: int, failed: Mapping[str, int]) -> None:
        """Go on counting where the former run of this outbox ended."""
        self._next_counter = next_counter
        self.counters.acked = acked
        self.counters.sent_final = sent_final
        self.counters.failed = dict(failed)
        self.counters.published = self.counters.ended

    def recover(self, stored: Iterable[StoredMessage], now: Moment) -> list[Effect]:
        """After a restart: what was on its way is queued again, in the old order, under the old ids."""
        for record in stored:
            tally = AckTally(record.ackers, record.required) if record.ackers else None
            entry = Entry(
                record.sequence,
                record.delivery_id,
                record.tier,
                record.topic,
                record.payload,
                record.nonce,
                record.created_ms,
                tally,
                record.key_hash,
            )
            entry.is_fate_unknown = True
            # Whatever happened to its last attempt, it has one more.
            entry.attempts = min(record.attempts, self.config.max_retries)
            entry.last_used = record.last_used
            self.outbox.resume_uses(record.last_used)
            if self.config.message_max_age:
                age_s = max(0.0, (now.unix_ms - record.created_ms) / 1_000)
                entry.expires_at = now.mono_s + self.config.message_max_age - age_s
            self.outbox.add(entry)
            if entry.key_hash is not None:
                self._live_keys[entry.key_hash] = entry
            self._become(entry, MUST_WAIT, None, now)
            self.outbox.make_ready(entry)
            self._deadlines.set(entry)
            self.counters.published += 1
            self._next_counter = max(self._next_counter, record.sequence + 1)
        return self._done()
