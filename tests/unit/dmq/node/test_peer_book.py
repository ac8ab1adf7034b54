"""Which peers are connected to next, and how long a bad one is left alone."""

from __future__ import annotations

from random import Random

import pytest

from stagepost.dmq.node.peer_book import (
    FAILURES_MAX,
    SHARED_BY_ONE_MAX,
    SHARED_PER_PREFIX_MAX,
    LocalRootPeer,
    PeerBook,
    PeerOrigin,
    Valency,
)
from stagepost.dmq.node.peer_link import asker_of, ip_address_of
from stagepost.dmq.peer_sharing import PeerAddress
from stagepost.ground.net.back_off import (
    BANNED_MAX,
    PENALTY_FIRST_S,
    PENALTY_MAX_S,
    RETRY_FIRST_S,
    RETRY_JITTER,
    RETRY_MAX_S,
    STEADY_AFTER_S,
)


def address(number: int) -> PeerAddress:
    return PeerAddress(f"192.0.2.{number}", 3141)


def a_book(
    *, active_target: int = 20, established_target: int | None = None, known_max: int = 150
) -> PeerBook:
    return PeerBook(
        Random(7), active_target=active_target, established_target=established_target, known_max=known_max
    )


def roots(*numbers: int, can_be_warm: bool = True) -> list[LocalRootPeer]:
    return [LocalRootPeer(address(number), "dmq-node", can_be_warm) for number in numbers]


def connect_all_due(book: PeerBook, now: float = 0.0) -> None:
    for peer in book.due(now):
        book.connecting(peer.address, now)
        book.established(peer.address, now)


def hot(book: PeerBook) -> set[PeerAddress]:
    return {peer.address for peer in book.peers if peer.is_hot}


def warm(book: PeerBook) -> set[PeerAddress]:
    return {peer.address for peer in book.peers if peer.is_connected and not peer.is_hot}


def due(book: PeerBook, now: float) -> set[PeerAddress]:
    return {peer.address for peer in book.due(now)}


def test_every_local_root_is_due_whatever_the_target_says() -> None:
    book = a_book(active_target=0)
    book.add_local_roots(roots(*range(5)), Valency(5, 5), may_be_shared=False)

    assert due(book, 0.0) == {address(number) for number in range(5)}


def test_local_roots_behind_a_firewall_are_never_due_also_when_another_peer_shares_them() -> None:
    book = a_book()
    book.add_local_roots(roots(1), Valency(1, 1), may_be_shared=False, may_be_dialled=False)

    assert not book.add(address(1), PeerOrigin.SHARED, "dmq-node")
    assert due(book, 1e6) == set()


def test_group_of_local_roots_is_connected_up_to_its_valency() -> None:
    book = a_book(active_target=0)
    book.add_local_roots(roots(0, 1, 2), Valency(2, 2), may_be_shared=False)
    book.add_local_roots(roots(3, 4), Valency(1, 1), may_be_shared=False)
    for peer in book.due(0.0):
        book.connecting(peer.address, 0.0)
    assert sum(peer.is_connected for peer in book.peers if peer.group == 1) == 2
    assert sum(peer.is_connected for peer in book.peers if peer.group == 2) == 1
    lost = next(peer for peer in book.peers if peer.is_connected and peer.group == 1)

    book.disconnected(lost.address, 0.0)

    assert [peer.group for peer in book.due(0.0)] == [1]
    assert lost.address not in due(book, 0.0)


def test_of_a_group_as_many_are_connected_as_its_warm_valency_and_as_many_hot_as_its_hot_valency() -> None:
    book = a_book(active_target=0)
    book.add_local_roots(roots(*range(6)), Valency(hot=2, warm=5), may_be_shared=False)

    connect_all_due(book)

    assert (len(hot(book)), len(warm(book))) == (2, 3)
    assert due(book, 0.0) == set()
    assert book.promoted() == []


def test_a_warm_peer_takes_the_place_of_a_hot_one_that_was_lost_and_a_cold_one_the_place_of_the_warm() -> (
    None
):
    book = a_book(active_target=0)
    book.add_local_roots(roots(0, 1, 2), Valency(hot=1, warm=2), may_be_shared=False)
    connect_all_due(book)
    (lost,), (waiting,) = hot(book), warm(book)

    book.disconnected(lost, 10.0)

    assert [peer.address for peer in book.promoted()] == [waiting]
    assert hot(book) == {waiting}
    assert book.promoted() == []
    assert due(book, 10.0) == {address(0), address(1), address(2)} - {lost, waiting}


