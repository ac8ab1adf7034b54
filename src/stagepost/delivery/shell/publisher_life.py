"""The life of a publisher: what it finds in its store when it starts, and what it leaves behind when it stops."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from random import Random

from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.entry import Moment
from stagepost.delivery.errors import ErrAlreadyStarted, ErrClosed, ErrNotStarted, ErrStorage
from stagepost.delivery.identity import NONCE_PREFIX_BYTES
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.runtime_delivery_result import DeliveryResult
from stagepost.delivery.shell.events import DeliveryEventSink
from stagepost.delivery.shell.publisher_waiting import PublisherWaiting
from stagepost.delivery.stores.entry_rows import letter_of, outcome_of
from stagepost.delivery.stores.outbox import OnStorageError, OutboxStore
from stagepost.delivery.transport import Transport
from stagepost.errors import StagepostError, StorageError
from stagepost.ground.loop.clock import Clock, SystemClock

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
