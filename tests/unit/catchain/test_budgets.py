"""Budgets: a member that writes more than it may is blamed by all, once; an honest one never writes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from stagepost.catchain import budgets as budgets_module
from stagepost.catchain.budgets import AuthorAccount, Budget, PayloadContent, Rates, Totals
from stagepost.catchain.effects import BlameReport
from stagepost.remp.queue.hearing import HELD_BACK
from stagepost.remp.queue.records import (
    BLOCK_BYTES,
    Header,
    Record,
    RejectRecord,
    amounts_in,
    content_of,
    decode_payload,
    encode_payload,
    payload_bytes,
)
from stagepost.remp.queue.state import RESERVE_BYTES, PendingRecords, RecordLimits
from stagepost.remp.receipts.message_status import Rejected
from stagepost.remp.receipts.status import Level
from tests.worlds.catchain.catchain_attackers import DATES, RATES, Flooder, world_with
from tests.worlds.catchain.catchain_world import World
from tests.worlds.remp.queue_world import Validator, message

SMALL = Rates(10, 20, 100, 200, 10_000, 60_000)
START_MS = 1_000_000
BUDGET = Budget(START_MS, SMALL)
ONE = bytes([1]) * 32


def of(amounts: tuple[int, int, int], before: AuthorAccount, date_ms: int) -> PayloadContent:
    return PayloadContent(before.totals.plus(amounts, date_ms), amounts)


def fault_of_chain(blocks: list[tuple[int, int]], budget: Budget = BUDGET) -> list[str | None]:
    """Return the fault of each of a chain's blocks, given as (date, headers)."""
    account, faults = AuthorAccount(), []
    for date_ms, headers in blocks:
        content = of((headers, 0, 100), account, date_ms)
        faults.append(budget.fault_in(account, content))
        account = budget.after(account, content.totals)
    return faults


def is_broken_by_a_pair(blocks: list[tuple[int, int]]) -> bool:
    """Look at all pairs of blocks, as the rule is written."""
    totals, total = [], 0
    for date_ms, headers in blocks:
        total += headers
        totals.append((date_ms, total))
    pairs = [(a, b) for place, b in enumerate(totals) for a in totals[:place]]
    broken = [
        1_000 * (b[1] - a[1] - SMALL.headers_burst) > SMALL.headers_per_s * (b[0] - a[0]) for a, b in pairs
    ]
    return any(broken)


def test_a_burst_and_what_the_rate_adds_are_allowed_and_one_header_more_is_not() -> None:
    first = (START_MS, 20)
    assert fault_of_chain([first, (START_MS + 1_000, 10)]) == [None, None]
    assert fault_of_chain([first, (START_MS + 1_000, 11)])[1] is None, (
        "the first block is no pair's later one"
    )
    blocks = [(START_MS, 0), (START_MS, 20), (START_MS + 1_000, 10)]
    assert fault_of_chain(blocks) == [None] * 3
    assert "headers beyond 10 a second" in (fault_of_chain([*blocks, (START_MS + 1_000, 1)])[3] or "")


@pytest.mark.parametrize("place", range(3))
def test_each_amount_has_its_own_edge(place: int) -> None:
    burst = SMALL.bursts[place]
    start = of((0, 0, 1), AuthorAccount(), START_MS).totals
    before = BUDGET.after(AuthorAccount(), start)
    at_edge, beyond = ([0, 0, 0], [0, 0, 0])
    at_edge[place], beyond[place] = burst, burst + 1
    assert BUDGET.fault_in(before, of((at_edge[0], at_edge[1], at_edge[2]), before, START_MS)) is None
    fault = BUDGET.fault_in(before, of((beyond[0], beyond[1], beyond[2]), before, START_MS))
    assert fault is not None
    assert budgets_module.AMOUNTS[place] in fault


def test_the_account_of_a_chain_says_what_all_its_pairs_say(run_seed: int) -> None:
    random, broken = Random(run_seed), 0
    for _ in range(300):
        date_ms, blocks = START_MS, []
        for _ in range(random.randint(1, 12)):
            date_ms += random.choice([0, 0, 100, 500, 2_000])
            blocks.append((date_ms, random.choice([0, 1, 5, 12])))
        expected = [is_broken_by_a_pair(blocks[: place + 1]) for place in range(len(blocks))]
        first = next((place for place, one in enumerate(expected) if one), len(blocks))
        faults = fault_of_chain(blocks)
        assert [fault is not None for fault in faults[: first + 1]] == expected[: first + 1], (
            f"seed {run_seed}: {blocks}"
        )
        broken += first < len(blocks)
    assert broken > 20


