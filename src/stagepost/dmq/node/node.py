"""A CIP-0137 node: it listens for peers and programs, dials the peers it knows, and holds their messages."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from stagepost import __version__
from stagepost.dmq.cardano.ledger_peers import LedgerPeers, srv_domains
from stagepost.dmq.downloads import Downloads
from stagepost.dmq.endpoints.connection import Connection, respond
from stagepost.dmq.equivocation import Equivocations
from stagepost.dmq.mempool import Mempool, MempoolEntry, MempoolLimits
from stagepost.dmq.message import FIVE_AND_FOUR, DmqMessage
from stagepost.dmq.node.blame import OnViolation, shake_hands
from stagepost.dmq.node.config import NodeConfig
from stagepost.dmq.node.dialler import SRV_PORT, Dialler, SrvLookup, can_be_warm
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.local_service import LocalService, owner_and_root
from stagepost.dmq.node.mempool_feed import Audience, MempoolFeed, OnSent
from stagepost.dmq.node.message_store import MessageStore
from stagepost.dmq.node.peer_book import PeerBook
from stagepost.dmq.node.peer_link import Links, OnSupplied, PeerLink, SharedParts, address_text
from stagepost.dmq.node.pool_watch import PoolWatch
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.peer_sharing import PeerAddress, SharedPeers
from stagepost.dmq.profiles import MiniProtocol, Profile
from stagepost.dmq.validation import MessageValidator, Pools, rules_after_restore, rules_for
from stagepost.errors import ErrorCode, HandshakeRefused, RemoteProtocolError
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.admission import LOOPBACK_HOSTS, Admission, ConnectionPlace, host_of, is_global
from stagepost.ground.net.back_off import violation_of
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.doorway import entering, proving, settle
from stagepost.ground.net.network import Listener, Network, TcpAddress, UnixAddress
from stagepost.ground.net.srv_lookup import look_up_srv
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.signatures.verifier import SignatureVerifier
from stagepost.ground.telemetry.status import DmqNodePage, MempoolStatus

log = logging.getLogger(__name__)

LEDGER_PEERS_MAX = 20
"""Pools of the ledger that a node knows at a time; few pools publish where their DMQ node is."""
STOP_GRACE_S = 5.0


class DmqNode:
    """Node built from parts that know clock, disk and network; the same node runs on sockets and in a
    simulation."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        network: Network,
        clock: Clock,
        store: MessageStore,
        pools: Pools,
        verifier: SignatureVerifier,
        random: Random,
        look_up: SrvLookup = look_up_srv,
    ) -> None:
        self.config = config
        rules = rules_for(config.network_magic)
        if config.restored_at is not None:
            rules = rules_after_restore(rules, config.restored_at)
        if config.min_sig_delay_s is not None:
            rules = replace(rules, message_gap_s=config.min_sig_delay_s)
        self.mempool = Mempool(
            MempoolLimits(config.mempool_messages_max, config.mempool_bytes_max, config.mempool_pool_percent)
        )
        self.equivocations = Equivocations()
        refuses = config.refuse_equivocation
        validator = MessageValidator(rules, pools, self.equivocations if refuses else None)
        self.intake = Intake(validator, self.mempool, store, clock, verifier=verifier)
        self.clock = self.intake.clock
        self._pool_watch = PoolWatch(
            self.equivocations, pools, self.clock, is_remarkable=rules.message_gap_s > 0
        )
        self.intake.on_accepted.append(self._pool_watch.accepted)
        self.intake.on_expired.append(self._pool_watch.expired)
        self.audience = Audience()
        self.intake.on_expired.append(self.audience.expired)
        self._pools = pools
        self._store = store
        self._network = network
        self._ours = VersionData(
            config.network_magic, initiator_only=config.initiator_only, peer_sharing=config.peer_sharing
        )
        loopback = LOOPBACK_HOSTS if config.unsafe.loopback_unlimited else frozenset()
        self._random = random
        self.book = PeerBook(
            random,
            active_target=config.targets.active,
            established_target=config.targets.established,
            known_max=config.targets.known,
        )
        self._admission = Admission(
            self.clock.mono_s, config.admission, exempt=loopback, is_known_host=self.book.is_root
        )
        self._shared = SharedParts(
            intake=self.intake,
            mempool=self.mempool,
            downloads=Downloads(),
            shared_peers=SharedPeers(self._choose_peers),
            clock=self.clock,
            profiles=config.profiles,
            message_gap_s=rules.message_gap_s,
            protocol_idle_timeout_s=config.protocol_idle_timeout_s,
            learn=self._learn,
            on_violation=self._note_violation,
            on_supplied=self._note_supplied,
        )
        self._links = Links()
        self._dialler = Dialler(
            config, network, self._ours, self.book, self._shared, self._links, look_up=look_up
        )
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._started_mono_s = 0.0
        self._accepted = 0
        self._rejections: Counter[str] = Counter()
        self._last_message_ms: int | None = None
        self.on_violation: list[OnViolation] = []
        self.on_sent: list[OnSent] = []
        self.on_supplied: list[OnSupplied] = []
        self.intake.on_accepted.append(self._count_accepted)
        self.intake.on_rejected.append(self._count_rejected)

    async def start(self) -> None:
        """Take over the stored messages, then listen and dial.

        Raise `ConfigError` if that is impossible; then nothing runs on.
        """
        self._started_mono_s = self.clock.mono_s()
        restored = self.intake.restore(accept_stored_time=self.config.unsafe.accept_stored_time)
        if self.config.refuse_equivocation:
            self._pool_watch.restored(self.mempool)
        log.info("messages restored", extra={"messages": restored.messages, "expired": restored.expired})
        try:
            await self._listen()
        except BaseException:
            await self.stop()
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.intake.expire_loop(), name="expiry"),
            loop.create_task(self._dialler.run(), name="dialling"),
        ]
        if not self.config.refuse_equivocation:
            watching = self._pool_watch.restored_meanwhile(self.mempool)
            self._tasks.append(loop.create_task(watching, name="restored pools"))

    async def _listen(self) -> None:
        local = LocalService(
            intake=self.intake,
            profiles=self.config.profiles,
            ours=VersionData(self.config.network_magic),
            make_feed=self._feed,
            allowed_user_ids=owner_and_root(),
            on_violation=self._note_violation,
        )
        limits = self.config.admission
        self._listeners.append(
            await self._network.serve(
                UnixAddress(self.config.local_socket), local.serve, connections_max=limits.hard_max
            )
        )
        if self.config.initiator_only:
            return
        for host in self.config.host_addresses:
            # The node refuses connections itself, with a reason; the listener's own limit is only a safeguard.
            self._listeners.append(
                await self._network.serve(
                    TcpAddress(host, self.config.port), self._serve_peer, connections_max=limits.sockets_max
                )
            )

    async def stop(self) -> None:
        """Stop taking anything in, finish writing, and end all connections and tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._dialler.stop()
        await asyncio.gather(*(listener.close(STOP_GRACE_S) for listener in self._listeners))
        self._listeners = []
        await self.intake.close()

    @property
    def tcp_ports(self) -> list[int]:
        """Ports to which other nodes can connect, in the order of the configured addresses."""
        return [listener.port for listener in self._listeners if listener.port is not None]

    async def _serve_peer(self, bearer: Bearer) -> None:
        source = host_of(bearer.peer)
        async with entering(self._admission, bearer) as place:
            if (
                source not in LOOPBACK_HOSTS
                and self.book.refused_until(source, self.clock.mono_s()) is not None
            ):
                log.info("connection refused", extra={"peer": bearer.peer, "reason": "misbehaved before"})
                bearer.close()
                return
            await self._run_inbound(bearer, place)

    async def _run_inbound(self, bearer: Bearer, place: ConnectionPlace) -> None:
        connection = await proving(
            place,
            bearer,
            self._shake_hands(bearer, place.source),
            lambda: self._note_violation(MiniProtocol.HANDSHAKE, ErrorCode.PROTOCOL_TIMEOUT),
        )
        if connection.agreement.query:
            connection.close()
            return
        link = PeerLink(self._shared, connection, bearer.peer, profile=None)
        settle(place, bearer, worth=link.worth)
        with self._links.holding(link):
            await link.run()
        if link.violation is not None:
            self.book.penalise_host(place.source, self.clock.mono_s())

    async def _shake_hands(self, bearer: Bearer, source: str) -> Connection:
        try:
            return await shake_hands(
                lambda on_fault: respond(
                    bearer, self.config.profiles, ConnectionKind.NODE, self._ours, on_fault=on_fault
                ),
                self._note_violation,
            )
        except HandshakeRefused:
            raise  # a peer of another network or version, which now knows why: not a violation
        except RemoteProtocolError as error:
            if violation_of(error) is not None:
                self.book.penalise_host(source, self.clock.mono_s())
            raise

    def _choose_peers(self, asker: str, count_max: int) -> list[PeerAddress]:
        """Return at most `count_max` connected peers whose addresses may be shared; never the asker itself."""
        shareable = self.book.shareable()
        return [one for one in shareable if asker not in (one.host, address_text(one))][:count_max]

    def _learn(self, host: str, addresses: Sequence[PeerAddress], profile: Profile) -> None:
        """Take over addresses that the peer at `host` shared. What strangers say must not make this node dial machines of
        its own network."""
        ours = set(zip(self.config.host_addresses, self.tcp_ports, strict=False))
        dials_private = self.config.dials_private_peers
        for address in addresses:
            may_be_dialled = address.port and (dials_private or is_global(address.host))
            if may_be_dialled and (address.host, address.port) not in ours:
                self.book.add_shared(address, profile.name, host, can_be_warm=can_be_warm(profile))
        self._dialler.look()

    def use_ledger_peers(self, peers: LedgerPeers) -> None:
        """Dial pools that the ledger names, if the topology wants them at the slot of this list."""
        after_slot = self.config.topology.use_ledger_after_slot
        if after_slot is None or after_slot < 0 or (peers.slot or 0) < after_slot:
            return
        domains = srv_domains(peers, LEDGER_PEERS_MAX, self._random)
        profile = self.config.wire_profile
        addresses = [PeerAddress(domain, SRV_PORT) for domain in domains]
        self.book.use_ledger_peers(addresses, profile.name, can_be_warm=can_be_warm(profile))
        log.info("ledger peers known", extra={"pools": len(peers.pools), "with_srv_relay": len(domains)})
        self._dialler.look()

    def _feed(self, profile: Profile) -> MempoolFeed:
        return MempoolFeed(
            self.mempool, self.intake.bell, profile.message_layouts, self.audience, self._note_sent
        )

    def _note_sent(self, protocol: MiniProtocol, count: int) -> None:
        for hook in self.on_sent:
            hook(protocol, count)

    def _note_supplied(self, peer: str, messages: Sequence[DmqMessage]) -> None:
        self._note_sent(MiniProtocol.MESSAGE_SUBMISSION, len(messages))
        for hook in self.on_supplied:
            hook(peer, messages)

    def _note_violation(self, protocol: MiniProtocol | None, code: ErrorCode) -> None:
        for hook in self.on_violation:
            hook(protocol, code)

    def _count_accepted(self, entry: MempoolEntry) -> None:
        self._accepted += 1
        self._last_message_ms = entry.received_ms

    def _count_rejected(self, message: DmqMessage, source: str, outcome: Rejected) -> None:
        self._rejections[str(outcome.code or outcome.reason)] += 1

    def status(self) -> DmqNodePage:
        """Return the status that the CLI and the status page show, without the pools file and the parts."""
        oldest = self.mempool.after(0, 1, FIVE_AND_FOUR)
        return DmqNodePage(
            version=__version__,
            uptime_s=round(self.clock.mono_s() - self._started_mono_s, 3),
            network_magic=self.config.network_magic,
            ready=self._pools.is_ready and self._store.fault is None,
            mempool=MempoolStatus(
                messages=self.mempool.count,
                bytes=self.mempool.bytes,
                messages_max=self.config.mempool_messages_max,
                bytes_max=self.config.mempool_bytes_max,
                oldest_ms=oldest[0].received_ms if oldest else None,
            ),
            peers=tuple(link.status() for link in self._links),
            accepted=self._accepted,
            expired_unseen=self.audience.expired_unseen,
            rejections=dict(sorted(self._rejections.items())),
            last_message_ms=self._last_message_ms,
            storage_fault=self._store.fault,
            clock_behind_s=round(self.clock.behind_s, 3),
            kes_periods_remaining=self._pool_watch.kes_periods_remaining,
            equivocations=self._pool_watch.status(),
        )
