"""A node's source of stake and the cardano-node beside it, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from stagepost.dmq.node.cardano_source import CardanoSource
from stagepost.dmq.node.config import CardanoAccess
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.simulation.network import SimulatedNetwork
from tests.worlds.dmq.cardano_answers import LedgerState, generated_pools
from tests.worlds.dmq.cardano_node import PretendCardanoNode

SOCKET = Path("/run/cardano/node.socket")
POOLS = generated_pools(24)
ELIGIBLE = PoolId(next(pool_id for pool_id, stakes in POOLS.items() if stakes[1]))
NOT_ELIGIBLE = PoolId(next(pool_id for pool_id, stakes in POOLS.items() if not stakes[1]))
LEDGER = LedgerState(epoch=7, epoch_s=86_400).with_pools(POOLS)
DAY_S = 86_400.0


class World:
    """A node's source of stake and the cardano-node beside it, on one machine."""

    def __init__(self, folder: Path, node: PretendCardanoNode, begins_s: float) -> None:
        self.folder = folder
        self.node = node
        self.machine = SimulatedNetwork(Random(1)).process("10.0.0.1")
        self.clock = LoopClock(begins_s)
        self.source = self.new_source()
        self._running: asyncio.Task[None] | None = None

    def new_source(self, magic: int = 42) -> CardanoSource:
        return CardanoSource(CardanoAccess(SOCKET, magic), self.machine, self.clock, self.folder)

    def knows_stake(self) -> bool:
        return self.source.is_ready

    async def node_up(self) -> None:
        await self.node.start(self.machine, SOCKET)

    def begin(self) -> None:
        self.source.load()
        self._running = asyncio.create_task(self.source.watch())

    async def end(self) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def until_epoch_end(self, beyond_s: float) -> None:
        await asyncio.sleep(self.node.ledger.epoch_end_unix_s - self.clock.unix_s() + beyond_s)

    def next_epoch(self, pools: dict[bytes, tuple[int, int, int]] | None = None) -> None:
        ledger = replace(self.node.ledger, epoch=self.node.ledger.epoch + 1)
        self.node.ledger = ledger if pools is None else ledger.with_pools(pools)


@asynccontextmanager
async def world(folder: Path, node: PretendCardanoNode, *, is_up: bool = True) -> AsyncIterator[World]:
    """A world that begins a thousand seconds into the ledger's epoch."""
    begins_s = node.ledger.epoch_end_unix_s - node.ledger.epoch_s + 1_000.0
    made = World(folder, node, begins_s)
    if is_up:
        await made.node_up()
    made.begin()
    await asyncio.sleep(1)
    try:
        yield made
    finally:
        await made.end()


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_in_virtual_time(scene())
