"""Messages of sessions that were over before a restart come to their ends at every full node that waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256

import msgspec
import pytest

from stagepost.catchain.block import Block, Dependency
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.message import ExternalMessage, Origin, header_of
from stagepost.remp.queue.hearing import SEQNO_AHEAD_MAX
from stagepost.remp.queue.message_cache import MessageCache, Standing
from stagepost.remp.queue.records import Record, encode_payload
from stagepost.remp.queue.session_switch import CATCHAINS_OF_LIFE
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, Rejected, Timeout
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level, is_legal_step, kind_named
from stagepost.remp.shard import BlockId
from stagepost.validator.owed_receipts import OwedReceipts
from stagepost.validator.receipts import ReceiptSender, Statements
from stagepost.validator.session_store import BodyRow, MemorySessionStore, SessionContent, SessionsDisk
from tests.worlds.remp.queue_world import message

SEED = bytes([1]) * 32
SESSION, FULL_NODE, OTHER_NODE = (sha256(one).digest() for one in (b"S", b"F", b"G"))
SEQNO = 10
NOW_S = 1_000.0
TIMEOUT_S = 240.0
ONE = message(1)
BLOCK = BlockId(0, 1 << 63, 7)
MASTER = BlockId(-1, 1 << 63, 3)


class _Links:
    def __init__(self) -> None:
        self.kinds: dict[bytes, list[str]] = {}

    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        receipts = CombinedReceipt.decode(combined_receipt).receipts
        heard = self.kinds.setdefault(full_node, [])
        for one in receipts:
            assert is_legal_step(kind_named(heard[-1]) if heard else None, one.kind)
            heard.append(one.kind.name)
        return True


class _Restarted:
    """A validator's receipts after a restart under `SEQNO`; `said` is what the earlier run wrote of `ONE`."""

    def __init__(self, *said: MessageStatus, seqno: int = SEQNO) -> None:
        self.cache = MessageCache()
        self.cache.advance(seqno, 0)
        self.links = _Links()
        self.statements = Statements(MemorySessionStore(SessionsDisk()), lambda: self.cache.window.current)
        identity = ExternalMessageId(ONE.message_id)
        lane = [Receipt(identity, one, 1_000 + place, b"").sign(SEED) for place, one in enumerate(said)]
        self.statements.lanes.extend(identity, lane)
        sender = ReceiptSender(SEED, self.links, LoopClock(NOW_S), self.statements)
        self.owed = OwedReceipts(self.cache, self.statements, sender.tell, TIMEOUT_S)

    def owes(self, *records: Record, bodies: tuple[BodyRow, ...] = (), final: tuple[bytes, ...] = ()) -> None:
        nothing = Dependency(0, 0, ZERO_INT256)
        frames = tuple(
            Block(ZERO_INT256, 0, 1, nothing, (), b"", payload).encode()
            for payload in (b"the payload of a liar", encode_payload(records, 1))
        )
        self.owed.add(SESSION, SessionContent(frames, bodies), final, NOW_S)

    async def heard_under(
        self, seqno: int, *, now_s: float = NOW_S, full_node: bytes = FULL_NODE
    ) -> list[str]:
        self.owed.settle(seqno, now_s)
        await asyncio.sleep(1.0)
        return self.links.kinds.get(full_node, [])


def header(seqno: int = SEQNO, node: bytes = FULL_NODE, at_ms: int = 999_000) -> Record:
    return header_of(ONE, Origin(node, 3, at_ms), seqno)


def row(one: ExternalMessage = ONE, node: bytes = FULL_NODE) -> BodyRow:
    return BodyRow(SESSION, one.message_id, one.body, node)


@pytest.mark.parametrize("is_announced", [True, False])
def test_an_open_message_is_closed_when_its_life_is_over_and_not_before(is_announced: bool) -> None:
    async def main() -> None:
        run = _Restarted()
        run.owes(*([header()] if is_announced else []), bodies=(row(),))
        assert await run.heard_under(SEQNO + CATCHAINS_OF_LIFE - 1) == []
        assert SESSION in run.owed
        assert await run.heard_under(SEQNO + CATCHAINS_OF_LIFE) == ["PutIntoQueue", "Timeout"]
        assert SESSION not in run.owed
        assert run.cache.was_let_go(ONE.message_id), "no later announcement opens it again"

    run_in_virtual_time(main())


def test_nothing_is_owed_of_a_message_whose_receipts_an_earlier_run_has_forgotten() -> None:
    run = _Restarted()
    run.cache.note_let_go([ONE.message_id], SEQNO + 1)
    run.owes(header(), bodies=(row(),))
    assert len(run.owed) == 0, (
        "the chain came back from before the catchain under which the message was closed"
    )
    assert list(run.owed.message_ids()) == []


