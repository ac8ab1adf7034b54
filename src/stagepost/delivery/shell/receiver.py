"""`Receiver`: it runs a handler once for each message, remembers the verdict, and then says it to the sender who asked."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any, Self

from stagepost.delivery.config import ReceiverConfig, ReliablePublisherConfig
from stagepost.delivery.entry import ClockTimes
from stagepost.delivery.envelope import RESERVED_TOPIC_PREFIX, RETRY_AFTER_MS_MAX, bounded_text
from stagepost.delivery.errors import ErrAlreadyStarted
from stagepost.delivery.receiver import ACCEPTED, ANSWER, RUN, HandlerAnswer, ReceiverCore, receipt_of
from stagepost.delivery.shell.handling import Busy, Handler, Message, Reject
from stagepost.delivery.shell.inbox_keeper import AckSender, InboxKeeper
from stagepost.delivery.status import AckType, NackReason
from stagepost.delivery.stores.inbox import InboxStore
from stagepost.delivery.stores.outbox import OnStorageError
from stagepost.delivery.transport import Incoming, IncomingAcks, Transport
from stagepost.ground.loop.clock import Clock, SureTime, SystemClock

__all__ = ["Busy", "Handler", "Message", "Receiver", "ReceiverStats", "Reject"]

HANDLED_IN_A_ROW_MAX = 64
"""Messages, at most, of one sender in a row, before other senders and the receipts have their turn."""

log = logging.getLogger(__name__)


class ReceiverStats(dict[str, int]):
    """Counters by name. They may be awaited; that gives the counters themselves."""

    def __await__(self) -> Generator[Any, None, Self]:
        yield from ()
        return self


@dataclass
class _SenderQueue:
    """The messages of one sender, in the order in which they came."""

    waiting: deque[tuple[bytes, Message, Handler]] = field(default_factory=deque)
    workers: int = 0


class Receiver:
    """An async context manager: `start` on entry, `stop` on exit.

    `handlers` maps topics to functions of one message, async or not. A handler that returns acknowledges the message; one
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
        self._transport = transport
        self._config = _receiver_config(config)
        self._clock = clock or SystemClock()
        self._mono_s, self._unix_s = self._clock.mono_s, self._clock.unix_s
        self._sure = SureTime()
        self._core = ReceiverCore(transport.self_id, self._config, self._sure_ms)
        self._receipts = AckSender(transport, self._config.ack_delay)
        self._keeper = InboxKeeper(
            self._core, self._receipts, self._config, inbox, self._clock, self._now, on_storage_error
        )
        self._handlers = dict(handlers)
        self._queues: dict[str, _SenderQueue] = {}
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._is_started = self._is_stopping = False
        self._handled = self._refused = self._failed = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        if self._is_started:
            raise ErrAlreadyStarted("this receiver was started before", advice="make a new one")
        self._is_started = True
        if isinstance(self._clock, SystemClock):
            # The same clocks, without asking each time which loop this is.
            self._mono_s, self._unix_s = asyncio.get_running_loop().time, time.time
        self._sure_ms(self._now())  # the clock of the start is believed
        await self._keeper.start()
        self._receipts.start()
        self._unsubscribe = self._transport.on_message(self._incoming)

    async def stop(self, drain: float = 0.0) -> None:
        """Take no more messages, give running handlers `drain` seconds, then cancel them; acknowledge the messages that are done."""
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
        await self._keeper.stop()
        await self._receipts.close()
        await self._keeper.close()

    def kill(self) -> None:
        """Stop at once, as a crash would; for tests of what a restart finds.

        Handlers are cancelled, and nothing more is stored or acknowledged. The inbox is free for another receiver, with
        what its disk has at this moment.
        """
        was_running = self._is_started and not self._is_stopping
        self._is_started = self._is_stopping = True
        if not was_running:
            return
        if self._unsubscribe is not None:
            self._unsubscribe()
        for worker in self._tasks:
            worker.cancel()
        self._receipts.kill()
        self._keeper.kill()

    @property
    def inbox(self) -> InboxStore:
        """Return the inbox, for handlers whose effect must happen once across crashes: `await inbox.claim(id)`."""
        return self._keeper.inbox

    def stats(self) -> ReceiverStats:
        return ReceiverStats(
            handled=self._handled,
            refused=self._refused,
            handlers_failed=self._failed,
            duplicates_in=self._core.duplicates_in,
            dedup_len=len(self._core),
            dedup_overflow=self._core.dedup_overflow,
            waiting=self._waiting,
            acks_sent=self._receipts.sent,
            acks_lost=self._receipts.lost,
        )

    # Messages.

    def _incoming(self, message: Incoming | IncomingAcks) -> None:
        if isinstance(message, IncomingAcks) or message.topic.startswith(RESERVED_TOPIC_PREFIX):
            return
        core, now = self._core, self._now()
        handler = self._handlers.get(message.topic)
        if handler is None:
            if core.is_asked(message):
                unknown = HandlerAnswer(AckType.NACK, NackReason.UNKNOWN_TOPIC)
                self._receipts.put(receipt_of(core.id_of(message), unknown, now))
            return
        message_id = core.id_of(message)
        action = core.received(message_id, message, now)
        if action is RUN:
            self._take(message_id, message, handler, now)
        elif action is ANSWER:
            self._answer(message_id, now)

    def _take(self, message_id: bytes, message: Incoming, handler: Handler, now: ClockTimes) -> None:
        if self._waiting >= self._config.waiting_max:
            receipt = self._core.finished(message_id, HandlerAnswer(AckType.NACK, NackReason.BUSY), now)
            if receipt is not None:
                self._receipts.put(receipt)
            return
        given = Message(
            message.topic,
            message.payload,
            message_id.hex(),
            message.sender,
            message.attempt,
            message.created_ms,
            self._core.maybe_duplicate(message, now),
            message.traceparent,
        )
        queue = self._queues.get(message.sender)
        if queue is None:
            queue = self._queues[message.sender] = _SenderQueue()
        queue.waiting.append((message_id, given, handler))
        self._waiting += 1
        if queue.workers < self._config.handlers_per_sender:
            queue.workers += 1
            task = asyncio.get_running_loop().create_task(self._work(message.sender, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, sender: str, queue: _SenderQueue) -> None:
        """Handle one sender's messages until none waits. A slow handler delays nobody but its own sender."""
        try:
            in_a_row = 0
            while queue.waiting:
                message_id, message, handler = queue.waiting.popleft()
                self._waiting -= 1
                verdict = await self._handle(message_id, message, handler)
                self._finish(message_id, verdict)
                in_a_row += 1
                if in_a_row >= HANDLED_IN_A_ROW_MAX:
                    in_a_row = 0
                    await asyncio.sleep(0)
        finally:
            queue.workers -= 1
            if not queue.workers and self._queues.get(sender) is queue:
                del self._queues[sender]

    async def _handle(self, message_id: bytes, message: Message, handler: Handler) -> HandlerAnswer:
        try:
            answer = handler(message)
            if answer is not None and (isinstance(answer, CoroutineType) or inspect.isawaitable(answer)):
                await answer
        except Reject as refusal:
            self._refused += 1
            return HandlerAnswer(AckType.NACK, refusal.reason, text=bounded_text(refusal.text))
        except Busy as busy:
            self._refused += 1
            return HandlerAnswer(AckType.NACK, NackReason.BUSY, _milliseconds(busy.retry_after))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                self._core.forget(message_id)
                raise
            self._failed += 1
            return HandlerAnswer(AckType.NACK, NackReason.HANDLER_FAILED)
        except Exception:
            self._failed += 1
            log.exception(
                "a handler failed", extra={"topic": message.topic, "message_id": message.message_id}
            )
            return HandlerAnswer(AckType.NACK, NackReason.HANDLER_FAILED)
        self._handled += 1
        return ACCEPTED

    def _finish(self, message_id: bytes, verdict: HandlerAnswer) -> None:
        receipt = self._core.finished(message_id, verdict, self._now())
        if self._keeper.is_durable and self._core.verdict_of(message_id) is not None:
            self._keeper.store(message_id)
        elif receipt is not None:
            self._receipts.put(receipt)

    def _answer(self, message_id: bytes, now: ClockTimes) -> None:
        seen = self._core.verdict_of(message_id)
        assert seen is not None
        assert seen.verdict is not None
        if self._keeper.is_durable and not seen.is_kept:
            seen.is_asked = True
            self._keeper.store(message_id)
        else:
            self._receipts.put(receipt_of(message_id, seen.verdict, now))

    def _sure_ms(self, now: ClockTimes) -> int:
        return int(self._sure.at(now.unix_ms / 1_000, now.mono_s) * 1_000)

    def _now(self) -> ClockTimes:
        return ClockTimes(self._mono_s(), int(self._unix_s() * 1_000))


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
