"""Validators in one session upon links in memory and simulated disks: what is told, kept, asked for and refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from rigs.catchain_keys import seed_of
from rigs.remp_overlay_world import FULL_NODE_SEED, House, OverlayWorld, message_bytes, parse
from stagepost.catchain.effects import BlameReport, Halt, RecoveryReport
from stagepost.catchain.quorum_watch import REPORT_WITHIN_S, QuorumReport
from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.message import MessageBody, MessageQuery, RempMessage
from stagepost.remp.queue.effects import AskForBody, Introduce, Tell
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, Duplicate, Ignored, MessageStatus, New
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from stagepost.validator import held_messages as held_back
from stagepost.validator import receipts as lanes
from stagepost.validator.held_messages import (
    EARLY_BYTES_MAX,
    EARLY_COUNT_MAX,
    HOLD_BACK_MAX_S,
    HOLD_BACK_S,
    LAGS_WAITED,
    EarlyBodies,
)
from stagepost.validator.receipts import ReceiptSender
from stagepost.validator.session_runner import SessionRunner

SESSION_ID = bytes([7]) * 32
STARTED_S = 1.0
SETTLED_S = 2.0


def in_world(
    act: Callable[[OverlayWorld], Coroutine[Any, Any, None]], size: int = 4, seed: int = 1, **settings: Any
) -> OverlayWorld:
    """Runs `act` once all have started."""

    async def main() -> OverlayWorld:
        world = OverlayWorld(size, seed, **settings)
        world.start()
        await asyncio.sleep(STARTED_S)
        world.counts.clear()
        await act(world)
        return world

    return run_in_virtual_time(main())


def runner_of(house: House) -> SessionRunner:
    (runner,) = house.running.sessions.values()
    return runner


def check_nobody_is_blamed(world: OverlayWorld) -> None:
    for house in world.houses:
        assert not [event for event in house.events if isinstance(event, BlameReport | Halt)]
    assert world.malformed == []
    assert world.wires.refused == []


def check_all_know(world: OverlayWorld, message_ids: set[bytes]) -> None:
    for house in world.houses:
        queue = runner_of(house).queue
        assert queue.known_ids == message_ids
        assert {one.message_id for one in queue.entries() if one.body is not None} == message_ids


def check_all_have_the_hand_over(world: OverlayWorld, message_id: bytes) -> None:
    for house in world.houses:
        (header,) = (one.header for one in runner_of(house).queue.entries() if one.message_id == message_id)
        assert header.source_key_id == world.full_node.source_id
        shown = RempMessage(b"", message_id, header.hand_over.at_ms, header.hand_over.signature)
        assert shown.is_signed_by(world.full_node.public_key)


# Messages and receipts


@pytest.mark.parametrize("size", [1, 4, 7])
def test_a_message_told_to_a_few_is_known_to_all_and_each_gives_one_receipt(size: int) -> None:
    async def act(world: OverlayWorld) -> None:
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(SETTLED_S)
        check_all_know(world, {message_id})
        kinds = world.kinds_of(message_id)
        assert kinds.pop(world.full_node.source_id) == ["SentToValidators"]
        assert list(kinds.values()) == [["PutIntoQueue"]] * size
        assert world.counts["message to a validator"] <= size // 3 + 1
        check_nobody_is_blamed(world)

    in_world(act, size)


def test_every_validator_can_check_that_the_full_node_handed_the_message_over() -> None:
    async def act(world: OverlayWorld) -> None:
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(SETTLED_S)
        check_all_have_the_hand_over(world, message_id)

    in_world(act)


def test_receipts_come_without_any_period_of_polling_between() -> None:
    """Links take 1 ms, a write at most 4: two writes and three ways."""

    async def act(world: OverlayWorld) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        message_id = world.hand_over(message_bytes(1))
        while len(world.kinds_of(message_id)) < 8:
            assert loop.time() - began < 0.02
            await asyncio.sleep(0.0005)

    in_world(act, 7, delay_s=(0.001, 0.001))


def test_a_new_message_crosses_links_two_to_three_times_for_each_validator_and_not_each_for_each() -> None:
    async def act(world: OverlayWorld) -> None:
        for number in range(20):
            world.hand_over(message_bytes(number))
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLED_S)
        kinds = ("message to a validator", "Header", "body")
        assert sum(world.counts[kind] for kind in kinds) <= 3 * 13 * 20

    in_world(act, 13)


def test_what_another_is_about_to_announce_is_not_announced_again() -> None:
    async def act(world: OverlayWorld) -> None:
        first, second = world.houses[:2]
        data = message_bytes(1)
        world.hand_over(data)
        await asyncio.sleep(SETTLED_S)
        one = parse(message_bytes(2))
        world.counts.clear()
        runner_of(first).offer(one, world.full_node.source_id)
        await asyncio.sleep(0)
        runner_of(second).pushed(0, MessageBody(one.body).encode())
        runner_of(second).offer(one, world.full_node.source_id)
        assert runner_of(second).counters.held_back == 1
        await asyncio.sleep(SETTLED_S)
        assert world.counts["Header"] == 3
        assert world.counts["body"] == 3
        assert one.message_id in runner_of(second).queue

    in_world(act, delay_s=(0.001, 0.001))


def test_who_broadcasts_and_never_announces_delays_a_message_for_a_moment_only() -> None:
    async def act(world: OverlayWorld) -> None:
        house = world.houses[0]
        one = parse(message_bytes(1))
        runner_of(house).pushed(2, MessageBody(one.body).encode())
        runner_of(house).offer(one, world.full_node.source_id)
        await asyncio.sleep(HOLD_BACK_S - 0.01)
        assert one.message_id not in runner_of(house).queue
        await asyncio.sleep(SETTLED_S)
        check_all_know(world, {one.message_id})

    in_world(act)


def test_where_announcements_are_slow_a_message_is_held_back_for_longer_within_a_limit() -> None:
    async def act(world: OverlayWorld) -> None:
        runner = runner_of(world.houses[0])
        assert runner._held_back.seconds == HOLD_BACK_S
        for number in range(40):
            one = parse(message_bytes(number))
            runner.pushed(1, MessageBody(one.body).encode())
            await asyncio.sleep(0.3)
            runner_of(world.houses[1]).offer(one, world.full_node.source_id)
            await asyncio.sleep(0.1)
        assert 0.3 * LAGS_WAITED < runner._held_back.seconds < HOLD_BACK_MAX_S
        runner._held_back.note_lag(600.0)
        assert runner._held_back.seconds == HOLD_BACK_MAX_S

    in_world(act)


def test_held_back_messages_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_back, "HELD_BACK_MAX", 1)

    async def act(world: OverlayWorld) -> None:
        runner = runner_of(world.houses[0])
        one, two = parse(message_bytes(1)), parse(message_bytes(2))
        for message in (one, two):
            runner.pushed(2, MessageBody(message.body).encode())
            runner.offer(message, world.full_node.source_id)
        assert runner.counters.held_back == 1
        assert two.message_id in runner.queue
        assert one.message_id not in runner.queue

    in_world(act)


@pytest.mark.parametrize("seed", range(4))
def test_lost_frames_delay_and_do_not_lose(seed: int) -> None:
    async def act(world: OverlayWorld) -> None:
        ids = set()
        for number in range(10):
            ids.add(world.hand_over(message_bytes(number)))
            await asyncio.sleep(0.05)
        await asyncio.sleep(10.0)
        world.wires.loss = 0.0
        await asyncio.sleep(10.0)
        check_all_know(world, ids)
        check_nobody_is_blamed(world)

    in_world(act, 7, seed, loss=0.3)


def test_receipts_wait_for_a_full_node_that_is_away() -> None:
    async def act(world: OverlayWorld) -> None:
        world.is_full_node_linked = False
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(SETTLED_S)
        assert [kind for kind in world.kinds_of(message_id).values() if kind == ["PutIntoQueue"]] == []
        world.is_full_node_linked = True
        for house in world.houses:
            house.running.full_node_linked(world.full_node.source_id)
        await asyncio.sleep(0.1)
        assert len(world.kinds_of(message_id)) == 5

    in_world(act)


def test_later_receipts_of_a_message_have_later_dates() -> None:
    async def act(world: OverlayWorld) -> None:
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(SETTLED_S)
        house = world.houses[0]
        back = [
            Tell(world.full_node.source_id, message_id, Ignored(Level.COLLATOR)),
            Tell(world.full_node.source_id, message_id, New()),
        ]
        house.running.receipts.tell(SESSION_ID, back)
        house.running.receipts.tell(SESSION_ID, back)
        await asyncio.sleep(0.1)
        dates = [receipt.timestamp_ms for receipt in world.receipts if receipt.source_id == house.key_id]
        assert len(dates) == 5
        assert all(before < after for before, after in pairwise(dates))

    in_world(act)


def test_dates_are_remembered_of_so_many_messages_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LANES_MAX", 2)

    async def act(world: OverlayWorld) -> None:
        validator = world.houses[0].running
        for number in (1, 2, 1, 3):
            validator.receipts.tell(
                SESSION_ID, [Tell(world.full_node.source_id, bytes([number]) * 32, New())]
            )
        remembered = validator.statements.lanes
        assert [number for number in range(1, 4) if remembered[bytes([number]) * 32]] == [1, 3]

    in_world(act)


def overheard(
    world: OverlayWorld, monkeypatch: pytest.MonkeyPatch
) -> tuple[ReceiptSender, list[tuple[bytes, Receipt]]]:
    """How a validator gives receipts, and the list to which they go, each beside its full node."""
    receipts = world.houses[0].running.receipts
    spoken: list[tuple[bytes, Receipt]] = []
    monkeypatch.setattr(receipts, "repeat", spoken.extend)
    return receipts, spoken


def heard_by(spoken: list[tuple[bytes, Receipt]], full_node: bytes) -> list[str]:
    return [receipt.kind.name for who, receipt in spoken if who == full_node]


def test_a_full_node_that_comes_later_hears_the_same_receipts_and_nobody_hears_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those that are told in one go, as happens while the message is on its way to the disk."""

    async def act(world: OverlayWorld) -> None:
        receipts, spoken = overheard(world, monkeypatch)
        first, later, last = (bytes([number]) * 32 for number in (7, 8, 9))
        one, block = bytes([1]) * 32, BlockId(seqno=3)
        included = Accepted(Level.COLLATOR, block)
        receipts.tell(SESSION_ID, [Tell(first, one, New()), Tell(first, one, included)])
        await asyncio.sleep(0.1)
        receipts.tell(SESSION_ID, [Introduce(later, one, (New(), included))])
        accepted = Accepted(Level.SHARDCHAIN, block)
        receipts.tell(
            SESSION_ID,
            [
                *(Tell(who, one, accepted) for who in (first, later)),
                Introduce(last, one, (New(), accepted)),
                *(
                    Tell(who, one, status)
                    for status in (Ignored(Level.MASTERCHAIN, block), New())
                    for who in (first, later, last)
                ),
            ],
        )
        await asyncio.sleep(0.1)
        names = ["PutIntoQueue", "IncludedIntoBlock", "IncludedIntoAcceptedBlock", "IgnoredByMasterchain"]
        for who in (first, later, last):
            assert heard_by(spoken, who) == [*names, "PutIntoQueue"]
        assert len({receipt.timestamp_ms for _, receipt in spoken}) == 5, "each was made once"
        assert receipts.signed == 5

    in_world(act)


