"""What is put off until everybody who is ready has run, so that it is done once for all of them: at the end of the same
turn of the loop.

`call_soon` would do it in the next turn, behind that turn's look at the sockets: what is sent then is seen by whoever
waits for it a whole turn later, and a busy loop's turn takes tens of milliseconds. There is no hook at the end of a turn;
but timers that are due run last in it, so one is kept set for as long as there is something to do in each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

from stagepost.ground.loop.virtual_time import VirtualTimeLoop

Callback = Callable[[], None]
PutOff = Callable[[Callback], object]


class TurnEnd:
    """One for each loop: `turn_end()`. It holds no reference to its loop, which would keep both for ever."""

    def __init__(self) -> None:
        self._waiting: list[Callback] = []
        self._is_running = False
        self._is_armed = False

    def __call__(self, callback: Callback) -> None:
        """Once, at the end of this turn or, at the latest, at the beginning of the next."""
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
        """Also what these put off in their turn."""
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
            # Its own: the others are called all the same.
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"{callback!r} has failed at the end of a turn", "exception": fault}
            )


_ENDS: WeakKeyDictionary[asyncio.AbstractEventLoop, TurnEnd] = WeakKeyDictionary()


def turn_end() -> PutOff:
    """Of the loop that runs. In virtual time turns take no time, and every node keeps to its own context: `call_soon`."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualTimeLoop):
        return loop.call_soon
    if loop not in _ENDS:
        _ENDS[loop] = TurnEnd()
    return _ENDS[loop]
