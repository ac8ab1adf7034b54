"""The shared table: one lease for each id, takeovers after 250 and 600 ms, and nothing left behind."""

from __future__ import annotations

import pytest

from stagepost.dmq.downloads import (
    CREDITED,
    DOUBLE_S,
    LEASE_S,
    STUCK_S,
    UNKNOWN,
    WITHHELD_S,
    WITHHOLDER,
    WITHHOLDERS_MAX,
    YIELD_S,
    DownloadPeer,
    Downloads,
    Withholders,
)
from stagepost.ground.identifiers import MessageId

X = MessageId(b"x" * 32)


class Peer(DownloadPeer):
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


def test_the_first_download_runs_alone_for_600_ms_and_then_their_number_doubles_every_200_ms(
    table: Downloads, peers: tuple[Peer, Peer, Peer]
) -> None:
    first, second, third = peers
    table.claim(first, X, now=0)
    assert table.claimable_at(first, X, now=10) is None
    assert table.claimable_at(second, X, now=0.3) == STUCK_S

    table.claim(second, X, now=STUCK_S)

    assert table.claimable_at(third, X, now=STUCK_S) == STUCK_S + DOUBLE_S


def test_after_so_many_steps_as_the_number_of_silent_peers_doubles_one_more_may_try() -> None:
    table = Downloads()
    peers = [Peer(str(number)) for number in range(321)]
    for peer in peers:
        table.announce(peer, X, now=0, may_lease=True)
    table.claim(peers[0], X, now=0)
    began: list[float] = [0]
    for peer in peers[1:]:
        at = table.claimable_at(peer, X, now=began[-1])
        assert at is not None
        table.claim(peer, X, now=at)
        began.append(at)
    assert began[1] == STUCK_S
    assert [began.index(at) for at in sorted(set(began))] == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert began[-1] < 3


def test_peers_with_credit_come_first_and_withholders_last() -> None:
    table = Downloads()
    credited, unknown, known = Peer("good"), Peer("unknown"), Peer("bad")
    table.first_announcements.credit("good", 0)
    table.withholders.note("bad", 0)
    standings = [table.standing(peer, 1) for peer in (credited, unknown, known)]
    assert standings == [CREDITED, UNKNOWN, WITHHOLDER]
    for peer, standing in zip((known, unknown, credited), reversed(standings), strict=True):
        table.announce(peer, X, now=1, may_lease=False, standing=standing)
    assert [table.claimable_at(peer, X, now=1) for peer in (credited, unknown, known)] == [
        1,
        1 + YIELD_S,
        1 + 2 * YIELD_S,
    ]
    table.withdraw(credited, X)
    assert table.claimable_at(unknown, X, now=1) == 1  # nobody better is left


def test_a_host_that_withholds_is_remembered_by_host_for_ten_minutes() -> None:
    table = Downloads()
    silent, omits, slow, honest = Peer("s"), Peer("o"), Peer("w"), Peer("h")
    silent.host = omits.host = "198.51.100.0/24"
    for peer in (silent, omits, slow, honest):
        table.announce(peer, X, now=0, may_lease=False)
    table.claim(silent, X, now=0)
    table.claim(slow, X, now=STUCK_S - 0.1)
    table.claim(honest, X, now=STUCK_S)
    table.arrived(honest, X)
    table.proved_valid(honest, [X], now=STUCK_S)
    assert table.withholders.is_known("198.51.100.0/24", STUCK_S)
    assert not table.withholders.is_known("w", STUCK_S), "its download is not stuck yet"
    assert table.standing(omits, STUCK_S) == WITHHOLDER
    assert not table.withholders.is_known("198.51.100.0/24", STUCK_S + WITHHELD_S)


def test_a_message_that_was_left_out_of_a_reply_counts_once_another_peer_had_it() -> None:
    table = Downloads()
    omits, honest = Peer("o"), Peer("h")
    for peer in (omits, honest):
        table.announce(peer, X, now=0, may_lease=False)
    table.claim(omits, X, now=0)
    table.omitted(omits, X)
    table.withdraw(omits, X)
    assert not table.withholders.is_known("o", 0), "nobody else has it so far"
    table.claim(honest, X, now=0.1)
    table.arrived(honest, X)
    table.proved_valid(honest, [X], now=0.1)
    assert table.withholders.is_known("o", 0.1)


def test_so_many_withholders_are_remembered_and_no_more() -> None:
    known = Withholders()
    for number in range(WITHHOLDERS_MAX + 1):
        known.note(str(number), 0)
    assert len(known) == WITHHOLDERS_MAX
    assert not known.is_known("0", 0)
    assert known.is_known("1", 0)


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
