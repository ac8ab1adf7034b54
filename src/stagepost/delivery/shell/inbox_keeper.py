"""The receipts of a receiver, and its memory across restarts: a verdict is stored first, and said then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stagepost.delivery.config import ReceiverConfig
from stagepost.delivery.entry import ClockTimes
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.errors import ErrStorage
from stagepost.delivery.receiver import ACCEPTED, HandlerAnswer, ReceiverCore, receipt_of
from stagepost.delivery.status import AckType, NackReason
from stagepost.delivery.stores.inbox import InboxRecord, InboxState, InboxStore
from stagepost.delivery.stores.inbox_stores import MemoryInbox
from stagepost.delivery.stores.outbox import OnStorageError
from stagepost.delivery.transport import Transport
from stagepost.errors import StagepostError, StorageError
from stagepost.ground.loop.clock import Clock

RECEIPTS_WAITING_MAX = 100_000
"""Receipts, at most, that wait to be sent; above it the oldest are dropped: a sender who misses one asks again."""

CLOSED_WITHIN_S = 5.0
"""Seconds, at most, that a stop waits for receipts to be sent and verdicts to be stored."""

EXPIRE_EVERY_S = 60.0
"""Seconds, at least, between two looks for records that need not be kept any longer."""

log = logging.getLogger(__name__)


class AckSender:
    """A task that holds receipts for `delay_s`, so that several travel together, and hands them to the network once.

    A receipt is never repeated from here: a sender who misses one asks again.
    """

    def __init__(self, transport: Transport, delay_s: float) -> None:
        self.sent = 0
        self.lost = 0
        self._transport = transport
        self._delay_s = delay_s
        # By message: a newer receipt replaces one that has not left yet.
        self._waiting: dict[bytes, AckReceipt] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._is_closing = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="delivery-acks")

    def put(self, receipt: AckReceipt) -> None:
        if len(self._waiting) >= RECEIPTS_WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
            self.lost += 1
        self._waiting[receipt.message_id] = receipt
        self._ring()

    def _ring(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def close(self) -> None:
        """Send the receipts that wait, then end."""
        self._is_closing = True
        self._ring()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSED_WITHIN_S)
            self._task.cancel()
            await asyncio.wait([self._task])

    def kill(self) -> None:
        """Stop at once; receipts that wait are lost."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._waiting:
                if self._is_closing:
                    return
                self._wake = loop.create_future()
                await self._wake
                self._wake = None
                continue
            if self._delay_s and not self._is_closing:
                await asyncio.sleep(self._delay_s)
            batch, self._waiting = tuple(self._waiting.values()), {}
            try:
                await self._transport.publish_acks(batch)
                self.sent += len(batch)
            except StagepostError as error:
                self.lost += len(batch)
                log.info("receipts were not sent", extra={"count": len(batch), "reason": error.text})
            except Exception:
                self.lost += len(batch)
                log.exception("the transport failed by a bug")


class InboxKeeper:
    """The inbox of a receiver: it recalls the verdicts of former runs, and stores each verdict before it is said."""

    def __init__(
        self,
        core: ReceiverCore,
        receipts: AckSender,
        config: ReceiverConfig,
        inbox: InboxStore | None,
        clock: Clock,
        now: Callable[[], ClockTimes],
        on_storage_error: OnStorageError | None,
    ) -> None:
        self.is_durable = inbox is not None
        """True if a verdict must be stored before it is said."""
        self._core = core
        self._receipts = receipts
        self._config = config
        self._inbox = inbox
        self._clock = clock
        self._now = now
        self._on_storage_error = on_storage_error
        self._to_store: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._is_stopping = False
        self._expired_at = 0.0

    @property
    def inbox(self) -> InboxStore:
        if self._inbox is None:
            self._inbox = MemoryInbox(capacity=self._config.dedup_capacity, clock=self._clock)
        return self._inbox

    async def start(self) -> None:
        if self._inbox is None and self._config.inbox_path is not None:
            self._inbox = await self._open_inbox(self._config.inbox_path)
            self.is_durable = True
        if self.is_durable:
            self._recall()
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._store_forever(), name="delivery-inbox")

    async def _open_inbox(self, path: str) -> InboxStore:
        from pathlib import Path

        from stagepost.delivery.stores.inbox_stores import SqliteInbox

        capacity = self._config.dedup_capacity
        try:
            return await asyncio.get_running_loop().run_in_executor(
                None, lambda: SqliteInbox(Path(path), capacity=capacity, clock=self._clock)
            )
        except StorageError as error:
            raise ErrStorage(error.text, advice=error.advice) from error

    def _recall(self) -> None:
        inbox = self.inbox
        inbox.on_storage_error = self._storage_failed
        for record in sorted(inbox.load().records, key=lambda record: record.keep_until_ms):
            if record.state is InboxState.DONE:
                self._core.recall(record.delivery_id, ACCEPTED, record.keep_until_ms, record.stamped_ms)
            elif record.state is InboxState.REFUSED:
                refusal = HandlerAnswer(AckType.NACK, NackReason(record.verdict))
                self._core.recall(record.delivery_id, refusal, record.keep_until_ms, record.stamped_ms)

    def _storage_failed(self, error: StagepostError) -> None:
        log.error("the inbox is damaged or cannot be written", extra={"reason": error.text})
        if self._on_storage_error is not None:
            self._on_storage_error(error)

    async def stop(self) -> None:
        """Store every verdict, so that the receiver can still say it."""
        self._is_stopping = True
        if self._task is not None:
            self._ring()
            await asyncio.wait([self._task], timeout=CLOSED_WITHIN_S)
            self._task.cancel()
            await asyncio.wait([self._task])

    async def close(self) -> None:
        if self._inbox is not None:
            try:
                await self._inbox.close()
            except StorageError as error:
                raise ErrStorage(error.text, advice=error.advice) from error

    def kill(self) -> None:
        """Stop at once, as a crash would: store nothing more, and let go of the inbox."""
        if self._task is not None:
            self._task.cancel()
        if self._inbox is not None:
            self._inbox.kill()

    def store(self, message_id: bytes) -> None:
        """Store the verdict of a message soon, and then say it."""
        self._to_store.append(message_id)
        self._ring()

    def _ring(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _store_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._to_store:
                batch, self._to_store = list(dict.fromkeys(self._to_store)), []
                await asyncio.gather(*(self._store_one(message_id) for message_id in batch))
                self._expire()
            elif self._is_stopping:
                return
            else:
                self._wake = loop.create_future()
                await self._wake

    async def _store_one(self, message_id: bytes) -> None:
        seen = self._core.verdict_of(message_id)
        if seen is None or seen.verdict is None:
            return
        verdict = seen.verdict
        state = InboxState.DONE if verdict.ack_type is AckType.ACK else InboxState.REFUSED
        record = InboxRecord(
            message_id, state, seen.keep_until_ms, int(verdict.reason), stamped_ms=seen.stamped_ms
        )
        try:
            await self.inbox.put(record)
        except StorageError as error:
            # The receiver says nothing, so that the sender tries again; then this verdict is stored again.
            self._storage_failed(error)
            return
        seen.is_kept = True
        if seen.is_asked:
            self._receipts.put(receipt_of(message_id, verdict, self._now()))

    def _expire(self) -> None:
        now = self._now()
        if now.mono_s >= self._expired_at + EXPIRE_EVERY_S:
            self._expired_at = now.mono_s
            self.inbox.expire(self._core.sure_ms(now))
