"""Acknowledged publishing over a real network: two DMQ nodes with their stores, every message and receipt KES-signed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.delivery.processes import Processes, until
from bench.delivery.systems import Promise
from bench.latency import row_of_pools
from bench.traffic import NETWORK_MAGIC
from stagepost.delivery import (
    DmqTransport,
    Receiver,
    ReceiverConfig,
    ReliablePublisher,
    ReliablePublisherConfig,
)
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.ground.crypto.hashing import pool_id

TOPIC = "bench"
IN_FLIGHT_MAX = 1_024
CONNECTED_WITHIN_S = 15.0


class SignedAcked:
    """The publisher speaks with one node, the recipients with the other; what they say crosses between the two."""

    promise = Promise.PROCESSED

    def __init__(self, critical: int, *, require_all: bool) -> None:
        rule = "" if critical == 1 else ", all" if require_all else ", any"
        self.name = f"stagepost publish_with_ack, signed, {critical} critical{rule}"
        self._critical = critical
        self._require_all = require_all
        self._processes = Processes()
        self._running = AsyncExitStack()
        self._node_ids: Sequence[int] = ()

    async def start(self, folder: Path) -> None:
        names = ["sender", *(f"recipient-{number}" for number in range(self._critical))]
        pools = [
            pool_id(make_keys(folder / name, start_kes_period=0, issue_number=0).cold_verification_key).hex()
            for name in names
        ]
        nodes = await self._running.enter_async_context(row_of_pools(folder, pools, 2))
        self._node_ids = [node.process_id for node in nodes]
        for name in names[1:]:
            ready = folder / f"{name}.ready"
            process = self._processes.start_python(
                "bench.delivery.recipients",
                "node",
                str(nodes[-1].socket),
                str(ready),
                str(folder / name),
                folder=folder,
            )
            await until(ready.exists, process)
        transport = DmqTransport(nodes[0].socket, NETWORK_MAGIC, folder / "sender")
        await self._running.enter_async_context(transport)
        async with asyncio.timeout(CONNECTED_WITHIN_S):
            while not transport.connected_peers:
                await asyncio.sleep(0.02)
        config = ReliablePublisherConfig(
            enable_ack=True,
            critical_peers=tuple(pools[1:]),
            require_all_acks=self._require_all,
            max_in_flight=IN_FLIGHT_MAX,
            ack_timeout=30.0,
        )
        self._publisher = ReliablePublisher(transport, config)
        await self._running.enter_async_context(self._publisher)

    async def send(self, payload: bytes) -> None:
        await self._publisher.publish_with_ack(TOPIC, payload)

    async def settle(self) -> None:
        return

    def process_ids(self) -> Sequence[int]:
        return [*self._processes.ids, *self._node_ids]

    async def stop(self) -> None:
        await self._running.aclose()
        self._processes.stop()


async def receive_over_node(socket: Path, ready: Path, keys: Path) -> None:
    """The recipient: a handler that has nothing to do, and an answer at once."""

    async def handle(message: object) -> None:
        return

    async with (
        DmqTransport(socket, NETWORK_MAGIC, keys) as transport,
        Receiver(transport, handlers={TOPIC: handle}, config=ReceiverConfig(ack_delay=0.0)),
    ):
        ready.write_text(json.dumps(transport.self_id))
        await asyncio.Event().wait()
