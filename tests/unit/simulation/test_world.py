"""A world of nodes without peers: lives, crashes, disks and clocks work, and a run can be repeated."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from stagepost.dmq.mempool import Mempool
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.local_service import LocalService
from stagepost.dmq.node.memory_store import MemoryStore
from stagepost.dmq.node.mempool_feed import MempoolFeed
from stagepost.dmq.profiles import PROFILES, SEED
from stagepost.dmq.validation import MessageValidator, rules_for
from stagepost.ground.loop.clock import Clock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.network import Listener, Network
from stagepost.ground.net.version_data import VersionData
from stagepost.ground.signatures.verifier import InlineVerifier
from stagepost.simulation.checkers import SAFETY, judge
from stagepost.simulation.faults import FaultKind, fault_schedule
from stagepost.simulation.history import Made
from stagepost.simulation.pools import SimulatedPools
from stagepost.simulation.programs import submit
from stagepost.simulation.traffic import Shares, Traffic
from stagepost.simulation.world import NETWORK_MAGIC, World, local_address

POOLS = SimulatedPools(3)


class LonelyNode:
    """The production intake and local service, and no peers."""

    def __init__(self, name: str, network: Network, clock: Clock, store: MemoryStore, random: Random) -> None:
        self._name = name
        self._network = network
        self._store = store
        self._mempool = Mempool()
        self._intake = Intake(
            MessageValidator(rules_for(NETWORK_MAGIC), POOLS),
            self._mempool,
            store,
            clock,
            verifier=InlineVerifier(),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._listener: Listener | None = None

    async def start(self) -> None:
        self._intake.restore()
        service = LocalService(
            intake=self._intake,
            profiles=tuple(PROFILES.values()),
            ours=VersionData(NETWORK_MAGIC),
            make_feed=lambda profile: MempoolFeed(self._mempool, self._intake.bell, profile.message_layouts),
            allowed_user_ids=frozenset(),
        )
        self._listener = await self._network.serve(local_address(self._name), service.serve)
        self._tasks.append(asyncio.get_running_loop().create_task(self._intake.expire_loop()))

    async def stop(self) -> None:
        assert self._listener is not None
        await self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._intake.close()
        await self._store.close()

    def status(self) -> dict[str, Any]:
        return {"mempool": self._mempool.count}


def a_run(seed: int, shares: Shares | None = None) -> World:
    async def main() -> World:
        random = Random(seed)
        names = ["alone", "lonely"]
        world = World(seed, names, LonelyNode, clock_skew_s={"alone": 3.0})
        traffic = Traffic(
            world, POOLS, Random(f"{seed}/traffic"), shares or Shares(replay=0.3, old_layout=0.1)
        )
        kinds = (FaultKind.CRASH, FaultKind.POWER_CUT, FaultKind.STOP, FaultKind.DISK_FULL)
        async with world:
            await world.start_all()
            for name in names:
                world.listen(name, SEED)
                world.listen(name)
            sending = traffic.begin(60, 40.0)
            await world.run_faults(fault_schedule(random, names, 40.0, 12, kinds))
            await sending
            await traffic.settle()
            await world.repair_everything()
            await asyncio.sleep(60)
            await world.list_all("final")
            await asyncio.sleep(10)
            world.history.ended_at_s = world.now_s
        return world

    return run_in_virtual_time(main())


@pytest.mark.parametrize("seed", range(8))
def test_nodes_that_crash_and_restart_break_no_safety_rule(seed: int) -> None:
    world = a_run(seed)

    assert judge(world.history, SAFETY) == []
    assert sum(bool(answer.accepted) for answer in world.history.answers) > 10
    assert any(listing.why == "restart" for listing in world.history.listings)


def test_the_same_seed_is_the_same_run() -> None:
    assert a_run(3).trace.hexdigest() == a_run(3).trace.hexdigest()
    assert a_run(3).trace.hexdigest() != a_run(4).trace.hexdigest()


def test_a_crash_ends_every_task_of_the_node_and_no_other() -> None:
    async def main() -> None:
        world = World(1, ["one", "two"], LonelyNode)
        async with world:
            await world.start_all()
            for name in world.members:
                world.listen(name)
            await asyncio.sleep(1)
            first, second = (member.process for member in world.members.values())
            assert first is not None
            assert second is not None
            assert first.tasks
            world.crash("one")
            await asyncio.sleep(1)
            assert not first.tasks
            assert second.tasks
            assert not world.members["one"].is_up
            closed = [cursor for cursor in world.history.cursors if cursor.closed_at_s is not None]
            assert [cursor.node for cursor in closed] == ["one"]

    run_in_virtual_time(main())


def test_an_unsynced_write_is_lost_in_a_crash_and_was_never_accepted() -> None:
    async def main() -> World:
        world = World(1, ["one"], LonelyNode)
        traffic = Traffic(world, POOLS, Random(1), Shares(0, 0))
        async with world:
            await world.start_all()
            world.members["one"].disk.sync_s = lambda: 5.0
            submission = traffic.submit_at("one", traffic.an_honest_message(900))
            await asyncio.sleep(1)
            world.crash("one")
            assert (await submission).accepted is None
            await world.start_and_check("one")
            assert world.history.listings[-1].raws == ()
        return world

    run_in_virtual_time(main())


def test_clocks_of_nodes_differ_as_told() -> None:
    async def main() -> None:
        world = World(1, ["ahead"], LonelyNode, clock_skew_s={"ahead": 4.0})
        async with world:
            await world.start_all()
            message = POOLS.members[0].message(bytes(100), int(world.unix_s) - 3)
            world.history.made[message.raw] = Made(message.expires_at)
            answer = await submit(world.members["ahead"].seat, message)
            assert answer.accepted is False
            assert answer.node_unix_s == pytest.approx(world.unix_s + 4.0, abs=0.01)

    run_in_virtual_time(main())


class ForgetfulNode(LonelyNode):
    """Leaves a task behind, raises where nobody looks, and logs an error."""

    async def start(self) -> None:
        await super().start()
        self.left = asyncio.get_running_loop().create_task(asyncio.sleep(1_000), name="left behind")
        asyncio.get_running_loop().call_later(1, self._fail)
        logging.getLogger("stagepost.node").error("something is wrong")

    def _fail(self) -> None:
        raise ZeroDivisionError


def test_what_a_node_should_never_report_is_noticed() -> None:
    async def main() -> World:
        world = World(1, ["one"], ForgetfulNode)
        async with world:
            await world.start_all()
            await asyncio.sleep(2)
        return world

    bugs = "\n".join(run_in_virtual_time(main()).history.bugs)

    assert "left tasks behind when it stopped: left behind" in bugs
    assert "ZeroDivisionError" in bugs
    assert "logged an error: something is wrong" in bugs


class NeverReadyNode(LonelyNode):
    """Waits at its start for what never happens."""

    async def start(self) -> None:
        await super().start()
        await asyncio.Event().wait()


def test_a_node_that_does_not_start_is_noticed_and_keeps_nobody_waiting() -> None:
    async def main() -> World:
        world = World(1, ["one"], NeverReadyNode)
        async with world:
            await world.start_all()
        return world

    assert "one did not start within 10 s" in run_in_virtual_time(main()).history.bugs


def test_a_program_that_does_not_end_is_noticed_and_keeps_nobody_waiting() -> None:
    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if asyncio.get_running_loop().time() > 100:
                    raise

    async def main() -> World:
        world = World(1, ["one"], LonelyNode)
        async with world:
            await world.start_all()
            program = asyncio.get_running_loop().create_task(deaf())
            world.members["one"].programs.append(program)
            await asyncio.sleep(1)
        await asyncio.sleep(100)
        program.cancel()
        return world

    bugs = run_in_virtual_time(main()).history.bugs

    assert "1 programs beside one took longer than 10 s to stop" in bugs
