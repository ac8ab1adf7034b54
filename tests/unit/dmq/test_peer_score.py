"""Scores rise, fall and heal at the published rates; first announcers are counted over an hour, in bounded memory."""

from __future__ import annotations

import pytest

from stagepost.dmq.downloads import PEERS_REMEMBERED_MAX, FirstAnnouncements
from stagepost.dmq.peer_standing import CLAIM_DELAY_MAX_S, SCORE_MAX, PeerScore


def a_score(rejected: int = 0) -> PeerScore:
    score = PeerScore(now=0)
    for _ in range(rejected):
        score.rejected(now=0)
    return score


def test_a_new_peer_has_no_score_and_no_delay() -> None:
    score = PeerScore(now=5)

    assert score.points(now=5) == 0
    assert score.claim_delay_s(now=5) == 0


def test_a_rejected_message_costs_one_and_an_accepted_one_gives_three_back() -> None:
    score = a_score(rejected=5)

    score.accepted(now=0)

    assert score.points(now=0) == 2


def test_a_tenth_of_a_point_drains_every_second() -> None:
    score = a_score(rejected=2)

    assert score.points(now=1) == pytest.approx(1.9)
    assert score.points(now=19.9) == pytest.approx(0.01)
    assert score.points(now=100) == 0


def test_draining_goes_on_through_later_changes() -> None:
    score = a_score(rejected=2)

    score.rejected(now=10)

    assert score.points(now=10) == pytest.approx(2)
    assert score.points(now=20) == pytest.approx(1)


def test_the_floor_is_zero_so_that_good_deeds_are_not_saved_up() -> None:
    score = PeerScore(now=0)
    for _ in range(100):
        score.accepted(now=0)

    score.rejected(now=0)

    assert score.points(now=0) == 1


def test_many_good_deeds_at_once_count_as_each_by_itself() -> None:
    together, one_by_one = a_score(rejected=10), a_score(rejected=10)

    together.accepted(now=5, count=3)
    for _ in range(3):
        one_by_one.accepted(now=5)

    assert together.points(now=5) == one_by_one.points(now=5) == pytest.approx(0.5)


def test_the_ceiling_is_reached_by_the_nine_hundredth_rejection_and_not_passed() -> None:
    score = a_score(rejected=899)
    assert not score.is_at_ceiling(now=0)

    score.rejected(now=0)
    assert score.is_at_ceiling(now=0)
    score.rejected(now=0)

    assert score.points(now=0) == SCORE_MAX
    assert not score.is_at_ceiling(now=0.001)


def test_the_worst_peer_waits_longest_and_others_in_proportion() -> None:
    assert a_score(rejected=900).claim_delay_s(now=0) == CLAIM_DELAY_MAX_S
    assert a_score(rejected=450).claim_delay_s(now=0) == pytest.approx(CLAIM_DELAY_MAX_S / 2)


# First announcements


def test_credits_are_counted_for_each_peer() -> None:
    first_announcements = FirstAnnouncements()
    first_announcements.credit("a", now=10)
    first_announcements.credit("a", now=11, count=2)
    first_announcements.credit("b", now=70)

    assert first_announcements.credits("a", now=100) == 3
    assert first_announcements.credits("b", now=100) == 1
    assert first_announcements.credits("c", now=100) == 0


def test_a_credit_counts_for_fifty_nine_minutes_and_not_after_an_hour() -> None:
    first_announcements = FirstAnnouncements()
    first_announcements.credit("a", now=59.9)

    assert first_announcements.credits("a", now=3_599.9) == 1
    assert first_announcements.credits("a", now=3_600) == 0
    assert first_announcements.peers_remembered == 0


def test_old_credits_go_and_newer_ones_stay() -> None:
    first_announcements = FirstAnnouncements()
    first_announcements.credit("a", now=0)
    first_announcements.credit("a", now=1_800)

    assert first_announcements.credits("a", now=3_700) == 1


def test_at_most_a_bounded_number_of_peers_is_remembered_and_the_stalest_goes_first() -> None:
    first_announcements = FirstAnnouncements()
    for number in range(PEERS_REMEMBERED_MAX):
        first_announcements.credit(str(number), now=0)
    first_announcements.credit("0", now=1)

    first_announcements.credit("one more", now=1)

    assert first_announcements.peers_remembered == PEERS_REMEMBERED_MAX
    assert first_announcements.credits("0", now=1) == 2
    assert first_announcements.credits("1", now=1) == 0
