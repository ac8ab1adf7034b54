"""Statements at a full node: it joins each link to its receipt on the topic, and refuses by name a chain that is broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from rigs.catchain_keys import public_key_of, seed_of
from rigs.remp_overlay_world import OverlayWorld, message_bytes, parse
from stagepost.errors import DecodeError, ErrorCode
from stagepost.full_node.receipt_checks import StatementIntake
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, Timeout
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.statements import (
    LINK_HEADER,
    LINKS_SENT_MAX,
    PacketStatement,
    StatementLink,
    read_link_header,
)
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import ValidatorSets

SESSION = b"s" * 32
MESSAGE = ExternalMessageId(parse(message_bytes(1)).message_id)
STATUSES: tuple[MessageStatus, ...] = New(), Accepted(Level.COLLATOR, BlockId(seqno=7)), Timeout()


def said(world: OverlayWorld, number: int = 0) -> tuple[list[Receipt], list[StatementLink]]:
    """Three receipts of validator `number`, with their links."""
    now_ms = int(world.clock.unix_s() * 1_000)
    receipts = [
        Receipt(MESSAGE, one, now_ms + at, b"").sign(seed_of(number)) for at, one in enumerate(STATUSES)
    ]
    hashes = [ZERO_INT256, *(one.hash for one in receipts)]
    links = [
        StatementLink(SESSION, MESSAGE, place + 1, before, after)
        for place, (before, after) in enumerate(pairwise(hashes))
    ]
    return receipts, links


def statement(world: OverlayWorld, links: Sequence[StatementLink], number: int = 0) -> bytes:
    source = world.houses[number].key_id
    return PacketStatement(source, tuple(links)).sign(seed_of(number)).encode()


def packet(world: OverlayWorld, receipts: Sequence[Receipt]) -> bytes:
    return CombinedReceipt(world.houses[0].key_id, tuple(receipts)).encode()


def in_world(act: Callable[[OverlayWorld], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        world.start()
        await asyncio.sleep(1.0)
        for house in world.houses:
            world.wires.cut.add(house.number)
        world.hand_over(message_bytes(1))
        await act(world)
        for house in world.houses:
            await house.running.close()

    run_in_virtual_time(main())


def headers(world: OverlayWorld) -> list[tuple[str, str]]:
    """Kind and header of each receipt of a validator on the topic."""
    records = [one for batch in world.topic.reader().batches(0, 0) for one in batch]
    receipts = [(Receipt.from_json(one.value or b""), one.headers.get(LINK_HEADER, "")) for one in records]
    return [(one.kind.name, link) for one, link in receipts if one.source_id != world.full_node.source_id]


def test_each_receipt_stands_on_the_topic_with_its_link() -> None:
    async def main() -> None:
        world = OverlayWorld(4, 1)
        world.start()
        await asyncio.sleep(1.0)
        message_id = world.hand_over(message_bytes(1))
        await asyncio.sleep(3.0)
        assert len(headers(world)) == 4
        for _, text in headers(world):
            placed = read_link_header(text)
            assert (placed.link.message_id, placed.link.number) == (message_id, 1)
            assert any(placed.statement.is_signed_by(public_key_of(one)) for one in range(4))
        for house in world.houses:
            await house.running.close()

    run_in_virtual_time(main())


def test_lost_packets_leave_a_gap_that_nobody_is_blamed_for() -> None:
    async def act(world: OverlayWorld) -> None:
        receipts, links = said(world)
        for place in (0, 2):
            world.full_node.receipts_came(world.houses[0].key_id, statement(world, [links[place]]))
            world.full_node.receipts_came(world.houses[0].key_id, packet(world, [receipts[place]]))
        assert world.full_node.counters.receipts == 2
        assert not world.full_node.counters.quarantined

    in_world(act)


Break = Callable[[list[StatementLink]], list[StatementLink]]
BROKEN: list[tuple[str, Break]] = [
    ("came with 3 receipts", lambda links: links[:2]),
    ("came with 3 receipts", lambda links: [*links, msgspec.structs.replace(links[0], session_id=b"t" * 32)]),
    ("link 2 of a statement is not that of receipt 2", lambda links: [*links[:2], other(links[2])]),
    ("does not follow", lambda links: links[::-1]),
    ("does not follow", lambda links: [links[0], links[2], links[1]]),
    (
        "link 0 of a statement is not",
        lambda links: [msgspec.structs.replace(one, message_id=b"o" * 32) for one in links],
    ),
]


def other(link: StatementLink) -> StatementLink:
    return msgspec.structs.replace(link, session_id=b"o" * 32, receipt=b"r" * 32)


@pytest.mark.parametrize(("reason", "break_"), BROKEN)
def test_a_statement_that_does_not_fit_its_packet_is_refused_by_name(reason: str, break_: Break) -> None:
    async def act(world: OverlayWorld) -> None:
        receipts, links = said(world)
        node, source = world.full_node, world.houses[0].key_id

        def send() -> None:
            node.receipts_came(source, statement(world, break_(links)))
            node.receipts_came(source, packet(world, receipts))

        with pytest.raises(DecodeError, match=reason):
            send()
        assert node.counters.receipts == 0

    in_world(act)


def test_a_statement_of_another_or_with_a_forged_signature_is_refused_by_name() -> None:
    async def act(world: OverlayWorld) -> None:
        _, links = said(world)
        node, source = world.full_node, world.houses[0].key_id
        with pytest.raises(DecodeError, match="sent a statement of") as refused:
            node.receipts_came(source, statement(world, links, 1))
        assert refused.value.code is ErrorCode.RECEIPT_SOURCE
        good = statement(world, links)
        with pytest.raises(DecodeError, match="is not signed by it") as refused:
            node.receipts_came(source, good[:-1] + bytes([good[-1] ^ 1]))
        assert refused.value.code is ErrorCode.RECEIPT_SIGNATURE

    in_world(act)


@pytest.mark.parametrize("count", [LINKS_SENT_MAX, LINKS_SENT_MAX + 1])
def test_a_statement_has_so_many_links_and_no_more(count: int) -> None:
    async def act(world: OverlayWorld) -> None:
        now_ms = int(world.clock.unix_s() * 1_000)
        receipts = [Receipt(MESSAGE, New(), now_ms + at, b"").sign(seed_of(0)) for at in range(count)]
        hashes = [ZERO_INT256, *(one.hash for one in receipts)]
        links = [
            StatementLink(SESSION, MESSAGE, place + 1, before, after)
            for place, (before, after) in enumerate(pairwise(hashes))
        ]
        node, source = world.full_node, world.houses[0].key_id
        node.receipts_came(source, statement(world, links))
        if count > LINKS_SENT_MAX:
            with pytest.raises(DecodeError, match="at most 16 are taken"):
                node.receipts_came(source, packet(world, receipts))
        else:
            node.receipts_came(source, packet(world, receipts))

    in_world(act)


def test_a_statement_whose_packet_was_lost_binds_nothing_of_the_next_link() -> None:
    async def act(world: OverlayWorld) -> None:
        receipts, links = said(world)
        node, source = world.full_node, world.houses[0].key_id
        node.receipts_came(source, statement(world, links[:1]))
        node.validator_linked(source)
        node.receipts_came(source, packet(world, receipts))
        assert node.counters.receipts == 3

    in_world(act)


def test_a_statement_that_came_before_its_session_binds_once_its_signature_is_checked() -> None:
    async def act(world: OverlayWorld) -> None:
        receipts, links = said(world)
        source, sets = world.houses[0].key_id, world.full_node.sets
        good = statement(world, links)
        forged = good[:-1] + bytes([good[-1] ^ 1])
        for data, binds in ((good, True), (forged, False)):
            intake = StatementIntake(ValidatorSets({}))
            intake.came(source, data)
            early = intake.links_of(source, receipts)
            assert [intake.checked(one) for one in early] == [None] * 3, "nobody can check the signature yet"
            intake.sets = sets
            checked = [intake.checked(one) for one in early]
            assert [
                one is not None and one.link == link for one, link in zip(checked, links, strict=True)
            ] == [binds] * 3

    in_world(act)
