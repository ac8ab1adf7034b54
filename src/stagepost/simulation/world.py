"""Several nodes on one simulated network, with clocks of their own, disks that survive them, and faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from stagepost.dmq.node.memory_store import MemoryDisk, MemoryStore
from stagepost.dmq.profiles import DMQ_NODE, SEED, Profile
from stagepost.errors import StagepostError
from stagepost.ground.loop.clock import Clock, LoopClock
from stagepost.ground.loop.virtual_time import VirtualTimeLoop
from stagepost.ground.net.network import Network, TcpAddress, UnixAddress
from stagepost.ground.net.version_data import NETWORK_MAGICS
from stagepost.simulation.faults import Fault, FaultKind
from stagepost.simulation.history import History, Listing, TraceHash
from stagepost.simulation.link import LinkSettings
from stagepost.simulation.network import ProcessNetwork, SimulatedNetwork
from stagepost.simulation.processes import BugWatch, Process, follow_tasks
from stagepost.simulation.programs import ProgramSeat, list_messages, listen_for_ever

START_UNIX_S = 1_800_000_000.0
NODE_PORT = 3_141
STOP_WITHIN_S = 10.0
SYNC_TIMES_S = (0.002, 0.01, 0.01, 0.01, 0.5)
"""Seconds that a disk takes to make a write durable, to choose from: mostly little, now and then long."""

NETWORK_MAGIC = NETWORK_MAGICS["mithril-devnet"]

log = logging.getLogger(__name__)


class Node(Protocol):
    """Node as a world needs it."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def status(self) -> Any: ...


class MakeNode(Protocol):
    def __call__(
        self, name: str, network: Network, clock: Clock, store: MemoryStore, random: Random
    ) -> Node: ...


@dataclass
class WorldNode:
    """Node of the world, through all its lives."""

    name: str
    host: str
    disk: MemoryDisk
    seat: ProgramSeat
    process: Process | None = None
    network: ProcessNetwork | None = None
    node: Node | None = None
    programs: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def is_up(self) -> bool:
        return self.node is not None

    @property
    def address(self) -> TcpAddress:
        return TcpAddress(self.host, NODE_PORT)


