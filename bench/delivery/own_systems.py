"""Stagepost's own tiers: queued in memory and on disk, acknowledged over bare Unix sockets and over a real node."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from bench.delivery.processes import Processes, until
from bench.delivery.systems import Promise
from rigs.socket_transport import SocketTransport
from stagepost.delivery import Receiver, ReceiverConfig, ReliablePublisher, ReliablePublisherConfig

TOPIC = "bench"
SENDER = "sender"
IN_FLIGHT_MAX = 1_024
QUEUE_SIZE = 1_000_000
QUEUE_BYTES_OFF = 0
CONNECTED_WITHIN_S = 10.0
SETTLED_WITHIN_S = 60.0
SETTLED_LOOK_S = 0.01
DRAINED = 1_000


class _OverSockets:
    """Recipients are processes of their own; the publisher dials them, with nobody in between."""

    name: str
    promise: Promise

    def __init__(self, recipients: int) -> None:
        self._names = tuple(f"recipient-{number}" for number in range(recipients))
        self._processes = Processes()
        self._publisher: ReliablePublisher | None = None

    def _config(self, folder: Path) -> ReliablePublisherConfig:
        raise NotImplementedError

    async def start(self, folder: Path) -> None:
        transport = SocketTransport(SENDER)
        for name in self._names:
            ready, socket = folder / f"{name}.ready", folder / name
            process = self._processes.start_python(
                "bench.delivery.recipients", "hub", str(socket), str(ready), name, folder=folder
            )
            await until(ready.exists, process)
            await transport.dial(socket)
        async with asyncio.timeout(CONNECTED_WITHIN_S):
            while transport.connected_peers < len(self._names):
                await asyncio.sleep(0.01)
        self._publisher = ReliablePublisher(transport, self._config(folder))
        await self._publisher.start()

    @property
    def publisher(self) -> ReliablePublisher:
        assert self._publisher is not None, "not started"
        return self._publisher

    async def settle(self) -> None:
        async with asyncio.timeout(SETTLED_WITHIN_S):
            while self.publisher.stats()["queue_len"]:
                await asyncio.sleep(SETTLED_LOOK_S)

    def process_ids(self) -> Sequence[int]:
        return self._processes.ids

    async def stop(self) -> None:
        if self._publisher is not None:
            await self._publisher.stop()
        self._processes.stop()


class Queued(_OverSockets):
    def __init__(self, *, on_disk: bool) -> None:
        super().__init__(recipients=1)
        self.name = "stagepost publish_queued, disk" if on_disk else "stagepost publish_queued, memory"
        self.promise = Promise.STORED_ON_DISK if on_disk else Promise.STORED_IN_MEMORY
        self._on_disk = on_disk

    def _config(self, folder: Path) -> ReliablePublisherConfig:
        return ReliablePublisherConfig(
            queue_size=QUEUE_SIZE,
            queue_max_bytes=QUEUE_BYTES_OFF,
            persistence="disk" if self._on_disk else "memory",
            queue_path=str(folder / "outbox") if self._on_disk else None,
        )

    async def send(self, payload: bytes) -> None:
        await self.publisher.publish_queued(TOPIC, payload)


class Acked(_OverSockets):
    """Unsigned: the layer itself, as NATS and the others do it without signatures."""

    def __init__(self, critical: int, *, require_all: bool) -> None:
        super().__init__(recipients=critical)
        rule = "" if critical == 1 else ", all" if require_all else ", any"
        self.name = f"stagepost publish_with_ack, unsigned, {critical} critical{rule}"
        self.promise = Promise.PROCESSED
        self._require_all = require_all

    def _config(self, folder: Path) -> ReliablePublisherConfig:
        return ReliablePublisherConfig(
            enable_ack=True,
            critical_peers=self._names,
            require_all_acks=self._require_all,
            max_in_flight=IN_FLIGHT_MAX,
            ack_timeout=30.0,
        )

    async def send(self, payload: bytes) -> None:
        await self.publisher.publish_with_ack(TOPIC, payload)


async def drain_s(folder: Path, *, on_disk: bool, payload: bytes) -> float:
    """How long a queue of a thousand takes to empty, from the moment at which somebody is there."""
    ready, socket = folder / "ready", folder / "recipient"
    processes = Processes()
    transport = SocketTransport(SENDER)
    config = ReliablePublisherConfig(
        queue_size=DRAINED,
        persistence="disk" if on_disk else "memory",
        queue_path=str(folder / "outbox") if on_disk else None,
    )
    try:
        async with ReliablePublisher(transport, config) as publisher:
            async with asyncio.TaskGroup() as storing:
                for _ in range(DRAINED):
                    storing.create_task(publisher.publish_queued(TOPIC, payload))
            assert publisher.stats()["queue_len"] == DRAINED, "nobody is there to take them yet"
            process = processes.start_python(
                "bench.delivery.recipients", "hub", str(socket), str(ready), "recipient", folder=folder
            )
            await until(ready.exists, process)
            began = time.perf_counter()
            await transport.dial(socket)
            async with asyncio.timeout(SETTLED_WITHIN_S):
                while publisher.stats()["queue_len"]:
                    await asyncio.sleep(0.001)
            return time.perf_counter() - began
    finally:
        processes.stop()


async def receive_over_hub(socket: Path, ready: Path, name: str) -> None:
    """The recipient: a handler that has nothing to do, and an answer at once."""

    async def handle(message: object) -> None:
        return

    transport = SocketTransport(name)
    await transport.serve(socket)
    async with Receiver(transport, handlers={TOPIC: handle}, config=ReceiverConfig(ack_delay=0.0)):
        ready.write_text(str(os.getpid()))
        await asyncio.Event().wait()
