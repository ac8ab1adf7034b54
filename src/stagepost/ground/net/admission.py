"""Admission of connections: places before a proof and behind it, limits by source and prefix, and who makes room.

A new connection has a place before the proof. These places are few, and nobody is turned away while only they are taken: in
the prefix that holds most of them, the oldest connection of the address that holds most makes room. The listener knows what the
proof is: a handshake, a signature by a known key, a token, a whole request. Behind the proof there are many places. Some of them
are kept for known keys, tokens and hosts; when the others are taken, the least useful stranger makes room, or one of the prefix
that holds most. Pure: the owner gives the time, and hangs up on those who make room.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from stagepost.ground.identifiers import LOOPBACK_HOST

CONNECTIONS_SOFT_MAX = 384
CONNECTIONS_HARD_MAX = 512
SOFT_DELAY_S = 5.0
PER_SOURCE_MAX = 16
PER_PREFIX_MAX = 64
"""Strangers of one /24 or /64 behind the proof."""
UNPROVED_MAX = 64
PROOF_WITHIN_S = 2.0
RESERVED_PART = 8
"""One place in so many behind the proof is kept for those who are known."""
SETTLED_AFTER_S = 10.0
"""Seconds that a stranger has behind the proof to become useful; until then only a stranger of a prefix with fewer places takes
its place."""
USEFUL_WORTH = 1.0
"""Worth, at least, of a stranger that keeps its place whatever its prefix holds."""
FAIR_DIFFERENCE = 2
"""Places, at least, that a prefix must hold more than that of a newcomer to give one up: none goes to and fro between two."""
IPV4_PREFIX_BITS, IPV6_PREFIX_BITS = 24, 64
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""Part of IPv6 that is given to networks of the public Internet. Forms that embed an IPv4 address lie outside, but for 6to4."""
EMBEDDING_OR_LOCAL = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2002::/16"))
)
"""Networks of protocols and of tunnels, which lead to this network or to the IPv4 address inside. Not every Python's
`is_global` knows them."""

LOOPBACK_HOSTS = frozenset({LOOPBACK_HOST, "::1"})
"""Hosts that all programs of this machine share, so one program's faults must not shut out the others."""

