"""A bell that wakes all tasks and callbacks that wait for news. It keeps no news: the woken look for
themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

SILENCE_MAX_S = 0.1

Call: TypeAlias = Callable[[], None]


class Bell:
    """Signal from one part to all who wait for it. Look first, then wait, without another `await` in between:
    then no ring can be missed.

    With `at_most_every_s`, the bell puts off a ring that follows another too soon, and later ones with it. So
    each waiter is woken once for all news of that time, and the first news after a silence wakes everybody at
    once. Waking costs time per waiter: with `per_waiter_s` the silence after a ring grows with their number,
    up to `SILENCE_MAX_S`.
    """

    def __init__(self, *, at_most_every_s: float = 0.0, per_waiter_s: float = 0.0) -> None:
        # A dictionary for its order: the waiter that came first wakes first, in every run alike.
        self._waiting: dict[asyncio.Future[None] | Call, None] = {}
        self._at_most_every_s = at_most_every_s
        self._per_waiter_s = per_waiter_s
        self._not_before = float("-inf")
        self._is_put_off = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def is_put_off(self) -> bool:
        """Return whether a ring is put off: there is news, and the bell will wake all waiters soon."""
        return self._is_put_off

    def ring(self) -> None:
        if self._is_put_off:
            return
        if self._at_most_every_s:
            loop = asyncio.get_running_loop()
            now = loop.time()
            if now < self._not_before:
                self._is_put_off = True
                loop.call_at(self._not_before, self._ring_late)
                return
            self._rest_from(now)
        self._wake()

    def _ring_late(self) -> None:
        self._is_put_off = False
        self._rest_from(asyncio.get_running_loop().time())
        self._wake()

    def _rest_from(self, now: float) -> None:
        rest_s = min(SILENCE_MAX_S, len(self._waiting) * self._per_waiter_s)
        self._not_before = now + max(self._at_most_every_s, rest_s)

    def _wake(self) -> None:
        # The woken take themselves out only when they run, and new waiters may come before that.
        woken, self._waiting = self._waiting, {}
        calls: list[Call] = []
        for waiter in woken:
            if not isinstance(waiter, asyncio.Future):
                calls.append(waiter)
            elif not waiter.done():
                waiter.set_result(None)
        if calls:
            # Not inside of the ringing itself, and one turn of the loop for all of them.
            asyncio.get_running_loop().call_soon(_call_all, calls)

    async def wait(self) -> None:
        """Wait until the next ring."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = None
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)

    def call(self, call: Call) -> None:
        """Call `call` once, soon after the next ring. It must not raise. Asking twice before that ring gives
        one call."""
        self._waiting[call] = None

    def forget(self, call: Call) -> None:
        """Take back `call`. A call that is already scheduled still comes."""
        self._waiting.pop(call, None)


def _call_all(calls: list[Call]) -> None:
    for call in calls:
        call()
