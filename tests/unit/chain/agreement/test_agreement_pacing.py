"""How long slots last, who may hurry them, and how those who are behind catch up."""

from __future__ import annotations

import pytest

from stagepost.chain.agreement.effects import Reply
from stagepost.chain.agreement.messages import Proposal, decode_message
from stagepost.chain.agreement.pacing import (
    TIMEOUT_S_MAX,
    WISHES_AT_ONCE_MAX,
    MemberOptions,
    SlotClock,
    Timeouts,
    Wishes,
)
from stagepost.chain.agreement.progress import SLOTS_PER_ANSWER_MAX
from stagepost.chain.agreement.queries import ANSWER_BYTES_MAX, GetProgress, decode_answer
from tests.worlds.chain.agreement_attackers import Hurrier, Skipper, world_with
from tests.worlds.chain.agreement_world import Peer, World, contents_of, session_of

QUICK_S = 0.01


def test_each_failed_slot_doubles_the_time_out_once_an_honest_leader_must_be_among_them() -> None:
    timeouts = Timeouts(session_of(7), 0.2)
    assert timeouts.slot_s == 0.6000000000000001
    for _ in range(2):
        timeouts.slot_failed(0)
    assert timeouts.level == 0, "two of seven may be faulty"
    for level in (1, 2, 3):
        timeouts.slot_failed(0)
        assert timeouts.level == level
    assert timeouts.slot_s == 4.800000000000001


@pytest.mark.parametrize(("silent", "level"), [(0, 0), (1, 1), (2, 2), (3, 2), (6, 2)])
def test_silent_validators_count_among_the_faulty(silent: int, level: int) -> None:
    timeouts = Timeouts(session_of(7), 0.2)
    for _ in range(2):
        timeouts.slot_failed(silent)
    assert timeouts.level == level


def test_the_time_out_halves_after_a_round_of_good_slots_of_which_f_may_be_slow() -> None:
    timeouts = Timeouts(session_of(7), 0.2)
    for _ in range(4):
        timeouts.slot_failed(0)
    assert timeouts.level == 2
    third_s = timeouts.slot_s / 3
    for lasted_s in [third_s + 1e-6] * 2 + [third_s - 1e-6] * 4:
        timeouts.slot_succeeded(lasted_s)
    assert timeouts.level == 2
    timeouts.slot_succeeded(QUICK_S)
    assert timeouts.level == 1
    third_s = timeouts.slot_s / 3
    for lasted_s in [third_s + 1e-6] * 3 + [QUICK_S] * 4:
        timeouts.slot_succeeded(lasted_s)
    assert timeouts.level == 1, "an honest leader needed more than two thirds of what would remain"
    for _ in range(14):
        timeouts.slot_succeeded(QUICK_S)
    assert timeouts.level == 0


def test_a_final_block_between_failures_keeps_time_outs_as_they_are() -> None:
    timeouts = Timeouts(session_of(7), 0.2)
    for _ in range(20):
        timeouts.slot_failed(0)
        timeouts.slot_failed(0)
        timeouts.slot_succeeded(None)
    assert timeouts.level == 0


def test_a_block_that_became_final_late_is_no_reason_for_shorter_time_outs() -> None:
    timeouts = Timeouts(session_of(4), 0.2)
    timeouts.slot_failed(1)
    for _ in range(20):
        timeouts.slot_succeeded(None)
    assert timeouts.level == 1


def test_time_outs_end_at_thirty_seconds_and_come_down_from_there() -> None:
    timeouts = Timeouts(session_of(4), 0.2)
    seen = {timeouts.slot_s}
    for _ in range(1_000):
        timeouts.slot_failed(0)
        seen.add(timeouts.slot_s)
    assert max(seen) == timeouts.slot_s == TIMEOUT_S_MAX == 30.0
    for _ in range(4):
        timeouts.slot_succeeded(QUICK_S)
    assert timeouts.slot_s == 0.6000000000000001 * 32, "one level below, however often it failed"


