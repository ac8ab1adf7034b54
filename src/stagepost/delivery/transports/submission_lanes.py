"""Several connections to one node for handing over messages: each carries one at a time, and a node that makes
messages durable in groups takes many in the time of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stagepost.dmq.endpoints.local_client import LocalClient
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Outcome


class SubmissionLanes:
    """The lane that was used last is used first, so that a quiet program keeps one connection and no more."""

    def __init__(self, make_client: Callable[[], LocalClient], count: int) -> None:
        self._lanes = [make_client() for _ in range(count)]
        self._free = list(self._lanes)
        self._permits = asyncio.Semaphore(count)

    async def submit(self, message: DmqMessage) -> Outcome:
        async with self._permits:
            lane = self._free.pop()
            try:
                return await lane.submit(message)
            finally:
                self._free.append(lane)

    async def check(self) -> None:
        """Shake hands once; raises as a submission would if the node is not there."""
        await self._lanes[0].check()

    async def close(self) -> None:
        for lane in self._lanes:
            await lane.close()
