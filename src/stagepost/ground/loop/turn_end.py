"""Calls at the end of a turn of the event loop, when all who were ready have run, so that one call serves
them all.

`call_soon` would run the call in the next turn, after that turn has looked at the sockets: a peer would see
what the call sends a whole turn later, and a turn of a busy loop takes tens of milliseconds. asyncio has no
hook at the end of a turn, but timers that are due run last in it; so `TurnEnd` keeps one timer set for as
long as each turn has something to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

from stagepost.ground.loop.virtual_time import VirtualTimeLoop

Callback = Callable[[], None]
PutOff = Callable[[Callback], object]


class TurnEnd:
    """Queue of callbacks for the end of the turn; `turn_end()` returns the one of the running loop.

    It holds no reference to its loop, since then neither would ever be freed.
    """

    def __init__(self) -> None:
        self._waiting: list[Callback] = []
        self._is_running = False
        self._is_armed = False

    def __call__(self, callback: Callback) -> None:
        """Call `callback` once, at the end of this turn or, at the latest, at the beginning of the next."""
        self._waiting.append(callback)
        if len(self._waiting) == 1 and not self._is_running:
            asyncio.get_running_loop().call_soon(self._run)
            if not self._is_armed:
                self._arm()

    def _arm(self) -> None:
        self._is_armed = True
        asyncio.get_running_loop().call_later(0.0, self._end)

    def _end(self) -> None:
        self._is_armed = False
        if self._waiting:
            self._run()
            self._arm()

    def _run(self) -> None:
        """Call all callbacks, also those that the callbacks add."""
        self._is_running = True
        try:
            while self._waiting:
                callbacks, self._waiting = self._waiting, []
                for callback in callbacks:
                    self._call(callback)
        finally:
            self._is_running = False

    def _call(self, callback: Callback) -> None:
        try:
            callback()
        except Exception as fault:
            # A failing callback fails alone: the others are called all the same.
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{callback!r} has failed at the end of a turn", "exception": fault}
            )


_ENDS: WeakKeyDictionary[asyncio.AbstractEventLoop, TurnEnd] = WeakKeyDictionary()


def turn_end() -> PutOff:
    """Return the function that puts off a call to the end of the turn of the running loop.

    In virtual time turns take no time, and every node keeps its own context: the function is `call_soon`
    there.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):
        return loop.call_soon
    if loop not in _ENDS:
        _ENDS[loop] = TurnEnd()
    return _ENDS[loop]