def _clock() -> SlotClock:
    return SlotClock(session_of(4), MemberOptions(stalled_after_s=30.0), 0.0)


def test_a_notarised_slot_fails_when_its_block_is_not_final_two_slots_later() -> None:
    clock = _clock()
    for slot in range(1, 5):
        clock.leave(slot, is_skipped=False, silent=0, now=float(slot))
        assert clock.timeouts.level == (1 if slot == 4 else 0), "slots 1 and 2 have failed with the fourth"
    clock.finalised([4])
    for slot in range(5, 40):
        clock.leave(slot, is_skipped=False, silent=0, now=float(slot))
        if slot % 2:
            clock.finalised([slot])
    assert clock.timeouts.level == 0


def test_the_time_of_a_silent_leaders_slot_is_over_at_once_and_it_has_not_failed() -> None:
    clock = _clock()
    for slot in range(1, 20):
        clock.watch(True, float(slot), is_leader_silent=True)
        assert clock.next_wake <= float(slot)
        assert clock.passed(float(slot))
        assert not clock.passed(float(slot))
        clock.leave(slot, is_skipped=True, silent=1, now=float(slot))
    assert clock.timeouts.level == 0
    clock.watch(True, 20.0)
    assert not clock.passed(20.0)


def test_a_stall_is_told_by_the_time_since_the_last_final_block_whatever_slots_end_meanwhile() -> None:
    clock = _clock()
    clock.watch(True, 0.0)
    for slot in range(1, 300):
        clock.leave(slot, is_skipped=True, silent=0, now=slot / 10)
        clock.watch(True, slot / 10)
        assert not clock.has_stalled(slot / 10)
    assert clock.has_stalled(30.0)
    assert not clock.has_stalled(30.0)
    assert not clock.has_stalled(59.9)
    assert clock.has_stalled(60.0), "as long as it lasts"
    clock.finalised([300])
    clock.watch(True, 61.0)
    assert not clock.has_stalled(90.9)
    assert clock.has_stalled(91.0)


def test_a_chain_that_nobody_waits_for_has_not_stalled() -> None:
    clock = _clock()
    clock.watch(True, 0.0)
    clock.watch(False, 10.0)
    assert not clock.has_stalled(1_000.0)
    clock.watch(True, 1_000.0)
    assert not clock.has_stalled(1_029.9)
    assert clock.has_stalled(1_030.0)


def test_a_wish_holds_until_the_one_who_wishes_leads_a_slot() -> None:
    session = session_of(4)
    leader = session.leader_of(10)
    for ahead in range(4):
        wishes = Wishes(session, (leader + ahead + 1) % 4, pause_s=1.0)
        assert wishes.wish((leader + ahead) % 4, 10, now=5.0)
        assert [wishes.is_wanted(slot) for slot in (10 + ahead, 11 + ahead)] == [True, False]
        assert not wishes.wish((leader + ahead) % 4, 10 + ahead, now=5.0), "it is still in force"


def test_a_wish_for_one_slot_ends_with_it() -> None:
    wishes = Wishes(session_of(4), 0, pause_s=1.0)
    assert wishes.wish(1, 10, now=5.0, is_for_one=True)
    assert [wishes.is_wanted(slot) for slot in (10, 11)] == [True, False]


def test_five_wishes_of_another_are_granted_at_once_and_then_one_after_each_pause() -> None:
    wishes = Wishes(session_of(4), 0, pause_s=1.0)
    granted = [wishes.wish(1, 10 * number, now=5.0, is_for_one=True) for number in range(1, 8)]
    assert granted == [True] * WISHES_AT_ONCE_MAX + [False] * 2
    assert wishes.wish(2, 70, now=5.0), "others have wishes of their own"
    assert not wishes.wish(1, 100, now=5.99, is_for_one=True)
    assert wishes.wish(1, 100, now=6.0, is_for_one=True)
    assert not wishes.wish(1, 101, now=6.0, is_for_one=True)


