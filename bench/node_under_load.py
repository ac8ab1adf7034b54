"""One node alone in its process, fed by scripted peers in another: what each message costs it, and how many it takes.

A process of its own for each run, started by `whole_path.py`; the last line that it prints is its result, in JSON.
Everything that the process does while messages are on their way is counted, in all its threads.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Protocol

from bench.scripted_network import Audience, Program, ScriptedNetwork, Supplier
from bench.steps import unit
from bench.traffic import NETWORK_MAGIC, AllPools, read_messages, write_messages
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.config import NodeConfig, UnsafeOverrides
from stagepost.dmq.node.message_store import MessageStore, StoredMessage, StoredState, Written
from stagepost.dmq.node.node import DmqNode
from stagepost.dmq.node.stored_messages import SqliteStore
from stagepost.dmq.topology import AccessPoint, LocalRoot, Topology
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.loop.load import look_less_often
from stagepost.ground.net.network import Network, SocketNetwork
from stagepost.ground.signatures.verifier import Verifier

UNITS_PER_SAMPLE = 60
SHOWN_WITHIN_S = 30.0
ROOT = Path(__file__).parents[1]


class NoStore:
    """Nothing is kept: the rows without a disk measure the node alone. The twin that simulations use would count, too."""

    fault: str | None = None

    def load(self) -> StoredState:
        return StoredState()

    def write(self, records: Sequence[StoredMessage], written: Written) -> None:
        written(None)

    def forget(self, records: Sequence[StoredMessage], unix_s: float) -> None:
        return

    def reset_time(self, unix_s: float) -> None:
        return

    async def close(self) -> None:
        return


class Surroundings(Protocol):
    """Everybody with whom the node speaks."""

    network: Network
    ports: list[int]

    async def join(self, socket_path: Path) -> None:
        """The programs connect; the node runs."""
        ...

    async def supply(self, count: int) -> None:
        """Returns when that many further messages have been shown to every program."""
        ...

    async def end(self) -> None: ...


class InOtherProcess:
    """Over sockets."""

    def __init__(self, process: asyncio.subprocess.Process, ports: list[int]) -> None:
        self.network: Network = SocketNetwork()
        self.ports = ports
        self._process = process

    @classmethod
    async def start(cls, options: argparse.Namespace, messages: Path) -> InOtherProcess:
        command = ["--messages", str(messages), "--per-reply", str(options.per_reply)]
        command += ["--suppliers", str(options.suppliers), "--programs", str(options.programs)]
        if options.peers_processor is not None:
            command += ["--processor", str(options.peers_processor)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.scripted_peers", *command, cwd=ROOT, stdin=pipe, stdout=pipe
        )
        peers = cls(process, [])
        peers.ports = [int(port) for port in (await peers._answer()).split()]
        return peers

    async def join(self, socket_path: Path) -> None:
        await self._say(str(socket_path))

    async def supply(self, count: int) -> None:
        await self._say(f"supply {count}")

    async def _say(self, line: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        return await self._answer()

    async def _answer(self) -> str:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the scripted peers ended")
        return line.decode().strip()

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


class InMemory:
    """Without sockets: prepared bytes in, and nobody who reads what comes out."""

    def __init__(self, options: argparse.Namespace, messages: Path) -> None:
        held = list(read_messages(messages))
        self._per_reply = options.per_reply
        self._suppliers = [
            Supplier(_share(held, number, options), options.per_reply) for number in range(options.suppliers)
        ]
        self._audience = Audience()
        self._programs = [Program(self._audience) for _ in range(options.programs)]
        self.ports = list(range(1, options.suppliers + 1))
        self.network: Network = ScriptedNetwork(self._suppliers)

    async def join(self, socket_path: Path) -> None:
        assert isinstance(self.network, ScriptedNetwork)
        for program in self._programs:
            self.network.join(program)

    async def supply(self, count: int) -> None:
        replies, rest = divmod(count, self._per_reply * len(self._suppliers))
        assert not rest, f"{count} messages cannot be shared out evenly"
        self._audience.expect(count * len(self._programs))
        for supplier in self._suppliers:
            supplier.release(replies)
        async with asyncio.timeout(SHOWN_WITHIN_S):
            await self._audience.all_shown.wait()

    async def end(self) -> None:
        assert isinstance(self.network, ScriptedNetwork)
        await self.network.close()


def _share(messages: list[DmqMessage], number: int, options: argparse.Namespace) -> list[DmqMessage]:
    """What one of the suppliers announces: every so-manieth reply."""
    size = options.per_reply
    starts = range(number * size, len(messages), options.suppliers * size)
    return [message for start in starts for message in messages[start : start + size]]


def _disk_work(store: MessageStore) -> tuple[float, float]:
    """Return the seconds in transactions, and the number of transactions."""
    return (store.commit_s, store.counters.groups) if isinstance(store, SqliteStore) else (0.0, 0)


async def run(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    count = options.warm_up + options.rounds * options.per_round
    messages = folder / "messages"
    write_messages(messages, count)
    around: Surroundings
    if options.sockets:
        around = await InOtherProcess.start(options, messages)
    else:
        around = InMemory(options, messages)
    store = SqliteStore(folder / "messages.sqlite") if options.durable else NoStore()
    verifier = Verifier(options.processes)
    node = DmqNode(
        _config(folder, around.ports),
        network=around.network,
        clock=SystemClock(),
        store=store,
        pools=AllPools(),
        verifier=verifier,
        random=Random(1),
    )
    await node.start()
    await around.join(node.config.local_socket)
    look_less_often()
    await around.supply(options.warm_up)
    gc.collect()
    before_bytes = _resident_bytes()
    commit_s, groups = _disk_work(store)
    ratios, units, rates = await _measure(around, options, verifier)
    held = node.mempool.count
    assert held == count, f"{held} of {count} messages are held"
    measured = count - options.warm_up
    commit_s, groups = (
        after - before for after, before in zip(_disk_work(store), (commit_s, groups), strict=True)
    )
    result = {
        "ratio": median(ratios),
        "unit_us": median(units) * 1e6,
        "per_s": median(rates),
        "fsync_ms_per_message": 1e3 * commit_s / measured,
        "messages_per_fsync": measured / groups if groups else 0.0,
        "resident_mb": (_resident_bytes() - before_bytes) / 1e6,
        "messages": measured,
    }
    await around.end()
    await node.stop()
    await verifier.close()
    await store.close()
    return result


def _config(folder: Path, ports: list[int]) -> NodeConfig:
    points = tuple(AccessPoint("127.0.0.1", port) for port in ports)
    return NodeConfig(
        data_dir=folder,
        local_socket=folder / "node.socket",
        pools_file=folder / "pools.json",
        host_addresses=("127.0.0.1",),
        port=0,
        network_magic=NETWORK_MAGIC,
        peer_sharing=False,
        mempool_pool_percent=100,
        topology=Topology(local_roots=(LocalRoot(points, len(points), len(points)),)),
        unsafe=UnsafeOverrides(loopback_unlimited=True),
    )


async def _measure(
    around: Surroundings, options: argparse.Namespace, verifier: Verifier
) -> tuple[list[float], list[float], list[float]]:
    """For each round: processor time per message in units, the unit, and messages per second."""
    one_check = unit()
    ratios: list[float] = []
    units: list[float] = []
    rates: list[float] = []
    unit_before = _unit_s(one_check)
    for _ in range(options.rounds):
        began, began_cpu_s = time.perf_counter(), _cpu_s(verifier)
        await around.supply(options.per_round)
        cpu_s = (_cpu_s(verifier) - began_cpu_s) / options.per_round
        rates.append(options.per_round / (time.perf_counter() - began))
        unit_after = _unit_s(one_check)
        units.append((unit_before + unit_after) / 2)
        ratios.append(cpu_s / units[-1])
        unit_before = unit_after
    return ratios, units, rates


def _cpu_s(verifier: Verifier) -> float:
    """Of the node's process and of those that check signatures for it."""
    others = [Path(f"/proc/{process_id}/schedstat").read_text() for process_id in verifier.process_ids]
    return time.process_time() + sum([int(line.split()[0]) for line in others]) / 1e9


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
    parser.add_argument("--sockets", action="store_true")
    parser.add_argument("--per-reply", type=int, default=10)
    parser.add_argument("--suppliers", type=int, default=1)
    parser.add_argument("--programs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--per-round", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=400)
    parser.add_argument("--processes", type=int)
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
