"""The client for programs without an event loop: the same calls, answered by the async client in its own thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from stagepost.client.client import (
    AsyncClient,
)
from stagepost.dmq.endpoints.local_client import ClientLimits
from stagepost.dmq.endpoints.message_stream import MessageStream
from stagepost.dmq.message import DmqMessage
from stagepost.errors import LocalProtocolError

if TYPE_CHECKING:
    from stagepost.client.receiving import Received, ReceivedStream
    from stagepost.delivery.config import ReliablePublisherConfig
    from stagepost.ground.net.webhook import WebhookConfig

P = ParamSpec("P")
T = TypeVar("T")

THREAD_END_S = 10.0


Item = TypeVar("Item", covariant=True)


class ClosableStream(Protocol[Item]):
    def __aiter__(self) -> AsyncIterator[Item]: ...

    def __anext__(self) -> Awaitable[Item]: ...

    async def aclose(self) -> None: ...


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Client, P], T]:
    """Return the method of `Client` that waits for the result of this method of `AsyncClient`."""

    @wraps(method)
    def call(client: Client, /, *arguments: P.args, **named: P.kwargs) -> T:
        return client._run(method(client._open(), *arguments, **named))

    return call


class Client:
    """Made by `connect`; safe to use from several threads of one process. A process that was forked connects anew."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop = loop
        self._thread = thread
        self._inner: AsyncClient | None = None
        self._process_id = os.getpid()
        self._ending = threading.Lock()
        self._has_ended = False

    @classmethod
    def connect(
        cls,
        socket_path: str | Path | None = None,
        network_magic: int | None = None,
        profile: str = "dmq-node",
        *,
        data: str | Path | None = None,
        full_node: str | Path | None = None,
        keys: str | Path | None = None,
        publisher: ReliablePublisherConfig | None = None,
        webhook: WebhookConfig | None = None,
        limits: ClientLimits | None = None,
    ) -> Client:
        """`with Client.connect(…) as client`; the arguments, and what can go wrong, are those of `AsyncClient.connect`.
        Without any, the nodes of `stagepost-data` are found."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run_loop, args=(loop,), name="stagepost-client", daemon=True)
        thread.start()
        client = cls(loop, thread)

        async def connect() -> AsyncClient:
            return await AsyncClient.connect(
                socket_path,
                network_magic,
                profile,
                data=data,
                full_node=full_node,
                keys=keys,
                publisher=publisher,
                webhook=webhook,
                limits=limits,
            )

        try:
            client._inner = client._run(connect())
        except BaseException:
            client.close()
            raise
        return client

    submit = _blocking(AsyncClient.submit)
    send = _blocking(AsyncClient.send)
    wait_for = _blocking(AsyncClient.wait_for)
    prove = _blocking(AsyncClient.prove)
    trace = _blocking(AsyncClient.trace)

    def receive(self, *topics: str, idle_timeout_s: float | None = None) -> Iterator[Received]:
        """Yield messages as `AsyncClient.receive` does; `ack()` and `reject(text)` are plain calls."""
        inner = self._open()

        async def begin() -> ReceivedStream:
            stream = inner.receive(*topics, idle_timeout_s=idle_timeout_s)
            return await stream.__aenter__()

        return self._items(self._run(begin()))

    def listen(self, *, idle_timeout_s: float | None = None) -> Iterator[DmqMessage]:
        inner = self._open()

        async def begin() -> MessageStream:
            return inner.listen(idle_timeout_s=idle_timeout_s)

        return self._items(self._run(begin()))

    def _items(self, stream: ClosableStream[T]) -> Iterator[T]:
        try:
            while (item := self._run(_next_or_none(stream))) is not None:
                yield item
        except LocalProtocolError:
            if not self._has_ended:
                raise
        finally:
            # An iterator that nobody holds any more may end in any thread, in the client's own as well; that one
            # cannot wait for itself, and `close` ends the stream anyway.
            if threading.current_thread() is not self._thread:
                with suppress(LocalProtocolError):
                    self._run(stream.aclose())

    def close(self) -> None:
        """Ends the iterators of other threads as well. Closing twice does no harm, nor does it in a forked process."""
        if os.getpid() != self._process_id:
            return
        inner, self._inner = self._inner, None
        try:
            if inner is not None:
                self._run(inner.close())
        finally:
            with self._ending:
                if not self._has_ended:
                    self._has_ended = True
                    self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(THREAD_END_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _require_own_process(self) -> None:
        """The thread that does the work is not there after a fork: a call would wait for ever."""
        if os.getpid() != self._process_id:
            raise LocalProtocolError(
                f"this client was connected by process {self._process_id}, this is process {os.getpid()}",
                advice="connect in each process, after the fork",
            )

    def _open(self) -> AsyncClient:
        self._require_own_process()
        if self._inner is None:
            raise _closed()
        return self._inner

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            self._require_own_process()
        except LocalProtocolError:
            work.close()
            raise
        with self._ending:
            if self._has_ended:
                work.close()
                raise _closed()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise _closed() from None
        except BaseException:  # Ctrl-C among them: nobody waits for the answer any more
            future.cancel()
            raise


def _closed() -> LocalProtocolError:
    return LocalProtocolError("this client was closed", advice="connect again")


async def _next_or_none(stream: ClosableStream[T]) -> T | None:
    return await anext(stream, None)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        waiting = asyncio.all_tasks(loop)
        for task in waiting:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*waiting, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
