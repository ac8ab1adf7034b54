"""The dispatch of status changes to observers: one after the other, in order, beside everything else."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias

from stagepost.delivery.effects import REASON_CHARACTERS_MAX, DeliveryEvent, DeliveryEventSink, Report
from stagepost.delivery.status import DeliveryStatus

StatusCallback: TypeAlias = Callable[[str, DeliveryStatus, Exception | None], Awaitable[None] | None]

EVENTS_WAITING_MAX = 100_000
"""Events, at most, that wait behind a slow callback; above it the oldest are counted and dropped."""

CLOSED_WITHIN_S = 5.0
"""Seconds, at most, that `close` waits for callbacks."""

log = logging.getLogger(__name__)


class Subscription:
    """A subscription to status changes. Call it to end it; await it, as all calls of a publisher, to get itself."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def __call__(self) -> None:
        self._end()

    def __await__(self) -> Generator[Any, None, Subscription]:
        yield from ()
        return self


class StatusDispatch:
    """Callbacks, called in one task, and a sink of events, called at once."""

    def __init__(self, events: DeliveryEventSink | None = None) -> None:
        self.failed = 0
        """Callbacks that raised."""
        self.lost = 0
        self._sink = events
        self._callbacks: dict[object, StatusCallback] = {}
        self._reported: set[object] = set()
        """Callbacks whose failure is in the log: one line each, however often they fail."""
        # Each event goes to the callbacks that were registered when it happened.
        self._audience: tuple[object, ...] = ()
        self._events: deque[tuple[tuple[object, ...], str, DeliveryStatus, Exception | None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._is_closing = False

    @property
    def is_watched(self) -> bool:
        """Return whether anybody wants to hear of status changes."""
        return self._sink is not None or bool(self._audience)

    @property
    def waiting(self) -> int:
        return len(self._events)

    def subscribe(self, callback: StatusCallback) -> Subscription:
        token = object()
        self._callbacks[token] = callback
        self._audience = tuple(self._callbacks)

        def end() -> None:
            self._callbacks.pop(token, None)
            self._reported.discard(token)
            self._audience = tuple(self._callbacks)

        return Subscription(end)

    def report(self, report: Report) -> bool:
        """Queue a status change for the callbacks and give it to the sink; return whether anybody listens."""
        entry = report.entry
        if self._audience:
            self._put(entry.id_text, report.status, report.error)
        if self._sink is not None:
            self._sink.put(
                DeliveryEvent(
                    entry.id_text,
                    report.status,
                    entry.tier,
                    entry.topic,
                    report.timestamp_ms,
                    report.attempt,
                    None if report.network_id is None else report.network_id.hex(),
                    None if report.error is None else type(report.error).__name__,
                    report.acked_by,
                    None if report.error is None else str(report.error)[:REASON_CHARACTERS_MAX],
                    None if entry.key_hash is None else entry.nonce.hex(),
                    entry.traceparent or None,
                )
            )
        return self.is_watched

    def _put(self, message_id: str, status: DeliveryStatus, error: Exception | None) -> None:
        if len(self._events) >= EVENTS_WAITING_MAX:
            self._events.popleft()
            self.lost += 1
        self._events.append((self._audience, message_id, status, error))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="delivery-callbacks")

    async def close(self) -> None:
        """Return after the callbacks heard everything, unless one takes too long or is itself the caller."""
        self._is_closing = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        task = self._task
        if task is None or task is asyncio.current_task():
            return
        _, running = await asyncio.wait([task], timeout=CLOSED_WITHIN_S)
        if running:
            log.warning(
                "a status callback does not end; it is cancelled", extra={"events_lost": len(self._events)}
            )
            self.lost += len(self._events)
            task.cancel()
            await asyncio.wait([task])

    def kill(self) -> None:
        """Stop at once; the callbacks hear nothing more."""
        self._events.clear()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._events:
                audience, message_id, status, error = self._events.popleft()
                for token in audience:
                    if (callback := self._callbacks.get(token)) is not None:
                        await self._tell(token, callback, message_id, status, error)
            if self._is_closing:
                return
            self._wake = loop.create_future()
            try:
                await self._wake
            finally:
                self._wake = None

    async def _tell(
        self,
        token: object,
        callback: StatusCallback,
        message_id: str,
        status: DeliveryStatus,
        error: Exception | None,
    ) -> None:
        try:
            answer = callback(message_id, status, error)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            self.failed += 1
            if token not in self._reported:
                self._reported.add(token)
                log.exception(
                    "a status callback failed; its further failures are only counted",
                    extra={"message_id": message_id, "status": status.value},
                )
