"""The one loop that keeps connections up: dials whoever is due, and looks again by time or by news.

Who is due, and when again, is decided by whoever runs it; what a connection is for is its conversation's business.
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
"""Peers become due by time or by news; this is for what neither tells."""

K = TypeVar("K", bound=Hashable)

Conversation = Callable[[], Coroutine[Any, Any, str | None]]
"""The whole life of one connection; what comes out is the rule that the peer broke, if one ended it."""


class Redialler(Generic[K]):
    """`ended` is told who is gone, and which rule it broke if one ended it."""

    def __init__(self, now: Callable[[], float], ended: Callable[[K, str | None], None]) -> None:
        self._now = now
        self._ended = ended
        self._dials: dict[K, asyncio.Task[None]] = {}
        self._news = asyncio.Event()

    def look(self) -> None:
        """Something changed: somebody is due, or was lost."""
        self._news.set()

    async def run(self, step: Callable[[float], float | None]) -> None:
        """Until cancelled. `step` dials whoever is due, and says when it wants to be called again at the latest."""
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
        """End all that was dialled; `run` is the caller's to cancel."""
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
