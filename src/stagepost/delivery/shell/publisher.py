"""`ReliablePublisher`: the three tiers, over any transport.

The publisher starts and stops its parts. `Acceptance` takes messages in, `Sender` sends them, the core decides. Some calls
return plain containers that may also be awaited, as all calls of a publisher may.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from random import Random
from typing import Any, Generic, Self, TypeVar

from stagepost.delivery import endings
from stagepost.delivery.config import (
    ReliablePublisherConfig,
    check_message,
    checked_key,
    checked_payload,
    checked_timeout_s,
    checked_traceparent,
)
from stagepost.delivery.effects import DeliveryEventSink
from stagepost.delivery.endings import FailedMessage
from stagepost.delivery.entry import OutboxEntry
from stagepost.delivery.errors import (
    DeliveryError,
    ErrAckDisabled,
    ErrAlreadyStarted,
    ErrClosed,
    ErrConfig,
    ErrNoConnectedPeers,
    ErrNoCriticalPeers,
    ErrNotStarted,
    ErrStorage,
)
from stagepost.delivery.identity import NONCE_PREFIX_BYTES, nonce_of_key
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.shell.acceptance import Acceptance, Waiters
from stagepost.delivery.shell.sender import Sender
from stagepost.delivery.shell.status_dispatch import StatusCallback, StatusDispatch, Subscription
from stagepost.delivery.status import DeliveryResult, DeliveryStatus, Tier
from stagepost.delivery.stores.outbox import OnStorageError, OutboxStore, letter_of, outcome_of
from stagepost.delivery.transport import SendRefused, Transport, absence_of, require_peers
from stagepost.errors import ConfigError, StagepostError, StorageError
from stagepost.ground.loop.clock import Clock, SystemClock

T = TypeVar("T")


class Stats(dict[str, Any]):
    """Counters by name. They may be awaited, as all calls of a publisher; that gives the counters themselves."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


class AwaitableTuple(tuple[T, ...], Generic[T]):
    """A tuple that may be awaited, as all calls of a publisher; that gives the tuple itself."""

    def __await__(self) -> Generator[Any, None, AwaitableTuple[T]]:
        yield from ()
        return self


# Module constants, since access to a member through its enum costs ten times as much.
_QUEUED, _ACKED = Tier.QUEUED, Tier.ACKED

log = logging.getLogger(__name__)


