"""The loop that keeps connections up: it dials the peers that are due, and looks again by time or on news.

Its caller decides who is due, and when again; the conversation decides what the connection is for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from stagepost.errors import StagepostError
from stagepost.ground.net.back_off import violation_of

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
"""Seconds until the loop looks again without news, for changes that neither the caller's time nor news announce."""

K = TypeVar("K", bound=Hashable)

Conversation = Callable[[], Coroutine[Any, Any, str | None]]
"""Coroutine function for the whole life of one connection; it returns the rule by whose breach the peer ended it, or None."""


class Redialler(Generic[K]):
    """Keeper of outgoing connections.

    It calls `ended` with the peer whose connection is gone, and the rule that the peer broke, if a breach
    ended the connection.
    """

    def __init__(self, now: Callable[[], float], ended: Callable[[K, str | None], None]) -> None:
        self._now = now
        self._ended = ended
        self._dials: dict[K, asyncio.Task[None]] = {}
        self._news = asyncio.Event()

    def look(self) -> None:
        """Look again now: a peer is due, or a connection was lost."""
        self._news.set()

    async def run(self, step: Callable[[float], float | None]) -> None:
        """Run until cancelled. `step` dials the peers that are due, and returns the time by which it wants
        the next call."""
        while True:
            due_at = step(self._now())
            self._news.clear()
            wait_s = LOOK_AGAIN_S if due_at is None else min(LOOK_AGAIN_S, max(0.0, due_at - self._now()))
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()

    def dial(self, who: K, name: str, conversation: Conversation) -> None:
        loop = asyncio.get_running_loop()
        self._dials[who] = loop.create_task(self._converse(who, name, conversation), name=f"peer {name}")

    def hang_up(self, who: K) -> None:
        dial = self._dials.get(who)
        if dial is not None:
            dial.cancel()

    async def stop(self) -> None:
        """End all dialled connections; the caller cancels `run`."""
        dials = list(self._dials.values())
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)

    async def _converse(self, who: K, name: str, conversation: Conversation) -> None:
        violation = None
        try:
            violation = await conversation()
        except StagepostError as error:
            violation = violation_of(error)
            log.info("peer not connected", extra={"peer": name, "code": error.code, "reason": error.text})
        except Exception:
            # The boundary of a peer's task: a bug in one conversation must not stop the dialling of others.
            log.exception("conversation with a peer failed", extra={"peer": name})
        finally:
            self._dials.pop(who, None)
            self._ended(who, violation)
            self.look()
