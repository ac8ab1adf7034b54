"""From one session to the next on one machine: what is handed on, what goes from the disk, and what a restart finds."""

from __future__ import annotations

import asyncio

import pytest

from rigs.remp_overlay_world import SEQNO, House, OverlayWorld, message_bytes, parse
from rigs.remp_world import shard_block
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.queue.collation import ExecutedMessage, RefusedMessage
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.queue.state import MESSAGE_TIMEOUT_S
from stagepost.remp.receipts.status import Level, Status
from stagepost.validator.session_plan import SessionPlan
from stagepost.validator.session_store import BLOCKS, BODIES, SESSIONS
from stagepost.validator.sessions import LINGER_S

SETTLED_S = 2.0
NOW_MS = 1_900_000_000_000


async def two_sessions(world: OverlayWorld) -> set[bytes]:
    """Ten open messages, one that a collator refused, and the switch to a second session."""
    world.start()
    await asyncio.sleep(1.0)
    ids = {world.hand_over(message_bytes(number)) for number in range(10)}
    refused = world.hand_over(message_bytes(100))
    await asyncio.sleep(SETTLED_S)
    for house in world.houses:
        (runner,) = house.running.current.values()
        taken, effects = runner.queue.take(world.clock.unix_s(), 100)
        runner.perform(effects)
        block = shard_block(1 << 63)
        reports = [
            (
                one.message_id,
                RefusedMessage(block, "no") if one.message_id == refused else ExecutedMessage(block),
            )
            for one in taken
        ]
        runner.perform(runner.queue.collated(reports, world.clock.unix_s()))
    await asyncio.sleep(SETTLED_S)
    for house in world.houses:
        switch(world, house)
    await asyncio.sleep(SETTLED_S)
    return ids


def switch(world: OverlayWorld, house: House) -> None:
    following = second_plan(world, house)
    (first,) = house.plans
    house.plans[:] = [following]
    house.running.switch(first.session_id, [following])


def second_plan(world: OverlayWorld, house: House) -> SessionPlan:
    return world.plan_for(house.number, b"second", seqno=SEQNO + 1)


def open_ids(house: House) -> set[bytes]:
    (runner,) = house.running.current.values()
    return {
        cached.message_id
        for cached in runner.queue.entries()
        if cached.status.status in (Status.NEW, Status.IGNORED) and cached.body is not None
    }


def test_open_messages_go_on_and_refused_ones_stay_refused() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        ids = await two_sessions(world)
        refused = parse(message_bytes(100)).message_id
        for house in world.houses:
            assert open_ids(house) == ids
            (runner,) = house.running.current.values()
            assert runner.plan.masterchain_seqno == SEQNO + 1
            assert refused not in open_ids(house)
        taken, _ = runner.queue.take(world.clock.unix_s(), 100)
        assert {one.message_id for one in taken} == ids

    run_in_virtual_time(main())


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_during_the_switch_loses_nothing(seed: int) -> None:
    async def main() -> None:
        world = OverlayWorld(4, seed)
        world.start()
        await asyncio.sleep(1.0)
        ids = {world.hand_over(message_bytes(number)) for number in range(10)}
        await asyncio.sleep(SETTLED_S)
        victim = world.random.choice(world.houses)
        for house in world.houses:
            switch(world, house)
            if house is victim:
                await asyncio.sleep(world.random.uniform(0, 0.01))
                house.crash()
                asyncio.get_running_loop().call_later(0.3, house.start)
        await asyncio.sleep(10.0)
        for house in world.houses:
            assert open_ids(house) == ids

    run_in_virtual_time(main())


def test_after_a_restart_forwarded_messages_have_their_bodies_even_if_everybody_crashed() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        ids = await two_sessions(world)
        for house in world.houses:
            house.crash()
        for house in world.houses:
            house.start()
        await asyncio.sleep(SETTLED_S)
        for house in world.houses:
            assert open_ids(house) == ids

    run_in_virtual_time(main())


def test_a_session_leaves_the_disk_when_its_messages_have_expired_and_not_before() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        await two_sessions(world)
        house = world.houses[0]
        first, second = world.plan_for(0).session_id, second_plan(world, house).session_id

        async def kept() -> set[bytes]:
            await asyncio.sleep(SETTLED_S)
            held = house.disk.synced
            of_rows = {row.session_id for table in (BLOCKS, BODIES) for row in held[table.name].values()}
            assert set(held[SESSIONS.name]) == of_rows
            return of_rows

        assert await kept() == {first, second}
        house.running.master_advanced(SEQNO + 1, NOW_MS)
        assert await kept() == {first, second}
        await asyncio.sleep(LINGER_S)
        house.running.master_advanced(SEQNO + 2, NOW_MS)
        assert await kept() == {second}
        # The session at work stays, however old.
        house.running.master_advanced(SEQNO + 9, NOW_MS)
        assert await kept() == {second}

    run_in_virtual_time(main())


