"""What a receiver remembers across restarts: a verdict is stored first, and said then.

Holds receipts for a moment, so that several travel together, and hands them to the network once.
"""

from __future__ import annotations

import asyncio
import logging

from stagepost.delivery.config import ReceiverConfig
from stagepost.delivery.entry import Moment
from stagepost.delivery.envelope import AckReceipt
from stagepost.delivery.errors import ErrStorage
from stagepost.delivery.receiver import ACCEPTED, ReceiverCore, Verdict, receipt_of
from stagepost.delivery.status import AckType, NackReason
from stagepost.delivery.stores.inbox import InboxRecord, InboxState, InboxStore
from stagepost.delivery.stores.memory_inbox import MemoryInbox
from stagepost.delivery.stores.outbox import OnStorageError
from stagepost.delivery.transport import Transport
from stagepost.errors import StagepostError, StorageError
from stagepost.ground.loop.clock import Clock, SystemClock

RECEIPTS_WAITING_MAX = 100_000
"""Beyond it the oldest are dropped: a sender who misses one asks again."""

CLOSED_WITHIN_S = 5.0

log = logging.getLogger(__name__)


class AckSending:
    """`delay_s` is how long a receipt may wait for company. Nothing is repeated here: a lost receipt is asked for again."""

    def __init__(self, transport: Transport, delay_s: float) -> None:
        self.sent = 0
        self.lost = 0
        self._transport = transport
        self._delay_s = delay_s
        # By message: a newer answer replaces one that has not left yet.
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
        """What waits is sent first."""
        self._is_closing = True
        self._ring()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSED_WITHIN_S)
            self._task.cancel()
            await asyncio.wait([self._task])

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


EXPIRE_EVERY_S = 60.0


class ReceiverKeeping:
    """The core, its clock, its answers, and the inbox around them. Whoever handles messages is the subclass."""

    def __init__(
        self,
        transport: Transport,
        config: ReceiverConfig,
        inbox: InboxStore | None,
        clock: Clock | None,
        on_storage_error: OnStorageError | None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._mono_s, self._unix_s = self._clock.mono_s, self._clock.unix_s
        self._core = ReceiverCore(transport.self_id, config)
        self._acks = AckSending(transport, config.ack_delay)
        self._inbox = inbox
        self._is_durable = inbox is not None
        self._on_storage_error = on_storage_error
        self._to_keep: list[bytes] = []
        self._keeper: asyncio.Task[None] | None = None
        self._keeper_wake: asyncio.Future[None] | None = None
        self._is_stopping = False
        self._expired_at = 0.0

    @property
    def inbox(self) -> InboxStore:
        """For handlers whose effect must happen once across crashes: `if await receiver.inbox.claim(id): …`."""
        if self._inbox is None:
            self._inbox = MemoryInbox(capacity=self._config.dedup_capacity, clock=self._clock)
        return self._inbox

    async def _begin_to_keep(self) -> None:
        if self._inbox is None and self._config.inbox_path is not None:
            self._inbox = await self._open_inbox(self._config.inbox_path)
            self._is_durable = True
        if self._is_durable:
            self._recall()
            loop = asyncio.get_running_loop()
            self._keeper = loop.create_task(self._keep_forever(), name="delivery-inbox")

    async def _open_inbox(self, path: str) -> InboxStore:
        from pathlib import Path

        from stagepost.delivery.stores.sqlite_inbox import SqliteInbox

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
                self._core.recall(record.delivery_id, ACCEPTED, record.keep_until_ms)
            elif record.state is InboxState.REFUSED:
                refusal = Verdict(AckType.NACK, NackReason(record.verdict))
                self._core.recall(record.delivery_id, refusal, record.keep_until_ms)

    def _storage_failed(self, error: StagepostError) -> None:
        log.error("the inbox is damaged or cannot be written", extra={"reason": error.text})
        if self._on_storage_error is not None:
            self._on_storage_error(error)

    async def _end_keeping(self) -> None:
        """What is done is stored, and so can be said."""
        if self._keeper is not None:
            self._wake_keeper()
            await asyncio.wait([self._keeper], timeout=CLOSED_WITHIN_S)
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _close_inbox(self) -> None:
        if self._inbox is not None:
            try:
                await self._inbox.close()
            except StorageError as error:
                raise ErrStorage(error.text, advice=error.advice) from error

    def _keep(self, message_id: bytes) -> None:
        self._to_keep.append(message_id)
        self._wake_keeper()

    def _wake_keeper(self) -> None:
        if self._keeper_wake is not None and not self._keeper_wake.done():
            self._keeper_wake.set_result(None)

    async def _keep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._to_keep:
                batch, self._to_keep = list(dict.fromkeys(self._to_keep)), []
                await asyncio.gather(*(self._keep_one(message_id) for message_id in batch))
                self._expire()
            elif self._is_stopping:
                return
            else:
                self._keeper_wake = loop.create_future()
                await self._keeper_wake

    async def _keep_one(self, message_id: bytes) -> None:
        seen = self._core.verdict_of(message_id)
        if seen is None or seen.verdict is None:
            return
        verdict = seen.verdict
        state = InboxState.DONE if verdict.ack_type is AckType.ACK else InboxState.REFUSED
        record = InboxRecord(message_id, state, seen.keep_until_ms, int(verdict.reason))
        try:
            await self.inbox.put(record)
        except StorageError as error:
            # Nothing is said: the sender tries again, and so do we.
            self._storage_failed(error)
            return
        seen.is_kept = True
        if seen.is_asked:
            self._acks.put(receipt_of(message_id, verdict, self._now()))

    def _expire(self) -> None:
        now = self._now()
        if now.mono_s >= self._expired_at + EXPIRE_EVERY_S:
            self._expired_at = now.mono_s
            self.inbox.expire(now.unix_ms)

    def _now(self) -> Moment:
        return Moment(self._mono_s(), int(self._unix_s() * 1_000))