class ReliablePublisher:
    """An async context manager: `start` on entry, `stop` on exit.

    `outbox` stores queued and acked messages; without one, `config.persistence` decides. A seeded `random`, with a
    clock that follows the loop, repeats a run exactly, ids included: that is for tests and for nothing else.
    """

    # Made by `start`.
    _core: PublisherCore
    _sender: Sender
    _acceptance: Acceptance

    def __init__(
        self,
        transport: Transport,
        config: ReliablePublisherConfig | None = None,
        *,
        clock: Clock | None = None,
        random: Random | None = None,
        outbox: OutboxStore | None = None,
        events: DeliveryEventSink | None = None,
        on_storage_error: OnStorageError | None = None,
    ) -> None:
        self._transport = transport
        self._config = config or ReliablePublisherConfig()
        self._clock = clock or SystemClock()
        self._random = random
        self._store = outbox
        self._on_storage_error = on_storage_error
        self._dispatch = StatusDispatch(events)
        self._refusal: type[DeliveryError] | None = ErrNotStarted
        """The error that a call raises now; None while the publisher runs."""
        self._outbox_damage: tuple[str, ...] = ()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Start and stop.

    async def start(self) -> None:
        """Open the outbox, recover the messages in it, and begin to send."""
        if self._refusal is not ErrNotStarted:
            raise ErrAlreadyStarted("this publisher was started before", advice="make a new one")
        self._check_peers(self._config)
        random = self._random or Random(secrets.randbits(64))
        config, store = self._config, self._store
        if store is None and config.persistence == "disk":
            self._store = store = await self._open_store()
        self._refusal = None
        # Stored counters must never meet those of a former run; without a store a new prefix sees to that.
        volatile_prefix = random.randbytes(NONCE_PREFIX_BYTES)
        mono_s, unix_s = self._clock.mono_s, self._clock.unix_s
        if isinstance(self._clock, SystemClock):
            # The same clocks, without asking each time which loop this is.
            mono_s, unix_s = asyncio.get_running_loop().time, time.time
        self._core = core = PublisherCore(
            config,
            self._transport.self_id,
            nonce_prefix=random.randbytes(NONCE_PREFIX_BYTES) if store is None else store.nonce_prefix,
            volatile_prefix=volatile_prefix,
            random=random,
            is_stored=store is not None,
        )
        waiters = Waiters()
        self._sender = Sender(core, self._transport, store, waiters.wake, self._dispatch, mono_s, unix_s)
        self._acceptance = Acceptance(core, self._sender, store, waiters)
        core.watch(self._dispatch.is_watched)
        self._dispatch.start()
        core.tick_begins(self._sender.now())
        if store is not None:
            self._recover(store)
        self._sender.start()

    async def _open_store(self) -> OutboxStore:
        from pathlib import Path

        from stagepost.delivery.stores.outbox_rules import OutboxLimits
        from stagepost.delivery.stores.outbox_stores import SqliteOutbox

        assert self._config.queue_path is not None
        folder, fsync = Path(self._config.queue_path), self._config.fsync
        limits = OutboxLimits(
            dead_letters_max=self._config.dead_letters_max, queue_size=self._config.queue_size
        )
        try:
            return await asyncio.get_running_loop().run_in_executor(
                None, lambda: SqliteOutbox(folder, fsync=fsync, limits=limits)
            )
        except StorageError as error:
            raise ErrStorage(error.text, advice=error.advice) from error

    def _recover(self, store: OutboxStore) -> None:
        core = self._core
        store.on_storage_error = self._storage_failed
        content = store.load()
        self._outbox_damage = content.damage
        core.resume(
            content.next_counter,
            acked=content.totals.acked,
            sent_final=content.totals.sent_final,
            failed=content.totals.failed,
        )
        for dead in content.dead_letters:
            core.ended.dead_letters.put(dead.record.sequence, letter_of(dead))
        for done in content.done_keys:
            if (outcome := outcome_of(done)) is not None:
                core.ended.done_keys.put(done.key_hash, outcome)
                core.ended.results.put(done.delivery_id, outcome)
        self._sender.perform(core.recover(content.records, self._sender.now()))

    def _storage_failed(self, error: StagepostError) -> None:
        log.error("the outbox is damaged or cannot be written", extra={"reason": error.text})
        if self._on_storage_error is not None:
            self._on_storage_error(error)

    async def stop(self, drain: float = 0.0) -> None:
        """Refuse new calls, give messages in flight `drain` seconds, then end every waiting call with `ErrClosed`."""
        was_running, self._refusal = self._refusal is None, ErrClosed
        if not was_running:
            return
        await self._sender.stop(drain)
        await self._dispatch.close()
        if self._store is not None:
            try:
                await self._store.close()
            except StorageError as error:
                raise ErrStorage(error.text, advice=error.advice) from error

    def kill(self) -> None:
        """Stop at once, as a crash would; for tests of what a restart finds.

        Nothing more is sent, stored, reported or answered: a call that waits waits until its task is cancelled. The
        outbox is free for another publisher, with what its disk has at this moment.
        """
        was_running, self._refusal = self._refusal is None, ErrClosed
        if not was_running:
            return
        self._sender.kill()
        self._dispatch.kill()
        if self._store is not None:
            self._store.kill()

    def _require_running(self) -> None:
        if self._refusal is ErrNotStarted:
            raise ErrNotStarted("the publisher was not started", advice="await start(), or use `async with`")
        if self._refusal is not None:
            raise ErrClosed("the publisher was stopped", advice="make a new one")

    def _require_started(self) -> None:
        if self._refusal is ErrNotStarted:
            self._require_running()

    # The three tiers.

    async def publish(
        self, topic: str, data: bytes | bytearray | memoryview, *, traceparent: str | None = None
    ) -> None:
        """Make one attempt, now; raise if no peer is connected or the network does not take the message.

        `traceparent`, here and below, is the W3C trace context of the caller, which travels with the message.
        """
        self._require_running()
        trace = checked_traceparent(traceparent)
        payload = checked_payload(data)
        check_message(self._transport, topic, payload, ())
        core, sender = self._core, self._sender
        now = sender.now()
        entry = core.attempts.begin_once(topic, payload, now, trace)
        sender.perform(core.take_effects())
        if self._transport.connected_peers <= 0:
            nobody = endings.nobody_connected(absence_of(self._transport))
            sender.perform(core.attempts.end_once(entry, None, nobody, now))
            raise nobody
        error: DeliveryError
        try:
            published = await self._transport.publish(core.attempts.outgoing_once(entry))
        except SendRefused as refused:
            error = endings.rejected(entry, refused)
        except asyncio.CancelledError:
            sender.perform(
                core.attempts.end_once(entry, None, endings.cancelled_while_sending(), sender.now())
            )
            raise
        except Exception as cause:
            if not isinstance(cause, StagepostError):
                log.exception("the transport failed by a bug")
            error = endings.send_failed(entry, cause)
        else:
            sender.perform(core.attempts.end_once(entry, published, None, sender.now()))
            return
        sender.perform(core.attempts.end_once(entry, None, error, sender.now()))
        raise error

    async def publish_queued(
        self,
        topic: str,
        data: bytes | bytearray | memoryview,
        *,
        key: str | bytes | None = None,
        require_ack: bool = False,
        traceparent: str | None = None,
    ) -> str:
        """Store the message, return its id, and send it as soon as possible.

        `require_ack`: the publisher retries until the critical peers have acknowledged.
        """
        self._require_running()
        trace = checked_traceparent(traceparent)
        payload = checked_payload(data)
        ackers, required = self._critical() if require_ack else ((), 0)
        await self._check(topic, payload, ackers)
        now = self._sender.now()
        entry = self._core.offer(
            _QUEUED,
            topic,
            payload,
            now,
            key_hash=_key_hash(key),
            ackers=ackers,
            required=required,
            traceparent=trace,
        )
        if isinstance(entry, DeliveryResult):
            return entry.message_id
        await self._acceptance.take(entry, now)
        return entry.id_text

    async def publish_with_ack(
        self,
        topic: str,
        data: bytes | bytearray | memoryview,
        *,
        timeout: float | None = None,
        key: str | bytes | None = None,
        traceparent: str | None = None,
    ) -> DeliveryResult:
        """Send the message and return when enough critical peers have acknowledged; raise at every other end."""
        self._require_running()
        config = self._config
        if not config.enable_ack:
            raise ErrAckDisabled(
                "acknowledgements are off", advice="set enable_ack=True in the configuration"
            )
        ackers, required = self._critical()
        budget_s = checked_timeout_s(timeout, config)
        trace = checked_traceparent(traceparent)
        payload = checked_payload(data)
        await self._check(topic, payload, ackers)
        now = self._sender.now()
        outcome = self._core.offer(
            _ACKED,
            topic,
            payload,
            now,
            key_hash=_key_hash(key),
            ackers=ackers,
            required=required,
            budget_s=budget_s,
            outwaits_pace=timeout is None and config.delivery_timeout is None,
            traceparent=trace,
        )
        if isinstance(outcome, OutboxEntry):
            outcome = await self._acceptance.take_and_wait(outcome, now, budget_s)
        if outcome.error is not None:
            raise outcome.error
        return outcome

    async def _check(self, topic: str, payload: bytes, ackers: tuple[str, ...]) -> None:
        """Raise at a mistake of the caller, before anything has happened; then make room by sending, if possible."""
        check_message(self._transport, topic, payload, ackers)
        self._sender.look_at_connection()
        if self._acceptance.is_full:
            await self._acceptance.let_flusher_work()
            self._require_running()

    def _critical(self) -> tuple[tuple[str, ...], int]:
        config = self._config
        if not config.critical_peers:
            raise ErrNoCriticalPeers(
                "no critical peer is named, so no acknowledgement would count",
                advice="name critical_peers in the configuration, or with set_critical_peers",
            )
        return config.critical_peers, config.required

    # More calls.

    async def flush_queue(self) -> int:
        """Try every queued message now, in order; return how many were sent."""
        self._require_running()
        self._sender.look_at_connection()
        core = self._core
        if not self._sender.is_flushing and core.outbox.waiting and not core.conditions.is_connected:
            raise ErrNoConnectedPeers(
                f"no peer is connected, and {core.outbox.waiting} messages wait",
                found=core.outbox.waiting,
                advice="the messages are sent as soon as a peer is connected",
            )
        flush = await self._sender.flush()
        if flush is None:
            return 0
        if flush.is_cut_short:
            if self._refusal is not None:
                raise ErrClosed("the publisher was stopped during the flush")
            raise ErrNoConnectedPeers(
                f"the last peer went away during the flush, after {flush.became_sent} messages",
                found=flush.became_sent,
                advice="the other messages are sent as soon as a peer is connected",
            )
        return flush.became_sent

    def on_delivery_status(self, callback: StatusCallback) -> Subscription:
        """Call `callback(message_id, status, error)` from now on, sync or async; call the subscription to end it."""
        subscription = self._dispatch.subscribe(callback)
        if self._refusal is None:
            self._core.watch(True)
        return subscription

    def set_critical_peers(
        self,
        peers: Iterable[str],
        *,
        require_all_acks: bool | None = None,
        required_acks: int | None = None,
    ) -> None:
        """Set the critical peers of messages that are published from now on; earlier messages keep theirs."""
        changes: dict[str, Any] = {"critical_peers": tuple(peers), "required_acks": required_acks}
        if require_all_acks is not None:
            changes["require_all_acks"] = require_all_acks
        changed = replace(self._config, **changes)
        self._check_peers(changed)
        self._config = changed

    def _check_peers(self, config: ReliablePublisherConfig) -> None:
        try:
            require_peers(self._transport, config.critical_peers)
        except ConfigError as error:
            raise ErrConfig(f"critical_peers: {error.text}", advice=error.advice) from error

    async def cancel(self, message_id: str) -> bool:
        """Cancel a message that still waits in the queue; return False for every other."""
        self._require_running()
        is_cancelled, effects = self._core.cancel(_id_bytes(message_id), self._sender.now())
        self._sender.perform(effects)
        return is_cancelled

    async def status(self, message_id: str) -> DeliveryStatus | None:
        """Return the status of a message; None for an id that is unknown, or forgotten."""
        result = await self.result(message_id)
        return None if result is None else result.status

    async def result(self, message_id: str) -> DeliveryResult | None:
        """Return what is known about a message so far; None for an id that is unknown, or forgotten."""
        return None if self._refusal is ErrNotStarted else self._core.result_of(_id_bytes(message_id))

    def stats(self) -> Stats:
        self._require_started()
        stats = Stats(self._core.stats())
        stats["callbacks_failed"] = self._dispatch.failed
        stats["callback_events_lost"] = self._dispatch.lost
        return stats

    def dead_letters(self) -> AwaitableTuple[FailedMessage]:
        """Return the queued and acked messages that failed, the oldest first."""
        self._require_started()
        return AwaitableTuple(self._core.ended.dead_letters.values())

    @property
    def outbox_damage(self) -> tuple[str, ...]:
        """Return sentences about damaged or missing rows of the outbox when it was opened.

        If there are any, `stats` and `dead_letters` tell of the rows that could be read.
        """
        return self._outbox_damage

    async def replay(
        self,
        message_id: str,
        *,
        sequence: int | None = None,
        require_never: Callable[[FailedMessage], None] | None = None,
    ) -> str:
        """Publish a dead letter again under its old id; raise `KeyError` if there is no such dead letter.

        A message that failed several times has several copies: `sequence` names one of them, without it the newest
        is meant. A copy whose message is on its way already, with the same promise, is merged with that message;
        with another promise the copy stays, to be replayed later.

        An external message keeps the expiry that its first transmission fixed, and so its id. With `require_never` the
        next transmission fixes another one: the function must raise unless it is proved that the message of this dead
        letter was never executed; then nothing happens.
        """
        self._require_running()
        core = self._core
        letter = core.ended.dead_letter(message_id, sequence)
        if letter is None:
            raise KeyError(message_id)
        if require_never is not None:
            require_never(letter)
        now = self._sender.now()
        entry = core.offer_again(letter, now, is_stamped_again=require_never is not None)
        if not await self._acceptance.take(entry, now):
            self._sender.perform(core.join(letter, entry))
        return entry.id_text


def _key_hash(key: str | bytes | None) -> bytes | None:
    checked = checked_key(key)
    return None if checked is None else nonce_of_key(checked)


def _id_bytes(message_id: str) -> bytes:
    try:
        return bytes.fromhex(message_id)
    except ValueError:
        return b""
