"""One node alone in its process, fed by scripted peers in another: what each message costs it, and how many it takes.

A process of its own for each run, started by `whole_path.py`; the last line that it prints is its result, in JSON.
Everything that the process does while messages are on their way is counted, in all its threads.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

from bench.steps import unit
from bench.traffic import NETWORK_MAGIC, write_messages
from stagepost.dmq.topology import AccessPoint, LocalRoot, Topology
from stagepost.identifiers import PoolId
from stagepost.node.config import NodeConfig
from stagepost.node.dmq_node import DmqNode
from stagepost.runtime.clock import SystemClock
from stagepost.runtime.memory_store import MemoryDisk, MemoryStore
from stagepost.runtime.network import SocketNetwork
from stagepost.runtime.sqlite_store import SqliteStore
from stagepost.runtime.verifier import Verifier

UNITS_PER_SAMPLE = 60
ROOT = Path(__file__).parents[1]


class AllPools:
    is_ready = True
    kes_evolutions_max = 62

    def stake(self, pool_id: PoolId) -> int | None:
        return 1


class Peers:
    """The other process."""

    def __init__(self, process: asyncio.subprocess.Process, ports: list[int]) -> None:
        self._process = process
        self.ports = ports

    @classmethod
    async def start(cls, options: argparse.Namespace, messages: Path) -> Peers:
        command = ["-m", "bench.scripted_peers", "--messages", str(messages), "--per-reply", str(options.per_reply)]
        command += ["--suppliers", str(options.suppliers), "--programs", str(options.programs)]
        if options.peers_processor is not None:
            command += ["--processor", str(options.peers_processor)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        peers = cls(process, [])
        peers.ports = [int(port) for port in (await peers._answer()).split()]
        return peers

    async def _answer(self) -> str:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the scripted peers ended")
        return line.decode().strip()

    async def say(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await self._answer()

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


async def run(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    count = options.warm_up + options.rounds * options.per_round
    messages = folder / "messages"
    write_messages(messages, count)
    peers = await Peers.start(options, messages)
    store = SqliteStore(folder / "messages.sqlite") if options.durable else MemoryStore(MemoryDisk())
    verifier = Verifier(options.threads)
    config = NodeConfig(
        data_dir=folder,
        local_socket=folder / "node.socket",
        pools_file=folder / "pools.json",
        host_addresses=("127.0.0.1",),
        port=0,
        network_magic=NETWORK_MAGIC,
        peer_sharing=False,
        topology=Topology(
            local_roots=(
                LocalRoot(
                    tuple(AccessPoint("127.0.0.1", port) for port in peers.ports), len(peers.ports), len(peers.ports)
                ),
            )
        ),
    )
    node = DmqNode(
        config,
        network=SocketNetwork(),
        clock=SystemClock(),
        store=store,
        pools=AllPools(),
        verifier=verifier,
        random=Random(1),
    )
    await node.start()
    await peers.say(str(config.local_socket))
    await peers.say(f"supply {options.warm_up}")
    before_bytes = _resident_bytes()
    one_check = unit()
    ratios: list[float] = []
    units: list[float] = []
    taken_s: list[float] = []
    counters = store.counters if isinstance(store, SqliteStore) else None
    fsync_s = -counters.commit_s if counters else 0.0
    groups = -counters.groups if counters else 0
    unit_before = _unit_s(one_check)
    for _ in range(options.rounds):
        began, began_cpu = time.perf_counter(), time.process_time()
        await peers.say(f"supply {options.per_round}")
        cpu_s = (time.process_time() - began_cpu) / options.per_round
        taken_s.append(time.perf_counter() - began)
        unit_after = _unit_s(one_check)
        units.append((unit_before + unit_after) / 2)
        ratios.append(cpu_s / units[-1])
        unit_before = unit_after
    held = node.mempool.count
    assert held == count, f"{held} of {count} messages are held"
    result = {
        "ratio": median(ratios),
        "unit_us": median(units) * 1e6,
        "per_s": options.per_round / median(taken_s),
        "fsync_ms_per_message": 1e3 * (fsync_s + counters.commit_s) / (count - options.warm_up) if counters else 0.0,
        "fsyncs": groups + counters.groups if counters else 0,
        "resident_before_mb": before_bytes / 1e6,
        "resident_after_mb": _resident_bytes() / 1e6,
        "messages": count - options.warm_up,
    }
    await peers.end()
    await node.stop()
    await verifier.close()
    await store.close()
    return result


def _unit_s(one_check: Callable[[int], object]) -> float:
    began = time.process_time()
    one_check(UNITS_PER_SAMPLE)
    return (time.process_time() - began) / UNITS_PER_SAMPLE


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--durable", action="store_true")
    parser.add_argument("--per-reply", type=int, default=10)
    parser.add_argument("--suppliers", type=int, default=1)
    parser.add_argument("--programs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--per-round", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor", type=int)
    parser.add_argument("--peers-processor", type=int)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args()
    if options.processor is not None:
        os.sched_setaffinity(0, {options.processor})
    with tempfile.TemporaryDirectory() as folder:
        if options.profile is None:
            result = asyncio.run(run(options, Path(folder)))
        else:
            with cProfile.Profile() as profile:
                result = asyncio.run(run(options, Path(folder)))
            profile.dump_stats(options.profile)
        print(json.dumps(result))


if __name__ == "__main__":
    main()
