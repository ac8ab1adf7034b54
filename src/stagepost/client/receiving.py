"""Messages for a program: each with its payload, and two calls by which the program answers the sender."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

from stagepost.delivery.shell.handling import Busy, Handler, Message, Reject
from stagepost.delivery.shell.receiver import Receiver
from stagepost.delivery.status import NackReason
from stagepost.delivery.transport import Transport
from stagepost.errors import LocalProtocolError

WAITING_MAX = 1_000
"""Messages, at most, that wait for the program; senders of further ones are told to try again."""


class Received:
    """A message that waits for an answer: `ack` acknowledges it, `reject` refuses it for good. Both may be called from any
    thread, once. A message without an answer is sent again when the stream has ended.
    """

    def __init__(self, message: Message, loop: asyncio.AbstractEventLoop) -> None:
        self.payload = message.data
        self.topic = message.topic
        self.sender = message.sender
        self.message_id = message.message_id
        self.attempt = message.attempt
        self.maybe_duplicate = message.maybe_duplicate
        self.traceparent = message.traceparent
        self._loop = loop
        self._is_answered = False
        self._answered: asyncio.Future[Exception | None] = loop.create_future()

    def ack(self) -> None:
        """Acknowledge that the message was processed."""
        self._answer(None)

    def reject(self, text: str = "", reason: NackReason = NackReason.INVALID) -> None:
        """Refuse the message for good. The sender gets `reason` and the first 200 bytes of `text`."""
        self._answer(Reject(reason, text))

    def _answer(self, refusal: Exception | None) -> None:
        if self._is_answered:
            raise LocalProtocolError(
                f"message {self.message_id} was answered before", advice="call ack() or reject() once"
            )
        self._is_answered = True
        self._loop.call_soon_threadsafe(self._settle, refusal)

    def _settle(self, refusal: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_result(refusal)

    async def outcome(self) -> None:
        """Return when the program has acknowledged the message; raise its refusal."""
        refusal = await self._answered
        if refusal is not None:
            raise refusal


class OpenableTransport(Transport, Protocol):
    """A transport that runs from entry to exit."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class ReceivedStream:
    """An async iterator of the messages on some topics, and an async context manager around it.

    The stream ends after `idle_timeout_s` without a message, or with `aclose`.
    """

    def __init__(
        self, transport: OpenableTransport, topics: Sequence[str], idle_timeout_s: float | None
    ) -> None:
        self._transport = transport
        self._parts = AsyncExitStack()
        self._topics = tuple(topics)
        self._idle_timeout_s = idle_timeout_s
        self._waiting: asyncio.Queue[Received | None] = asyncio.Queue()
        self._open: set[Received] = set()
        self._is_started = self._is_closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        if self._is_closed:
            raise StopAsyncIteration
        if not self._is_started:
            await self._start()
        try:
            async with asyncio.timeout(self._idle_timeout_s):
                received = await self._waiting.get()
        except TimeoutError:
            received = None
        if received is None:
            await self.aclose()
            raise StopAsyncIteration
        return received

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _start(self) -> None:
        self._is_started = True
        handlers: dict[str, Handler] = dict.fromkeys(self._topics, self._handle)
        await self._parts.enter_async_context(self._transport)
        await self._parts.enter_async_context(Receiver(self._transport, handlers))

    async def aclose(self) -> None:
        """End the stream; senders of messages without an answer send them again. Closing twice does no harm."""
        if not self._is_closed:
            self._is_closed = True
            self._waiting.put_nowait(None)
            for received in list(self._open):
                received._settle(Busy())
            await asyncio.sleep(0)
            await self._parts.aclose()

    async def _handle(self, message: Message) -> None:
        if self._is_closed or len(self._open) >= WAITING_MAX:
            raise Busy
        received = Received(message, asyncio.get_running_loop())
        self._open.add(received)
        self._waiting.put_nowait(received)
        try:
            await received.outcome()
        finally:
            self._open.discard(received)
