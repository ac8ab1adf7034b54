"""`ReliablePublisher`: the three tiers, over any transport. It performs what the core decides, and decides nothing."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from types import TracebackType
from typing import Any, Self

from stagepost.delivery import endings
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.ended import FailedMessage
from stagepost.delivery.entry import NEVER, Entry, Moment, Phase
from stagepost.delivery.errors import (
    DeliveryError,
    ErrAckDisabled,
    ErrAckTimeout,
    ErrAlreadyStarted,
    ErrClosed,
    ErrConfig,
    ErrNoConnectedPeers,
    ErrNoCriticalPeers,
    ErrNotStarted,
    ErrStorage,
)
from stagepost.delivery.identity import NONCE_PREFIX_BYTES, nonce_of_key
from stagepost.delivery.message_checks import check_message
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.result import Outcome
from stagepost.delivery.status import DeliveryStatus, Tier
from stagepost.delivery.transport import SendRefused, Transport
from stagepost.errors import StagepostError, StorageError
from stagepost.runtime.clock import Clock, SystemClock
from stagepost.runtime.delivery.call_results import Listed, Stats
from stagepost.runtime.delivery.entry_rows import (
    buried,
    letter_of,
    outcome_of,
    record_of,
)
from stagepost.runtime.delivery.event_sink import DeliveryEventSink
from stagepost.runtime.delivery.outbox_store import OnStorageError, OutboxStore
from stagepost.runtime.delivery.publisher_shell import PublisherShell
from stagepost.runtime.delivery.result import DeliveryResult
from stagepost.runtime.delivery.status_dispatch import StatusCallback, Subscription

IDLE_TURNS_MAX = 3
"""Turns of the loop without progress, after which a full queue counts as full."""

log = logging.getLogger(__name__)


class ReliablePublisher(PublisherShell):
    """An async context manager: `start` on entry, `stop` on exit.

    `outbox` is where queued and acked messages are kept; without one, `config.persistence` decides. A seeded `random`,
    with a clock that follows the loop, repeats a run exactly, ids included: that is for tests and for nothing else.
    """

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
        self._stored: dict[int, asyncio.Future[StorageError | None]] = {}
        self._unsubscribe: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # Beginning and end.

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
            self._mono_s = asyncio.get_running_loop().time  # the same, without asking which loop this is
        self._core = core = PublisherCore(
            config,
            self._transport.self_id,
            nonce_prefix=random.randbytes(NONCE_PREFIX_BYTES) if store is None else store.nonce_prefix,
            volatile_prefix=volatile_prefix,
            random=random,
            is_stored=store is not None,
            outcome_type=DeliveryResult,
        )
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

        from stagepost.runtime.delivery.outbox_book import OutboxLimits
        from stagepost.runtime.delivery.sqlite_outbox import SqliteOutbox

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
        core.resume(
            content.next_counter,
            acked=content.totals.acked,
            sent_final=content.totals.sent_final,
            failed=content.totals.failed,
        )
        for dead in content.dead_letters:
            core.ended.dead_letters.put(dead.record.delivery_id.hex(), letter_of(dead))
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
        ackers, required = self._critical() if require_ack else ((), 0)
        entry, _ = await self._take_in(Tier.QUEUED, topic, bytes(data), key, ackers, required, NEVER, None)
        return entry.message_id if isinstance(entry, Outcome) else entry.id_text

    async def publish_with_ack(
        self,
        topic: str,
        data: bytes | bytearray | memoryview,
        *,
        timeout: float | None = None,
        key: str | bytes | None = None,
    ) -> DeliveryResult:
        """Send it and wait until enough critical peers have confirmed; every other end raises."""
        self._require_running()
        if not self._config.enable_ack:
            raise ErrAckDisabled(
                "acknowledgements are off", advice="set enable_ack=True in the configuration"
            )
        ackers, required = self._critical()
        budget_s = self._config.budget_s if timeout is None else timeout
        if not 0 < budget_s <= self._config.dedup_window:
            raise ErrConfig(
                f"timeout is {budget_s!r}, expected more than 0 and at most dedup_window, "
                f"{self._config.dedup_window:g} s",
                found=budget_s,
            )
        waiter: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        entry, is_new = await self._take_in(
            Tier.ACKED, topic, bytes(data), key, ackers, required, budget_s, waiter
        )
        if isinstance(entry, Outcome):
            outcome = entry
        else:
            outcome = await self._outcome(entry, waiter, None if is_new else budget_s)
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

    async def _take_in(
        self,
        tier: Tier,
        topic: str,
        payload: bytes,
        key: str | bytes | None,
        ackers: tuple[str, ...],
        required: int,
        budget_s: float,
        waiter: asyncio.Future[Outcome] | None,
    ) -> tuple[Entry | Outcome, bool]:
        """Checked, stored and accepted; or what is known under the same key, and then it is not new."""
        check_message(self._transport, topic, payload, ackers)
        core = self._core
        self._look_at_connection()
        if core.is_connected and len(core.outbox) >= self._config.queue_size:
            await self._let_flusher_work()
        entry = core.offer(
            tier,
            topic,
            payload,
            self._now(),
            key_hash=None if key is None else nonce_of_key(key),
            ackers=ackers,
            required=required,
            budget_s=budget_s,
        )
        if isinstance(entry, Outcome):
            return entry, False
        is_new = entry.phase is Phase.STORING and entry.sequence not in self._stored
        if waiter is not None:
            entry.waiters.append(waiter)
        if is_new:
            await self._store(entry)
        else:
            self._perform(core.take_effects())
            if entry.phase is Phase.STORING:
                await self._until_stored(entry)
        return entry, is_new

    async def _let_flusher_work(self) -> None:
        """A program that publishes without pause must not push out what could be sent at this very moment.

        This takes turns of the loop, no time: where the network does not take messages at once, the queue's rules hold.
        """
        core = self._core
        turns, ended = 0, core.counters.ended
        while turns < IDLE_TURNS_MAX and core.is_connected and len(core.outbox) >= self._config.queue_size:
            await asyncio.sleep(0)
            turns = turns + 1 if core.counters.ended == ended else 0
            ended = core.counters.ended
        self._require_running()

    async def _store(self, entry: Entry) -> None:
        core, store = self._core, self._outbox
        if store is None:
            self._accept(entry)
            return
        self._stored[entry.sequence] = stored = asyncio.get_running_loop().create_future()
        now = self._now()
        dead = [
            buried(victim, endings.evicted(victim, entry.id_text), now.unix_ms) for victim in entry.evicted
        ]
        failure: StorageError | None = None
        try:
            await store.insert(record_of(entry), dead, replayed=entry.replayed)
        except StorageError as error:
            failure = error
        except asyncio.CancelledError:
            # The writing goes on without the one who waited for it, and so the message counts as accepted.
            self._accept(entry)
            if entry.tier is Tier.ACKED:
                self._perform(core.abandon(entry, self._now()))
            raise
        finally:
            del self._stored[entry.sequence]
            stored.set_result(failure)
        if failure is not None:
            core.withdraw(entry)
            self._arm()
            raise ErrStorage(
                f"the message was not accepted: {failure.text}",
                advice=failure.advice,
                message_id=entry.id_text,
            ) from failure
        self._accept(entry)

    async def _until_stored(self, entry: Entry) -> None:
        """Somebody else is storing the same message."""
        stored = self._stored.get(entry.sequence)
        if stored is not None:
            failure = await asyncio.shield(stored)
            if failure is not None:
                raise ErrStorage(
                    f"the message was not accepted: {failure.text}",
                    advice=failure.advice,
                    message_id=entry.id_text,
                ) from failure

    def _accept(self, entry: Entry) -> None:
        self._look_at_connection()
        self._perform(self._core.accept(entry, self._now()))
        if self._state is not None:
            # Stopped while it was being stored.
            self._perform(self._core.close(self._now()))
        elif entry.tier is not Tier.ACKED or entry.status is not DeliveryStatus.PENDING:
            self._wake_flusher()

    async def _outcome(
        self, entry: Entry, waiter: asyncio.Future[Outcome], own_budget_s: float | None
    ) -> Outcome:
        """Sends it in the caller's own task if it is its turn: no task for each message.

        `own_budget_s` is for a call that found its message on the way already, with a budget of its own or none.
        """
        try:
            if own_budget_s is None:
                if self._core.may_send_now(entry):
                    await self._send(entry)
                return await waiter
            async with asyncio.timeout(own_budget_s):
                return await waiter
        except TimeoutError:
            raise ErrAckTimeout(
                "the same message was published before, and its end did not come in time",
                message_id=entry.id_text,
                result=self._core.outcome_of(entry.delivery_id),
                may_have_been_delivered=True,
            ) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if waiter.done() and entry.sending_task is task:
                # Not the caller was cancelled but the send, since its time is over.
                entry.sending_task = None
                if task.uncancel() == 0:
                    return waiter.result()
            entry.waiters.remove(waiter)
            if not entry.waiters:
                self._perform(self._core.abandon(entry, self._now()))
            raise
        finally:
            if waiter in entry.waiters:
                entry.waiters.remove(waiter)

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
        return self._dispatch.subscribe(callback)

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

    async def replay(self, message_id: str) -> str:
        """Publish a dead letter again under its old id; `KeyError` if it is none."""
        self._require_running()
        letter = self._core.ended.dead_letters.get(message_id)
        if letter is None:
            raise KeyError(message_id)
        entry = self._core.offer_again(letter, self._now())
        if entry.phase is Phase.STORING and entry.sequence not in self._stored:
            await self._store(entry)
            self._wake_flusher()
        return entry.id_text

    def _require_running(self) -> None:
        if self._state is ErrNotStarted:
            raise ErrNotStarted("the publisher was not started", advice="await start(), or use `async with`")
        if self._state is not None:
            raise ErrClosed("the publisher was stopped", advice="make a new one")


def _id_bytes(message_id: str) -> bytes:
    try:
        return bytes.fromhex(message_id)
    except ValueError:
        return b""
