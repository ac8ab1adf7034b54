"""Redis streams: stored, stored with its log synced at every write, and answered through a reply list."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from bench.delivery.processes import Processes, accepts, free_port, program, until
from bench.delivery.systems import NotAvailable, Promise

STREAM = "bench"
STREAM_LENGTH_MAX = 100_000


class RedisStream:
    def __init__(self, *, sync_always: bool) -> None:
        self.name = "Redis stream, AOF synced always" if sync_always else "Redis stream"
        self.promise = Promise.STORED_ON_DISK if sync_always else Promise.STORED_IN_MEMORY
        self._sync_always = sync_always
        self._processes = Processes()
        self._client: Any = None

    async def start(self, folder: Path) -> None:
        try:
            from redis.asyncio import BlockingConnectionPool, Redis
        except ImportError:
            raise NotAvailable("the Python client redis is not installed") from None
        self._port = free_port()
        command = [program("redis-server", "Debian's package redis-server brings it")]
        command += ["--bind", "127.0.0.1", "--port", str(self._port), "--dir", str(folder), "--save", ""]
        if self._sync_always:
            command += ["--appendonly", "yes", "--appendfsync", "always"]
        server = self._processes.start(command, folder)
        await until(lambda: accepts(self._port), server)
        pool = BlockingConnectionPool(host="127.0.0.1", port=self._port, max_connections=256, timeout=30)
        self._client = Redis(connection_pool=pool)

    async def send(self, payload: bytes) -> None:
        await self._client.xadd(STREAM, {b"m": payload}, maxlen=STREAM_LENGTH_MAX, approximate=True)

    async def settle(self) -> None:
        return

    def process_ids(self) -> Sequence[int]:
        return self._processes.ids

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.aclose()
        self._processes.stop()


class RedisReply(RedisStream):
    """Each message names a list of its own, into which the recipient puts its answer."""

    def __init__(self) -> None:
        super().__init__(sync_always=False)
        self.name = "Redis stream with replies"
        self.promise = Promise.PROCESSED
        self._numbers = count()

    async def start(self, folder: Path) -> None:
        await super().start(folder)
        ready = folder / "ready"
        recipient = self._processes.start_python(
            "bench.delivery.recipients", "redis", str(self._port), str(ready), folder=folder
        )
        await until(ready.exists, recipient)

    async def send(self, payload: bytes) -> None:
        reply = f"reply-{next(self._numbers)}"
        fields = {b"m": payload, b"r": reply.encode()}
        await self._client.xadd(STREAM, fields, maxlen=STREAM_LENGTH_MAX, approximate=True)
        answer = await self._client.blpop([reply], timeout=30)
        if answer is None:
            raise TimeoutError("no reply within 30 s")


async def answer_stream(port: int, ready: Path) -> None:
    """The recipient."""
    from redis.asyncio import Redis

    client = Redis(host="127.0.0.1", port=port)
    ready.write_text(str(os.getpid()))
    last = b"0"
    while True:
        for _, entries in await client.xread({STREAM: last}, count=256, block=1_000):
            replies = client.pipeline(transaction=False)
            for last, fields in entries:  # noqa: B007  # the last one is where the next read begins
                replies.rpush(fields[b"r"], b"done")
            await replies.execute()
