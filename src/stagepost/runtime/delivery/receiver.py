"""`Receiver`: runs a handler once for each message, remembers that it did, and then says so to whoever asked."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec

from stagepost.delivery.config import ReceiverConfig, ReliablePublisherConfig
from stagepost.delivery.entry import Moment
from stagepost.delivery.envelope import RESERVED_TOPIC_PREFIX
from stagepost.delivery.errors import ErrAlreadyStarted, ErrConfig, ErrStorage
from stagepost.delivery.receipts import RETRY_AFTER_MS_MAX
from stagepost.delivery.receiver import ACCEPTED, Action, ReceiverCore, Verdict, receipt_of
from stagepost.delivery.status import TRANSIENT_REASONS, AckType, NackReason
from stagepost.delivery.transport import Incoming, IncomingAcks, Transport
from stagepost.errors import StagepostError, StorageError
from stagepost.runtime.clock import Clock, SystemClock
from stagepost.runtime.delivery.ack_sending import AckSending
from stagepost.runtime.delivery.inbox_store import InboxRecord, InboxState, InboxStore
from stagepost.runtime.delivery.memory_inbox import MemoryInbox
from stagepost.runtime.delivery.outbox_store import OnStorageError

EXPIRE_EVERY_S = 60.0
CLOSED_WITHIN_S = 5.0

log = logging.getLogger(__name__)


class Reject(Exception):
    """Raised by a handler: this message will never be taken, and trying again is of no use."""

    def __init__(self, reason: NackReason | int = NackReason.INVALID, text: str = "") -> None:
        known = NackReason(reason)
        if known is NackReason.NONE or known in TRANSIENT_REASONS:
            raise ErrConfig(
                f"{known.name} is no reason to refuse a message for good",
                advice="raise Busy if it may be tried again",
                found=known,
            )
        super().__init__(text or known.name)
        self.reason = known
        self.text = text


class Busy(Exception):
    """Raised by a handler: not now. `retry_after` is in seconds; senders wait at most 30."""

    def __init__(self, retry_after: float | None = None) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


class Message(msgspec.Struct, frozen=True):
    """What a handler gets. `sender` is authenticated; `message_id` has 64 hex characters and is the same for every copy.

    `maybe_duplicate`: it is older than what is remembered here, so it may have been handled before.
    """

    topic: str
    data: bytes
    message_id: str
    sender: str
    attempt: int
    created_ms: int
    maybe_duplicate: bool


Handler: TypeAlias = Callable[[Message], Awaitable[object] | object]


class ReceiverStats(dict[str, int]):
    """Counters by name. It may be awaited; that gives the counters themselves."""

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


@dataclass
class _Lane:
    """One sender's messages, in the order in which they came."""

    waiting: deque[tuple[bytes, Message, Handler]] = field(default_factory=deque)
    workers: int = 0