def test_a_wish_of_our_own_needs_no_pause_and_ends_when_it_is_fulfilled() -> None:
    wishes = Wishes(session_of(4), 0, pause_s=1.0)
    for _ in range(3 * WISHES_AT_ONCE_MAX):
        assert wishes.wish(0, 10, now=5.0)
        assert wishes.is_wanted(10)
        wishes.fulfil(0)
        assert not wishes.is_wanted(10)


# Together


def test_validators_with_nothing_to_say_make_no_blocks_and_few_frames() -> None:
    world = World(4, 1)
    world.start_all()
    world.run(2.0)
    before = world.frames_sent
    world.run(102.0)
    assert all(peer.member.slot == 1 for peer in world.peers)
    assert world.frames_sent - before < 4 * 2 * 100


def test_with_an_idle_period_there_is_a_block_for_each() -> None:
    world = World(4, 1, options=MemberOptions(start_wait_s=0.3, idle_period_s=5.0))
    world.start_all()
    world.run(52.0)
    assert {len(peer.chain) for peer in world.peers} <= {9, 10}


def test_one_validator_cannot_keep_the_others_busy() -> None:
    for attacker in (Hurrier, Skipper):
        world = world_with(4, 1, {2: attacker}, loss=0.0)
        world.start_all()
        world.run(2.0)
        before = max(peer.member.slot for peer in world.honest)
        world.run(22.0)
        # A round of four for each wish, and whatever its leader itself proposes: the chain could do ten times as many.
        assert max(peer.member.slot for peer in world.honest) - before <= (20 + WISHES_AT_ONCE_MAX) * 5


def test_what_the_last_one_has_to_say_is_final_within_a_round() -> None:
    world = World(7, 3)
    world.start_all()
    world.run(1.0)
    last = world.peers[(world.session.leader_of(1) - 1) % 7]
    last.say(b"at last")
    world.run(4.0)
    assert all(b"at last" in contents_of(peer) for peer in world.peers)
    assert world.peers[0].member.slot <= 9


def _far_ahead(content: bytes) -> tuple[World, Peer]:
    """Three of four have made many blocks, of which the fourth knows nothing."""
    world = World(4, 6)
    for peer in world.peers[:3]:
        peer.start()
    world.run(1.0)
    for number in range(120):
        world.peers[number % 3].say(content + b" %d" % number)
    while len(world.peers[0].chain) < 120 and world.now < 300.0:
        world.run(world.now + 1.0)
    return world, world.peers[3]


def test_who_is_far_behind_catches_up_from_the_others_disks_in_pieces() -> None:
    world, behind = _far_ahead(b"block")
    asked: list[int] = []
    answer_came = behind.answer_came

    def count(sender: int, number: int, answer: bytes) -> None:
        asked.append(number)
        answer_came(sender, number, answer)

    behind.answer_came = count  # type: ignore[method-assign]
    behind.start()
    world.run(world.now + 10.0)
    assert len(behind.chain) == len(world.peers[0].chain) >= 120
    assert len(asked) >= 120 // SLOTS_PER_ANSWER_MAX
    assert not behind.refused


def test_an_answer_has_32_blocks_and_a_mebibyte_at_most() -> None:
    world, _ = _far_ahead(bytes(90_000))
    member = world.peers[0].member
    (reply,) = member.query_received(3, 1, GetProgress(0, 1, 1).encode(), world.now)
    assert isinstance(reply, Reply)
    assert ANSWER_BYTES_MAX * 0.8 < len(reply.answer) <= ANSWER_BYTES_MAX + 20_000

    world, _ = _far_ahead(b"small")
    member = world.peers[0].member
    (reply,) = member.query_received(3, 1, GetProgress(0, 1, 1).encode(), world.now)
    assert isinstance(reply, Reply)
    frames = [decode_message(frame) for frame in decode_answer(reply.answer).frames]
    assert len([one for one in frames if isinstance(one, Proposal)]) <= SLOTS_PER_ANSWER_MAX + 1
