"""The shared table: one lease for each id, takeovers after 250 and 600 ms, and nothing left behind."""

from __future__ import annotations

import pytest

from stagepost.dmq.downloads import LEASE_S, STUCK_S, Claimant, Downloads
from stagepost.ground.identifiers import MessageId

X = MessageId(b"x" * 32)


class Peer(Claimant):
    """Counts how often it was told to look again."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told = 0
        self.on_change = self._count

    def _count(self) -> None:
        self.told += 1


@pytest.fixture
def table() -> Downloads:
    return Downloads()


@pytest.fixture
def peers(table: Downloads) -> tuple[Peer, Peer, Peer]:
    """Three peers that have announced X at time 0, the first of them first."""
    named = Peer("a"), Peer("b"), Peer("c")
    for peer in named:
        table.announce(peer, X, now=0, may_lease=True)
    return named


def test_the_first_to_announce_holds_the_lease(table: Downloads, peers: tuple[Peer, Peer, Peer]) -> None:
    first, second, _ = peers

    assert table.claimable_at(first, X, now=0) == 0
    assert table.claimable_at(second, X, now=0) == LEASE_S


def test_a_lease_that_is_not_used_is_over_after_250_ms(
    table: Downloads, peers: tuple[Peer, Peer, Peer]
) -> None:
    _, second, third = peers
    assert table.claimable_at(second, X, now=LEASE_S - 0.001) == LEASE_S

    assert table.claimable_at(second, X, now=LEASE_S) == LEASE_S
    table.claim(second, X, now=LEASE_S)

    assert table.claimable_at(third, X, now=LEASE_S) == LEASE_S + STUCK_S


def test_a_peer_with_a_bad_score_gets_no_lease_by_announcing(table: Downloads) -> None:
    bad, good = Peer("bad"), Peer("good")
    table.announce(bad, X, now=0, may_lease=False)

    table.announce(good, X, now=0, may_lease=True)

    assert table.claimable_at(good, X, now=0) == 0
    assert table.claimable_at(bad, X, now=0) == LEASE_S


def test_one_download_at_a_time_until_it_is_stuck_for_600_ms(
    table: Downloads, peers: tuple[Peer, Peer, Peer]
) -> None:
    first, second, third = peers
    table.claim(first, X, now=0)
    assert table.claimable_at(first, X, now=10) is None
    assert table.claimable_at(second, X, now=0.3) == STUCK_S

    table.claim(second, X, now=STUCK_S)

    # Now two are under way; a third has to wait until the younger is stuck as well.
    assert table.claimable_at(third, X, now=STUCK_S) == 2 * STUCK_S


def test_nobody_else_downloads_what_is_being_judged(table: Downloads, peers: tuple[Peer, Peer, Peer]) -> None:
    first, second, _ = peers
    table.claim(first, X, now=0)

    table.arrived(first, X)

    assert table.claimable_at(second, X, now=100) is None


def test_a_refused_copy_frees_the_id_for_others_at_once(
    table: Downloads, peers: tuple[Peer, Peer, Peer]
) -> None:
    first, second, third = peers
    table.claim(first, X, now=0)
    table.arrived(first, X)

    table.withdraw(first, X)

    assert table.claimable_at(second, X, now=0.01) == 0.01
    assert (first.told, second.told, third.told) == (0, 1, 1)


def test_a_copy_that_has_to_wait_lets_others_try(table: Downloads, peers: tuple[Peer, Peer, Peer]) -> None:
    first, second, _ = peers
    table.claim(first, X, now=0)
    table.arrived(first, X)

    table.let_others_try(first, X)

    assert table.claimable_at(second, X, now=0.01) == 0.01
    assert second.told == 1


def test_a_peer_that_leaves_during_a_download_frees_the_id(
    table: Downloads, peers: tuple[Peer, Peer, Peer]
) -> None:
    first, second, _ = peers
    table.claim(first, X, now=0)

    table.withdraw(first, X)

    assert table.claimable_at(second, X, now=0.001) == 0.001


def test_the_first_announcer_is_credited_whoever_brought_the_message(
    table: Downloads, peers: tuple[Peer, Peer, Peer]
) -> None:
    _, second, _ = peers
    table.claim(second, X, now=1)
    table.arrived(second, X)

    table.proved_valid(second, [X], now=1)
    assert len(table) == 1, "the others look at the message for themselves"

    assert table.first_announcements.credits("a", now=1) == 1
    assert table.first_announcements.credits("b", now=1) == 0


def test_the_table_is_empty_when_nobody_waits_for_anything(
    table: Downloads, peers: tuple[Peer, Peer, Peer]
) -> None:
    for peer in peers:
        assert len(table) == 1
        table.withdraw(peer, X)

    assert len(table) == 0
