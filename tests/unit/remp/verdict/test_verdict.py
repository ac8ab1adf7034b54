"""Every rule of the verdict, and that order, repetition and splitting change nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.remp_world import FULL_NODE, said, seed_of, session, session_name, sets_of, shard_block
from stagepost.errors import ErrorCode
from stagepost.remp.receipts.receipt import Counting, Quarantined, check
from stagepost.remp.receipts.status import KINDS, Level
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.state import MessageState, ProvedEnd
from stagepost.remp.verdict.verdict import Verdict, evaluate, verdict

SEVEN = sets_of(session(1, range(7)))
NOT_OVER, OVER = 1_000, 10_000_000


def of(
    *receipts: Counting, sets: ValidatorSets = SEVEN, as_of: int | None = NOT_OVER, **more: Any
) -> Verdict:
    found = verdict(receipts, sets, as_of, **more)
    assert found is not None
    return found


SENT = said(FULL_NODE, "SentToValidators", 0)


def each(name: str, *who: int, at_ms: int = 10) -> list[Counting]:
    return [said(one, name, at_ms) for one in who]


# The nine rules, in order


def test_finalized_by_a_full_node_is_final_whatever_else_was_said() -> None:
    found = of(*each("RejectedByCollator", *range(7)), said(FULL_NODE, "Finalized", 20), as_of=OVER)
    assert found.verdict == "finalized"
    assert found.finalized_ms == 20


@pytest.mark.parametrize(("signers", "expected"), [(2, "included"), (3, "finalized")])
def test_finalized_by_more_than_a_third_of_a_session_is_final(signers: int, expected: str) -> None:
    assert of(*each("Finalized", *range(signers))).verdict == expected


def test_a_validator_that_signed_finalized_once_has_signed_it_for_ever() -> None:
    later = [said(one, "Timeout", 50) for one in range(3)]
    assert of(*each("Finalized", 0, 1, 2), *later).verdict == "finalized"


def test_signers_of_finalized_must_belong_to_one_session() -> None:
    sets = sets_of(session(1, range(7)), session(2, range(10, 17)))
    assert of(*each("Finalized", 0, 1, 10, 11), sets=sets).verdict == "included"


@pytest.mark.parametrize(
    ("accepting", "as_of", "expected"),
    [
        (1, NOT_OVER, "included"),
        (2, NOT_OVER, "included"),
        (3, NOT_OVER, "accepted"),
        (2, OVER, "expired"),
        (3, OVER, "accepted"),
    ],
)
def test_more_than_a_third_accept_whether_or_not_life_is_over(
    accepting: int, as_of: int, expected: str
) -> None:
    found = of(SENT, *each("IncludedIntoAcceptedBlock", *range(accepting)), as_of=as_of)
    assert found.verdict == expected


@pytest.mark.parametrize(
    ("kind", "rejecting", "expected"),
    [
        ("executed", 7, "finalized"),
        ("executed_as", 7, "executed_as"),
        ("never", 4, "expired"),
        ("never", 5, "rejected"),
    ],
)
def test_a_proof_outranks_every_claim(kind: str, rejecting: int, expected: str) -> None:
    state = MessageState()
    for counting in (said(FULL_NODE, "Finalized", 20), *each("RejectedByCollator", *range(rejecting))):
        state.add(counting)
    assert conclusion_of(state) == ("finalized", "none")
    state.proved = ProvedEnd(kind, 9, 5, 7, "ab" * 32 if kind == "executed_as" else None)

    assert conclusion_of(state) == (expected, kind)


def conclusion_of(state: MessageState) -> tuple[str, str]:
    found = evaluate(state, SEVEN, NOT_OVER)
    assert found is not None
    return found.verdict, found.proof


def test_a_full_nodes_rejection_counts_only_where_nobody_else_has_spoken() -> None:
    rejected = said(FULL_NODE, "RejectedByFullnode", 5)
    assert of(rejected).verdict == "rejected_by_fullnode"
    assert of(rejected, SENT).verdict == "sent"
    assert of(rejected, said(0, "PutIntoQueue")).verdict == "queued"
    assert of(rejected).rejected_ms == 5


@pytest.mark.parametrize(
    ("rejecting", "timed_out", "as_of", "expected"),
    [
        (5, 2, NOT_OVER, "rejected"),
        (4, 3, NOT_OVER, "expired"),
        (5, 0, NOT_OVER, "likely_rejected"),
        (5, 0, OVER, "rejected"),
        (4, 0, NOT_OVER, "queued"),
        (4, 0, OVER, "expired"),
        (7, 0, NOT_OVER, "rejected"),
        (0, 7, NOT_OVER, "expired"),
    ],
)
def test_two_thirds_reject_and_all_close_it(
    rejecting: int, timed_out: int, as_of: int, expected: str
) -> None:
    rejects = each("RejectedByCollator", *range(rejecting))
    timeouts = each("Timeout", *range(rejecting, rejecting + timed_out))
    assert of(SENT, *rejects, *timeouts, as_of=as_of).verdict == expected


@pytest.mark.parametrize(
    ("size", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (6, 4), (7, 5), (13, 9), (21, 14)]
)
def test_two_thirds_are_counted_by_head_and_rounded_up(size: int, needed: int) -> None:
    sets = sets_of(session(1, range(size)))
    enough = each("RejectedByQueue", *range(needed))
    rest = each("PutIntoQueue", *range(needed, size))
    expected = "rejected" if needed == size else "likely_rejected"
    assert of(*enough, *rest, sets=sets).verdict == expected
    if needed > 1:
        fewer = [
            *each("RejectedByQueue", *range(needed - 1)),
            *each("PutIntoQueue", *range(needed - 1, size)),
        ]
        assert of(*fewer, sets=sets).verdict == "queued"


def test_it_expires_also_when_no_validator_spoke() -> None:
    assert of(SENT, as_of=1_000).verdict == "sent"
    assert of(SENT, as_of=1_001).verdict == "expired"
    assert of(SENT, as_of=None).verdict == "sent"


def test_included_needs_only_one_and_goes_away_with_its_last_status() -> None:
    included = said(0, "IncludedIntoBlock", 10)
    assert of(SENT, included).verdict == "included"
    back = of(SENT, included, said(0, "IgnoredByShardchain", 11))
    assert back.verdict == "queued"
    assert back.included_ms == 10


def test_the_message_timeout_can_be_given() -> None:
    assert of(SENT, as_of=500, message_timeout_ms=400).verdict == "expired"


# Terms


def test_a_members_last_status_is_the_greatest_time_then_level_then_rank() -> None:
    at_once = [said(0, name, 10) for name in ("PutIntoQueue", "Duplicate", "Timeout", "RejectedByQueue")]
    assert of(*at_once).rejected_by == (0,)
    assert of(*at_once, said(0, "IgnoredByCollator", 10)).rejected_by == ()
    assert of(*at_once, said(0, "PutIntoQueue", 11)).queued_at == (0,)


def test_first_seen_is_the_sending_or_the_time_at_which_an_honest_one_must_have_it() -> None:
    firsts = [said(one, "PutIntoQueue", one * 100) for one in range(7)]
    # Without a full node's word: the third of seven, at 200.
    assert of(*firsts, as_of=1_200).verdict == "queued"
    assert of(*firsts, as_of=1_201).verdict == "expired"
    # If fewer spoke, the latest of them.
    assert of(*firsts[:2], as_of=1_100).verdict == "queued"
    assert of(*firsts[:2], as_of=1_101).verdict == "expired"
    assert of(SENT, *firsts, as_of=1_001).verdict == "expired"


def test_lists_name_members_by_index_and_the_silent_ones_too() -> None:
    found = of(
        said(0, "PutIntoQueue"), said(1, "RejectedByCollator"), said(2, "Duplicate"), said(3, "IncludedIntoBlock"),
        said(4, "IgnoredByQueue"),
    )  # fmt: skip
    assert (found.queued_at, found.rejected_by, found.silent) == ((0, 2, 4), (1,), (5, 6))
    assert (found.validators, found.session_id) == (7, session_name(1).hex())


def test_stage_times_are_the_least_over_all_receipts() -> None:
    found = of(said(0, "PutIntoQueue", 30), said(1, "PutIntoQueue", 20), said(1, "PutIntoQueue", 25))
    assert found.queued_ms == 20
    assert found.receipts == 3


# Which session decides


OLD_AND_NEW = sets_of(session(1, range(4), seqno=100), session(2, range(2, 9), seqno=101))


def in_state(*hinted: tuple[Counting, int | None]) -> MessageState:
    state = MessageState()
    for counting, hint in hinted:
        state.add(counting, None if hint is None else session_name(hint).hex())
    return state


def test_a_hinted_session_with_more_than_a_third_of_its_members_decides() -> None:
    hinted = [(said(one, "PutIntoQueue"), 2) for one in (2, 3, 4)]
    others = [(said(one, "PutIntoQueue"), 1) for one in (0, 1)]
    found = evaluate(in_state(*hinted, *others), OLD_AND_NEW, NOT_OVER)
    assert found is not None
    assert found.session_id == session_name(2).hex()
    too_few = evaluate(in_state(*hinted[:2], *others), OLD_AND_NEW, NOT_OVER)
    assert too_few is not None
    assert too_few.session_id == session_name(1).hex()


def test_without_hints_most_speakers_decide_then_the_announced_size_then_the_newest() -> None:
    def decided(*receipts: Counting) -> str | None:
        return of(*receipts, sets=OLD_AND_NEW).session_id

    assert decided(said(0, "PutIntoQueue"), said(2, "PutIntoQueue")) == session_name(1).hex()
    assert decided(said(2, "PutIntoQueue"), said(4, "PutIntoQueue")) == session_name(2).hex()
    assert decided(said(2, "PutIntoQueue")) == session_name(2).hex()
    announced = said(FULL_NODE, "SentToValidators", total=4)
    assert decided(said(2, "PutIntoQueue"), announced) == session_name(1).hex()


def test_a_hint_that_does_not_hold_is_none() -> None:
    state = in_state((said(0, "PutIntoQueue"), 2))  # not a member there
    found = evaluate(state, OLD_AND_NEW, NOT_OVER)
    assert found is not None
    assert found.session_id == session_name(1).hex()
    nonsense = MessageState()
    nonsense.add(said(0, "PutIntoQueue"), "nonsense")
    assert evaluate(nonsense, OLD_AND_NEW, NOT_OVER) == found


def test_a_named_block_points_to_the_sessions_of_its_shard() -> None:
    sets = sets_of(
        session(1, range(3), shard="4000000000000000"),
        session(2, range(3), shard="c000000000000000", seqno=101),
    )
    left = said(0, "IncludedIntoBlock", block=shard_block(0x4000_0000_0000_0000))
    assert of(left, sets=sets).session_id == session_name(1).hex()
    elsewhere = said(0, "IncludedIntoBlock", block=shard_block(0x2000_0000_0000_0000))
    assert of(elsewhere, sets=sets).session_id == session_name(2).hex()


def test_windows_keep_a_session_from_holding_what_was_said_outside_of_it() -> None:
    sets = sets_of(session(1, range(3), to_ms=100), session(2, range(3), seqno=101, from_ms=100))
    assert of(said(0, "PutIntoQueue", 99), sets=sets).session_id == session_name(1).hex()
    assert of(said(0, "PutIntoQueue", 100), sets=sets).session_id == session_name(2).hex()
    # One row over both: either holds it, and the newer wins.
    both = of(said(0, "PutIntoQueue", 99), said(0, "PutIntoQueue", 100), sets=sets)
    assert both.session_id == session_name(2).hex()


def test_only_rows_of_the_deciding_session_count() -> None:
    sets = sets_of(session(1, range(4)), session(2, range(10, 14), seqno=101))
    found = of(*each("PutIntoQueue", 0, 1, 2), *each("RejectedByCollator", 10, 11), sets=sets)
    assert found.session_id == session_name(1).hex()
    assert found.rejected_by == ()


def test_without_a_validator_there_is_no_session() -> None:
    found = of(SENT)
    assert (found.session_id, found.validators, found.queued_at, found.silent) == (None, None, (), ())


def test_nothing_that_counts_gives_no_row() -> None:
    assert verdict([], SEVEN, 0) is None
    unsigned = said(0, "PutIntoQueue").receipt
    assert verdict([unsigned], SEVEN, 0) is None


# The checks after format and kind


def reason_of(
    counting: Counting, sets: ValidatorSets = SEVEN, arrived_ms: int | None = None
) -> ErrorCode | None:
    found = check(counting.receipt, sets, arrived_ms)
    return found.reason if isinstance(found, Quarantined) else None


def test_checks_come_in_order_and_the_signature_last() -> None:
    assert reason_of(said(0, "PutIntoQueue", signed=True)) is None
    assert reason_of(said(0, "PutIntoQueue")) is ErrorCode.RECEIPT_UNSIGNED
    assert reason_of(said(50, "PutIntoQueue", signed=True)) is ErrorCode.RECEIPT_SOURCE
    assert reason_of(said(0, "SentToValidators", signed=True)) is ErrorCode.RECEIPT_ROLE
    assert reason_of(said(FULL_NODE, "PutIntoQueue", signed=True)) is ErrorCode.RECEIPT_ROLE
    assert reason_of(said(FULL_NODE, "Finalized", signed=True)) is None
    forged = said(0, "PutIntoQueue").receipt.with_signature(bytes(64))
    assert reason_of(Counting(forged, said(0, "PutIntoQueue").role)) is ErrorCode.RECEIPT_SIGNATURE


def test_a_receipt_may_be_dated_five_minutes_ahead_and_no_more() -> None:
    ahead = said(0, "PutIntoQueue", 300_000, signed=True)
    assert reason_of(ahead, arrived_ms=0) is None
    assert reason_of(said(0, "PutIntoQueue", 300_001, signed=True), arrived_ms=0) is ErrorCode.RECEIPT_FUTURE
    assert reason_of(said(0, "PutIntoQueue", 300_001, signed=True)) is None


def test_a_validator_outside_of_its_window_is_no_source() -> None:
    sets = sets_of(session(1, range(3), from_ms=100, to_ms=200))
    assert reason_of(said(0, "PutIntoQueue", 99, signed=True), sets) is ErrorCode.RECEIPT_SOURCE
    assert reason_of(said(0, "PutIntoQueue", 100, signed=True), sets) is None
    assert reason_of(said(0, "PutIntoQueue", 199, signed=True), sets) is None
    assert reason_of(said(0, "PutIntoQueue", 200, signed=True), sets) is ErrorCode.RECEIPT_SOURCE


def test_signing_again_with_another_key_changes_the_source() -> None:
    receipt = said(0, "PutIntoQueue", signed=True).receipt
    assert receipt.sign(seed_of(1)).source_id != receipt.source_id


# Order, repetition, splitting


NAMES = [kind.name for kind in KINDS if kind.level is not Level.FULLNODE]
SHARDS = [None, 0x4000_0000_0000_0000, 0xC000_0000_0000_0000]
SETS = sets_of(
    session(1, range(4), seqno=100, shard="4000000000000000", to_ms=60),
    session(2, range(2, 9), seqno=101, from_ms=40),
    session(3, range(5, 8), seqno=101, shard="c000000000000000"),
)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.sampled_from(NAMES),
        st.integers(0, 100),
        st.sampled_from(SHARDS),
        st.sampled_from([None, 1, 2, 3]),
    ),
    max_size=25,
)


@given(RECORDS, st.booleans(), st.integers(0, 2_000), st.randoms(use_true_random=False))
def test_any_order_repetition_and_split_gives_the_same_verdict(
    records: list[tuple[int, str, int, int | None, int | None]], is_sent: bool, as_of: int, random: Random
) -> None:
    hinted = [
        (said(who, name, at_ms, block=None if shard is None else shard_block(shard)), hint)
        for who, name, at_ms, shard, hint in records
    ]
    if is_sent:
        hinted.append((said(FULL_NODE, "SentToValidators", 5), None))
    whole = evaluate(in_state(*hinted), SETS, as_of)
    shuffled = [*hinted, *random.choices(hinted, k=3)] if hinted else []
    random.shuffle(shuffled)
    parts = [MessageState() for _ in range(3)]
    for counting, hint in shuffled:
        part = random.choice(parts)
        part.add(counting, None if hint is None else session_name(hint).hex())
    random.shuffle(parts)
    joined = MessageState()
    for part in [*parts, parts[0]]:
        joined.join(part)
    assert evaluate(joined, SETS, as_of) == whole
