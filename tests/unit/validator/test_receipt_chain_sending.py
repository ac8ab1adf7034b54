"""What a validator sends is linked: one signed statement for each packet, on disk before it is sent, also across crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.queue.effects import Introduce, Tell
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, Ignored, MessageStatus, New, Timeout
from stagepost.remp.receipts.receipt import ExternalMessageId
from stagepost.remp.receipts.statements import LINKS_SENT_MAX, PacketStatement, PlacedLink, placed_in
from stagepost.remp.receipts.status import Level, is_legal_step, kind_named
from stagepost.remp.shard import BlockId
from stagepost.validator.receipts import ReceiptSender, Statements
from stagepost.validator.session_store import MemorySessionStore, SessionsDisk

SEED = bytes([1]) * 32
NODE, LATER = b"n" * 32, b"l" * 32
SESSION, NEXT = b"s" * 32, b"t" * 32
ONE, OTHER = ExternalMessageId(bytes([1]) * 32), ExternalMessageId(bytes([2]) * 32)
BLOCK = BlockId(seqno=7)
ACCEPTED = Accepted(Level.SHARDCHAIN, BLOCK)
SYNC_S = 0.01


class House:
    """A validator's receipts on one disk; `heard` is what each full node got, every receipt with its link."""

    def __init__(self) -> None:
        self.disk = SessionsDisk(lambda: SYNC_S)
        self.heard: dict[bytes, list[tuple[str, PlacedLink]]] = {}
        self.statements_signed: list[bytes] = []
        self.is_linked = True
        self.start()

    def start(self) -> None:
        self.statements = Statements(MemorySessionStore(self.disk), lambda: 3)
        for number, session_id in enumerate((SESSION, NEXT)):
            self.statements.chains.session_began(session_id, 3 + number)
        self.sender = ReceiptSender(SEED, self, LoopClock(1_000.0), self.statements)

    def crash(self) -> None:
        self.sender.stop()
        self.disk.crash()
        self.start()

    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        if not self.is_linked:
            return False
        bound = PacketStatement.decode(statement)
        assert bound.is_signed_by(ed25519.public_key(SEED))
        self.statements_signed.append(statement)
        receipts = CombinedReceipt.decode(combined_receipt).receipts
        pairs = zip(receipts, placed_in(bound, receipts), strict=True)
        self.heard.setdefault(full_node, []).extend((one.kind.name, link) for one, link in pairs)
        return True

    async def say(self, *statuses: MessageStatus, session: bytes = SESSION) -> None:
        self.sender.tell(session, [Tell(NODE, ONE, one) for one in statuses])
        await asyncio.sleep(1.0)

    def numbers(self, full_node: bytes = NODE) -> list[tuple[str, bytes, int]]:
        return [(kind, one.link.session_id, one.link.number) for kind, one in self.heard.get(full_node, ())]


def at(scenario: Callable[[House], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(House())

    run_in_virtual_time(main())


def test_nothing_is_sent_before_its_link_is_on_disk() -> None:
    async def scenario(house: House) -> None:
        house.sender.tell(SESSION, [Tell(NODE, ONE, New())])
        await asyncio.sleep(SYNC_S / 2)
        house.crash()
        await asyncio.sleep(1.0)
        assert house.heard == {}
        await house.say(New())
        assert house.numbers() == [("PutIntoQueue", SESSION, 1)]

    at(scenario)


def test_a_crash_repeats_no_number_and_the_chain_goes_on() -> None:
    async def scenario(house: House) -> None:
        await house.say(New())
        house.crash()
        await house.say(ACCEPTED)
        assert house.numbers() == [("PutIntoQueue", SESSION, 1), ("IncludedIntoAcceptedBlock", SESSION, 2)]
        (_, first), (_, second) = house.heard[NODE]
        assert second.link.is_next_after(first.link)

    at(scenario)


def test_a_full_node_that_comes_later_hears_the_same_links() -> None:
    async def scenario(house: House) -> None:
        await house.say(New(), ACCEPTED)
        house.sender.tell(SESSION, [Introduce(LATER, ONE, (New(), ACCEPTED))])
        await asyncio.sleep(1.0)
        assert house.numbers(LATER) == house.numbers()
        assert len(set(house.statements_signed)) == 1

    at(scenario)


def test_the_next_session_begins_a_chain_and_the_older_one_adds_to_it() -> None:
    async def scenario(house: House) -> None:
        await house.say(New(), ACCEPTED)
        await house.say(Ignored(Level.MASTERCHAIN, BLOCK), New(), session=NEXT)
        await house.say(Timeout())
        assert [(session, number) for _, session, number in house.numbers()] == [
            (SESSION, 1),
            (SESSION, 2),
            (NEXT, 1),
            (NEXT, 2),
            (NEXT, 3),
        ]

    at(scenario)


@pytest.mark.parametrize("session", [SESSION, NEXT])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_would_contradict_the_receipt_before_is_not_said(is_restarted: bool, session: bytes) -> None:
    async def scenario(house: House) -> None:
        await house.say(New(), Timeout())
        if is_restarted:
            house.crash()
        await house.say(New(), ACCEPTED, session=session)
        assert [kind for kind, _, _ in house.numbers()] == ["PutIntoQueue", "Timeout"]
        assert house.sender.withheld == 2

    at(scenario)


def test_what_waited_for_a_link_is_bound_in_packets_of_limited_length() -> None:
    async def scenario(house: House) -> None:
        house.is_linked = False
        ids = [ExternalMessageId(number.to_bytes(32, "big")) for number in range(LINKS_SENT_MAX + 1)]
        house.sender.tell(SESSION, [Tell(NODE, one, New()) for one in ids])
        await asyncio.sleep(1.0)
        house.is_linked = True
        house.sender.full_node_linked(NODE)
        await asyncio.sleep(1.0)
        assert len(house.statements_signed) == 2
        assert [link.link.message_id for _, link in house.heard[NODE]] == ids
        house.sender.tell(SESSION, [Tell(NODE, ids[0], ACCEPTED)])
        await asyncio.sleep(1.0)
        assert house.numbers()[-1] == ("IncludedIntoAcceptedBlock", SESSION, 2)

    at(scenario)


def test_a_session_that_goes_on_keeps_its_chains() -> None:
    async def scenario(house: House) -> None:
        await house.say(New())
        house.statements.forget_before(100)
        await asyncio.sleep(1.0)
        house.crash()
        await house.say(ACCEPTED)
        assert house.numbers()[-1][1:] == (SESSION, 2), "a first link that comes twice would convict"
        house.statements.chains.session_ended(SESSION)
        house.statements.chains.session_ended(NEXT)
        house.statements.forget_before(100)
        assert house.statements.chains.newest(SESSION, ONE) is None

    at(scenario)


def test_links_of_one_message_never_step_illegally() -> None:
    async def scenario(house: House) -> None:
        for status in (
            New(),
            Accepted(Level.COLLATOR, BLOCK),
            Ignored(Level.SHARDCHAIN, BLOCK),
            New(),
            ACCEPTED,
            New(),
        ):
            await house.say(status)
            house.crash()
        kinds = [link.statement.links[link.place].number for _, link in house.heard[NODE]]
        assert kinds == [1, 2, 3, 4, 5]
        for before, after in zip(house.heard[NODE], house.heard[NODE][1:], strict=False):
            after_kind = kind_named(after[0])
            assert after_kind is not None
            assert is_legal_step(kind_named(before[0]), after_kind)

    at(scenario)
