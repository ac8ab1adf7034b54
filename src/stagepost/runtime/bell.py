"""Wakes everybody who waits for news, and remembers nothing: who wakes looks for himself."""

from __future__ import annotations

import asyncio


class Bell:
    """Look first, then wait, without another `await` in between: then no ring can be missed.

    With `at_most_every_s` a ring that follows another too soon is put off, and further ones with it. So each of many
    who wait is woken once for all that came meanwhile; the first news after a silence wakes them at once.
    """

    def __init__(self, *, at_most_every_s: float = 0.0) -> None:
        # A dictionary for its order: who waits longest wakes first, in every run alike.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._at_most_every_s = at_most_every_s
        self._rang_at = float("-inf")
        self._is_put_off = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ring(self) -> None:
        if self._is_put_off:
            return
        if self._at_most_every_s:
            loop = asyncio.get_running_loop()
            now = loop.time()
            if now < self._rang_at + self._at_most_every_s:
                self._is_put_off = True
                loop.call_at(self._rang_at + self._at_most_every_s, self._ring_late)
                return
            self._rang_at = now
        self._wake()

    def _ring_late(self) -> None:
        self._is_put_off = False
        self._rang_at = asyncio.get_running_loop().time()
        self._wake()

    def _wake(self) -> None:
        # The woken take themselves out only when they run, and new waiters may come before that.
        woken, self._waiting = self._waiting, {}
        for waiter in woken:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Until the next ring."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)
