"""The peer book: which peers are known, which to connect to next, which to exchange messages with, and which
to leave alone.

A peer is cold while it is only known, warm when it is connected, and hot when messages are exchanged with it.
Pure: time comes in as `now` and chance as a seeded `Random`. The record of a peer outlives its connections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from random import Random

from stagepost.dmq.peer_sharing import PeerAddress
from stagepost.ground.net.admission import is_global, owner_of, prefix_of
from stagepost.ground.net.back_off import BackOff, Penalties

KNOWN_PEERS_MAX = 150
SHARED_BY_ONE_MAX = 20
"""Addresses in the book that one /24 or /64 of peers shared."""
SHARED_PER_PREFIX_MAX = 4
"""Shared addresses in the book of one /24 or /64 of the public Internet."""
FAILURES_MAX = 5
"""Failures in a row after which a shared peer is forgotten."""


class PeerOrigin(Enum):
    """Source from which we know a peer. Roots are the operator's wish; they are kept whatever they
    contribute."""

    LOCAL_ROOT = "local root"
    PUBLIC_ROOT = "public root"
    SHARED = "shared"
    LEDGER = "ledger"


_NOT_ROOTS = (PeerOrigin.SHARED, PeerOrigin.LEDGER)


@dataclass
class KnownPeer(BackOff):
    """Peer in the book, with the history of its connections."""

    address: PeerAddress
    origin: PeerOrigin
    profile: str
    group: int = 0  # local roots come in groups, of each of which so many are wanted
    may_be_shared: bool = True
    initiator_only: bool = False
    can_be_warm: bool = True  # without keep-alive nothing would run on the connection, and it would be closed
    may_be_dialled: bool = True  # False: behind a firewall, so it must connect to us
    is_connected: bool = False
    is_hot: bool = False
    connected_at: float = 0.0
    contributions: int = 0  # messages that this peer announced first, since it was last looked at
    shared_by: str = ""
    """Prefix of the peer that shared this one first; empty for other origins."""
    reached_at: PeerAddress | None = None
    """IP address and port of the live connection, which may be shared with others: `address` may be a host name."""


@dataclass(frozen=True, slots=True)
class Valency:
    """Numbers of a group's peers that are to be connected at any time, and with which messages are exchanged."""

    hot: int
    warm: int


@dataclass(frozen=True, slots=True)
class LocalRootPeer:
    address: PeerAddress
    profile: str
    can_be_warm: bool = True