EVERY_ADDRESS = frozenset({"0.0.0.0", "::"})
"""Hosts that stand for all addresses of this machine."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    soft_max: int = CONNECTIONS_SOFT_MAX
    hard_max: int = CONNECTIONS_HARD_MAX
    delay_s: float = SOFT_DELAY_S
    per_source_max: int = PER_SOURCE_MAX
    per_prefix_max: int = PER_PREFIX_MAX
    unproved_max: int = UNPROVED_MAX
    proof_within_s: float = PROOF_WITHIN_S

    @property
    def strangers_max(self) -> int:
        """Places behind the proof that strangers may have; the others are kept for those who are known."""
        return self.hard_max - self.hard_max // RESERVED_PART

    @property
    def sockets_max(self) -> int:
        """Connections that a listener may hold at a time: all places, and room for those that are being refused."""
        return self.hard_max + 2 * self.unproved_max


@dataclass(frozen=True, slots=True)
class Refusal:
    why: str
    limit: int
    found: int


@dataclass(eq=False)
class ConnectionPlace:
    """Place of one connection. `hang_up` is called when the place is given to another connection."""

    admission: Admission
    source: str
    prefix: str
    is_known: bool
    hang_up: Callable[[Refusal], None]
    since: float
    wait_s: float = 0.0
    """Seconds to wait before the connection is served."""
    is_proved: bool = False
    is_left: bool = False
    worth: Callable[[], float] = lambda: 0.0
    """Present use of the connection to this node; only strangers without any make room for other strangers."""

    def prove(self, *, is_known: bool = False, worth: Callable[[], float] = lambda: 0.0) -> Refusal | None:
        """Take a place behind the proof; return the refusal if there is none."""
        self.worth = worth
        return self.admission.prove(self, is_known=is_known)

    def rest(self) -> None:
        """Go back to a place before the proof: the connection has nothing under way."""
        self.admission.rest(self)

    def leave(self) -> None:
        self.admission.leave(self)


@dataclass
class Admission:
    """Places of one listener.

    `exempt` are hosts that many sources share honestly, such as this machine itself: limits by source and prefix do not
    apply to them. `is_known_host` tells hosts whose places are kept for them.
    """

    now: Callable[[], float]
    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    exempt: Collection[str] = frozenset()
    is_known_host: Callable[[str], bool] = lambda host: False
    _unproved: dict[ConnectionPlace, None] = field(default_factory=dict)
    _proved: dict[ConnectionPlace, None] = field(default_factory=dict)
    _by_source: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return len(self._unproved) + len(self._proved)

    @property
    def unproved(self) -> int:
        return len(self._unproved)

    def enter(self, source: str, hang_up: Callable[[Refusal], None]) -> ConnectionPlace | Refusal:
        """Return a place before the proof for a connection from `source`, or the refusal."""
        from_source = self._by_source[source]
        if source not in self.exempt and from_source >= self.limits.per_source_max:
            return Refusal(f"too many connections from {source}", self.limits.per_source_max, from_source)
        is_known = self.is_known_host(source)
        if not is_known:
            self._make_room_before_proof()
        place = ConnectionPlace(self, source, prefix_of(source), is_known, hang_up, self.now())
        self._unproved[place] = None
        self._by_source[source] += 1
        if self.count > self.limits.soft_max and not is_known:
            place.wait_s = self.limits.delay_s
        return place

    def _make_room_before_proof(self) -> None:
        strangers = [place for place in self._unproved if not place.is_known]
        if len(strangers) < self.limits.unproved_max:
            return
        held = _places_by_network(strangers)
        # `max` returns the first of equals, which is the oldest.
        chosen = max(strangers, key=lambda place: (held[place.prefix], held[place.source]))
        limit = self.limits.unproved_max
        self._give_up(chosen, Refusal("others wait to prove who they are", limit, len(strangers)))

    def prove(self, place: ConnectionPlace, *, is_known: bool) -> Refusal | None:
        if place.is_left or place.is_proved:
            return None  # a connection that made room ends by itself
        place.is_known = place.is_known or is_known
        refusal = self._room_behind_proof(place)
        if refusal is None:
            del self._unproved[place]
            self._proved[place] = None
            place.is_proved, place.since = True, self.now()
        return refusal

    def _room_behind_proof(self, place: ConnectionPlace) -> Refusal | None:
        """Return None if there is room now, perhaps because another connection made it."""
        limits = self.limits
        strangers = [one for one in self._proved if not one.is_known]
        if place.is_known:
            if len(self._proved) < limits.hard_max:
                return None
            taken = Refusal("all connections are taken", limits.hard_max, len(self._proved))
            return self._replace(place, strangers, taken, by_known=True)
        neighbours = [one for one in strangers if one.prefix == place.prefix]
        if place.source not in self.exempt and len(neighbours) >= limits.per_prefix_max:
            why = f"too many connections from {place.prefix}"
            return self._replace(place, neighbours, Refusal(why, limits.per_prefix_max, len(neighbours)))
        if len(strangers) >= limits.strangers_max or len(self._proved) >= limits.hard_max:
            return self._replace(
                place, strangers, Refusal("all connections are taken", limits.strangers_max, len(strangers))
            )
        return None

    def _replace(
        self,
        newcomer: ConnectionPlace,
        candidates: Iterable[ConnectionPlace],
        refusal: Refusal,
        *,
        by_known: bool = False,
    ) -> Refusal | None:
        """Let the least useful candidate make room, else one of a prefix that holds more than the newcomer's; return `refusal`
        if each of them is useful, or has just come and holds no more."""
        candidates = list(candidates)
        settled = self.now() - SETTLED_AFTER_S
        held = _places_by_network(candidates)
        useless = [
            place for place in candidates if by_known or (place.since <= settled and place.worth() <= 0)
        ]
        chosen = min(
            useless,
            key=lambda place: (place.worth(), -held[place.prefix], -held[place.source]),
            default=None,
        )
        if chosen is None:
            chosen = self._of_those_with_most(newcomer, candidates, held)
        if chosen is None:
            return refusal
        self._give_up(chosen, refusal)
        return None

    def _of_those_with_most(
        self, newcomer: ConnectionPlace, candidates: Iterable[ConnectionPlace], held: Counter[str]
    ) -> ConnectionPlace | None:
        """Return a place of the prefix that holds most, or, if that is the newcomer's own, of the address that holds most: none
        that is useful, and none where the newcomer's holds nearly as many."""

        def has_many(place: ConnectionPlace) -> bool:
            if place.prefix == newcomer.prefix:
                return held[place.source] >= held[newcomer.source] + FAIR_DIFFERENCE
            return held[place.prefix] >= held[newcomer.prefix] + FAIR_DIFFERENCE

        return max(
            (
                place
                for place in candidates
                if place.source not in self.exempt and has_many(place) and place.worth() < USEFUL_WORTH
            ),
            key=lambda place: (held[place.prefix], held[place.source], -place.worth()),
            default=None,
        )

    def rest(self, place: ConnectionPlace) -> None:
        if place.is_left or not place.is_proved:
            return
        del self._proved[place]
        place.is_proved, place.since = False, self.now()
        if not place.is_known:
            self._make_room_before_proof()
        self._unproved[place] = None

    def leave(self, place: ConnectionPlace) -> None:
        if place.is_left:
            return
        place.is_left = True
        del (self._proved if place.is_proved else self._unproved)[place]
        self._by_source[place.source] -= 1
        if not self._by_source[place.source]:
            del self._by_source[place.source]

    def _give_up(self, place: ConnectionPlace, why: Refusal) -> None:
        self.leave(place)
        place.hang_up(why)


def _places_by_network(places: Iterable[ConnectionPlace]) -> Counter[str]:
    """Return how many places each prefix holds, and each source within it."""
    held: Counter[str] = Counter()
    for place in places:
        held.update({place.prefix, place.source})
    return held


def prefix_of(host: str) -> str:
    """Return the network that one owner is likely to hold whole: /24 of an IPv4 address, /64 of an IPv6 address, and
    anything else as it is."""
    address = ip_of(host)
    if address is None:
        return host
    bits = IPV4_PREFIX_BITS if address.version == 4 else IPV6_PREFIX_BITS
    return str(ipaddress.ip_network((address, bits), strict=False))


def owner_of(host: str) -> str:
    """Return by what a stranger is known again that broke a rule: its address, or the /64 of an IPv6 address, in which it has as
    many addresses as it likes."""
    address = ip_of(host)
    if address is None:
        return host
    return str(address) if address.version == 4 else prefix_of(host)


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that `host` is, IPv4 inside IPv6 as IPv4; None for a name."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address
    return address


def is_global(host: str) -> bool:
    """Return whether `host` is an IP address of the public Internet, at which one host listens."""
    address = ip_of(host)
    if address is None or not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if address.version == 6 and address not in GLOBAL_UNICAST:
        return False
    return not any(address in network for network in EMBEDDING_OR_LOCAL)


def host_of(peer: str) -> str:
    """Return the host part of a peer's name `host:port` or `[host]:port`, as bearers write it."""
    return (peer.rpartition(":")[0] or peer).strip("[]")