@pytest.mark.parametrize(
    ("now", "kinds"),
    [
        (Accepted(Level.SHARDCHAIN, BlockId(seqno=3)), ["Duplicate", "IncludedIntoAcceptedBlock"]),
        (Duplicate(BlockId(seqno=3)), ["Duplicate"]),
        (New(), ["Duplicate"]),
    ],
)
def test_who_comes_later_hears_where_it_stands_now_if_that_follows(
    monkeypatch: pytest.MonkeyPatch, now: MessageStatus, kinds: list[str]
) -> None:
    """The chain may have gone on while we were away, and nothing was said of it."""

    async def act(world: OverlayWorld) -> None:
        receipts, spoken = overheard(world, monkeypatch)
        one, first, later = (bytes([number]) * 32 for number in (1, 7, 8))
        receipts.tell(SESSION_ID, [Tell(first, one, Duplicate(BlockId(seqno=3)))])
        receipts.tell(SESSION_ID, [Introduce(later, one, (now,))])
        await asyncio.sleep(0.1)
        assert heard_by(spoken, later) == kinds

    in_world(act)


# What is refused


def test_a_message_under_a_wrong_id_or_without_its_full_nodes_signature_is_refused_by_name() -> None:
    async def act(world: OverlayWorld) -> None:
        validator = world.houses[0].running
        source = world.full_node.source_id
        data = message_bytes(1)
        good = RempMessage(data, parse(data).message_id, 1).sign(FULL_NODE_SEED)
        wrong_id = msgspec.structs.replace(good, message_id=bytes(32))
        with pytest.raises(DecodeError, match="under the id") as caught:
            validator.message_came(source, wrong_id.encode())
        assert caught.value.code is ErrorCode.MSG_BAD_ID
        others = RempMessage(data, parse(data).message_id, 1).sign(seed_of(1))
        for wrong in (others, msgspec.structs.replace(good, signature=b"")):
            with pytest.raises(DecodeError, match="not signed by"):
                validator.message_came(source, wrong.encode())
        with pytest.raises(DecodeError, match="unknown full node"):
            validator.message_came(bytes(32), good.encode())
        with pytest.raises(DecodeError):
            validator.message_came(source, good.encode()[:-1])
        assert validator.counters.refused.total() == 5
        validator.message_came(source, good.encode())
        assert good.message_id in runner_of(world.houses[0]).queue

    in_world(act)


