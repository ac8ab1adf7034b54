"""The dialler keeps the node connected: it dials the peers that the peer book names, and replaces those that
bring nothing."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from stagepost.dmq.endpoints.connection import initiate
from stagepost.dmq.node.blame import shake_hands
from stagepost.dmq.node.config import NodeConfig
from stagepost.dmq.node.peer_book import KnownPeer, LocalRootPeer, PeerBook, PeerOrigin, Valency
from stagepost.dmq.node.peer_link import Links, PeerLink, SharedParts, address_text, ip_address_of
from stagepost.dmq.peer_sharing import PeerAddress
from stagepost.dmq.profiles import MiniProtocol, Profile, profile_named
from stagepost.dmq.topology import AccessPoint
from stagepost.errors import StagepostError
from stagepost.ground.net.network import Network, TcpAddress
from stagepost.ground.net.redialler import Redialler
from stagepost.ground.net.srv_lookup import public_address
from stagepost.ground.net.version_data import ConnectionKind, VersionData

log = logging.getLogger(__name__)


SRV_PORT = 0
"""Port in the peer book of a peer whose address is the name of an SRV record: nobody can listen at port 0."""
POOL_SRV_PREFIX = "_dmq._mithril._cardano._tcp."
GUIDE_SRV_PREFIX = "_mithril._tcp."
"""Names before the domain that a pool registered: that of CIP-0155, and that which Mithril's guide tells pools."""
SrvLookup = Callable[[str], Awaitable[TcpAddress]]


class Dialler:
    """Keeper of the node's outgoing connections."""

    def __init__(
        self,
        config: NodeConfig,
        network: Network,
        ours: VersionData,
        book: PeerBook,
        shared: SharedParts,
        links: Links,
        *,
        look_up: SrvLookup,
    ) -> None:
        self._config = config
        self._look_up = look_up
        self._network = network
        self._ours = ours
        self._book = book
        self._shared = shared
        self._links = links
        self._redialler: Redialler[PeerAddress] = Redialler(self._now, self._ended)
        self._dialled: dict[PeerAddress, PeerLink] = {}
        self._next_churn = 0.0
        self._fill_book()

    def _fill_book(self) -> None:
        for group in self._config.topology.local_roots:
            self._book.add_local_roots(
                map(self._root, group.access_points),
                Valency(group.hot_valency, group.warm_valency),
                may_be_shared=group.advertise,
                initiator_only=group.initiator_only,
                may_be_dialled=not group.is_behind_firewall,
            )
        for public in self._config.topology.public_roots:
            for root in map(self._root, public.access_points):
                self._book.add(
                    root.address,
                    PeerOrigin.PUBLIC_ROOT,
                    root.profile,
                    may_be_shared=public.advertise,
                    can_be_warm=root.can_be_warm,
                )

    def _root(self, point: AccessPoint) -> LocalRootPeer:
        profile = point.profile or self._config.wire_profile
        return LocalRootPeer(
            PeerAddress(point.address, point.port or SRV_PORT), profile.name, can_be_warm(profile)
        )

    def look(self) -> None:
        """Look again now: a peer was shared, or lost."""
        self._redialler.look()

    async def run(self) -> None:
        """Run until cancelled. `stop` ends dialled connections."""
        self._next_churn = self._now() + self._config.churn_interval_s
        await self._redialler.run(self._step)

    def _step(self, now: float) -> float:
        for peer in self._book.promoted():
            self._dialled[peer.address].exchange()
        for peer in self._book.due(now):
            self._book.connecting(peer.address, now)
            self._redialler.dial(peer.address, address_text(peer.address), partial(self._converse, peer))
        if now >= self._next_churn:
            self._next_churn = now + self._config.churn_interval_s
            self._replace_one()
        return min(self._book.next_due(now) or self._next_churn, self._next_churn)

    async def stop(self) -> None:
        await self._redialler.stop()

    def _ended(self, address: PeerAddress, violation: str | None) -> None:
        self._book.disconnected(address, self._now(), violation)

    async def _converse(self, peer: KnownPeer) -> str | None:
        """Run the whole life of one connection; return the rule by whose breach the peer ended it, or None."""
        profile = profile_named(peer.profile)
        bearer = await self._network.connect(await self._tcp_address(peer))
        try:
            ours = self._ours
            if peer.initiator_only:
                ours = msgspec.structs.replace(ours, initiator_only=True)
            answers = () if ours.initiator_only else self._config.profiles
            connection = await shake_hands(
                lambda on_fault: initiate(
                    bearer, profile, ConnectionKind.NODE, ours, answers=answers, on_fault=on_fault
                ),
                self._shared.on_violation,
            )
            link = PeerLink(
                self._shared, connection, address_text(peer.address), profile=profile, address=peer.address
            )
            self._dialled[peer.address] = link
            self._book.established(peer.address, self._now(), ip_address_of(bearer.peer))
            if peer.is_hot:
                link.exchange()
            with self._links.holding(link):
                await link.run()
            return link.violation
        finally:
            self._dialled.pop(peer.address, None)
            bearer.close()
            await bearer.wait_closed()

    async def _tcp_address(self, peer: KnownPeer) -> TcpAddress:
        """Return where to dial. Only the operator's own peers and ledger peers may be SRV names. Pools are strangers: what
        they publish must not make this node dial machines of its own network."""
        host = peer.address.host
        if peer.origin is PeerOrigin.LEDGER:
            found = await self._look_up_pool(host)
            return found if self._config.dials_private_peers else await public_address(found)
        if peer.address.port == SRV_PORT and peer.origin is not PeerOrigin.SHARED:
            return await self._look_up(host)
        return TcpAddress(host, peer.address.port)

    async def _look_up_pool(self, domain: str) -> TcpAddress:
        """Return where a pool's DMQ node listens, by the name that dmq-node asks for, else by that of Mithril's guide."""
        try:
            return await self._look_up(POOL_SRV_PREFIX + domain)
        except StagepostError:
            found = await self._look_up(GUIDE_SRV_PREFIX + domain)
        log.info(
            "pool publishes the guide's SRV name alone",
            extra={"service": GUIDE_SRV_PREFIX + domain, "peer": str(found)},
        )
        return found

    def _replace_one(self) -> None:
        """Hang up on one idle peer. Only one at a time: an hour without messages must not cost the node all
        its peers."""
        now = self._now()
        for link in self._links:
            if link.address is not None and link.credits(now):
                self._book.contributed(link.address)
        idle = self._book.idle_peer(now, self._config.churn_interval_s)
        if idle is not None:
            log.info("peer replaced", extra={"peer": address_text(idle), "reason": "announced nothing first"})
            self._redialler.hang_up(idle)

    def _now(self) -> float:
        return self._shared.clock.mono_s()


def can_be_warm(profile: Profile) -> bool:
    """Return whether a mini-protocol runs on a connection without message exchange, so that it is not closed
    as unused."""
    return MiniProtocol.KEEP_ALIVE in profile.numbers
