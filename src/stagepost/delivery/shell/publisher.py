"""`ReliablePublisher`: the three tiers, over any transport. It performs what the core decides, and decides nothing.

What some calls give back: plain containers that may also be awaited, as all calls of a publisher may.

The life of a publisher: what it finds in its store when it starts, and what it leaves behind when it stops.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from stagepost.delivery import endings
from stagepost.delivery.config import ReliablePublisherConfig, check_message
from stagepost.delivery.ended import FailedMessage
from stagepost.delivery.entry import Entry, Moment
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
from stagepost.delivery.result import DeliveryResult, Outcome
from stagepost.delivery.shell.acceptance import PublisherWaiting
from stagepost.delivery.shell.events import DeliveryEventSink
from stagepost.delivery.shell.status_dispatch import StatusCallback, Subscription
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.delivery.stores.outbox import OnStorageError, OutboxStore, letter_of, outcome_of
from stagepost.delivery.transport import SendRefused, Transport
from stagepost.errors import StagepostError, StorageError
from stagepost.ground.loop.clock import Clock, SystemClock

T = TypeVar("T")


class Stats(dict[str, Any]):
    """Counters by name. It may be awaited, as all calls of a publisher; that gives the counters themselves."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


class Listed(tuple[T, ...], Generic[T]):
    """A tuple that may be awaited, as all calls of a publisher; that gives the tuple itself."""

    def __await__(self) -> Generator[Any, None, Listed[T]]:
        yield from ()
        return self


log = logging.getLogger(__name__)