def test_a_peer_that_is_only_being_dialled_takes_no_hot_place_from_one_that_is_there() -> None:
    book = a_book(active_target=0)
    book.add_local_roots(roots(0, 1), Valency(hot=1, warm=2), may_be_shared=False)
    first, second = (peer.address for peer in book.due(0.0))
    book.connecting(first, 0.0)
    book.connecting(second, 0.0)

    book.established(second, 0.1)

    assert hot(book) == {second}
    book.established(first, 0.2)
    assert warm(book) == {first}


def test_groups_have_their_hot_places_for_themselves() -> None:
    book = a_book(active_target=0)
    book.add_local_roots(roots(0, 1), Valency(hot=1, warm=2), may_be_shared=False)
    book.add_local_roots(roots(2, 3), Valency(hot=0, warm=1), may_be_shared=False)

    connect_all_due(book)

    assert len(hot(book) & {address(0), address(1)}) == 1
    assert hot(book) <= {address(0), address(1)}
    assert len(warm(book) & {address(2), address(3)}) == 1


def test_others_are_connected_up_to_the_established_target_and_hot_up_to_the_active_one() -> None:
    book = a_book(active_target=2, established_target=3)
    for number in range(5):
        book.add(address(number), PeerOrigin.SHARED, "dmq-node")

    connect_all_due(book)

    assert (len(hot(book)), len(warm(book))) == (2, 1)


def test_a_peer_that_cannot_be_kept_warm_is_dialled_only_for_a_hot_place() -> None:
    book = a_book(active_target=0)
    book.add_local_roots(roots(0, 1, 2, can_be_warm=False), Valency(hot=1, warm=3), may_be_shared=False)

    connect_all_due(book)

    assert len(hot(book)) == 1
    assert warm(book) == set()
    assert due(book, 0.0) == set()


def test_a_warm_peer_is_not_replaced_for_bringing_nothing_but_may_replace_a_hot_one() -> None:
    book = a_book(active_target=1, established_target=2)
    for number in (1, 2):
        book.add(address(number), PeerOrigin.SHARED, "dmq-node")
    connect_all_due(book)
    (active,) = hot(book)

    assert book.idle_peer(3_300.0, 3_300.0) == active
    book.contributed(active)
    assert book.idle_peer(3_300.0, 3_300.0) is None


@pytest.mark.parametrize(("active", "expected"), [(0, 3), (2, 1), (3, 0)])
def test_others_are_due_until_the_target_is_reached(active: int, expected: int) -> None:
    book = a_book(active_target=3)
    for number in range(10):
        book.add(address(number), PeerOrigin.SHARED, "dmq-node")
    for number in range(active):
        book.connecting(address(number), 0.0)

    assert len(book.due(0.0)) == expected


def test_connected_peer_is_not_due_again() -> None:
    book = a_book()
    book.add(address(1), PeerOrigin.LOCAL_ROOT, "dmq-node")
    book.connecting(address(1), 0.0)

    assert due(book, 1e9) == set()


def test_unreachable_peer_is_tried_again_after_doubling_pauses_up_to_the_maximum() -> None:
    book = a_book()
    book.add(address(1), PeerOrigin.LOCAL_ROOT, "dmq-node")
    now, expected = 0.0, RETRY_FIRST_S
    for _ in range(12):
        book.connecting(address(1), now)
        book.disconnected(address(1), now)
        again = book.next_due(now)
        assert again is not None
        assert expected <= again - now <= expected * (1 + RETRY_JITTER)
        assert due(book, again - 0.001) == set()
        assert due(book, again) == {address(1)}
        now, expected = again, min(RETRY_MAX_S, expected * 2)


def test_misbehaving_peer_waits_a_minute_doubling_to_an_hour_and_is_remembered_with_its_violation() -> None:
    book = a_book()
    book.add(address(1), PeerOrigin.LOCAL_ROOT, "dmq-node")
    now, expected = 0.0, PENALTY_FIRST_S
    for _ in range(9):
        book.connecting(address(1), now)
        book.disconnected(address(1), now, violation="PROTOCOL_WINDOW")
        again = book.next_due(now)
        assert again is not None
        assert expected <= again - now <= expected * (1 + RETRY_JITTER)
        now, expected = again, min(PENALTY_MAX_S, expected * 2)
    known = book.get(address(1))
    assert known is not None
    assert known.last_violation == "PROTOCOL_WINDOW"