def test_forged_and_misdirected_receipts_do_not_count() -> None:
    async def act(world: OverlayWorld) -> None:
        node = world.full_node
        message_id = ExternalMessageId(parse(message_bytes(1)).message_id)
        for house in world.houses:
            world.wires.cut.add(house.number)
        world.hand_over(message_bytes(1))
        first, second = world.houses[:2]
        genuine = Receipt(message_id, New(), int(world.clock.unix_s() * 1_000), first.key_id).sign(seed_of(0))
        altered = msgspec.structs.replace(genuine, timestamp_ms=genuine.timestamp_ms + 1)
        unsigned = msgspec.structs.replace(genuine, signature_text="")
        future = Receipt(message_id, New(), genuine.timestamp_ms + 10**6, first.key_id).sign(seed_of(0))
        for one in (altered, unsigned, future):
            node.receipts_came(first.key_id, CombinedReceipt(first.key_id, (one,)).encode())
        assert set(node.counters.quarantined) == {
            ErrorCode.RECEIPT_SIGNATURE,
            ErrorCode.RECEIPT_UNSIGNED,
            ErrorCode.RECEIPT_FUTURE,
        }
        with pytest.raises(DecodeError, match="sent receipts of"):
            node.receipts_came(second.key_id, CombinedReceipt(first.key_id, (genuine,)).encode())
        stranger = msgspec.structs.replace(genuine, message_id=ExternalMessageId(bytes(32)))
        node.receipts_came(first.key_id, CombinedReceipt(first.key_id, (stranger,)).encode())
        assert node.counters.of_unknown == 1
        assert node.counters.receipts == 0
        for _ in range(2):
            node.receipts_came(first.key_id, CombinedReceipt(first.key_id, (genuine,)).encode())
        assert (node.counters.receipts, node.counters.repeated) == (1, 1)

    in_world(act)