def test_dates_before_the_session_add_nothing() -> None:
    blocks = [(0, 20), (START_MS // 2, 20), (START_MS, 1)]
    assert fault_of_chain(blocks)[:2] == [None, None]
    assert fault_of_chain(blocks)[2] is not None


def test_totals_and_dates_have_to_follow_the_last_block() -> None:
    before = BUDGET.after(AuthorAccount(), Totals(START_MS + 5, 3, 0, 100))
    assert BUDGET.fault_in(before, of((1, 0, 50), before, START_MS + 5)) is None
    wrong = [
        (Totals(START_MS + 4, 4, 0, 150), "before the date"),
        (Totals(START_MS + 5, 3, 0, 150), "totals"),
        (Totals(START_MS + 5, 4, 1, 150), "totals"),
        (Totals(START_MS + 5, 4, 0, 149), "totals"),
    ]
    for totals, text in wrong:
        assert text in (BUDGET.fault_in(before, PayloadContent(totals, (1, 0, 50))) or ""), totals
    assert "does not begin" in (BUDGET.fault_in(before, None) or "")


# An honest member holds back


def header(number: int) -> Header:
    return Header(number.to_bytes(32, "big"), ONE, 0, ONE, ONE, 0, 7, number)


def test_an_honest_member_never_writes_what_convicts_it(run_seed: int) -> None:
    """Whatever waits and however its clock jumps, every payload passes the judge, and in the end all is written."""
    random = Random(run_seed)
    pending, account = PendingRecords(RecordLimits(), BUDGET), AuthorAccount()
    clock_ms, added, written, held = START_MS, 0, 0, 0
    for number in range(600):
        for _ in range(random.choice([0, 0, 1, 30]) if number < 300 else 0):
            pending.add(header(added))
            added += 1
        clock_ms += random.choice([0, 1, 20, 300, 5_000, -3_000 if number < 300 else 5_000])
        payload = pending.next_payload(number, clock_ms, account, is_due=random.random() < 0.5)
        held += pending.is_held_back
        if payload is None:
            continue
        content = content_of(payload)
        assert BUDGET.fault_in(account, content) is None, f"seed {run_seed}, payload {number}"
        assert content is not None
        account = BUDGET.after(account, content.totals)
        written += content.amounts[0]
    assert held > 10
    assert written == added


def test_blocks_with_a_date_alone_go_when_nothing_else_may() -> None:
    pending = PendingRecords(RecordLimits(), BUDGET)
    used = 1_000 * (SMALL.bytes_burst - RESERVE_BYTES)
    account = AuthorAccount(Totals(START_MS, 1, 0, 1), (0, 0, used))
    pending.add(header(1))
    assert pending.next_payload(1, START_MS, account) is None
    assert pending.is_held_back
    payload = pending.next_payload(2, START_MS, account, is_due=True)
    assert payload is not None
    assert len(decode_payload(payload)) == 1
    full = AuthorAccount(Totals(START_MS, 1, 0, 1), (0, 0, 1_000 * SMALL.bytes_burst))
    assert pending.next_payload(3, START_MS, full, is_due=True) is None, "not even a date fits"


def test_blocks_that_hold_a_date_alone_are_bounded_too() -> None:
    """Each costs every other member two checks of signatures, so it counts `BLOCK_BYTES` beside its 100 bytes."""
    budget, account, count = Budget(START_MS, Rates()), AuthorAccount(), 0
    while True:
        totals = account.totals.plus(amounts_in([], payload_bytes([Totals()])), START_MS)
        content = content_of(encode_payload([totals], count))
        fault = budget.fault_in(account, content)
        if fault is not None:
            break
        account, count = budget.after(account, totals), count + 1
    assert "bytes beyond" in fault
    assert count == 1 + Rates().bytes_burst // (BLOCK_BYTES + payload_bytes([Totals()]))
    assert count < 4_000


def test_other_records_pass_headers_that_wait() -> None:
    pending = PendingRecords(RecordLimits(), BUDGET)
    account = AuthorAccount(Totals(START_MS, 1, 0, 1), (1_000 * SMALL.headers_burst, 0, 0))
    waiting: list[Record] = [header(1)]
    reject = RejectRecord(ONE, ONE, 7, "no")
    for record in (*waiting, reject):
        pending.add(record)
    payload = pending.next_payload(1, START_MS, account)
    assert payload is not None
    assert decode_payload(payload)[1:] == [reject]
    assert pending.is_held_back


# In a graph


def a_world(attackers: dict[int, type[Flooder]] | None = None, loss: float = 0.0) -> World:
    world = world_with(4, 1, dict(attackers or {}), loss=loss)
    world.start_all()
    return world


def validator(world: World, index: int) -> Validator:
    found = world.peers[index]
    assert isinstance(found, Validator)
    return found


def hand_over_many(world: World, index: int, count: int) -> None:
    for number in range(count):
        world.after(number * 0.001, partial(validator(world, index).hand_over, message(number)))


def test_a_busy_honest_member_holds_back_and_sends_full_nodes_elsewhere() -> None:
    world = a_world()
    world.run(2.0)
    hand_over_many(world, 0, 3 * RATES.headers_burst)
    world.run(60.0)
    assert all(not peer.blamed for peer in world.peers)
    refused = [
        one
        for one, statuses in validator(world, 0).told.items()
        if statuses == [Rejected(Level.QUEUE, HELD_BACK)]
    ]
    assert refused, "nobody was sent elsewhere"
    known = validator(world, 0).queue.known_ids
    assert len(known) > RATES.headers_burst
    assert not known & set(refused)
    assert all(validator(world, index).queue.known_ids == known for index in (1, 2, 3))


def test_what_was_held_back_is_announced_without_another_event() -> None:
    world = a_world()
    world.run(2.0)
    for number in range(RATES.headers_burst + 30):
        validator(world, 0).hand_over(message(number))
    world.run(8.0)
    assert len(validator(world, 3).queue.known_ids) == RATES.headers_burst + 30


class OneSidedFlooder(Flooder):
    """Floods one member alone."""

    def others(self) -> list[int]:
        return [0]


def test_who_was_not_flooded_learns_of_the_flooder_by_its_blocks() -> None:
    world = a_world({3: OneSidedFlooder})
    world.run(30.0)
    for peer in world.peers[:3]:
        assert peer.blamed == {3}, f"member {peer.index}"
        assert "headers beyond" in peer.member.graph.fault_of(3)


def test_a_flooder_is_reported_once_in_each_life() -> None:
    world = a_world({3: Flooder})
    reports: list[BlameReport] = []
    peer = world.peers[0]
    perform = peer.perform

    def watched(effects: list[object]) -> None:
        reports.extend(one for one in effects if isinstance(one, BlameReport))
        perform(effects)  # type: ignore[arg-type]

    peer.perform = watched  # type: ignore[method-assign, assignment]
    world.run(30.0)
    assert [(one.source, one.proof) for one in reports] == [(3, None)]
    peer.crash()
    peer.blamed.clear()
    peer.start()
    world.run(40.0)
    assert peer.blamed == {3}, "the disk holds the block that convicts it"


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the judge forgets the budget": lambda patch: patch.setattr(Budget, "fault_in", lambda *_: None),
    "only the last two blocks are compared": lambda patch: patch.setattr(
        Budget, "after", lambda self, account, totals: AuthorAccount(totals)
    ),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_a_planted_defect_lets_the_flooder_go(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[defect](monkeypatch)
    world = a_world({3: Flooder})
    world.run(30.0)
    assert any(3 not in peer.blamed for peer in world.peers[:3])


def test_a_member_that_does_not_hold_back_would_be_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "left", lambda *_: (1 << 30, 1 << 30, 1 << 30))
    world = a_world()
    world.run(2.0)
    hand_over_many(world, 0, 3 * RATES.headers_burst)
    world.run(30.0)
    assert all(0 in peer.blamed for peer in world.peers[1:])
    assert DATES.budget.rates == RATES