class Receiver:
    """An async context manager: `start` on entry, `stop` on exit.

    `handlers` maps topics to functions of one message, async or not. A handler that returns confirms the message; one
    that raises `Reject` refuses it for good; any other exception refuses it for now, so that the sender tries again.
    """

    def __init__(
        self,
        transport: Transport,
        handlers: Mapping[str, Handler],
        *,
        config: ReceiverConfig | ReliablePublisherConfig | None = None,
        inbox: InboxStore | None = None,
        clock: Clock | None = None,
        on_storage_error: OnStorageError | None = None,
    ) -> None:
        self._config = _receiver_config(config)
        self._transport = transport
        self._handlers = dict(handlers)
        self._clock = clock or SystemClock()
        self._core = ReceiverCore(transport.self_id, self._config)
        self._inbox = inbox
        self._is_durable = inbox is not None
        self._on_storage_error = on_storage_error
        self._acks = AckSending(transport, self._config.ack_delay)
        self._lanes: dict[str, _Lane] = {}
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._to_keep: list[bytes] = []
        self._keeper: asyncio.Task[None] | None = None
        self._keeper_wake: asyncio.Future[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._is_started = self._is_stopping = False
        self._expired_at = 0.0
        self._handled = self._refused = self._failed = 0

    @property
    def inbox(self) -> InboxStore:
        """For handlers whose effect must happen once across crashes: `if await receiver.inbox.claim(id): …`."""
        if self._inbox is None:
            self._inbox = MemoryInbox(capacity=self._config.dedup_capacity, clock=self._clock)
        return self._inbox

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        if self._is_started:
            raise ErrAlreadyStarted("this receiver was started before", advice="make a new one")
        self._is_started = True
        if self._inbox is None and self._config.inbox_path is not None:
            self._inbox = await self._open_inbox(self._config.inbox_path)
            self._is_durable = True
        loop = asyncio.get_running_loop()
        if self._is_durable:
            self._recall()
            self._keeper = loop.create_task(self._keep_forever(), name="delivery-inbox")
        self._acks.start()
        self._unsubscribe = self._transport.on_message(self._incoming)

    async def _open_inbox(self, path: str) -> InboxStore:
        from pathlib import Path

        from stagepost.runtime.delivery.sqlite_inbox import SqliteInbox

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

    async def stop(self, drain: float = 0.0) -> None:
        """Take nothing more, give running handlers `drain` seconds, then cancel them; what is done is still confirmed."""
        if not self._is_started or self._is_stopping:
            self._is_stopping = self._is_started = True
            return
        self._is_stopping = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        workers = self._tasks - {asyncio.current_task()}
        if workers and drain > 0:
            _, workers = await asyncio.wait(workers, timeout=drain)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers)
        if self._keeper is not None:
            self._wake_keeper()
            await asyncio.wait([self._keeper], timeout=CLOSED_WITHIN_S)
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        await self._acks.close()
        if self._inbox is not None:
            try:
                await self._inbox.close()
            except StorageError as error:
                raise ErrStorage(error.text, advice=error.advice) from error

    def stats(self) -> ReceiverStats:
        return ReceiverStats(
            handled=self._handled,
            refused=self._refused,
            handlers_failed=self._failed,
            duplicates_in=self._core.duplicates_in,
            dedup_len=len(self._core),
            dedup_overflow=self._core.dedup_overflow,
            waiting=self._waiting,
            acks_sent=self._acks.sent,
            acks_lost=self._acks.lost,
        )

    # What comes in.

    def _incoming(self, message: Incoming | IncomingAcks) -> None:
        if isinstance(message, IncomingAcks) or message.topic.startswith(RESERVED_TOPIC_PREFIX):
            return
        core, now = self._core, self._now()
        handler = self._handlers.get(message.topic)
        if handler is None:
            if core.is_asked(message):
                unknown = Verdict(AckType.NACK, NackReason.UNKNOWN_TOPIC)
                self._acks.put(receipt_of(core.id_of(message), unknown, now))
            return
        message_id = core.id_of(message)
        match core.received(message_id, message, now):
            case Action.RUN:
                self._take(message_id, message, handler, now)
            case Action.ANSWER:
                self._answer(message_id, now)
            case Action.DROP:
                pass

    def _take(self, message_id: bytes, message: Incoming, handler: Handler, now: Moment) -> None:
        if self._waiting >= self._config.waiting_max:
            receipt = self._core.finished(message_id, Verdict(AckType.NACK, NackReason.BUSY), now)
            if receipt is not None:
                self._acks.put(receipt)
            return
        given = Message(
            message.topic,
            message.payload,
            message_id.hex(),
            message.sender,
            message.attempt,
            message.created_ms,
            self._core.maybe_duplicate(message, now),
        )
        lane = self._lanes.get(message.sender)
        if lane is None:
            lane = self._lanes[message.sender] = _Lane()
        lane.waiting.append((message_id, given, handler))
        self._waiting += 1
        if lane.workers < self._config.handlers_per_sender:
            lane.workers += 1
            task = asyncio.get_running_loop().create_task(self._work(message.sender, lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, sender: str, lane: _Lane) -> None:
        """Handles one sender's messages until none waits. A slow handler delays nobody but its own sender."""
        try:
            while lane.waiting:
                message_id, message, handler = lane.waiting.popleft()
                self._waiting -= 1
                verdict = await self._handle(message_id, message, handler)
                self._finish(message_id, verdict)
        finally:
            lane.workers -= 1
            if not lane.workers and self._lanes.get(sender) is lane:
                del self._lanes[sender]

    async def _handle(self, message_id: bytes, message: Message, handler: Handler) -> Verdict:
        try:
            answer = handler(message)
            if inspect.isawaitable(answer):
                await answer
        except Reject as refusal:
            self._refused += 1
            return Verdict(AckType.NACK, refusal.reason)
        except Busy as busy:
            self._refused += 1
            return Verdict(AckType.NACK, NackReason.BUSY, _milliseconds(busy.retry_after))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._core.forget(message_id)
                raise
            self._failed += 1
            return Verdict(AckType.NACK, NackReason.HANDLER_FAILED)
        except Exception:
            self._failed += 1
            log.exception(
                "a handler failed", extra={"topic": message.topic, "message_id": message.message_id}
            )
            return Verdict(AckType.NACK, NackReason.HANDLER_FAILED)
        self._handled += 1
        return ACCEPTED

    def _finish(self, message_id: bytes, verdict: Verdict) -> None:
        receipt = self._core.finished(message_id, verdict, self._now())
        if self._is_durable and self._core.verdict_of(message_id) is not None:
            self._keep(message_id)
        elif receipt is not None:
            self._acks.put(receipt)

    def _answer(self, message_id: bytes, now: Moment) -> None:
        seen = self._core.verdict_of(message_id)
        assert seen is not None
        assert seen.verdict is not None
        if self._is_durable and not seen.is_kept:
            seen.is_asked = True
            self._keep(message_id)
        else:
            self._acks.put(receipt_of(message_id, seen.verdict, now))

    # The memory that survives: first stored, then said.

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
        return Moment(self._clock.mono_s(), int(self._clock.unix_s() * 1_000))


def _receiver_config(config: ReceiverConfig | ReliablePublisherConfig | None) -> ReceiverConfig:
    if isinstance(config, ReliablePublisherConfig):
        return ReceiverConfig(
            dedup_window=config.dedup_window,
            dedup_capacity=config.dedup_capacity,
            ack_delay=config.ack_delay,
        )
    return config or ReceiverConfig()


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(0, min(int(seconds * 1_000), RETRY_AFTER_MS_MAX))
