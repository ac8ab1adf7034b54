"""How long a message takes from a program's hand to another program's: one node, and a row of four, three hops apart.

Every node is a process of its own, started as an operator starts it, with its durable store; they speak over sockets.
One message at a time, from the call of `submit` until the listening program holds the message.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from bench.traffic import NETWORK_MAGIC, Signers
from stagepost.client import AsyncClient
from stagepost.dmq.outcome import Accepted
from stagepost.ground.crypto.hashing import pool_id

HOPS = 3
MESSAGES = 300
WARM_UP = 30
START_WITHIN_S = 30.0
ARRIVE_WITHIN_S = 30.0
FSYNCS = 100


@dataclass(frozen=True)
class Latency:
    path: str
    p50_ms: float
    p99_ms: float
    messages: int


async def measure(messages: int = MESSAGES) -> list[Latency]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        signers = Signers()
        async with row_of_nodes(folder, signers, HOPS + 1) as sockets:
            one = await _times(sockets[0], sockets[0], signers, 0, messages)
            three = await _times(sockets[0], sockets[-1], signers, messages + WARM_UP, messages)
        return [_latency("one node", one), _latency(f"{HOPS} hops", three)]


def _latency(path: str, times_s: Sequence[float]) -> Latency:
    steps = quantiles(times_s, n=100, method="inclusive")
    return Latency(path, steps[49] * 1e3, steps[98] * 1e3, len(times_s))


async def _times(
    submit_at: Path, listen_at: Path, signers: Signers, first: int, messages: int
) -> list[float]:
    # Signed beforehand: only the way is to be measured.
    signed = [signers.sign(number) for number in range(first, first + WARM_UP + messages)]
    times_s: list[float] = []
    async with (
        AsyncClient.connect(submit_at, NETWORK_MAGIC) as sender,
        AsyncClient.connect(listen_at, NETWORK_MAGIC) as listener,
    ):
        shown = listener.listen()
        for message in signed:
            began = time.perf_counter()
            outcome = await sender.submit(message)
            assert isinstance(outcome, Accepted), outcome
            async with asyncio.timeout(ARRIVE_WITHIN_S):
                async for found in shown:
                    if found.message_id == message.message_id:
                        break
            times_s.append(time.perf_counter() - began)
    return times_s[WARM_UP:]


@dataclass(frozen=True)
class RunningNode:
    socket: Path
    process_id: int


@asynccontextmanager
async def row_of_nodes(folder: Path, signers: Signers, count: int) -> AsyncIterator[list[Path]]:
    """Each dials the one before; the local sockets, in order."""
    async with row_of_pools(folder, [pool_id(key).hex() for key in signers.cold_keys()], count) as nodes:
        yield [node.socket for node in nodes]


@asynccontextmanager
async def row_of_pools(folder: Path, pool_ids: Sequence[str], count: int) -> AsyncIterator[list[RunningNode]]:
    """Nodes that know these pools, each of which dials the one before."""
    pools = folder / "pools.json"
    stakes = [{"pool_id": pool, "stake": 1} for pool in pool_ids]
    pools.write_text(json.dumps({"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": stakes}))
    nodes: list[RunningNode] = []
    port: int | None = None
    async with AsyncExitStack() as running:
        for number in range(count):
            home = folder / f"node-{number}"
            home.mkdir(mode=0o700)
            socket = home / "socket"
            port, process_id = await running.enter_async_context(_node(home, socket, pools, port))
            nodes.append(RunningNode(socket, process_id))
        yield nodes


@asynccontextmanager
async def _node(home: Path, socket: Path, pools: Path, dials: int | None) -> AsyncIterator[tuple[int, int]]:
    """Its port and its process."""
    points = [] if dials is None else [{"address": "127.0.0.1", "port": dials}]
    roots = [{"accessPoints": points, "advertise": False, "valency": 1}] if points else []
    (home / "topology.json").write_text(json.dumps({"localRoots": roots, "publicRoots": []}))
    data = home / "data"
    arguments = [
        "--host-addr",
        "127.0.0.1",
        "--port",
        "0",
        "--local-socket",
        str(socket),
        "--pools",
        str(pools),
    ]
    arguments += [
        "--topology-file",
        str(home / "topology.json"),
        "--data",
        str(data),
        "--metrics-port",
        "off",
    ]
    arguments += ["--dmq-network-magic", str(NETWORK_MAGIC), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stagepost.cli.main", "node", "dmq", *arguments], cwd=home
    )
    try:
        yield await _port_of(process, data / "node.json"), process.pid
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(START_WITHIN_S)


async def _port_of(process: subprocess.Popen[bytes], facts: Path) -> int:
    """The port at which the node listens, as soon as it says so."""
    async with asyncio.timeout(START_WITHIN_S):
        while True:
            assert process.poll() is None, "the node ended"
            with contextlib.suppress(FileNotFoundError, ValueError):
                return int(json.loads(facts.read_text())["tcp"][0].rpartition(":")[2])
            await asyncio.sleep(0.02)


def fsyncs_per_s() -> float:
    """What this disk does in this minute: every figure with a durable store depends on it."""
    with TemporaryDirectory() as folder:
        file = os.open(Path(folder) / "fsync", os.O_CREAT | os.O_WRONLY)
        began = time.perf_counter()
        for _ in range(FSYNCS):
            os.write(file, bytes(4_096))
            os.fsync(file)
        taken_s = time.perf_counter() - began
        os.close(file)
    return FSYNCS / taken_s