@pytest.mark.parametrize(("stayed_s", "failures"), [(STEADY_AFTER_S - 0.1, 2), (STEADY_AFTER_S, 1)])
def test_peer_that_stayed_for_a_while_is_forgiven_failures_but_not_violations(
    stayed_s: float, failures: int
) -> None:
    book = a_book()
    book.add(address(1), PeerOrigin.LOCAL_ROOT, "dmq-node")
    book.connecting(address(1), 0.0)
    book.disconnected(address(1), 0.0, violation="CBOR_INVALID")
    book.connecting(address(1), 100.0)
    book.disconnected(address(1), 100.0)
    book.connecting(address(1), 200.0)
    book.established(address(1), 200.0)

    book.disconnected(address(1), 200.0 + stayed_s)

    known = book.get(address(1))
    assert known is not None
    assert (known.failures, known.penalties) == (failures, 1)


def test_misbehaving_peer_gives_its_place_to_another_known_one() -> None:
    book = a_book(active_target=1)
    book.add(address(1), PeerOrigin.PUBLIC_ROOT, "dmq-node")
    book.connecting(address(1), 0.0)
    book.add(address(2), PeerOrigin.SHARED, "dmq-node")
    assert due(book, 0.0) == set()

    book.disconnected(address(1), 0.0, violation="PROTOCOL_STATE")

    assert due(book, 0.0) == {address(2)}


def test_well_behaved_peers_come_before_those_that_failed() -> None:
    book = a_book(active_target=1)
    book.add(address(1), PeerOrigin.SHARED, "dmq-node")
    book.connecting(address(1), 0.0)
    book.disconnected(address(1), 0.0)
    book.add(address(2), PeerOrigin.SHARED, "dmq-node")

    assert due(book, 1_000.0) == {address(2)}


def test_full_book_takes_a_shared_peer_only_in_the_place_of_one_that_failed() -> None:
    book = a_book(known_max=2)
    book.add(address(1), PeerOrigin.SHARED, "dmq-node")
    book.add(address(2), PeerOrigin.SHARED, "dmq-node")
    assert not book.add(address(3), PeerOrigin.SHARED, "dmq-node")
    book.connecting(address(1), 0.0)
    book.disconnected(address(1), 0.0)

    assert book.add(address(3), PeerOrigin.SHARED, "dmq-node")
    assert book.get(address(1)) is None


def test_root_fits_into_a_full_book() -> None:
    book = a_book(known_max=1)
    book.add(address(1), PeerOrigin.SHARED, "dmq-node")

    assert book.add(address(2), PeerOrigin.LOCAL_ROOT, "dmq-node")


def test_peer_that_contributes_nothing_is_named_if_another_could_take_its_place() -> None:
    book = a_book(active_target=1)
    book.add(address(1), PeerOrigin.SHARED, "dmq-node")
    connect_all_due(book)
    assert book.idle_peer(3_300.0, 3_300.0) is None, "nobody else is known"
    book.add(address(2), PeerOrigin.SHARED, "dmq-node")

    assert book.idle_peer(3_299.0, 3_300.0) is None
    assert book.idle_peer(3_300.0, 3_300.0) == address(1)


def test_contributing_peer_and_local_root_are_kept() -> None:
    book = a_book(active_target=5)
    book.add(address(1), PeerOrigin.SHARED, "dmq-node")
    book.add(address(2), PeerOrigin.LOCAL_ROOT, "dmq-node")
    book.add(address(3), PeerOrigin.SHARED, "dmq-node")
    for number in (1, 2):
        book.connecting(address(number), 0.0)
        book.established(address(number), 0.0)
    book.contributed(address(1))

    assert book.idle_peer(10_000.0, 3_300.0) is None


def test_host_is_refused_for_a_minute_doubling_to_an_hour() -> None:
    book = a_book()
    now, expected = 0.0, PENALTY_FIRST_S
    for _ in range(9):
        book.penalise_host("192.0.2.9", now)
        assert book.refused_until("192.0.2.9", now) == now + expected
        assert book.refused_until("192.0.2.9", now + expected) is None
        now, expected = now + expected, min(PENALTY_MAX_S, expected * 2)
    assert book.refused_until("192.0.2.10", now) is None


