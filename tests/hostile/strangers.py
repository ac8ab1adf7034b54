"""Strangers who hold connections and say nothing, or not enough: whoever is cut off comes again at once.

Each siege starts the real program, keeps it under connections from many addresses, and looks whether honest ones are served
beside them and memory stays bounded. It returns a figure and the faults.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from stagepost.dmq.conform.attacker import KEEP_ALIVE, OTHER_SIDE, Attacker
from stagepost.dmq.conform.cbor_bytes import array, uint
from stagepost.dmq.conform.forged_messages import message
from stagepost.dmq.conform.honest_program import submit
from stagepost.ground.net.network import TcpAddress, parse_address
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.remote.client import RemoteTopics
from tests.hostile.crowd import allow_descriptors
from tests.hostile.crowd_driver import source_address
from tests.hostile.storms import MEGABYTE, Figure, a_node, ended_in_order
from tests.hostile.trial import Cast
from tests.hostile.victim import Victim
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT
from tests.worlds.topics.topic_records import NAME, a_record, a_writer, append_now

PER_ADDRESS = 16
SERVED_WITHIN_S = 60.0
"""Seconds, with room for a busy machine: before, honest ones waited as long as the strangers stayed."""
HONEST = 20
RETRIES_MAX = 5
"""Honest ones, at most, that had to come again in a siege: a busy machine lets some miss the 2 s for the proof."""
MEMORY_BYTES_MAX = 64 * MEGABYTE
"""Growth under siege: 64 places before the proof hold a segment or a head each, and the rest is noise."""
HALF_HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
STREAM = b"GET /api/v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SLOW_BODY = (
    b"POST /api/v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
    b"Content-Length: 60000\r\n\r\nx"
)
TOKEN = "a token of many letters"


@dataclass
class Siege:
    """Connections to one port that never prove anything. `came` counts how often they were made."""

    port: int
    count: int
    opening: bytes = b""
    came: int = 0

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[Siege]:
        tasks = [asyncio.create_task(self._stranger(number)) for number in range(self.count)]
        try:
            async with asyncio.timeout(SERVED_WITHIN_S):
                while self.came < self.count:
                    await asyncio.sleep(0.01)
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stranger(self, number: int) -> None:
        source = source_address(number // PER_ADDRESS)
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
                self.came += 1
                try:
                    writer.write(self.opening)
                    while await reader.read(65_536):
                        pass
                finally:
                    writer.close()
            await asyncio.sleep(0.05)


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


async def besieged(
    target: str, pid: int, siege: Siege, honest: Callable[[], Awaitable[object]]
) -> tuple[Figure, list[str]]:
    """Lay the siege; ask for `honest` again and again, each of which must succeed in the end."""
    allow_descriptors(2 * siege.count + 200)
    await honest()  # what is loaded once does not count as growth
    base = resident_bytes(pid)
    loop = asyncio.get_running_loop()
    waited: list[float] = []
    refused: list[str] = []
    async with siege.laid():
        while len(waited) < HONEST and len(refused) <= RETRIES_MAX:
            began = loop.time()
            try:
                async with asyncio.timeout(SERVED_WITHIN_S):
                    await honest()
            except Exception as error:
                refused.append(f"an honest one was not served: {error!r}")
            else:
                waited.append(loop.time() - began)
            await asyncio.sleep(0.05)
        grown = resident_bytes(pid) - base
    faults = refused if len(refused) > RETRIES_MAX else []
    if grown > MEMORY_BYTES_MAX:
        faults.append(f"{grown} bytes more resident than before, at most {MEMORY_BYTES_MAX} are allowed")
    figure: Figure = {
        "promise": "N3",
        "target": target,
        "strangers": siege.count,
        "came": siege.came,
        "honest": len(waited),
        "retries": len(refused),
        "longest_s": round(max(waited, default=SERVED_WITHIN_S), 2),
        "grown_mb": round(grown / MEGABYTE, 1),
        "failures": len(faults),
    }
    return figure, faults


# DMQ, node to node


async def _peer_is_served(victim: Victim, source: str) -> None:
    peer = await Attacker.tcp(victim.target, source=source)
    try:
        await peer.shake_hands(1, 2)
        await peer.say(KEEP_ALIVE, array(uint(0), uint(1)))
        if await peer.hear(KEEP_ALIVE | OTHER_SIDE) != [1, 1]:
            raise AssertionError("another answer than the one to this question")
    finally:
        await peer.leave()


def silent_peers(count: int) -> tuple[Figure, list[str]]:
    """Addresses times 16 connections that send nothing keep no peer and no program out."""
    cast = Cast()
    settings = f"connections_soft = {count // 2}\nconnections_hard = {count // 2}\n"
    with a_node(cast, settings=settings, flags=(), many=False) as victim:

        async def honest() -> None:
            await _peer_is_served(victim, "127.9.9.9")

        async def scene() -> tuple[Figure, list[str]]:
            figure, faults = await besieged(
                "DMQ node to node, silent", victim.pid, Siege(victim.port, count), honest
            )
            answer = await submit(victim.target, message(cast.pool))
            return figure, faults + ([] if answer == [1] else [f"a message was answered with {answer!r}"])

        figure, faults = asyncio.run(scene())
        faults += ended_in_order(victim)
    return figure, faults


def idle_peers(count: int, *, initiator_only: bool = True) -> tuple[Figure, list[str]]:
    """Peers that keep a connection alive and exchange nothing make room for others, and not for one another at once. Without
    `initiator_only` the node itself begins to exchange messages with them, and gets none."""
    allow_descriptors(2 * count + 200)
    cast = Cast()
    settings = f"connections_soft = {count}\nconnections_hard = {count}\n"
    with a_node(cast, settings=settings, flags=(), many=False) as victim:

        async def scene() -> list[str]:
            idlers: list[Attacker] = []
            answering: list[asyncio.Task[None]] = []
            faults: list[str] = []
            try:
                for number in range(count):
                    idler = await Attacker.tcp(victim.target, source=source_address(number // PER_ADDRESS))
                    idlers.append(idler)
                    with suppress(Exception):  # above the strangers' share
                        await idler.shake_hands(1, initiator_only=initiator_only)
                        await idler.say(KEEP_ALIVE, array(uint(0), uint(1)))
                        answering.append(asyncio.create_task(_keeps_alive(idler)))
                for number in range(3):
                    if not await _in_the_end(partial(_peer_is_served, victim, f"127.9.{number}.9")):
                        faults.append("an honest peer found no place beside peers that exchange nothing")
            finally:
                for one in answering:
                    one.cancel()
                await asyncio.gather(*answering, *(idler.leave() for idler in idlers), return_exceptions=True)
            return faults

        faults = asyncio.run(scene())
        faults += ended_in_order(victim)
    return {
        "promise": "N3",
        "target": f"DMQ node to node, idle{'' if initiator_only else ' in both directions'}",
        "strangers": count,
        "failures": len(faults),
    }, faults


async def _keeps_alive(idler: Attacker) -> None:
    while True:
        _, cookie = await idler.hear(KEEP_ALIVE, within_s=3_600.0)
        await idler.say(KEEP_ALIVE | OTHER_SIDE, array(uint(1), uint(cookie)))


async def _in_the_end(attempt: Callable[[], Awaitable[None]]) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(SERVED_WITHIN_S):
            while True:
                with suppress(Exception):
                    await attempt()
                    return True
                await asyncio.sleep(0.2)
    return False


# Served topics


def silent_readers(count: int) -> tuple[Figure, list[str]]:
    with tempfile.TemporaryDirectory() as name:
        writer = a_writer(create_topic(Path(name), NAME))
        append_now(writer, [a_record(1)])
        command = [*COMMAND, "topic", "serve", "--data", name, "--json"]
        environment = {**ENVIRONMENT, "STAGEPOST_TOKEN": TOKEN}
        with _process(command, stdout=True, environment=environment) as server:
            assert server.stdout is not None
            address = parse_address(json.loads(server.stdout.readline())["address"])
            assert isinstance(address, TcpAddress)

            def read() -> None:
                with RemoteTopics(address, TOKEN) as topics:
                    if [one.end for one in topics.bounds()] != [1]:
                        raise AssertionError("another end than was written")

            siege = Siege(address.port, count)
            return asyncio.run(besieged("topic serve", server.pid, siege, lambda: asyncio.to_thread(read)))


# HTTP


def half_requests_to_dashboard(count: int, opening: bytes = HALF_HEAD) -> tuple[Figure, list[str]]:
    """Unfinished heads, or whole requests for streams, which do not end."""
    with tempfile.TemporaryDirectory() as name:
        command = [*COMMAND, "serve", "--data", name, "--port", "0"]
        with _process(command, stdout=False, environment=ENVIRONMENT) as server:
            assert server.stderr is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)", server.stderr.readline())
            assert found is not None
            return _besieged_http("dashboard", server.pid, int(found[1]), "/healthz", count, opening)


def half_requests_to_intake(
    address: str, pid: int, count: int, opening: bytes = HALF_HEAD
) -> tuple[Figure, list[str]]:
    """Unfinished heads, or bodies, at the HTTP address of a full node."""
    port = int(address.rpartition(":")[2])
    return _besieged_http("HTTP intake", pid, port, f"/api/v1/messages/{'ab' * 32}", count, opening)


def half_requests_to_metrics(count: int) -> tuple[Figure, list[str]]:
    """Unfinished heads at the address from which Prometheus reads a DMQ node's metrics."""
    with a_node(Cast(), flags=(), many=False) as victim:
        port = int(str(victim.facts["metrics_port"]))
        return _besieged_http("metrics of a node", victim.pid, port, "/metrics", count)


def _besieged_http(
    target: str, pid: int, port: int, path: str, count: int, opening: bytes = HALF_HEAD
) -> tuple[Figure, list[str]]:
    async def honest() -> None:
        async with httpx.AsyncClient(timeout=SERVED_WITHIN_S) as client:
            answer = await client.get(f"http://127.0.0.1:{port}{path}")
        if answer.status_code not in (200, 404):
            raise AssertionError(f"status {answer.status_code}")

    return asyncio.run(besieged(target, pid, Siege(port, count, opening), honest))


@contextmanager
def _process(
    command: Sequence[str], *, stdout: bool, environment: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(
        command, env=environment, stdout=pipe if stdout else none, stderr=none if stdout else pipe, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