def test_what_expires_is_told_and_closed() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        ids = await two_sessions(world)
        for house in world.houses:
            collected = house.running.master_advanced(SEQNO + 2, NOW_MS)
            assert {cached.message_id for cached in collected.messages} >= ids
        await asyncio.sleep(SETTLED_S)
        for message_id in ids:
            kinds = world.kinds_of(message_id)
            assert [kinds[house.key_id][-1] for house in world.houses] == ["Timeout"] * 4

    run_in_virtual_time(main())


def test_messages_go_to_the_session_of_their_shard_and_a_split_parts_them() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        world.start()
        await asyncio.sleep(1.0)
        ids = {world.hand_over(message_bytes(number)) for number in range(20)}
        await asyncio.sleep(SETTLED_S)
        halves = Shard(0, 1 << 63).children
        for house in world.houses:
            plans = [
                world.plan_for(house.number, b"half %d" % number, seqno=SEQNO + 1, shard=shard)
                for number, shard in enumerate(halves)
            ]
            house.running.switch(house.plans[0].session_id, plans)
        late = {world.hand_over(message_bytes(number)) for number in range(20, 40)}
        await asyncio.sleep(SETTLED_S)
        for house in world.houses:
            found: set[bytes] = set()
            for runner in house.running.current.values():
                for cached in runner.queue.entries():
                    assert runner.plan.shard.holds(cached.header.workchain, cached.header.account)
                    found.add(cached.message_id)
            assert found == ids | late
        elsewhere = parse(b"\0\0\0\7" + message_bytes(1)[4:])
        assert world.houses[0].running._runner_for(elsewhere.workchain, elsewhere.account) is None

    run_in_virtual_time(main())


def test_a_message_without_a_session_for_it_is_counted_and_dropped() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        for house in world.houses:
            house.start()
        world.hand_over(message_bytes(1))
        await asyncio.sleep(1.0)
        assert sum(house.running.counters.without_session for house in world.houses) > 0

    run_in_virtual_time(main())


def test_levels_of_what_comes_back_say_how_far_it_was() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        ids = await two_sessions(world)
        for message_id in ids:
            kinds = world.kinds_of(message_id)
            for house in world.houses:
                told = kinds[house.key_id]
                assert told[:2] == ["PutIntoQueue", "IncludedIntoBlock"]
                assert told[-2:] == [f"IgnoredBy{Level.SHARDCHAIN.name.capitalize()}", "PutIntoQueue"]

    run_in_virtual_time(main())


def test_what_comes_to_a_session_that_is_over_is_handed_on_to_the_one_that_follows() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        world.start()
        await asyncio.sleep(1.0)
        for house in world.houses[1:]:
            switch(world, house)
        # The last one has not heard of the switch yet; nobody but it is told of the message.
        slow = world.houses[0]
        message = parse(message_bytes(7))
        (runner,) = slow.running.current.values()
        runner.offer(message, world.full_node.source_id)
        await asyncio.sleep(SETTLED_S)
        switch(world, slow)
        await asyncio.sleep(SETTLED_S)
        for house in world.houses:
            assert open_ids(house) == {message.message_id}

    run_in_virtual_time(main())


def test_a_session_that_is_over_is_left_after_its_time_and_every_message_of_it_comes_to_an_end() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        world.start()
        await asyncio.sleep(1.0)
        message_id = world.hand_over(message_bytes(3))
        await asyncio.sleep(SETTLED_S)
        for house in world.houses:
            (first,) = house.plans
            house.running.switch(first.session_id, [])  # none of them validates what follows
        await asyncio.sleep(LINGER_S - 1.0)
        assert all(len(house.running.sessions) == 1 for house in world.houses)
        await asyncio.sleep(2.0)
        assert all(not house.running.sessions for house in world.houses)
        await asyncio.sleep(MESSAGE_TIMEOUT_S)
        kinds = world.kinds_of(message_id)
        assert [kinds[house.key_id][-1] for house in world.houses] == ["Timeout"] * 4

    run_in_virtual_time(main())
