"""Time and blocks: when an idle shard gets one, and which candidates are held against the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any, cast

import msgspec
import pytest

from rigs.agreement_keys import public_key_of, seed_of
from rigs.chain_messages import some_primes
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.effects import CheckCandidate, Propose
from stagepost.chain.agreement.member import Member
from stagepost.chain.agreement.session import Session
from stagepost.chain.master_block import decode_master_block
from stagepost.chain.master_state import PlanKind
from stagepost.chain.node.block_making import (
    IDLE_PAUSE_MS,
    PASSED_MS,
    ROTATIONS_APART_MS,
    TRY_AGAIN_MAX_MS,
    TRY_AGAIN_MS,
    BlockMaker,
)
from stagepost.chain.node.candidate_judging import CandidateJudge, Seat
from stagepost.chain.rotation import Plan
from stagepost.chain.shard_blocks import CLOCK_AHEAD_MS_MAX
from stagepost.remp.ledger import CollatedBlock, LedgerSession, ParsedMessage
from stagepost.remp.message import ExternalMessage
from stagepost.validator.queue_bridge import EXPIRIES_MAX, EXPIRING_MAX, KnownExpiries
from tests.worlds.chain.chain_world import LIFETIME_MS, DecidedChain, a_configuration, a_genesis


class IdleCollator:
    """A source without messages that knows when earlier ones expired."""

    def __init__(self) -> None:
        self.expiries = KnownExpiries()

    def has_messages(self, session: LedgerSession) -> bool:
        return False

    def has_expired(self, session: LedgerSession, after_ms: int, until_ms: int) -> bool:
        return self.expiries.has_any(session.shard, after_ms, until_ms)

    def take(self, session: LedgerSession) -> Iterable[ExternalMessage]:
        return ()

    def collated(self, session: LedgerSession, collated: CollatedBlock) -> None:
        pass


def expiring(at_s: int, number: int = 1) -> ParsedMessage:
    return ParsedMessage(some_primes(number, expires_at_s=at_s), at_s)


class IdleShard:
    """A shard whose last block is at `last_ms`, and the question whether another one is wanted."""

    def __init__(self) -> None:
        self.chain, self.collator = DecidedChain(), IdleCollator()
        self.session = self.chain.whole
        self.chain.shard_block(self.session.session_id, [])
        self.last_ms = self.chain.now_ms
        self.maker = BlockMaker(self.chain.ledger, self.collator)

    def is_wanted(self, now_ms: int) -> bool:
        chain = self.chain.ledger.chain(self.session.session_id)
        assert chain is not None
        return self.maker.is_wanted(self.session, chain.top_hash, now_ms)


def test_a_message_that_expired_two_seconds_ago_wants_one_block_that_passes_it() -> None:
    shard = IdleShard()
    expires_s = (shard.last_ms + IDLE_PAUSE_MS) // 1_000 + 1
    shard.collator.expiries.note(expiring(expires_s), expires_s)

    assert not shard.is_wanted(expires_s * 1_000 + PASSED_MS - 1)
    assert shard.is_wanted(expires_s * 1_000 + PASSED_MS)
    shard.chain.now_ms = expires_s * 1_000 + PASSED_MS
    shard.chain.shard_block(shard.session.session_id, [])
    assert not shard.is_wanted(shard.chain.now_ms + 2 * IDLE_PAUSE_MS)


def test_a_configuration_that_the_chain_cannot_change_to_is_not_proposed() -> None:
    chain = DecidedChain()
    maker, session = BlockMaker(chain.ledger, None), chain.ledger.master_session()
    present, parent = chain.ledger.master.configuration, chain.ledger.following.master_hash
    asked, now_ms = Propose(1, parent, is_wanted=True), (session.from_ms + session.ends_ms) // 2
    shorter = msgspec.structs.replace(present, expiry_ahead_max_ms=present.expiry_ahead_max_ms - 1)

    maker.propose_configurations([shorter])
    assert not maker.is_wanted(session, parent, now_ms)
    payload = maker.payload(session, asked, now_ms)
    assert payload is not None
    assert decode_master_block(payload).configuration == b""
    maker.propose_configurations([msgspec.structs.replace(present, skew_ms=1)])
    assert maker.is_wanted(session, parent, now_ms)


def test_expired_messages_want_a_block_at_most_once_in_five_seconds() -> None:
    shard = IdleShard()
    expires_s = shard.last_ms // 1_000 + 1
    shard.collator.expiries.note(expiring(expires_s), expires_s)

    assert expires_s * 1_000 + PASSED_MS < shard.last_ms + IDLE_PAUSE_MS
    assert not shard.is_wanted(shard.last_ms + IDLE_PAUSE_MS - 1)
    assert shard.is_wanted(shard.last_ms + IDLE_PAUSE_MS)


def test_an_idle_shard_wants_nothing_by_itself_before_half_of_its_life_and_then_one_block() -> None:
    chain = DecidedChain()
    session, maker = chain.whole, BlockMaker(chain.ledger, IdleCollator())
    half_ms = (session.from_ms + session.ends_ms) // 2

    assert half_ms > session.from_ms + IDLE_PAUSE_MS, "the session is long enough to tell"
    assert not maker.is_wanted(session, session.session_id, half_ms - 1)
    assert maker.is_wanted(session, session.session_id, half_ms)
    collated = chain.shard_block(session.session_id, [])
    after = chain.ledger.chain(session.session_id)
    assert after is not None
    assert after.top.previous == (collated.block_id,)
    assert not maker.is_wanted(session, after.top_hash, session.ends_ms - 1)


def test_a_key_block_keeps_apart_from_the_rotations_around_it() -> None:
    """Queues close a message after two rotations of the masterchain: with two in a row they would close those in flight."""
    chain = DecidedChain()
    session, maker = chain.ledger.master_session(), BlockMaker(chain.ledger, None)
    base = chain.ledger.master.configuration
    apart_ms = min(ROTATIONS_APART_MS, base.master_lifetime_ms // 4)
    begins_ms, ends_ms = session.from_ms, session.ends_ms

    def is_wanted(now_ms: int) -> bool:
        return maker.is_wanted(session, session.session_id, now_ms)

    assert not is_wanted(ends_ms - 1), "nothing else wants a block"
    maker.propose_configurations([msgspec.structs.replace(base, shard_validators=3)])
    moments = (
        begins_ms + apart_ms - 1,
        begins_ms + apart_ms,
        ends_ms - apart_ms,
        ends_ms - apart_ms + 1,
        ends_ms,
    )
    assert [is_wanted(one) for one in moments] == [False, True, True, False, True]
    at_ms = (begins_ms + ends_ms) // 2
    following = msgspec.structs.replace(base.current, from_ms=at_ms)
    maker.propose_configurations([msgspec.structs.replace(base, next=following)])
    assert [is_wanted(one) for one in (at_ms - apart_ms, at_ms - apart_ms + 1, at_ms)] == [True, False, True]


def test_a_configuration_that_too_few_approve_costs_few_slots_and_lets_others_have_their_turn() -> None:
    """A leader does not know how many approve. Each of its blocks with a configuration that others decline is a lost slot."""
    configuration = msgspec.structs.replace(
        a_configuration(), master_lifetime_ms=3_600_000, shard_lifetime_ms=3_600_000
    )
    chain = DecidedChain(a_genesis(configuration))
    session, maker = chain.ledger.master_session(), BlockMaker(chain.ledger, None)
    base, now_ms = chain.ledger.master.configuration, (session.from_ms + session.ends_ms) // 2
    wanted = [msgspec.structs.replace(base, skew_ms=one) for one in (1, 2)]
    longest_ms = TRY_AGAIN_MAX_MS * len(base.current.validators)

    def tried() -> bytes:
        asked = Propose(1, chain.ledger.following.master_hash, is_wanted=True)
        payload = maker.payload(session, asked, now_ms)
        assert payload is not None
        return decode_master_block(payload).configuration

    maker.propose_configurations(wanted)
    pause_ms = TRY_AGAIN_MS
    for number in range(9):
        assert maker.is_wanted(session, session.session_id, now_ms)
        assert tried() == wanted[number % 2].encode()
        maker.propose_configurations(list(wanted))
        now_ms += pause_ms - 1
        assert not maker.is_wanted(session, session.session_id, now_ms)
        assert tried() == b""
        now_ms += 1
        pause_ms = min(2 * pause_ms, longest_ms)
    assert pause_ms == longest_ms
    assert tried() != b""
    now_ms -= 1
    assert tried() != b"", "a clock that was put back ends the pause"
    maker.propose_configurations(wanted[1:])
    assert tried() == wanted[1].encode(), "another wish is tried at once"
    maker.propose_configurations([])
    assert not maker.is_wanted(session, session.session_id, now_ms + longest_ms)


def test_a_plan_that_too_few_want_costs_few_slots_and_one_that_was_taken_makes_the_next_one_wait_for_nothing() -> (
    None
):
    configuration = msgspec.structs.replace(
        a_configuration(), master_lifetime_ms=3_600_000, shard_lifetime_ms=3_600_000
    )
    chain = DecidedChain(a_genesis(configuration))
    session, maker = chain.ledger.master_session(), BlockMaker(chain.ledger, None)
    longest_ms = TRY_AGAIN_MAX_MS * len(configuration.current.validators)

    def tried() -> tuple[Plan, ...]:
        asked = Propose(1, chain.ledger.following.master_hash, is_wanted=True)
        payload = maker.payload(session, asked, chain.now_ms)
        assert payload is not None
        return decode_master_block(payload).plans

    whole = chain.whole.shard
    split = Plan(PlanKind.SPLIT, whole, chain.now_ms)
    pause_ms = TRY_AGAIN_MS
    while pause_ms < longest_ms:
        maker.plans[:] = [msgspec.structs.replace(split, at_ms=chain.now_ms)]
        assert maker.is_wanted(session, session.session_id, chain.now_ms)
        assert len(tried()) == 1
        chain.now_ms += pause_ms - 1
        assert not maker.is_wanted(session, session.session_id, chain.now_ms)
        assert tried() == ()
        chain.now_ms += 1
        pause_ms = min(2 * pause_ms, longest_ms)
    assert len(tried()) == 1
    chain.master_block(plans=[split])
    maker.forget_plans()
    maker.plans[:] = [Plan(PlanKind.MERGE, whole, chain.now_ms)]
    assert len(tried()) == 1


def test_of_expiries_so_many_are_known_and_none_that_no_block_takes_yet() -> None:
    known, shard = KnownExpiries(), DecidedChain().whole.shard
    for second in range(1, EXPIRIES_MAX + 2):
        known.note(expiring(second), EXPIRIES_MAX + 1)
    known.note(expiring(EXPIRIES_MAX + 2), EXPIRIES_MAX + 1)

    assert not known.has_any(shard, 0, 1_000)
    assert known.has_any(shard, 1_000, 2_000)
    assert not known.has_any(shard, (EXPIRIES_MAX + 1) * 1_000, LIFETIME_MS * 1_000)
    for number in range(EXPIRING_MAX + 1):
        known.note(expiring(EXPIRIES_MAX, number), EXPIRIES_MAX)
    assert len(known._accounts[EXPIRIES_MAX]) == EXPIRING_MAX


# Candidates and the clock


class Listener:
    """The part of a runner that hears judgements, with the book of a real member."""

    def __init__(self, session: LedgerSession) -> None:
        of_session = Session(
            session.session_id, tuple(public_key_of(one) for one in range(4)), session.session_id
        )
        self.member = Member(of_session, 0, seed_of(0), Random(1), 0.0)
        self.said: list[str | None] = []

    def checked(self, block_hash: bytes, reason: str | None) -> None:
        self.said.append(reason)


def judged(late_ms: int, *, is_notarised: bool, waits_ms: int = 0) -> str | None:
    """Return what is said of a block that is first seen `late_ms` after its time; `waits_ms`: for how long its parent
    is missing after that.
    """
    chain = DecidedChain()
    session = chain.whole
    first = chain.propose(session.session_id, [])
    assert first is not None
    block_ms = chain.now_ms
    now = [block_ms + late_ms]
    listener = Listener(session)
    seat = Seat(session, cast(Any, listener))
    judge = CandidateJudge(chain.ledger, None, lambda: None, lambda: now[0])
    parent = session.session_id
    candidate = Candidate(1, parent, first.payload)
    other = DecidedChain(chain.genesis)
    judge._ledger = other.ledger  # made by another validator
    states = other.ledger.following.chains[session.session_id]._states
    held = states.pop(parent) if waits_ms else None
    judge.check(seat, CheckCandidate(1, candidate.hash, first.payload, parent, is_notarised))
    if held is not None:
        assert listener.said == []
        states[parent] = held
        now[0] += waits_ms
        judge.check_again(seat)
    (said,) = listener.said
    return said


BEHIND_MS = 40_000


def check_what_is_held_against_the_clock() -> None:
    assert judged(BEHIND_MS, is_notarised=False) is None
    assert "wrong time" in (judged(BEHIND_MS + 1, is_notarised=False) or "")
    assert judged(-CLOCK_AHEAD_MS_MAX, is_notarised=False) is None
    assert "wrong time" in (judged(-CLOCK_AHEAD_MS_MAX - 1, is_notarised=False) or "")
    assert judged(3_600_000, is_notarised=True) is None
    assert judged(0, is_notarised=False, waits_ms=3_600_000) is None


def test_a_candidate_is_held_against_the_clock_at_first_sight_and_never_when_a_quorum_voted_for_it() -> None:
    check_what_is_held_against_the_clock()


@pytest.mark.parametrize("defect", ["notarised", "later"])
def test_a_clock_that_is_asked_too_often_is_caught(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., None] = CandidateJudge._judge

    def judge(self: CandidateJudge, seat: Seat, asked: CheckCandidate, seen_ms: int) -> None:
        if defect == "later":
            right(self, seat, asked, self._now_ms())
        else:
            right(
                self,
                seat,
                CheckCandidate(asked.slot, asked.block_hash, asked.payload, asked.parent_hash),
                seen_ms,
            )

    monkeypatch.setattr(CandidateJudge, "_judge", judge)

    with pytest.raises(AssertionError):
        check_what_is_held_against_the_clock()