@dataclass
class PeerBook:
    """Knowledge of one node about its peers. The targets are the numbers of wanted peers other than local
    roots."""

    random: Random
    active_target: int = 20
    established_target: int | None = None
    """Connected peers wanted, warm ones included; None means no more than are active."""
    known_max: int = KNOWN_PEERS_MAX
    _peers: dict[PeerAddress, KnownPeer] = field(default_factory=dict)
    _valencies: list[Valency] = field(default_factory=list)
    _penalties: Penalties[str] = field(default_factory=Penalties)

    def __post_init__(self) -> None:
        established = self.active_target if self.established_target is None else self.established_target
        self._valencies.append(Valency(self.active_target, max(established, self.active_target)))

    @property
    def peers(self) -> Iterable[KnownPeer]:
        return self._peers.values()

    def get(self, address: PeerAddress) -> KnownPeer | None:
        return self._peers.get(address)

    def add_local_roots(
        self,
        group: Iterable[LocalRootPeer],
        valency: Valency,
        *,
        may_be_shared: bool,
        initiator_only: bool = False,
        may_be_dialled: bool = True,
    ) -> None:
        """Add a group of peers, of which `valency` says how many are wanted. With `initiator_only` they may
        open nothing towards us. Those that may not be dialled connect to us."""
        number = len(self._valencies)
        self._valencies.append(valency)
        for root in group:
            if self.add(
                root.address,
                PeerOrigin.LOCAL_ROOT,
                root.profile,
                may_be_shared=may_be_shared,
                can_be_warm=root.can_be_warm,
            ):
                self._peers[root.address].group = number
                self._peers[root.address].initiator_only = initiator_only
                self._peers[root.address].may_be_dialled = may_be_dialled

    def add(
        self,
        address: PeerAddress,
        origin: PeerOrigin,
        profile: str,
        *,
        may_be_shared: bool = True,
        can_be_warm: bool = True,
    ) -> bool:
        """Add a peer; return False if it is known already, or the book is full. Roots always fit."""
        if address in self._peers:
            return False
        if origin in _NOT_ROOTS and len(self._peers) >= self.known_max and not self._make_room():
            return False
        self._peers[address] = KnownPeer(
            address, origin, profile, may_be_shared=may_be_shared, can_be_warm=can_be_warm
        )
        return True

    def add_shared(
        self, address: PeerAddress, profile: str, source: str, *, can_be_warm: bool = True
    ) -> bool:
        """Add a peer that the host `source` named; return False if the shares of `source` or of the address are used up."""
        source = prefix_of(source)
        shared = [peer for peer in self._peers.values() if peer.origin is PeerOrigin.SHARED]
        if sum(peer.shared_by == source for peer in shared) >= SHARED_BY_ONE_MAX:
            return False
        prefix = prefix_of(address.host)
        neighbours = sum(prefix_of(peer.address.host) == prefix for peer in shared)
        if is_global(address.host) and neighbours >= SHARED_PER_PREFIX_MAX:
            return False
        if not self.add(address, PeerOrigin.SHARED, profile, can_be_warm=can_be_warm):
            return False
        self._peers[address].shared_by = source
        return True

    def use_ledger_peers(self, addresses: Iterable[PeerAddress], profile: str, *, can_be_warm: bool) -> None:
        """Put these in the place of the ledger peers that are not connected."""
        for peer in [*self._peers.values()]:
            if peer.origin is PeerOrigin.LEDGER and not peer.is_connected:
                del self._peers[peer.address]
        for address in addresses:
            self.add(address, PeerOrigin.LEDGER, profile, can_be_warm=can_be_warm)

    def _make_room(self) -> bool:
        """Forget the shared or ledger peer that failed most; never a root, never a connected one. Return whether there
        was one."""
        candidates = [
            peer for peer in self._peers.values() if peer.origin in _NOT_ROOTS and not peer.is_connected
        ]
        worst = max(candidates, key=lambda peer: (peer.penalties, peer.failures), default=None)
        if worst is None or not (worst.penalties or worst.failures):
            return False
        del self._peers[worst.address]
        return True

    def due(self, now: float) -> list[KnownPeer]:
        """Return the peers to connect to now: enough of each group of local roots, and others until enough
        are established."""
        wanted = Counter({group: valency.warm for group, valency in enumerate(self._valencies)})
        wanted.subtract(peer.group for peer in self._peers.values() if peer.is_connected)
        wanted_hot = self._wanted_hot()
        waiting = [
            peer
            for peer in self._peers.values()
            if peer.may_be_dialled and not peer.is_connected and peer.not_before <= now
        ]
        # Among equals chance decides, so that not everybody goes to the first of a list.
        self.random.shuffle(waiting)
        waiting.sort(key=lambda peer: (peer.penalties, peer.failures, peer.origin in _NOT_ROOTS))
        chosen = []
        for peer in waiting:
            if wanted[peer.group] > 0 and (peer.can_be_warm or wanted_hot[peer.group] > 0):
                wanted[peer.group] -= 1
                wanted_hot[peer.group] -= not peer.can_be_warm
                chosen.append(peer)
        return chosen

    def promoted(self) -> list[KnownPeer]:
        """Make warm peers hot in place of lost hot ones, and return them."""
        wanted_hot = self._wanted_hot()
        warm = [
            peer
            for peer in self._peers.values()
            if peer.is_connected and peer.established_at is not None and not peer.is_hot
        ]
        warm.sort(key=lambda peer: (peer.penalties, peer.failures, peer.established_at))
        chosen = []
        for peer in warm:
            if wanted_hot[peer.group] > 0:
                wanted_hot[peer.group] -= 1
                peer.is_hot = True
                chosen.append(peer)
        return chosen

    def _wanted_hot(self) -> Counter[int]:
        """Return how many more peers of each group are to be hot. A peer that cannot be warm keeps its place
        while it is being dialled."""
        wanted = Counter({group: valency.hot for group, valency in enumerate(self._valencies)})
        wanted.subtract(
            peer.group
            for peer in self._peers.values()
            if peer.is_connected and (peer.is_hot or not peer.can_be_warm)
        )
        return wanted

    def next_due(self, now: float) -> float | None:
        """Return the time from which `due` may return more, if nothing else happens until then."""
        later = [
            peer.not_before
            for peer in self._peers.values()
            if not peer.is_connected and peer.not_before > now
        ]
        return min(later, default=None)

    def connecting(self, address: PeerAddress, now: float) -> None:
        """Mark the peer as being dialled: it is not due again until `disconnected`."""
        peer = self._peers[address]
        peer.is_connected = True
        peer.connected_at = now
        peer.established_at = None
        peer.reached_at = None
        peer.contributions = 0

    def established(self, address: PeerAddress, now: float, reached_at: PeerAddress | None = None) -> None:
        """Record a successful handshake. The first of a group become hot, those beyond its hot valency stay
        warm."""
        peer = self._peers[address]
        peer.reached_at = reached_at
        peer.is_hot = not peer.can_be_warm or self._wanted_hot()[peer.group] > 0
        peer.established_at = now

    def disconnected(self, address: PeerAddress, now: float, violation: str | None = None) -> None:
        """Record the end of a connection.

        `violation` names the rule that the peer broke; None means that it could not be reached or went away.
        """
        peer = self._peers[address]
        peer.is_connected = peer.is_hot = False
        peer.reached_at = None
        peer.ended(now, self.random, violation)
        if peer.origin is PeerOrigin.SHARED and peer.failures >= FAILURES_MAX:
            del self._peers[address]

    def shareable(self) -> list[PeerAddress]:
        """Return the addresses of connected peers that may be shared with others."""
        return [
            peer.reached_at
            for peer in self._peers.values()
            if peer.may_be_shared and peer.reached_at is not None
        ]

    def contributed(self, address: PeerAddress) -> None:
        peer = self._peers.get(address)
        if peer is not None:
            peer.contributions += 1

    def idle_peer(self, now: float, interval_s: float) -> PeerAddress | None:
        """Return a hot peer that contributed nothing for `interval_s` seconds, if another could take its
        place."""
        others = [peer for peer in self._peers.values() if peer.origin is not PeerOrigin.LOCAL_ROOT]
        if not any(
            (peer.established_at is not None and not peer.is_hot)
            if peer.is_connected
            else peer.not_before <= now
            for peer in others
        ):
            return None
        idle = [
            peer
            for peer in others
            if peer.is_hot and now - peer.connected_at >= interval_s and not peer.contributions
        ]
        oldest = min(idle, key=lambda peer: peer.connected_at, default=None)
        return None if oldest is None else oldest.address

    def is_root(self, host: str) -> bool:
        """Return whether the operator named a peer at this host, by its address or by a name that led there."""
        return any(
            host == peer.address.host or (peer.reached_at is not None and host == peer.reached_at.host)
            for peer in self._peers.values()
            if peer.origin not in _NOT_ROOTS
        )

    # Sources of incoming connections have no lasting port, so the book knows them by host.

    def penalise_host(self, host: str, now: float) -> None:
        self._penalties.penalise(self._known_as(host), now)

    def refused_until(self, host: str, now: float) -> float | None:
        """Return the time until which connections from `host` are refused; None if they are welcome."""
        return self._penalties.refused_until(self._known_as(host), now)

    def _known_as(self, host: str) -> str:
        """Return the host itself for a root: a stranger in its network must not keep it out."""
        return host if self.is_root(host) else owner_of(host)
