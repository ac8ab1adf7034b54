"""Sessions that serve an account soon, by the chain's own rotation: the rules for the targets of a full node."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from rigs.chain_messages import address
from stagepost.chain.configuration import Configuration, ValidatorSet
from stagepost.chain.contracts import ContractKind
from stagepost.chain.known_sessions import BLOCK_WITHIN_MS, COMING_MAX
from stagepost.chain.master_state import PlanKind, subset
from stagepost.chain.rotation import Plan
from stagepost.full_node.staged_sending import LOOK_AHEAD_S
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import WHOLE_SHARD
from tests.worlds.chain.chain_world import (
    LIFETIME_MS,
    START_MS,
    DecidedChain,
    a_configuration,
    a_genesis,
    a_set,
)

WHOLE = Shard(0, WHOLE_SHARD)
LEFT, RIGHT = WHOLE.children
ACCOUNT = address(ContractKind.BALANCE, 1, first_bits=0x10)
"""Account of the left half."""

AHEAD_MS = int(LOOK_AHEAD_S * 1_000)
SESSION = 7
NOW, NEXT = "the set in force", "the next set"

Place = tuple[str, Shard, int]


def a_large_configuration(shard_lifetime_ms: int = LIFETIME_MS) -> Configuration:
    configuration = a_configuration(shard_validators=SESSION)
    return msgspec.structs.replace(configuration, current=a_set(21), shard_lifetime_ms=shard_lifetime_ms)


class RotatingChain(DecidedChain):
    """Chain of 21 validators with shard sessions of seven."""

    def __init__(self) -> None:
        super().__init__(a_genesis(a_large_configuration()))

    @property
    def at_work(self) -> LedgerSession:
        shard = self.ledger.shard_of(0, ACCOUNT)
        assert shard is not None
        return self.session(shard)

    @property
    def ends_ms(self) -> int:
        entry = self.ledger.master.entry_for(0, ACCOUNT)
        assert entry is not None
        return entry.session.ends_ms

    def plan(self, kind: PlanKind, at_ms: int) -> None:
        self.master_block([Plan(kind, WHOLE, at_ms)])

    def next_set(self, from_ms: int) -> None:
        changed = msgspec.structs.replace(self.ledger.master.configuration, next=a_set(21, "later", from_ms))
        self.master_block(configuration=changed)

    def coming(self, now_ms: int) -> list[LedgerSession]:
        return self.ledger.coming(0, ACCOUNT, now_ms, now_ms + AHEAD_MS)

    def targets(self, now_ms: int) -> list[tuple[bytes, ...]]:
        return [one.public_keys for one in self.coming(now_ms)]

    def expected(self, *places: Place) -> list[tuple[bytes, ...]]:
        """Return the members of these sessions, drawn from the set that each names."""
        configuration = self.ledger.master.configuration
        return [
            tuple(one.public_key for one in subset(configuration, shard, seqno, of_next=which == NEXT))
            for which, shard, seqno in places
        ]


def test_far_from_a_switch_nobody_follows() -> None:
    chain = RotatingChain()

    assert chain.targets(chain.ends_ms - AHEAD_MS - 1) == []
    assert chain.ledger.coming(-1, ACCOUNT, chain.ends_ms, chain.ends_ms) == []


def test_the_next_catchain_follows_at_the_end_of_a_session() -> None:
    chain = RotatingChain()
    seqno = chain.at_work.catchain_seqno
    now_ms = chain.ends_ms - AHEAD_MS

    assert chain.targets(now_ms) == chain.expected((NOW, WHOLE, seqno + 1))
    assert chain.targets(now_ms) != [chain.at_work.public_keys]


def test_the_next_set_follows_and_no_catchain_of_the_old_one() -> None:
    chain = RotatingChain()
    from_ms = chain.now_ms + 20_000
    chain.next_set(from_ms)
    seqno = chain.at_work.catchain_seqno

    assert chain.targets(from_ms - AHEAD_MS - 1) == []
    assert chain.targets(from_ms - AHEAD_MS) == chain.expected((NEXT, WHOLE, seqno + 1))


def test_a_catchain_that_ends_before_the_next_set_is_followed_by_itself_and_then_by_that_set() -> None:
    chain = RotatingChain()
    ends_ms = chain.ends_ms
    chain.now_ms = ends_ms - 20_000
    chain.next_set(ends_ms + 5_000)
    seqno = chain.at_work.catchain_seqno

    assert chain.targets(ends_ms - 10_001) == chain.expected((NOW, WHOLE, seqno + 1))
    assert chain.targets(ends_ms - 10_000) == chain.expected(
        (NOW, WHOLE, seqno + 1), (NEXT, WHOLE, seqno + 2)
    )


def test_before_a_split_only_the_child_with_the_account_follows_and_after_it_nobody() -> None:
    chain = RotatingChain()
    at_ms = chain.now_ms + 20_000
    chain.plan(PlanKind.SPLIT, at_ms)
    seqno = chain.at_work.catchain_seqno
    assert chain.targets(at_ms - AHEAD_MS - 1) == []
    assert chain.targets(at_ms - AHEAD_MS) == chain.expected((NOW, LEFT, seqno + 1))

    chain.now_ms = at_ms
    chain.master_block()

    assert (chain.at_work.shard, chain.at_work.catchain_seqno) == (LEFT, seqno + 1)
    assert chain.targets(chain.now_ms) == []


def test_before_a_merge_the_parent_follows_and_after_it_nobody() -> None:
    chain = RotatingChain()
    chain.plan(PlanKind.SPLIT, chain.now_ms + 1_000)
    chain.master_block(after_ms=1_000)
    at_ms = chain.now_ms + 20_000
    chain.plan(PlanKind.MERGE, at_ms)
    seqno = chain.at_work.catchain_seqno
    assert chain.targets(at_ms - AHEAD_MS - 1) == []
    assert chain.targets(at_ms - AHEAD_MS) == chain.expected((NOW, WHOLE, seqno + 1))

    chain.now_ms = at_ms
    chain.master_block()

    assert (chain.at_work.shard, chain.at_work.catchain_seqno) == (WHOLE, seqno + 1)
    assert chain.targets(chain.now_ms) == []


def test_a_catchain_that_ends_before_a_split_is_followed_by_itself_and_then_by_the_child() -> None:
    chain = RotatingChain()
    ends_ms = chain.ends_ms
    chain.now_ms = ends_ms - 20_000
    chain.plan(PlanKind.SPLIT, ends_ms + 5_000)
    seqno = chain.at_work.catchain_seqno

    assert chain.targets(ends_ms - 10_001) == chain.expected((NOW, WHOLE, seqno + 1))
    assert chain.targets(ends_ms - 10_000) == chain.expected((NOW, WHOLE, seqno + 1), (NOW, LEFT, seqno + 2))


def test_a_catchain_that_ends_before_a_merge_is_followed_by_itself_and_then_by_the_parent() -> None:
    chain = RotatingChain()
    chain.plan(PlanKind.SPLIT, chain.now_ms + 1_000)
    chain.master_block(after_ms=1_000)
    ends_ms = chain.ends_ms
    chain.now_ms = ends_ms - 20_000
    chain.plan(PlanKind.MERGE, ends_ms + 5_000)
    seqno = chain.at_work.catchain_seqno

    assert chain.targets(ends_ms - 10_000) == chain.expected((NOW, LEFT, seqno + 1), (NOW, WHOLE, seqno + 2))


def test_moments_that_one_block_may_do_together_are_walked_both_ways() -> None:
    chain = RotatingChain()
    ends_ms = chain.ends_ms
    chain.now_ms = ends_ms - 20_000
    chain.plan(PlanKind.SPLIT, ends_ms + BLOCK_WITHIN_MS)
    seqno = chain.at_work.catchain_seqno
    two_blocks = chain.expected((NOW, WHOLE, seqno + 1), (NOW, LEFT, seqno + 2))
    one_block = chain.expected((NOW, LEFT, seqno + 1))

    assert sorted(chain.targets(ends_ms - 10_000)) == sorted(two_blocks + one_block)


def test_several_at_once_a_catchain_then_a_split_then_the_next_set() -> None:
    chain = RotatingChain()
    ends_ms = chain.ends_ms
    chain.now_ms = ends_ms - 30_000
    chain.next_set(ends_ms + 8_000)
    chain.now_ms = ends_ms - 20_000
    chain.plan(PlanKind.SPLIT, ends_ms + 4_000)
    seqno = chain.at_work.catchain_seqno

    assert chain.targets(ends_ms - 5_000) == chain.expected(
        (NOW, WHOLE, seqno + 1), (NOW, LEFT, seqno + 2), (NEXT, LEFT, seqno + 3)
    )


def test_what_is_due_already_is_done_by_the_next_block_at_once() -> None:
    chain = RotatingChain()
    ends_ms = chain.ends_ms
    chain.now_ms = ends_ms - 20_000
    chain.plan(PlanKind.SPLIT, ends_ms + 5_000)
    seqno = chain.at_work.catchain_seqno

    assert chain.targets(ends_ms + 6_000) == chain.expected((NOW, LEFT, seqno + 1))


def test_sessions_of_a_second_are_foreseen_no_further_than_the_limit() -> None:
    chain = DecidedChain(a_genesis(a_large_configuration(1_000)))

    assert len(chain.ledger.coming(0, ACCOUNT, START_MS, START_MS + AHEAD_MS)) == COMING_MAX


@pytest.mark.parametrize("seed", range(30))
def test_every_session_that_follows_was_foreseen(seed: int) -> None:
    """Rotate with blocks at random moments: whatever follows the session at work was among those told of it."""
    random = Random(seed)
    chain = RotatingChain()
    chain.now_ms = chain.ends_ms - random.randrange(16_000, 30_000)
    at_ms = chain.ends_ms + random.randrange(-8_000, 8_000)
    if random.random() < 0.5:
        chain.next_set(at_ms + random.randrange(-4_000, 4_000))
    if random.random() < 0.7:
        chain.plan(PlanKind.SPLIT, at_ms)
    foreseen = chain.targets(chain.now_ms)
    until_ms = chain.now_ms + AHEAD_MS
    before = chain.at_work
    while chain.now_ms < until_ms:
        due = [one for one in _moments(chain) if one > chain.now_ms] or [until_ms]
        at = min(due) + random.randrange(BLOCK_WITHIN_MS)
        if at > until_ms:
            break
        chain.now_ms = at - 100
        chain.master_block()
        if chain.at_work.public_keys != before.public_keys:
            assert chain.at_work.public_keys in foreseen, f"seed {seed}"
        before = chain.at_work


def _moments(chain: RotatingChain) -> list[int]:
    master = chain.ledger.master
    entry = master.entry_for(0, ACCOUNT)
    assert entry is not None
    following: ValidatorSet | None = master.configuration.next
    planned = [entry.plan_at_ms] if entry.plan is not PlanKind.NONE else []
    return [entry.session.ends_ms, *planned, *([] if following is None else [following.from_ms])]
