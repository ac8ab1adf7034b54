"""A receipt never overtakes an earlier one of the same message, however slow the disk is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from rigs.remp_overlay_world import OverlayWorld, message_bytes, parse
from stagepost.full_node.staged_sending import CATCHAINS_KEPT, StagedSending
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.shard import BlockId

BLOCK = BlockId(0, 1 << 63, 1, b"r" * 32, b"f" * 32)
SLOW_S = 0.3


def in_world(scenario: Callable[[OverlayWorld], None], size: int = 1) -> None:
    async def main() -> None:
        world = OverlayWorld(size, 1)
        for house in world.houses:
            house.disk.sync_s = lambda: SLOW_S
        world.start()
        await asyncio.sleep(2.0)
        scenario(world)
        await asyncio.sleep(5.0)
        for house in world.houses:
            await house.running.close()

    run_in_virtual_time(main())


def test_what_follows_waits_for_the_first_receipt_of_its_message_and_others_do_not() -> None:
    told: list[tuple[bytes, str]] = []

    def scenario(world: OverlayWorld) -> None:
        (house,) = world.houses

        def tell(full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
            told.extend(
                (one.message_id, one.kind.name) for one in CombinedReceipt.decode(combined_receipt).receipts
            )
            return True

        house.running.receipts._links.tell = tell  # type: ignore[method-assign]  # what leaves is looked at here
        (runner,) = house.running.sessions.values()
        first = parse(message_bytes(1))
        runner.offer(first, world.full_node.source_id)
        runner.perform(runner.queue.shard_committed(BLOCK, [first.message_id], world.clock.unix_s()))
        assert told == []

    in_world(scenario)
    message_id = parse(message_bytes(1)).message_id
    assert told == [(message_id, "PutIntoQueue"), (message_id, "IncludedIntoAcceptedBlock")]


def test_a_session_that_begins_while_we_run_need_not_be_listened_to_first() -> None:
    def scenario(world: OverlayWorld) -> None:
        (house,) = world.houses
        fresh = house.running.begin_session(world.plan_for(0, b"second"), is_fresh=True)
        other = house.running.begin_session(world.plan_for(0, b"third"))
        assert fresh.member.options.start_wait_s == 0
        assert other.member.options.start_wait_s == world.options.member.start_wait_s
        # What we know of it from an earlier life says that others may know something of us, too.
        house.running.end_session(fresh.plan.session_id)
        again = house.running.begin_session(world.plan_for(0, b"second"), is_fresh=True)
        assert again.member.options.start_wait_s == world.options.member.start_wait_s

    in_world(scenario)


def test_a_message_that_an_earlier_life_handed_over_is_followed_and_told_to_nobody() -> None:
    sending = StagedSending(Random(1))
    sending.follow(b"m" * 32, [b"v" * 32], 10, 0.0)
    assert b"m" * 32 in sending
    assert sending.next_wake is None
    assert sending.tick(100.0) == []
    assert sending.master_advanced(10 + CATCHAINS_KEPT - 1) == []
    assert sending.master_advanced(10 + CATCHAINS_KEPT) == [b"m" * 32]
