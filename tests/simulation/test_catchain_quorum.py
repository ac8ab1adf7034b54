"""A session that cannot reach agreement says so within a minute, and one that can never does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stagepost.catchain.catching_up import BlockSync
from stagepost.catchain.effects import Effect
from stagepost.catchain.member import IDLE_TIMEOUT_S, Member
from stagepost.catchain.queries import Answer
from stagepost.catchain.quorum_watch import ALLOWANCE_S, OVERDUE_S, REPORT_WITHIN_S, QuorumWatch
from stagepost.errors import ErrorCode
from tests.worlds.catchain.quorum_runs import (
    LOOK_EVERY_S,
    SETTLED_S,
    run_lost_disk,
    run_quiet,
    run_quorum,
    run_start,
    watching_world,
)


@pytest.mark.parametrize("number", range(6))
def test_a_third_that_falls_silent_is_told_in_time_and_cleared_when_it_is_back(
    number: int, run_seed: int
) -> None:
    assert run_quorum(run_seed + number) <= REPORT_WITHIN_S


@pytest.mark.parametrize("number", range(2))
def test_loss_short_partitions_and_less_than_a_third_away_are_not_told(number: int, run_seed: int) -> None:
    run_quiet(run_seed + number)


def test_the_report_counts_and_names_who_is_missing() -> None:
    world, peers = watching_world(7, 1)
    world.start_all()
    world.run(SETTLED_S)
    for peer in peers[:3]:
        peer.crash()
    world.run(SETTLED_S + REPORT_WITHIN_S)
    _, report = peers[6].reports[0]
    assert report.code is ErrorCode.NO_QUORUM
    assert (report.heard, report.needed, report.members, report.silent) == (4, 5, 7, (0, 1, 2))
    assert report.text == (
        "NO_QUORUM: 4 of 7 validators are heard of, 5 are needed; look after members 0, 1, 2, or at this node's own "
        "links"
    )


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (3, 3), (4, 3), (6, 5), (7, 5), (13, 9), (21, 15)])
def test_more_than_two_thirds_are_needed(size: int, needed: int) -> None:
    world, peers = watching_world(size, 1)
    world.start_all()
    assert peers[0].watch.needed == needed


def test_exactly_enough_is_enough() -> None:
    world, peers = watching_world(4, 1)
    world.start_all()
    world.run(SETTLED_S)
    peers[0].crash()
    world.run(SETTLED_S + 2 * REPORT_WITHIN_S)
    assert not any(peer.reports for peer in peers)


def test_silence_counts_from_the_moment_of_its_limit_and_not_before() -> None:
    world, peers = watching_world(4, 1)
    world.start_all()
    member = peers[0].member
    watch = QuorumWatch(member, 0.0)
    limit_s = IDLE_TIMEOUT_S + ALLOWANCE_S
    assert watch.silence_s == limit_s
    assert watch.look(limit_s - 0.001) is None
    report = watch.look(limit_s)
    assert report is not None
    assert report.silent == (1, 2, 3), "we hear ourselves"
    assert watch.look(limit_s + 1.0) is None, "told once"
    assert limit_s + LOOK_EVERY_S < REPORT_WITHIN_S


@pytest.mark.parametrize(("before_s", "is_named"), [(0.0, True), (0.001, False)])
def test_whoever_is_overdue_when_a_quorum_is_lost_is_named_and_nobody_else(
    before_s: float, is_named: bool
) -> None:
    world, peers = watching_world(4, 1)
    world.start_all()
    watch = QuorumWatch(peers[0].member, 0.0)
    lost_at = watch.silence_s
    # Two are silent long enough for a quorum to be lost; of the third nothing was heard for just so long, or not quite.
    watch._heard_at[3] = lost_at - IDLE_TIMEOUT_S - OVERDUE_S + before_s
    report = watch.look(lost_at)
    assert report is not None
    assert report.is_lost
    assert report.silent == ((1, 2, 3) if is_named else (1, 2))
    assert report.heard == 4 - len(report.silent)


def test_previous_members_do_not_count() -> None:
    world, peers = watching_world(7, 1)
    world.start_all()
    world.run(SETTLED_S)
    watch = QuorumWatch(peers[6].member, world.now, current=(3, 4, 5, 6))
    for peer in peers[:3]:
        peer.crash()
    while world.now < SETTLED_S + 2 * REPORT_WITHIN_S:
        world.run(world.now + LOOK_EVERY_S)
        assert watch.look(world.now) is None


# The start


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize(
    ("size", "up"),
    [(1, 1), (4, 1), (4, 2), (4, 3), (4, 4), (7, 1), (7, 4), (7, 5), (7, 7), (13, 1), (13, 8), (13, 9)],
)
def test_a_quorum_that_starts_together_starts_and_fewer_never_speak(
    size: int, up: int, loss: float, run_seed: int
) -> None:
    run_start(run_seed, size, up, loss=loss)


@pytest.mark.parametrize("number", range(4))
def test_who_lost_its_disk_and_reaches_nobody_does_not_become_a_forker(number: int, run_seed: int) -> None:
    run_lost_disk(run_seed + number)


def test_a_block_on_its_way_to_a_member_that_lost_its_disk_is_not_its_own() -> None:
    """Seed 3659205815: blocks of two others arrive after the victim was cut off."""
    run_lost_disk(3659205815)


def _counts_failed_queries(patch: pytest.MonkeyPatch) -> None:
    answered = BlockSync.answered

    def counting(self: BlockSync, peer: int, number: int, answer: Answer | None) -> bool:
        if answer is None and number in self._asked:
            self.answered_by.add(peer)
        return answered(self, peer, number, answer)

    patch.setattr(BlockSync, "answered", counting)


def _starts_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockSync, "has_quorum", True)


def _listens_in_silence(patch: pytest.MonkeyPatch) -> None:
    query_received = Member.query_received

    def silent(self: Member, peer: int, number: int, data: bytes, now: float) -> list[Effect]:
        return query_received(self, peer, number, data, now) if self.is_started else []

    patch.setattr(Member, "query_received", silent)


@pytest.mark.parametrize(
    ("plant", "run"),
    [
        (_counts_failed_queries, lambda: run_start(1, 4, 1)),
        (_counts_failed_queries, lambda: run_lost_disk(1)),
        (_starts_by_the_clock, lambda: run_start(1, 4, 1)),
        (_starts_by_the_clock, lambda: run_lost_disk(1)),
        (_listens_in_silence, lambda: run_start(1, 4, 4)),
    ],
)
def test_a_planted_defect_of_the_start_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], run: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r"has started|has not started|alone, it made a block"):
        run()
