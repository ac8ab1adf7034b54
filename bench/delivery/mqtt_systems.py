"""mosquitto: QoS 1, confirmed by the broker, and answered by the recipient through a response topic."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

from bench.delivery.processes import Processes, accepts, free_port, program, until
from bench.delivery.systems import NotAvailable, Promise

TOPIC = "bench/messages"
REPLIES = "bench/replies"
IN_FLIGHT_MAX = 1_000
AT_ONCE = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
"""Without it a lone message waits for the kernel, some 40 ms: a fault of the set-up and not of the system."""


class Mosquitto:
    """QoS 1: the call returns when the broker has the message, in its memory."""

    def __init__(self) -> None:
        self.name = "mosquitto QoS 1"
        self.promise = Promise.STORED_IN_MEMORY
        self._processes = Processes()
        self._open = AsyncExitStack()
        self._client: Any = None

    async def start(self, folder: Path) -> None:
        try:
            import aiomqtt
        except ImportError:
            raise NotAvailable("the Python client aiomqtt is not installed") from None
        self._port = free_port()
        settings = folder / "mosquitto.conf"
        settings.write_text(
            f"listener {self._port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
            f"max_inflight_messages {IN_FLIGHT_MAX}\nmax_queued_messages 0\nset_tcp_nodelay true\nuser root\n"
        )
        server = self._processes.start(
            [program("mosquitto", "Debian's package mosquitto brings it"), "-c", str(settings)], folder
        )
        await until(lambda: accepts(self._port), server)
        client = aiomqtt.Client(
            "127.0.0.1", self._port, max_inflight_messages=IN_FLIGHT_MAX, socket_options=AT_ONCE
        )
        client.pending_calls_threshold = IN_FLIGHT_MAX
        self._client = await self._open.enter_async_context(client)

    async def send(self, payload: bytes) -> None:
        await self._client.publish(TOPIC, payload, qos=1, timeout=30)

    async def settle(self) -> None:
        return

    def process_ids(self) -> Sequence[int]:
        return self._processes.ids

    async def stop(self) -> None:
        await self._open.aclose()
        self._processes.stop()


class MosquittoReply(Mosquitto):
    """The first eight bytes of a message number it; the recipient answers with them."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "mosquitto with replies, QoS 1"
        self.promise = Promise.PROCESSED
        self._numbers = count()
        self._awaited: dict[bytes, asyncio.Future[None]] = {}

    async def start(self, folder: Path) -> None:
        await super().start(folder)
        await self._client.subscribe(REPLIES, qos=1)
        self._hearing = asyncio.create_task(self._hear())
        ready = folder / "ready"
        recipient = self._processes.start_python(
            "bench.delivery.recipients", "mqtt", str(self._port), str(ready), folder=folder
        )
        await until(ready.exists, recipient)

    async def send(self, payload: bytes) -> None:
        number = next(self._numbers).to_bytes(8, "big")
        answered = self._awaited[number] = asyncio.get_running_loop().create_future()
        await super().send(number + payload[8:])
        await asyncio.wait_for(answered, 30)

    async def _hear(self) -> None:
        async for message in self._client.messages:
            answered = self._awaited.pop(bytes(message.payload), None)
            if answered is not None and not answered.done():
                answered.set_result(None)

    async def stop(self) -> None:
        self._hearing.cancel()
        await asyncio.gather(self._hearing, return_exceptions=True)
        await super().stop()


async def answer_messages(port: int, ready: Path) -> None:
    """The recipient."""
    import aiomqtt

    async with aiomqtt.Client(
        "127.0.0.1", port, max_inflight_messages=IN_FLIGHT_MAX, socket_options=AT_ONCE
    ) as client:
        await client.subscribe(TOPIC, qos=1)
        ready.write_text(str(os.getpid()))
        answering: set[asyncio.Task[None]] = set()
        async for message in client.messages:
            # Without waiting for the broker's confirmation: the sender times out if an answer is lost.
            task = asyncio.create_task(client.publish(REPLIES, bytes(message.payload)[:8], qos=1))
            answering.add(task)
            task.add_done_callback(answering.discard)