@pytest.mark.parametrize(
    "frame", [b"", b"\0\0\0\0", MessageBody(b"too short").encode(), b"\x59\x4d\x00\x88\xff"]
)
def test_what_is_neither_a_block_nor_a_body_closes_the_link_by_name(frame: bytes) -> None:
    async def act(world: OverlayWorld) -> None:
        with pytest.raises(DecodeError):
            runner_of(world.houses[0]).pushed(1, frame)

    in_world(act)


def test_a_body_is_given_to_whoever_asks_and_another_one_than_asked_for_is_refused() -> None:
    async def act(world: OverlayWorld) -> None:
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(SETTLED_S)
        house = world.houses[0]
        answers: list[bytes] = []
        runner = runner_of(house)
        runner.asked(1, MessageQuery(message_id).encode(), answers.append)
        runner.asked(1, MessageQuery(bytes(32)).encode(), answers.append)
        assert answers == [MessageBody(message_bytes(1)).encode(), MessageBody(b"").encode()]
        with pytest.raises(DecodeError):
            runner.asked(1, MessageQuery(message_id).encode() + b"more", answers.append)

        def lie(peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
            reply(MessageBody(message_bytes(99)).encode())

        other = runner_of(world.houses[1])
        other.asked = lie  # type: ignore[method-assign]  # a dishonest member
        runner.perform([AskForBody(1, parse(message_bytes(5)).message_id)])
        await asyncio.sleep(0.1)
        (objection,) = world.wires.refused
        assert objection.against == 1
        assert objection.text.startswith("0 of 1: WrongBody: ")
        assert runner.counters.refused == {"WrongBody": 1}

    in_world(act)


def test_early_bodies_are_kept_within_bounds_for_each_member() -> None:
    early = EarlyBodies()
    others = parse(message_bytes(0))
    early.put(1, others, 0.0)
    large = [parse(message_bytes(number, content=bytes([number]) * 60_000)) for number in range(1, 41)]
    for message in large:
        early.put(2, message, 0.0)
    kept = [message for message in large if message.message_id in early]
    assert sum(len(message.body) for message in kept) <= EARLY_BYTES_MAX
    assert sum(len(message.body) for message in kept) > EARLY_BYTES_MAX - 2 * 60_036
    assert kept[-1] is large[-1]
    assert others.message_id in early
    assert early.take(others.message_id) is others
    assert early.take(others.message_id) is None
    small = EarlyBodies()
    for number in range(EARLY_COUNT_MAX):
        small.put(1, parse(message_bytes(number)), 0.0)
    assert len(small) == EARLY_COUNT_MAX
    small.put(1, parse(message_bytes(-1)), 0.0)
    assert len(small) == EARLY_COUNT_MAX
    assert parse(message_bytes(0)).message_id not in small


# Crashes


@pytest.mark.parametrize("seed", range(6))
def test_crashes_at_any_moment_neither_fork_nor_lose_what_a_receipt_was_given_for(seed: int) -> None:
    async def act(world: OverlayWorld) -> None:
        ids = set()
        for number in range(30):
            ids.add(world.hand_over(message_bytes(number)))
            await asyncio.sleep(world.random.uniform(0.0, 0.02))
            if number % 3 == 0:
                house = world.random.choice(world.houses)
                house.crash()
                asyncio.get_running_loop().call_later(world.random.uniform(0.01, 0.5), house.start)
                await asyncio.sleep(0.6)
        await asyncio.sleep(10.0)
        check_all_know(world, ids)
        check_nobody_is_blamed(world)
        for house in world.houses:
            assert not [event for event in house.events if isinstance(event, RecoveryReport)]
        given = {receipt.message_id for receipt in world.receipts}
        assert given == ids

    in_world(act, 4, seed)


def test_a_disk_that_answers_too_early_is_found_out() -> None:
    """The planted defect of the tests above: after a power cut others know blocks of ours that the disk does not."""

    async def act(world: OverlayWorld) -> None:
        house = world.houses[0]
        house.crash()
        house.is_safe = False
        house.start()
        await asyncio.sleep(STARTED_S)
        runner_of(house).offer(parse(message_bytes(1)), world.full_node.source_id)
        await asyncio.sleep(SETTLED_S)
        house.crash()
        house.start()
        await asyncio.sleep(SETTLED_S)
        assert [event for event in house.events if isinstance(event, RecoveryReport)]

    in_world(act)


def test_a_message_whose_receipt_is_out_is_announced_after_a_crash_before_its_block() -> None:
    async def act(world: OverlayWorld) -> None:
        house = world.houses[0]
        world.wires.cut.update(other.number for other in world.houses[1:])
        runner = runner_of(house)
        runner.member._making = runner.graph.top(0)  # it is busy with another block
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(0.1)
        assert world.kinds_of(message_id)[house.key_id] == ["PutIntoQueue"]
        assert runner.graph.top(0).height == 0
        house.crash()
        world.wires.cut.clear()
        house.start()
        await asyncio.sleep(SETTLED_S)
        check_all_know(world, {message_id})
        check_all_have_the_hand_over(world, message_id)
        check_nobody_is_blamed(world)

    in_world(act)


def test_every_full_node_that_heard_of_a_message_is_remembered_through_a_crash() -> None:
    async def act(world: OverlayWorld) -> None:
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(SETTLED_S)
        house, later = world.houses[0], {bytes([number]) * 32 for number in (7, 8)}
        for full_node in sorted(later):
            runner_of(house).offer(runner_of(house)._parse(message_bytes(1)), full_node)
        await asyncio.sleep(0.1)
        house.crash()
        house.start()
        await asyncio.sleep(SETTLED_S)
        (cached,) = (one for one in runner_of(house).queue.entries() if one.message_id == message_id)
        assert later <= cached.origins.keys(), "they would never hear of its end"
        check_nobody_is_blamed(world)

    in_world(act)


def test_too_few_members_are_reported_within_a_minute_and_again_when_they_are_back() -> None:
    async def act(world: OverlayWorld) -> None:
        def reports(house: House) -> list[bool]:
            return [event.is_lost for event in house.events if isinstance(event, QuorumReport)]

        gone, here = world.houses[:2], world.houses[2:]
        await asyncio.sleep(120.0)
        assert [reports(house) for house in world.houses] == [[]] * 4
        for house in gone:
            house.crash()
        await asyncio.sleep(REPORT_WITHIN_S)
        assert [reports(house) for house in here] == [[True]] * 2
        for house in gone:
            house.start()
        await asyncio.sleep(30.0)
        assert [reports(house) for house in here] == [[True, False]] * 2

    in_world(act)


def test_a_failing_disk_delays_blocks_and_receipts_until_it_works_again() -> None:
    async def act(world: OverlayWorld) -> None:
        for house in world.houses:
            house.disk.fail_next(2)
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(0.5)
        assert world.kinds_of(message_id).keys() <= {world.full_node.source_id}
        await asyncio.sleep(10.0)
        check_all_know(world, {message_id})
        check_nobody_is_blamed(world)
        assert len(world.kinds_of(message_id)) == 5
        assert all(runner_of(house).writes_failed for house in world.houses)

    in_world(act)
