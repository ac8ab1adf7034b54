"""Entries of the messages that are offered, offered again or found in a store after a restart, and their places in the outbox."""

from __future__ import annotations

from typing import Protocol

from stagepost.delivery.acks import AckTally
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.endings import FailedMessage
from stagepost.delivery.entry import STORING, ClockTimes, OutboxEntry
from stagepost.delivery.errors import ErrKeyConflict, ErrMessageTooLarge, ErrQueueFull
from stagepost.delivery.identity import counted_nonce, delivery_id
from stagepost.delivery.outbox import Outbox
from stagepost.delivery.settlement import Settlement
from stagepost.delivery.status import DeliveryResult, Tier


class StoredMessage(Protocol):
    """A message as a store returns it after a restart."""

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
    @property
    def stamped_ms(self) -> int: ...
    @property
    def traceparent(self) -> str: ...


class Offers:
    """The maker of entries. `sender` is the publisher's identity; `nonce_prefix` belongs to the outbox."""

    def __init__(
        self,
        config: ReliablePublisherConfig,
        outbox: Outbox,
        settlement: Settlement,
        sender: bytes,
        nonce_prefix: bytes,
    ) -> None:
        self._config = config
        self._outbox = outbox
        self._settlement = settlement
        self._sender = sender
        self._nonce_prefix = nonce_prefix
        self.next_counter = 1

    def identity(self, topic: str, payload: bytes, key_hash: bytes | None) -> tuple[bytes, bytes]:
        """Return the nonce and the delivery id of a new message."""
        nonce = key_hash if key_hash is not None else counted_nonce(self._nonce_prefix, self.next_counter)
        return nonce, delivery_id(self._sender, topic, nonce, payload)

    def known(self, key_hash: bytes, message_id: bytes, tier: Tier) -> OutboxEntry | DeliveryResult | None:
        """Return the live entry, or the result, of the same key; raise `ErrKeyConflict` if it is of another message."""
        live = self._outbox.by_key.get(key_hash)
        known: OutboxEntry | DeliveryResult | None = (
            live if live is not None else self._settlement.ended.done_keys.get(key_hash)
        )
        if known is None:
            return None
        known_id = known.delivery_id if isinstance(known, OutboxEntry) else bytes.fromhex(known.message_id)
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
        if live is not None:
            if tier is Tier.ACKED:
                live.is_awaited = True
            if live.phase is not STORING:
                self._outbox.use(live)
                self._settlement.save(live)
        return known

    def again(self, letter: FailedMessage, message_id: bytes) -> OutboxEntry:
        """Return a new entry for a dead letter, under its old id."""
        entry = OutboxEntry(
            self.next_counter,
            message_id,
            letter.tier,
            letter.topic,
            letter.payload,
            letter.nonce,
            letter.created_ms,
            AckTally(letter.ackers, letter.required) if letter.ackers else None,
            letter.key_hash,
            letter.traceparent,
        )
        entry.attempt_first = letter.attempts
        entry.replayed = letter.sequence
        return entry

    def admit(self, entry: OutboxEntry, now: ClockTimes) -> OutboxEntry:
        """Give a new entry its place, and the entries that must go for it; raise `DeliveryError` if there is no place."""
        most = self._config.queue_max_bytes
        if most and entry.size > most:
            raise ErrMessageTooLarge(
                f"the message has {entry.size} bytes with its topic, the queue holds {most} in all",
                limit=most,
                found=entry.size,
                advice="raise queue_max_bytes or send less",
            )
        victims = self._outbox.room_for(entry.size)
        if victims is None:
            raise ErrQueueFull(
                f"the queue is full: {len(self._outbox)} of {self._config.queue_size} messages, "
                f"{self._outbox.bytes_held} bytes, and none may be evicted",
                limit=self._config.queue_size,
                found=len(self._outbox),
                message_id=entry.id_text,
                advice="try again later, or raise queue_size",
            )
        self.next_counter += 1
        entry.evicted = victims
        self._outbox.add_used(entry)
        if self._config.message_max_age:
            entry.expires_at = now.mono_s + self._config.message_max_age
        return entry

    def recover(self, record: StoredMessage, now: ClockTimes) -> OutboxEntry:
        """Give a message of a former run its place again, in the old order, under its old id."""
        entry = OutboxEntry(
            record.sequence,
            record.delivery_id,
            record.tier,
            record.topic,
            record.payload,
            record.nonce,
            record.created_ms,
            AckTally(record.ackers, record.required) if record.ackers else None,
            record.key_hash,
            record.traceparent,
        )
        entry.is_fate_unknown = True
        # Nobody knows what happened to the last attempt, so the message gets one more.
        entry.attempts = min(record.attempts, self._config.max_retries)
        entry.last_used = record.last_used
        entry.stamped_ms, entry.is_stamp_stored = record.stamped_ms, record.stamped_ms > 0
        self._outbox.resume_uses(record.last_used)
        if self._config.message_max_age:
            age_s = max(0.0, (now.unix_ms - record.created_ms) / 1_000)
            entry.expires_at = now.mono_s + self._config.message_max_age - age_s
        self._outbox.add(entry)
        self.next_counter = max(self.next_counter, record.sequence + 1)
        return entry