def test_a_stranger_does_not_come_back_from_another_address_of_its_64() -> None:
    book = a_book()
    root = PeerAddress("2001:db8:1::5", 3001)
    book.add(root, PeerOrigin.PUBLIC_ROOT, "dmq-node")
    for number in range(16, 48):
        book.penalise_host(f"2001:db8:1::{number:x}", 0.0)

    assert book.refused_until("2001:db8:1::ffff", 1.0) == PENALTY_MAX_S, "each of them counts"
    assert book.refused_until("2001:db8:2::1", 1.0) is None
    assert book.refused_until(root.host, 1.0) is None, "a root is known by its own address"
    book.penalise_host("::ffff:192.0.2.9", 0.0)
    assert book.refused_until("192.0.2.9", 1.0) is not None
    assert book.refused_until("192.0.2.10", 1.0) is None


def test_memory_of_hosts_is_bounded() -> None:
    book = a_book()
    for number in range(BANNED_MAX + 1):
        book.penalise_host(f"host-{number}", float(number))

    assert book.refused_until("host-0", 0.0) is None, "the one whose time ends first made room"
    assert book.refused_until("host-1", 0.0) is not None


def test_only_the_addresses_of_live_connections_are_shared() -> None:
    book = a_book()
    named = PeerAddress("relay.example.org", 3_141)
    book.add_local_roots([LocalRootPeer(named, "dmq-node")], Valency(1, 1), may_be_shared=True)
    hidden = PeerAddress("hidden.example.org", 3_141)
    book.add_local_roots([LocalRootPeer(hidden, "dmq-node")], Valency(1, 1), may_be_shared=False)
    assert book.shareable() == []
    for name in (named, hidden):
        book.connecting(name, 0.0)
    assert book.shareable() == [], "nobody was reached yet"

    book.established(named, 0.1, PeerAddress("192.0.2.7", 3_141))
    book.established(hidden, 0.1, PeerAddress("192.0.2.8", 3_141))
    assert book.shareable() == [PeerAddress("192.0.2.7", 3_141)]

    book.disconnected(named, 0.2)
    assert book.shareable() == []


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("192.0.2.7:3141", PeerAddress("192.0.2.7", 3_141)),
        ("[2001:db8::7]:3141", PeerAddress("2001:db8::7", 3_141)),
        ("[::ffff:192.0.2.7]:3141", PeerAddress("192.0.2.7", 3_141)),
        ("[fe80::7%eth0]:3141", None),
        ("relay.example.org:3141", None),
        ("/run/node.socket", None),
        ("local peer", None),
        ("", None),
    ],
)
def test_addresses_of_connections_as_they_can_be_told(peer: str, address: PeerAddress | None) -> None:
    assert ip_address_of(peer) == address


def test_askers_are_known_by_their_host_and_programs_of_this_machine_by_their_port() -> None:
    assert asker_of("192.0.2.7:50001") == asker_of("192.0.2.7:50002") == "192.0.2.7"
    assert asker_of("[2001:db8::7]:50001") == "2001:db8::7"
    assert asker_of("127.0.0.1:50001") == "127.0.0.1:50001"
    assert asker_of("[::1]:50001") == "[::1]:50001"


def test_one_source_and_one_prefix_have_a_share_of_the_book() -> None:
    book = PeerBook(Random(1))

    by_one = [
        book.add_shared(PeerAddress(f"8.8.{number}.1", 1), "dmq-node", "9.9.9.9") for number in range(30)
    ]
    by_neighbour = book.add_shared(PeerAddress("8.9.0.1", 1), "dmq-node", "9.9.9.10")
    of_prefix = [
        book.add_shared(PeerAddress(f"7.7.7.{number}", 1), "dmq-node", f"9.9.{number}.9")
        for number in range(1, 9)
    ]

    assert sum(by_one) == SHARED_BY_ONE_MAX
    assert not by_neighbour
    assert sum(of_prefix) == SHARED_PER_PREFIX_MAX


def test_a_shared_peer_is_forgotten_after_five_failures_and_a_root_never() -> None:
    book = PeerBook(Random(1))
    book.add(address(1), PeerOrigin.LOCAL_ROOT, "dmq-node")
    book.add_shared(address(2), "dmq-node", "9.9.9.9")

    for number in range(FAILURES_MAX):
        assert book.get(address(2)) is not None
        for one in (address(1), address(2)):
            book.connecting(one, float(number))
            book.disconnected(one, float(number))

    assert book.get(address(1)) is not None
    assert book.get(address(2)) is None
    assert list(book.due(1e9))  # the root is still dialled
