"""Keep-alive as a service: the client asks every few seconds and measures the round trip, the server echoes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.conversation import Conversation
from stagepost.ground.net.keep_alive_protocol import (
    PING_INTERVAL_S,
    Done,
    KeepAlive,
    KeepAliveResponse,
    check_cookie,
)

COOKIES = 1 << 16


class KeepAliveClient:
    """Client that asks at once and then every `interval_s` seconds. Cookies count up: each only has to differ
    from the last."""

    def __init__(
        self,
        talk: Conversation,
        clock: Clock,
        *,
        interval_s: float = PING_INTERVAL_S,
        on_round_trip: Callable[[float], None] | None = None,
        first_cookie: int = 0,
    ) -> None:
        self._talk = talk
        self._clock = clock
        self._interval_s = interval_s
        self._on_round_trip = on_round_trip
        self._cookie = first_cookie
        self._is_finishing = asyncio.Event()
        self.round_trip_s: float | None = None  # the latest

    def finish(self) -> None:
        """Send `Done` instead of asking again."""
        self._is_finishing.set()

    async def run(self) -> None:
        while not self._is_finishing.is_set():
            asked_at = self._clock.mono_s()
            await self._ask()
            self.round_trip_s = self._clock.mono_s() - asked_at
            if self._on_round_trip is not None:
                self._on_round_trip(self.round_trip_s)
            # The interval counts from question to question: a slow peer is asked as often as a fast one.
            with suppress(TimeoutError):
                async with asyncio.timeout_at(asked_at + self._interval_s):
                    await self._is_finishing.wait()
        await self._talk.send(Done())
        await self._talk.release()

    async def _ask(self) -> None:
        request = KeepAlive(self._cookie)
        self._cookie = (self._cookie + 1) % COOKIES
        await self._talk.send(request)
        check_cookie(request, await self._talk.receive(KeepAliveResponse))


class KeepAliveServer:
    """Server that returns every cookie."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    async def run(self) -> None:
        await self._talk.wait_for_start()
        while not self._talk.is_over:
            match await self._talk.receive_any():
                case KeepAlive(cookie):
                    await self._talk.send(KeepAliveResponse(cookie))
                case _:
                    await self._talk.release()