class PublisherLife(PublisherWaiting):
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
        super().__init__(transport, config or ReliablePublisherConfig(), clock, outbox, events)
        self._random = random
        self._on_storage_error = on_storage_error
        self._stored = {}
        self._outbox_damage: tuple[str, ...] = ()
        self._unsubscribe: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Open the outbox, take up what is in it, and begin to send."""
        if self._state is not ErrNotStarted:
            raise ErrAlreadyStarted("this publisher was started before", advice="make a new one")
        random = self._random or Random(secrets.randbits(64))
        config, store = self._config, self._outbox
        if store is None and config.persistence == "disk":
            store = await self._open_store()
        self._outbox = store
        self._state = None
        # Stored counters must never meet those of a former run; without a store a new prefix sees to that.
        volatile_prefix = random.randbytes(NONCE_PREFIX_BYTES)
        if isinstance(self._clock, SystemClock):
            # The same clocks, without asking each time which loop this is.
            self._mono_s, self._unix_s = asyncio.get_running_loop().time, time.time
        self._core = core = PublisherCore(
            config,
            self._transport.self_id,
            nonce_prefix=random.randbytes(NONCE_PREFIX_BYTES) if store is None else store.nonce_prefix,
            volatile_prefix=volatile_prefix,
            random=random,
            is_stored=store is not None,
            outcome_type=DeliveryResult,
        )
        core.is_watched = self._dispatch.has_audience or self._events is not None
        self._dispatch.start()
        now = self._now()
        core.tick_begins(now)
        if store is not None:
            self._recover(store, now)
        self._flusher = asyncio.get_running_loop().create_task(self._flush_forever(), name="delivery-flusher")
        self._unsubscribe = [
            self._transport.on_connectivity(self._connectivity),
            self._transport.on_message(self._incoming),
        ]
        self._connectivity(self._transport.connected_peers)

    async def _open_store(self) -> OutboxStore:
        from pathlib import Path

        from stagepost.delivery.stores.outbox_rules import OutboxLimits
        from stagepost.delivery.stores.sqlite_outbox import SqliteOutbox

        assert self._config.queue_path is not None
        folder, fsync = Path(self._config.queue_path), self._config.fsync
        limits = OutboxLimits(dead_letters_max=self._config.dead_letters_max)
        try:
            return await asyncio.get_running_loop().run_in_executor(
                None, lambda: SqliteOutbox(folder, fsync=fsync, limits=limits)
            )
        except StorageError as error:
            raise ErrStorage(error.text, advice=error.advice) from error

    def _recover(self, store: OutboxStore, now: Moment) -> None:
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
                core.ended.outcomes.put(done.delivery_id, outcome)
        self._perform(core.recover(content.records, now))

    def _storage_failed(self, error: StagepostError) -> None:
        log.error("the outbox is damaged or cannot be written", extra={"reason": error.text})
        if self._on_storage_error is not None:
            self._on_storage_error(error)

    async def stop(self, drain: float = 0.0) -> None:
        """Refuse new calls, give what is in flight `drain` seconds, then end every waiting call with `ErrClosed`."""
        if self._state is not None:
            self._state = ErrClosed
            return
        self._state = ErrClosed
        if drain > 0 and not self._core.is_quiet:
            self._quiet = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._quiet], timeout=drain)
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        assert self._flusher is not None
        self._flusher.cancel()
        if self._flusher is not asyncio.current_task():
            await asyncio.wait([self._flusher])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._perform(self._core.close(self._now()))
        await self._dispatch.close()
        if self._outbox is not None:
            try:
                await self._outbox.close()
            except StorageError as error:
                raise ErrStorage(error.text, advice=error.advice) from error


# Names of their own, for reaching a member through its enum costs ten times as much.
_QUEUED, _ACKED = Tier.QUEUED, Tier.ACKED


class ReliablePublisher(PublisherLife):
    """An async context manager: `start` on entry, `stop` on exit.

    `outbox` is where queued and acked messages are kept; without one, `config.persistence` decides. A seeded `random`,
    with a clock that follows the loop, repeats a run exactly, ids included: that is for tests and for nothing else.
    """

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # The three tiers.

    async def publish(self, topic: str, data: bytes | bytearray | memoryview) -> None:
        """One attempt, now: it raises if nobody is connected or the network does not take it."""
        self._require_running()
        payload = bytes(data)
        check_message(self._transport, topic, payload, ())
        now = self._now()
        entry = self._core.begin_once(topic, payload, now)
        self._perform(self._core.take_effects())
        if self._transport.connected_peers <= 0:
            nobody = ErrNoConnectedPeers(
                "no peer is connected, so nobody could get the message",
                advice="store it with publish_queued, or wait for a connection",
            )
            self._perform(self._core.end_once(entry, None, nobody, now))
            raise nobody
        error: DeliveryError
        try:
            published = await self._transport.publish(self._core.outgoing_once(entry))
        except SendRefused as refused:
            error = endings.rejected(entry, refused)
        except asyncio.CancelledError:
            self._perform(self._core.end_once(entry, None, endings.cancelled_while_sending(), self._now()))
            raise
        except Exception as cause:
            if not isinstance(cause, StagepostError):
                log.exception("the transport failed by a bug")
            error = endings.send_failed(entry, cause)
        else:
            self._perform(self._core.end_once(entry, published, None, self._now()))
            return
        self._perform(self._core.end_once(entry, None, error, self._now()))
        raise error

    async def publish_queued(
        self,
        topic: str,
        data: bytes | bytearray | memoryview,
        *,
        key: str | bytes | None = None,
        require_ack: bool = False,
    ) -> str:
        """Store it, return its id, and send it when that can be done. `require_ack`: followed until confirmed."""
        self._require_running()
        payload = bytes(data)
        ackers, required = self._critical() if require_ack else ((), 0)
        self._check(topic, payload, ackers)
        if self._is_full:
            await self._let_flusher_work()
        now = self._now()
        entry = self._core.offer(
            _QUEUED,
            topic,
            payload,
            now,
            key_hash=None if key is None else nonce_of_key(key),
            ackers=ackers,
            required=required,
        )
        if isinstance(entry, Outcome):
            return entry.message_id
        if not self._is_new(entry):
            await self._join(entry)
        elif self._outbox is None:
            self._accept(entry, now)
        else:
            await self._store(entry)
        return entry.id_text

    async def publish_with_ack(
        self,
        topic: str,
        data: bytes | bytearray | memoryview,
        *,
        timeout: float | None = None,
        key: str | bytes | None = None,
    ) -> DeliveryResult:
        """Send it and wait until enough critical peers have confirmed; every other end raises."""
        if self._state is not None:
            self._require_running()
        config = self._config
        if not config.enable_ack:
            raise ErrAckDisabled(
                "acknowledgements are off", advice="set enable_ack=True in the configuration"
            )
        ackers, required = self._critical()
        budget_s = config.budget_s if timeout is None else timeout
        if not 0 < budget_s <= config.dedup_window:
            raise ErrConfig(
                f"timeout is {budget_s!r}, expected more than 0 and at most dedup_window, "
                f"{config.dedup_window:g} s",
                found=budget_s,
            )
        payload = bytes(data)
        self._check(topic, payload, ackers)
        if self._is_full:
            await self._let_flusher_work()
        now = self._now()
        outcome = self._core.offer(
            _ACKED,
            topic,
            payload,
            now,
            key_hash=None if key is None else nonce_of_key(key),
            ackers=ackers,
            required=required,
            budget_s=budget_s,
        )
        if isinstance(outcome, Entry):
            outcome = await self._outcome(outcome, now, budget_s)
        if outcome.error is not None:
            raise outcome.error
        assert isinstance(outcome, DeliveryResult)
        return outcome

    def _critical(self) -> tuple[tuple[str, ...], int]:
        config = self._config
        if not config.critical_peers:
            raise ErrNoCriticalPeers(
                "nobody is named whose confirmation would count",
                advice="name critical_peers in the configuration, or with set_critical_peers",
            )
        return config.critical_peers, config.required

    # More calls.

    async def flush_queue(self) -> int:
        """Try everything that is queued now, in order; says how many were sent."""
        self._require_running()
        self._look_at_connection()
        if self._flush is None:
            core = self._core
            if not core.outbox.waiting and not core.outbox.in_flight:
                return 0
            if not core.is_connected and core.outbox.waiting:
                raise ErrNoConnectedPeers(
                    f"no peer is connected, and {core.outbox.waiting} messages wait",
                    found=core.outbox.waiting,
                    advice="they are sent as soon as somebody is connected",
                )
            if not core.begin_flush():
                return 0
            self._flush = asyncio.get_running_loop().create_future()
            self._wake_flusher()
        flush = await asyncio.shield(self._flush)
        if flush.is_cut_short:
            if self._state is not None:
                raise ErrClosed("the publisher was stopped during the flush")
            raise ErrNoConnectedPeers(
                f"the last peer went away during the flush, after {flush.became_sent} messages",
                found=flush.became_sent,
                advice="the rest is sent as soon as somebody is connected",
            )
        return flush.became_sent

    def on_delivery_status(self, callback: StatusCallback) -> Subscription:
        """`callback(message_id, status, error)` from now on, sync or async; call what is returned to end it."""
        subscription = self._dispatch.subscribe(callback)
        if hasattr(self, "_core"):  # it comes with `start`
            self._core.is_watched = True
        return subscription

    def set_critical_peers(
        self,
        peers: Iterable[str],
        *,
        require_all_acks: bool | None = None,
        required_acks: int | None = None,
    ) -> None:
        """For messages that are published from now on; the others keep those whom they were published with."""
        changes: dict[str, Any] = {"critical_peers": tuple(peers), "required_acks": required_acks}
        if require_all_acks is not None:
            changes["require_all_acks"] = require_all_acks
        self._config = replace(self._config, **changes)

    async def cancel(self, message_id: str) -> bool:
        """Take back what still waits in the queue; False for everything else."""
        self._require_running()
        is_cancelled, effects = self._core.cancel(_id_bytes(message_id), self._now())
        self._perform(effects)
        return is_cancelled

    async def status(self, message_id: str) -> DeliveryStatus | None:
        """None for an id that is unknown, or forgotten."""
        outcome = self._core.outcome_of(_id_bytes(message_id)) if self._state is not ErrNotStarted else None
        return None if outcome is None else outcome.status

    async def result(self, message_id: str) -> DeliveryResult | None:
        """What is known about a message so far; None for an id that is unknown, or forgotten."""
        outcome = self._core.outcome_of(_id_bytes(message_id)) if self._state is not ErrNotStarted else None
        assert outcome is None or isinstance(outcome, DeliveryResult)
        return outcome

    def stats(self) -> Stats:
        if self._state is ErrNotStarted:
            raise ErrNotStarted("the publisher was not started", advice="await start(), or use `async with`")
        stats = Stats(self._core.stats())
        stats["callbacks_failed"] = self._dispatch.failed
        stats["callback_events_lost"] = self._dispatch.lost
        return stats

    def dead_letters(self) -> Listed[FailedMessage]:
        """Queued and acked messages that failed, the oldest first."""
        if self._state is ErrNotStarted:
            raise ErrNotStarted("the publisher was not started", advice="await start(), or use `async with`")
        return Listed(self._core.ended.dead_letters.values())

    @property
    def outbox_damage(self) -> tuple[str, ...]:
        """Sentences about what was damaged or missing when the outbox was opened. Where there are any, `stats` and
        `dead_letters` tell of what could be read."""
        return self._outbox_damage

    async def replay(self, message_id: str, *, sequence: int | None = None) -> str:
        """Publish a dead letter again under its old id; `KeyError` if there is no such dead letter.

        A message that failed several times has several copies: `sequence` names one of them, without it the newest
        is meant. A copy whose message is on its way already, with the same promise, is merged with that message;
        with another promise the copy stays, to be replayed later.
        """
        self._require_running()
        core = self._core
        letter = core.ended.dead_letter(message_id, sequence)
        if letter is None:
            raise KeyError(message_id)
        entry = core.offer_again(letter, self._now())
        if self._is_new(entry):
            await self._store(entry)
        else:
            await self._join(entry)
            self._perform(core.join(letter, entry))
        return entry.id_text


def _id_bytes(message_id: str) -> bytes:
    try:
        return bytes.fromhex(message_id)
    except ValueError:
        return b""
