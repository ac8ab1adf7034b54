"""Faults in a devnet: one validator after the other is ended without a word, and comes back from its disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from stagepost.node.devnet import Devnet

UP_S = (1.0, 3.0)
DOWN_S = (0.2, 2.0)


@asynccontextmanager
async def faults_in(network: Devnet, *, is_on: bool) -> AsyncIterator[list[int]]:
    """While it lasts; in the end all of them run. Gives the places of those that were killed, as it goes on."""
    killed: list[int] = []
    task = asyncio.create_task(_kill_some(network, killed)) if is_on else None
    try:
        yield killed
    finally:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _kill_some(network: Devnet, killed: list[int]) -> None:
    random = Random(network.plan.seed)
    while True:
        await asyncio.sleep(random.uniform(*UP_S))
        place = random.randrange(len(network.validators))
        validator = network.validators[place]
        await validator.kill()
        killed.append(place)
        try:
            await asyncio.sleep(random.uniform(*DOWN_S))
        finally:
            await validator.start()
