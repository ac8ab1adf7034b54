"""Messages that come before their session begins: kept within bounds, answered when it begins, and by nobody else."""

from __future__ import annotations

import asyncio

import msgspec

from rigs.remp_overlay_world import SEQNO, OverlayWorld, message_bytes, parse
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.records import UNSIGNED
from stagepost.validator.held_messages import (
    EARLY_BYTES_MAX,
    EARLY_COUNT_MAX,
    EARLY_KEPT_S,
    EarlyMessage,
    EarlyMessages,
)

NODE, OTHER = b"n" * 32, b"o" * 32


def everything(message: ExternalMessage) -> bool:
    return True


def numbered(number: int, size: int = 0) -> ExternalMessage:
    message = parse(message_bytes(number))
    return msgspec.structs.replace(message, body=bytes(size)) if size else message


def early(message: ExternalMessage, full_node: bytes) -> EarlyMessage:
    return EarlyMessage(message, full_node, UNSIGNED, SEQNO, 0.0)


def ids_in(kept: EarlyMessages, now: float = 0.0) -> list[bytes]:
    return [one.message.message_id for one in kept.take(everything, now)]


def test_members_of_a_coming_session_keep_messages_and_answer_when_it_begins() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        for house in world.houses:
            house.start()
            house.running.serves_soon = everything
        ids = [world.hand_over(message_bytes(number)) for number in range(3)]
        await asyncio.sleep(5.0)
        assert world.receipts == [] or {one.kind.name for one in world.receipts} == {"SentToValidators"}
        assert all(house.running.counters.early for house in world.houses)
        for house in world.houses:
            house.begin(world.plan_for(house.number))
        # The next round of sending is a while away: they answer for what they kept.
        await asyncio.sleep(1.0)
        for message_id in ids:
            kinds = world.kinds_of(message_id)
            assert kinds.pop(world.full_node.source_id) == ["SentToValidators"]
            assert list(kinds.values()) == [["PutIntoQueue"]] * 4
        assert world.malformed == []

    run_in_virtual_time(main())


def test_a_message_lives_from_the_catchain_under_which_it_came_and_is_not_put_into_a_queue_when_it_is_over() -> (
    None
):
    for later, kinds in ((1, ["PutIntoQueue"]), (2, [])):

        async def main(later: int = later, kinds: list[str] = kinds) -> None:
            world = OverlayWorld(1, 1)
            (house,) = world.houses
            house.start()
            house.running.master_advanced(SEQNO, 0)
            house.running.serves_soon = everything
            message_id = world.hand_over(message_bytes(1))
            await asyncio.sleep(1.0)
            world.full_node.close()
            house.begin(world.plan_for(0, seqno=SEQNO + later))
            await asyncio.sleep(1.0)
            assert world.kinds_of(message_id)[house.key_id] == kinds
            found = house.running.cache.get(message_id)
            assert (found is not None) == bool(kinds)
            assert found is None or found.header.masterchain_seqno == SEQNO

        run_in_virtual_time(main())


def test_a_previous_member_takes_messages_for_the_session_that_followed() -> None:
    async def main() -> None:
        world = OverlayWorld(5, 1)
        world.start()
        await asyncio.sleep(1.0)
        for house in world.houses:
            plan = world.plan_for(house.number, b"second")
            current = frozenset(range(4))
            house.running.switch(house.plans[0].session_id, [msgspec.structs.replace(plan, current=current)])
        previous = world.houses[4].running
        before = previous.counters.without_session
        message_id = world.hand_over(message_bytes(1))
        frame = world.full_node._records[message_id].frame
        assert frame is not None
        previous.message_came(world.full_node.source_id, frame)
        await asyncio.sleep(1.0)
        assert previous.counters.without_session == before
        assert world.kinds_of(message_id)[world.houses[4].key_id] == ["PutIntoQueue"]

    run_in_virtual_time(main())


def test_so_many_messages_of_a_full_node_are_kept_and_no_more() -> None:
    kept = EarlyMessages(2)
    for number in range(EARLY_COUNT_MAX + 1):
        kept.put(early(numbered(number), NODE))
    kept.put(early(numbered(0), OTHER))
    assert len(kept) == EARLY_COUNT_MAX + 1
    found = ids_in(kept)
    assert found.count(numbered(0).message_id) == 1, "the oldest of the one is gone, that of the other is not"
    assert len(kept) == 0


def test_so_many_bytes_of_a_full_node_are_kept_and_no_more() -> None:
    kept = EarlyMessages(1)
    for number in range(3):
        kept.put(early(numbered(number, EARLY_BYTES_MAX // 2), NODE))
    assert ids_in(kept) == [numbered(1).message_id, numbered(2).message_id]


def test_so_many_full_nodes_have_messages_kept_and_no_more() -> None:
    kept = EarlyMessages(1)
    kept.put(early(numbered(1), NODE))
    kept.put(early(numbered(2), OTHER))
    assert ids_in(kept) == [numbered(1).message_id]
    kept.put(early(numbered(2), OTHER))
    assert len(kept) == 1


def test_a_message_is_kept_once_for_its_shard_and_for_so_long() -> None:
    kept = EarlyMessages(2)
    for _ in range(2):
        kept.put(early(numbered(1), NODE))
    assert kept.take(lambda message: False, EARLY_KEPT_S) == []
    assert len(kept) == 1
    assert ids_in(kept, EARLY_KEPT_S + 0.1) == []
    assert len(kept) == 0