@pytest.mark.parametrize(
    ("now_s", "heard"), [(999.0 + TIMEOUT_S - 0.1, []), (999.0 + TIMEOUT_S, ["Timeout"])]
)
def test_an_open_message_is_closed_when_it_is_too_old(now_s: float, heard: list[str]) -> None:
    async def main() -> None:
        run = _Restarted(New())
        run.owes(header())
        assert (await run.heard_under(SEQNO, now_s=now_s))[1:] == heard

    run_in_virtual_time(main())


def test_the_latest_announcement_counts_but_none_from_a_future_that_nobody_saw() -> None:
    async def main() -> None:
        run = _Restarted()
        ahead = SEQNO + SEQNO_AHEAD_MAX
        run.owes(header(), header(ahead), header(ahead + 1))
        assert await run.heard_under(SEQNO + CATCHAINS_OF_LIFE) == []
        assert await run.heard_under(ahead + CATCHAINS_OF_LIFE) == ["PutIntoQueue", "Timeout"]

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("seqno", "count"), [(SEQNO - CATCHAINS_OF_LIFE - 1, 0), (SEQNO - CATCHAINS_OF_LIFE, 1)]
)
def test_a_message_that_expired_while_this_node_ran_is_not_owed(seqno: int, count: int) -> None:
    run = _Restarted()
    run.owes(header(seqno))
    assert len(run.owed) == count


CLOSING: list[tuple[tuple[MessageStatus, ...], list[str]]] = [
    ((New(), Rejected(Level.QUEUE, "full")), ["PutIntoQueue", "RejectedByQueue"]),
    ((New(), Timeout()), ["PutIntoQueue", "Timeout"]),
    ((New(), Accepted(Level.COLLATOR, BLOCK)), ["PutIntoQueue", "IncludedIntoBlock", "Timeout"]),
]


@pytest.mark.parametrize(("said", "heard"), CLOSING, ids=["rejected", "timeout", "included"])
def test_the_end_follows_from_what_was_said(said: tuple[MessageStatus, ...], heard: list[str]) -> None:
    async def main() -> None:
        run = _Restarted(*said)
        run.owes(header(), header(node=OTHER_NODE))
        assert await run.heard_under(SEQNO + CATCHAINS_OF_LIFE) == heard
        assert run.links.kinds[OTHER_NODE] == heard

    run_in_virtual_time(main())


def test_a_message_in_a_shard_block_is_returned_before_it_is_closed() -> None:
    async def main() -> None:
        run = _Restarted(New(), Accepted(Level.SHARDCHAIN, BLOCK))
        run.owes(header())
        over = SEQNO + CATCHAINS_OF_LIFE
        assert await run.heard_under(over, now_s=NOW_S + 2 * TIMEOUT_S) == []
        said = ["PutIntoQueue", "IncludedIntoAcceptedBlock"]
        assert await run.heard_under(over + 1) == [*said, "IgnoredByMasterchain", "PutIntoQueue", "Timeout"]

    run_in_virtual_time(main())


def _is_final(run: _Restarted) -> None:
    run.cache.index_final(ONE, SEQNO, BLOCK, MASTER, NOW_S)


def _is_in_a_queue(run: _Restarted) -> None:
    origin = Origin(FULL_NODE, 3, 5)
    cached = run.cache.add(header_of(ONE, origin, SEQNO), New(), Standing.OWN, NOW_S)
    cached.add_origin(origin)


@pytest.mark.parametrize("happens", [_is_final, _is_in_a_queue])
def test_a_message_that_others_close_is_not_owed(happens: Callable[[_Restarted], None]) -> None:
    async def main() -> None:
        run = _Restarted()
        run.owes(header())
        happens(run)
        assert await run.heard_under(SEQNO) == []
        assert SESSION not in run.owed

    run_in_virtual_time(main())


def test_a_session_that_begins_after_all_owes_nothing_and_closes_its_messages_itself() -> None:
    async def main() -> None:
        run = _Restarted()
        run.owes(header())
        run.owed.forget(SESSION)
        assert SESSION not in run.owed
        assert await run.heard_under(SEQNO + CATCHAINS_OF_LIFE + 1, now_s=NOW_S + 2 * TIMEOUT_S) == []

    run_in_virtual_time(main())


def test_a_message_that_was_final_before_the_restart_is_not_owed() -> None:
    run = _Restarted()
    run.owes(header(), final=(ONE.message_id,))
    assert SESSION not in run.owed


def test_a_body_that_came_from_another_member_was_promised_to_nobody() -> None:
    run = _Restarted()
    run.owes(bodies=(msgspec.structs.replace(row(), full_node=b""),))
    assert SESSION not in run.owed
