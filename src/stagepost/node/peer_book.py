"""Which peers are known, which to connect to next, and for how long to leave a bad one alone.

Pure: time comes in as `now` and chance as a seeded `Random`. What a peer did is remembered after it has gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from stagepost.dmq.peer_sharing import PeerAddress

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0
PENALTY_FIRST_S = 60.0
PENALTY_MAX_S = 3_600.0
STEADY_AFTER_S = 60.0
RETRY_JITTER = 0.2
"""Peers that lost the same node must not all come back in the same instant."""

KNOWN_PEERS_MAX = 150
BANNED_HOSTS_MAX = 10_000


_NO_GROUP = 0


class Origin(Enum):
    """How we came to know a peer. Roots are the operator's wish; they are kept whatever they contribute."""

    LOCAL_ROOT = "local root"
    PUBLIC_ROOT = "public root"
    SHARED = "shared"


@dataclass
class KnownPeer:
    address: PeerAddress
    origin: Origin
    profile: str
    group: int = 0  # local roots come in groups, of each of which so many are wanted
    may_be_shared: bool = True
    is_connected: bool = False
    connected_at: float = 0.0
    established_at: float | None = None
    not_before: float = 0.0
    failures: int = 0
    penalties: int = 0
    last_violation: str | None = None
    contributions: int = 0  # messages that this peer announced first, since it was last looked at


@dataclass
class _Penalty:
    until: float
    times: int


@dataclass
class PeerBook:
    """One node's knowledge of its peers. `active_target` is how many that are no local roots it wants at a time."""

    random: Random
    active_target: int = 20
    known_max: int = KNOWN_PEERS_MAX
    _peers: dict[PeerAddress, KnownPeer] = field(default_factory=dict)
    _valencies: list[int] = field(default_factory=list)
    _penalties: dict[str, _Penalty] = field(default_factory=dict)

    @property
    def peers(self) -> Iterable[KnownPeer]:
        return self._peers.values()

    def get(self, address: PeerAddress) -> KnownPeer | None:
        return self._peers.get(address)

    def add_local_roots(
        self, addresses: Iterable[tuple[PeerAddress, str]], valency: int, *, may_be_shared: bool
    ) -> None:
        """A group of peers, with their profiles, of which `valency` are to be connected at any time."""
        self._valencies.append(valency)
        for address, profile in addresses:
            if self.add(address, Origin.LOCAL_ROOT, profile, may_be_shared=may_be_shared):
                self._peers[address].group = len(self._valencies)

    def add(self, address: PeerAddress, origin: Origin, profile: str, *, may_be_shared: bool = True) -> bool:
        """False if it is known already, or the book is full; roots always fit."""
        if address in self._peers:
            return False
        if origin is Origin.SHARED and len(self._peers) >= self.known_max and not self._make_room():
            return False
        self._peers[address] = KnownPeer(address, origin, profile, may_be_shared=may_be_shared)
        return True

    def _make_room(self) -> bool:
        """Forget the shared peer that failed most; never a root, never one that is connected."""
        candidates = [
            peer for peer in self._peers.values() if peer.origin is Origin.SHARED and not peer.is_connected
        ]
        worst = max(candidates, key=lambda peer: (peer.penalties, peer.failures), default=None)
        if worst is None or not (worst.penalties or worst.failures):
            return False
        del self._peers[worst.address]
        return True

    def due(self, now: float) -> list[KnownPeer]:
        """Whom to connect to now: enough of each group of local roots, and others until enough are active."""
        wanted = Counter(dict(enumerate(self._valencies, start=1)))
        wanted[_NO_GROUP] = self.active_target
        waiting: list[KnownPeer] = []
        for peer in self._peers.values():
            if peer.is_connected:
                wanted[peer.group] -= 1
            elif peer.not_before <= now:
                waiting.append(peer)
        # Among equals chance decides, so that not everybody goes to the first of a list.
        self.random.shuffle(waiting)
        waiting.sort(key=lambda peer: (peer.penalties, peer.failures, peer.origin is Origin.SHARED))
        chosen = []
        for peer in waiting:
            if wanted[peer.group] > 0:
                wanted[peer.group] -= 1
                chosen.append(peer)
        return chosen

    def next_due(self, now: float) -> float | None:
        """When `due` may have more to say, if nothing else happens until then."""
        later = [
            peer.not_before
            for peer in self._peers.values()
            if not peer.is_connected and peer.not_before > now
        ]
        return min(later, default=None)

    def connecting(self, address: PeerAddress, now: float) -> None:
        """Taken: not due again until it is reported disconnected."""
        peer = self._peers[address]
        peer.is_connected = True
        peer.connected_at = now
        peer.established_at = None
        peer.contributions = 0

    def established(self, address: PeerAddress, now: float) -> None:
        """The handshake succeeded."""
        self._peers[address].established_at = now

    def disconnected(self, address: PeerAddress, now: float, violation: str | None = None) -> None:
        """`violation` says which rule it broke; without one it only could not be reached or went away."""
        peer = self._peers[address]
        peer.is_connected = False
        if peer.established_at is not None and now - peer.established_at >= STEADY_AFTER_S:
            # It was there for a while, so earlier failures say nothing any more. One that leaves at once gains nothing.
            peer.failures = 0
        if violation is None:
            peer.failures += 1
            delay = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(peer.failures - 1, 16))
        else:
            peer.penalties += 1
            peer.last_violation = violation
            delay = min(PENALTY_MAX_S, PENALTY_FIRST_S * 2 ** min(peer.penalties - 1, 16))
        peer.not_before = now + delay * (1 + RETRY_JITTER * self.random.random())

    def contributed(self, address: PeerAddress) -> None:
        peer = self._peers.get(address)
        if peer is not None:
            peer.contributions += 1

    def idle_peer(self, now: float, interval_s: float) -> PeerAddress | None:
        """One connected peer that brought nothing for `interval_s`, if another could take its place."""
        if not any(
            not peer.is_connected and peer.not_before <= now and peer.origin is not Origin.LOCAL_ROOT
            for peer in self._peers.values()
        ):
            return None
        idle = [
            peer
            for peer in self._peers.values()
            if peer.is_connected
            and peer.origin is not Origin.LOCAL_ROOT
            and now - peer.connected_at >= interval_s
            and not peer.contributions
        ]
        oldest = min(idle, key=lambda peer: peer.connected_at, default=None)
        return None if oldest is None else oldest.address

    def forget_contributions(self, address: PeerAddress, now: float) -> None:
        """Begin another interval of observation."""
        peer = self._peers.get(address)
        if peer is not None:
            peer.connected_at = now
            peer.contributions = 0

    # Sources of incoming connections have no lasting port, so they are remembered by host.

    def penalise_host(self, host: str, now: float) -> None:
        penalty = self._penalties.get(host)
        times = 1 if penalty is None else penalty.times + 1
        delay = min(PENALTY_MAX_S, PENALTY_FIRST_S * 2 ** min(times - 1, 16))
        if penalty is None and len(self._penalties) >= BANNED_HOSTS_MAX:
            oldest = min(self._penalties, key=lambda known: self._penalties[known].until)
            del self._penalties[oldest]
        self._penalties[host] = _Penalty(now + delay, times)

    def refused_until(self, host: str, now: float) -> float | None:
        """Until when connections from `host` are not taken; None if they are."""
        penalty = self._penalties.get(host)
        return penalty.until if penalty is not None and penalty.until > now else None
