"""Tells observers about status changes: one after the other, in order, beside everything else."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias

from stagepost.delivery.status import DeliveryStatus

StatusCallback: TypeAlias = Callable[[str, DeliveryStatus, Exception | None], Awaitable[None] | None]

EVENTS_WAITING_MAX = 100_000
"""Behind a callback that does not come to an end; further events are counted and dropped, the oldest first."""

CLOSED_WITHIN_S = 5.0

log = logging.getLogger(__name__)


class Subscription:
    """Call it to end it. It may be awaited, as all calls of a publisher; that gives the subscription itself."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def __call__(self) -> None:
        self._end()

    def __await__(self) -> Generator[Any, None, Subscription]:
        yield from ()
        return self


class StatusDispatch:
    def __init__(self) -> None:
        self.failed = 0
        """Callbacks that raised."""
        self.lost = 0
        self._callbacks: dict[object, StatusCallback] = {}
        # Each event goes to those who were there when it happened.
        self._audience: tuple[object, ...] = ()
        self._events: deque[tuple[tuple[object, ...], str, DeliveryStatus, Exception | None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._is_closing = False

    @property
    def has_audience(self) -> bool:
        return bool(self._audience)

    @property
    def waiting(self) -> int:
        return len(self._events)

    def subscribe(self, callback: StatusCallback) -> Subscription:
        token = object()
        self._callbacks[token] = callback
        self._audience = tuple(self._callbacks)

        def end() -> None:
            self._callbacks.pop(token, None)
            self._audience = tuple(self._callbacks)

        return Subscription(end)

    def put(self, message_id: str, status: DeliveryStatus, error: Exception | None) -> None:
        """Only if somebody listens; never waits."""
        if len(self._events) >= EVENTS_WAITING_MAX:
            self._events.popleft()
            self.lost += 1
        self._events.append((self._audience, message_id, status, error))
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="delivery-callbacks")

    async def close(self) -> None:
        """After everything that has happened was told, unless a callback takes too long or is itself the caller."""
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

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._events:
                audience, message_id, status, error = self._events.popleft()
                for token in audience:
                    if (callback := self._callbacks.get(token)) is not None:
                        await self._tell(callback, message_id, status, error)
            if self._is_closing:
                return
            self._wake = loop.create_future()
            try:
                await self._wake
            finally:
                self._wake = None

    async def _tell(
        self, callback: StatusCallback, message_id: str, status: DeliveryStatus, error: Exception | None
    ) -> None:
        try:
            answer = callback(message_id, status, error)
            if inspect.isawaitable(answer):
                await answer
        except Exception:
            self.failed += 1
            log.exception(
                "a status callback failed", extra={"message_id": message_id, "status": status.value}
            )