class World:
    """World in which everything comes from `seed`. Use it inside of a virtual-time loop, as `async with`."""

    def __init__(
        self,
        seed: int,
        names: Sequence[str],
        make_node: MakeNode,
        *,
        link: LinkSettings | None = None,
        clock_skew_s: Mapping[str, float] | None = None,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.trace = TraceHash()
        self.network = SimulatedNetwork(Random(f"{seed}/network"), link, self.trace)
        skews = dict(clock_skew_s or {})
        self.history = History(START_UNIX_S, max(map(abs, skews.values()), default=0.0))
        self._link = link or LinkSettings()
        self._make_node = make_node
        self._bugs = BugWatch(self.history)
        self.members = {
            name: self._member(name, f"10.0.0.{number}", skews.get(name, 0.0))
            for number, name in enumerate(names, start=1)
        }

    def _member(self, name: str, host: str, skew_s: float) -> WorldNode:
        random = Random(f"{self.seed}/{name}/disk")
        disk = MemoryDisk(lambda: random.choice(SYNC_TIMES_S) * random.random())
        seat = ProgramSeat(
            name,
            local_address(name),
            self.network.process(host),
            NETWORK_MAGIC,
            self.history,
            clock_offset_s=skew_s,
        )
        return WorldNode(name, host, disk, seat)

    async def __aenter__(self) -> World:
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualTimeLoop):
            loop.about = f"the world of seed {self.seed}"
        follow_tasks(loop)
        self._bugs.begin(loop)
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members.values():
            for program in member.programs:
                program.cancel()
            await self._end_programs(member)
            await self.stop(member.name)
        self._bugs.end()

    async def _end_programs(self, member: WorldNode) -> None:
        """Wait for the cancelled programs. A program that does not end must not keep the run from its end."""
        if not member.programs:
            return
        _, deaf = await asyncio.wait(member.programs, timeout=STOP_WITHIN_S)
        if deaf:
            text = f"{len(deaf)} programs beside {member.name} took longer than {STOP_WITHIN_S:g} s to stop"
            self.history.bugs.append(text)

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def unix_s(self) -> float:
        return START_UNIX_S + self.now_s

    def note(self, what: str) -> None:
        self.history.faults.append(f"{self.now_s:9.3f} s  {what}")
        self.trace.note(self.now_s, what)

    # Lives

    async def start_all(self) -> None:
        for name in self.members:
            await self.start(name)

    async def start(self, name: str) -> None:
        """Begin a new life of a node; do nothing if it is up."""
        member = self.members[name]
        if member.is_up:
            return
        member.seat.life += 1
        process = member.process = Process(name, member.seat.life)
        network = member.network = self.network.process(member.host)
        clock = LoopClock(member.seat.node_unix_s())
        random = Random(f"{self.seed}/{name}/{process.life}")
        store = process.call(lambda: MemoryStore(member.disk))
        node = process.call(lambda: self._make_node(name, network, clock, store, random))
        member.node = node
        self.note(f"start {name}, life {process.life}")
        await self._finish(process.run(node.start()), f"{name} did not start")

    async def start_and_check(self, name: str) -> None:
        """Start a node that nobody else can reach, and record the messages from its disk."""
        member = self.members[name]
        others = [other.host for other in self.members.values() if other.name != name]
        for other in others:
            self.network.partition(member.host, other)
        try:
            await self.start(name)
            if member.is_up:
                await self._list(member, "restart")
        finally:
            for other in others:
                self.network.heal(member.host, other)

    async def stop(self, name: str) -> None:
        """End a node in order."""
        member = self.members[name]
        node, process = member.node, member.process
        if node is None or process is None:
            return
        self.note(f"stop {name}")
        member.node = None
        stopping = process.run(node.stop())
        await asyncio.wait([stopping], timeout=STOP_WITHIN_S)
        if not stopping.done():
            self.history.bugs.append(f"{name} took longer than {STOP_WITHIN_S:g} s to stop")
        else:
            await self._finish(stopping, f"{name} did not stop in order")
            await asyncio.sleep(0)
            if process.tasks and process.is_alive:
                left = ", ".join(sorted(task.get_name() for task in process.tasks))
                self.history.bugs.append(f"{name} left tasks behind when it stopped: {left}")
        self._end(member)

    def crash(self, name: str, *, power_cut: bool = False) -> None:
        """Kill a node: unsynced writes are lost, and nobody is told."""
        member = self.members[name]
        if not member.is_up:
            return
        self.note(f"{'power cut' if power_cut else 'crash'} {name}")
        member.node = None
        self._end(member, power_cut=power_cut)

    def _end(self, member: WorldNode, *, power_cut: bool = False) -> None:
        assert member.process is not None
        assert member.network is not None
        member.disk.crash()
        member.network.crash(reset=not power_cut)
        member.process.kill()
        member.process = None

    async def _finish(self, task: asyncio.Task[Any], what: str) -> None:
        # The node's process may be killed meanwhile: then the task is cancelled, and we are not.
        await asyncio.wait([task], timeout=STOP_WITHIN_S)
        if not task.done():
            self.history.bugs.append(f"{what} within {STOP_WITHIN_S:g} s")
        elif not task.cancelled() and (error := task.exception()) is not None:
            self.history.bugs.append(f"{what}: {error!r}")

    # Programs beside the nodes

    def listen(self, name: str, profile: Profile = DMQ_NODE) -> None:
        member = self.members[name]
        number = len(member.programs)
        random = Random(f"{self.seed}/{name}/program {number}")
        member.programs.append(
            asyncio.get_running_loop().create_task(listen_for_ever(member.seat, profile, random))
        )

    async def list_all(self, why: str) -> list[Listing]:
        """Record the messages that each running node holds, and return them."""
        listings = [await self._list(member, why) for member in self.members.values() if member.is_up]
        return [listing for listing in listings if listing is not None]

    async def _list(self, member: WorldNode, why: str) -> Listing | None:
        try:
            listing = await list_messages(member.seat, why, SEED)
        except (StagepostError, TimeoutError) as error:
            if member.is_up:
                self.history.bugs.append(f"{member.name} gave no listing: {error!r}")
            return None
        self.history.listings.append(listing)
        return listing

    # Faults

    async def run_faults(self, faults: Iterable[Fault]) -> None:
        """Begin and repair each fault at its time; return when the last one is repaired."""
        steps = [(fault.at_s, 0, fault) for fault in faults] + [(fault.until_s, 1, fault) for fault in faults]
        for at_s, is_end, fault in sorted(steps, key=lambda step: step[:2]):
            await asyncio.sleep(max(0.0, at_s - self.now_s))
            if is_end:
                await self._repair(fault)
            else:
                self.note(str(fault))
                await self._break(fault)

    async def repair_everything(self) -> None:
        self.network.heal_all()
        for member in self.members.values():
            member.disk.is_full = False
            for other in self.members.values():
                if other.host < member.host:
                    self.network.set_link(member.host, other.host, self._link)
        for member in self.members.values():
            if not member.is_up:
                await self.start_and_check(member.name)
        self.note("all faults repaired")

    async def _break(self, fault: Fault) -> None:
        for one, other in self._hosts(fault):
            match fault.kind:
                case FaultKind.FLAP:
                    self.network.reset(one, other)
                case FaultKind.SLOW_LINK | FaultKind.LOSSY_LINK:
                    assert fault.link is not None
                    self.network.set_link(one, other, fault.link)
                case _:
                    self.network.partition(one, other)
        for name in fault.nodes:
            match fault.kind:
                case FaultKind.STOP:
                    await self.stop(name)
                case FaultKind.DISK_FULL:
                    self.members[name].disk.is_full = True
                case _:
                    self.crash(name, power_cut=fault.kind is FaultKind.POWER_CUT)

    async def _repair(self, fault: Fault) -> None:
        for one, other in self._hosts(fault):
            match fault.kind:
                case FaultKind.FLAP:
                    self.network.reset(one, other)
                case FaultKind.SLOW_LINK | FaultKind.LOSSY_LINK:
                    self.network.set_link(one, other, self._link)
                case _:
                    self.network.heal(one, other)
        for name in fault.nodes:
            if fault.kind is FaultKind.DISK_FULL:
                self.members[name].disk.is_full = False
            else:
                await self.start_and_check(name)

    def _hosts(self, fault: Fault) -> list[tuple[str, str]]:
        return [(self.members[one].host, self.members[other].host) for one, other in fault.pairs]


def local_address(name: str) -> UnixAddress:
    """Return the address at which a node of a world listens for programs."""
    return UnixAddress(Path(f"/simulated/{name}/node.socket"))
