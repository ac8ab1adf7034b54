"""Places of connections, each limit at its edge: before the proof and behind it, by source and prefix, and who makes room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from stagepost.ground.net.admission import (
    SETTLED_AFTER_S,
    USEFUL_WORTH,
    Admission,
    AdmissionLimits,
    ConnectionPlace,
    Refusal,
    is_global,
    prefix_of,
)

LIMITS = AdmissionLimits(
    soft_max=3, hard_max=8, delay_s=5.0, per_source_max=2, per_prefix_max=3, unproved_max=4
)


@dataclass
class Hall:
    """A listener with its clock; `ended` has the sources of those who made room."""

    limits: AdmissionLimits = LIMITS
    exempt: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()
    now: float = 0.0
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.admission = Admission(
            lambda: self.now, self.limits, exempt=self.exempt, is_known_host=self.roots.__contains__
        )

    def enter(self, source: str) -> ConnectionPlace | Refusal:
        return self.admission.enter(source, lambda _: self.ended.append(source))

    def entered(self, source: str) -> ConnectionPlace:
        place = self.enter(source)
        assert isinstance(place, ConnectionPlace)
        return place

    def proved(self, source: str, worth: float = 0.0, *, is_known: bool = False) -> ConnectionPlace:
        place = self.entered(source)
        assert place.prove(is_known=is_known, worth=lambda: worth) is None
        return place


def far(number: int) -> str:
    """An address whose prefix no other one has."""
    return f"198.51.{number}.1"


def test_connections_up_to_the_soft_limit_are_served_at_once_and_then_after_a_pause() -> None:
    hall = Hall(roots=frozenset({far(9)}))

    waits = [hall.proved(far(number)).wait_s for number in range(5)]

    assert waits == [0.0, 0.0, 0.0, 5.0, 5.0]
    assert hall.entered(far(9)).wait_s == 0.0


def test_connection_above_the_hard_limit_is_refused_with_the_limit_named() -> None:
    hall = Hall()
    strangers = [hall.proved(far(number), worth=1.0) for number in range(7)]

    refusal = hall.entered(far(7)).prove()

    assert isinstance(refusal, Refusal)
    assert (refusal.limit, refusal.found) == (LIMITS.strangers_max, len(strangers)) == (7, 7)


def test_a_place_in_eight_is_kept_for_those_who_are_known() -> None:
    hall = Hall(roots=frozenset({far(20)}))
    for number in range(7):
        hall.proved(far(number), worth=1.0)

    hall.proved(far(20))
    # No place is left, so the least useful stranger makes room for a known key, however useful it is.
    hall.proved(far(21), is_known=True)

    assert hall.ended == [far(0)]
    assert isinstance(hall.entered(far(22)).prove(), Refusal)


def test_source_above_its_own_limit_is_refused_and_others_are_not() -> None:
    hall = Hall()
    hall.entered("192.0.2.1")
    hall.proved("192.0.2.1")

    assert isinstance(hall.enter("192.0.2.1"), Refusal)
    assert not isinstance(hall.enter("192.0.2.2"), Refusal)


@pytest.mark.parametrize("prefix", ["192.0.2.{}", "2001:db8::{}", "::ffff:192.0.2.{}"])
def test_a_prefix_above_its_limit_is_refused_and_others_are_not(prefix: str) -> None:
    hall = Hall()
    for number in range(1, 4):
        hall.proved(prefix.format(number), worth=1.0)

    assert isinstance(hall.entered(prefix.format(4)).prove(), Refusal)
    hall.proved("192.0.3.1")
    hall.proved("2001:db8:0:1::1")
    # A neighbour that brought nothing for long enough makes room within the prefix.
    idle = hall.proved("203.0.113.1")
    hall.proved("203.0.113.2", worth=1.0)
    hall.now += SETTLED_AFTER_S
    assert not idle.is_left


def test_exempt_source_is_held_to_the_common_limits_only() -> None:
    hall = Hall(exempt=frozenset({"127.0.0.1"}))

    outcomes = [hall.entered("127.0.0.1").prove(worth=lambda: 1.0) for _ in range(8)]

    assert [outcome is None for outcome in outcomes] == [True] * 7 + [False]


def test_before_the_proof_the_oldest_of_the_prefix_with_most_places_makes_room() -> None:
    hall = Hall()
    for source in ("192.0.2.1", far(1), "192.0.2.2", far(2)):
        hall.entered(source)

    hall.entered(far(3))
    hall.entered(far(4))

    # First the prefix with two places; then all have one, and the oldest goes.
    assert hall.ended == ["192.0.2.1", far(1)]
    assert hall.admission.unproved == LIMITS.unproved_max


def test_within_a_prefix_the_address_with_most_places_makes_room() -> None:
    hall = Hall()
    for source in ("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.2"):
        hall.entered(source)

    hall.entered("192.0.2.4")
    hall.entered("192.0.2.4")

    # First the oldest connection of the address with two places; then all have one, and the oldest goes.
    assert hall.ended == ["192.0.2.2", "192.0.2.1"]


def test_a_connection_that_proves_itself_is_out_of_reach_of_those_who_do_not() -> None:
    hall = Hall(roots=frozenset({far(100)}))
    proved = hall.proved(far(99))
    root = hall.entered(far(100))

    for number in range(50):
        hall.entered(far(number))

    assert not proved.is_left
    assert not root.is_left
    assert len(hall.ended) == 50 - LIMITS.unproved_max


def test_behind_the_proof_the_least_useful_stranger_makes_room_once_it_had_its_time() -> None:
    hall = Hall()
    for number in range(7):
        hall.proved(far(number), worth=float(number != 3))
    assert isinstance(hall.entered(far(7)).prove(), Refusal)
    hall.now += SETTLED_AFTER_S

    hall.proved(far(8))

    assert hall.ended == [far(3)]
    assert isinstance(hall.entered(far(9)).prove(), Refusal)  # the newcomer has its time now


def test_a_prefix_that_is_full_gives_its_own_least_useful_place() -> None:
    hall = Hall()
    for number in range(1, 4):
        hall.proved(f"192.0.2.{number}", worth=float(number > 1))
    hall.proved(far(1))
    hall.now += SETTLED_AFTER_S

    hall.proved("192.0.2.4")

    assert hall.ended == ["192.0.2.1"]


def test_a_full_prefix_gives_a_place_of_the_address_with_most_of_them() -> None:
    hall = Hall()
    for source in ("192.0.2.1", "192.0.2.2", "192.0.2.2"):
        hall.proved(source)
    hall.now += SETTLED_AFTER_S

    hall.proved("192.0.2.3")

    assert hall.ended == ["192.0.2.2"]


def test_a_connection_that_rests_is_before_the_proof_again() -> None:
    hall = Hall()
    place = hall.proved(far(1), worth=1.0)
    place.rest()
    for number in range(2, 6):
        hall.entered(far(number))

    assert hall.ended == [far(1)]
    assert place.prove() is None  # nothing comes of it: the connection ends by itself
    assert hall.admission.count == LIMITS.unproved_max


def test_leaving_makes_room_again_and_leaves_nothing_behind() -> None:
    hall = Hall()
    places = [hall.entered("192.0.2.1"), hall.proved("192.0.2.1")]
    for place in places:
        place.leave()
        place.leave()

    assert not isinstance(hall.enter("192.0.2.1"), Refusal)
    assert hall.admission.count == 1


def test_prefixes_are_those_that_one_owner_holds() -> None:
    assert prefix_of("192.0.2.77") == prefix_of("::ffff:192.0.2.1") == "192.0.2.0/24"
    assert prefix_of("2001:db8::7%eth0") == "2001:db8::/64"
    assert prefix_of("local peer") == "local peer"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "0.1.2.3", "224.0.0.1",
     "239.1.1.1", "240.0.0.1", "255.255.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "198.18.0.1", "::", "::1", "fe80::1",
     "fe80::1%lo", "fc00::1", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1%eth0", "::127.0.0.1", "::10.0.0.1",
     "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b:1::10.0.0.1", "2001:0:4136:e378:8000:63bf:80ff:fffe",
     "2002:7f00:1::1", "2002:a00:1::1", "2001:db8::1", "1::1", "4000::1", "5f00::1", "localhost", "127.1", "2130706433", ""],
)  # fmt: skip
def test_addresses_that_lead_into_a_network_of_ours_are_not_global(host: str) -> None:
    assert not is_global(host)


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "::ffff:8.8.8.8", "2600::1", "2a00:1450:4001:80e::200e", "93.184.216.34"]
)
def test_addresses_of_the_public_internet_are_global(host: str) -> None:
    assert is_global(host)


def test_a_newcomer_takes_a_place_of_the_prefix_that_holds_most_before_anybody_has_settled() -> None:
    """Strangers who come again before they are settled would keep a full listener for themselves."""
    hall = Hall()
    for number in range(3):
        hall.proved(f"192.0.2.{number}")
        hall.now += 0.1
    for number in range(4):
        hall.proved(far(number))

    hall.proved(far(8))
    assert hall.ended == ["192.0.2.0"]
    # Two places are not enough more than one, or two strangers could push one another out for ever.
    hall.proved(far(9))
    assert hall.ended == ["192.0.2.0", "192.0.2.1"]
    assert isinstance(hall.entered(far(10)).prove(), Refusal)
    assert isinstance(hall.entered("192.0.2.7").prove(), Refusal)


@pytest.mark.parametrize(("worth", "keeps"), [(USEFUL_WORTH, True), (USEFUL_WORTH - 0.01, False)])
def test_a_useful_stranger_keeps_its_place_whatever_its_prefix_holds(worth: float, keeps: bool) -> None:
    hall = Hall()
    for number in range(3):
        hall.proved(f"192.0.2.{number}", worth=worth)
    for number in range(4):
        hall.proved(far(number), worth=worth)
    hall.now += 2 * SETTLED_AFTER_S

    assert isinstance(hall.entered(far(8)).prove(), Refusal) == keeps


def test_the_address_with_most_places_in_a_full_prefix_gives_one_up_to_a_neighbour() -> None:
    hall = Hall(limits=replace(LIMITS, per_source_max=3))
    for source in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        hall.proved(source)

    assert isinstance(hall.entered("192.0.2.2").prove(), Refusal)
    hall.proved("192.0.2.3")
    assert hall.ended == ["192.0.2.1"]


def test_hosts_that_many_share_give_up_no_place_for_their_number() -> None:
    hall = Hall(exempt=frozenset({"127.0.0.1"}))
    for _ in range(7):
        hall.proved("127.0.0.1")

    assert isinstance(hall.entered(far(1)).prove(), Refusal)
