"""The configuration of one DMQ node, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stagepost.dmq.cardano.genesis import ShelleyGenesis
from stagepost.dmq.cardano.ledger_peers import LedgerPeers
from stagepost.dmq.profiles import DEFAULT_PROFILE, PROFILES, Profile
from stagepost.dmq.topology import Topology
from stagepost.dmq.validation import PUBLIC_MAGICS
from stagepost.ground.net.admission import EVERY_ADDRESS, AdmissionLimits, is_global
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.net.version_data import NETWORK_MAGICS


@dataclass(frozen=True, slots=True)
class PeerTargets:
    """Numbers of peers to know, to be connected with and to exchange messages with."""

    known: int = 150
    established: int = 30
    active: int = 20


@dataclass(frozen=True, slots=True)
class UnsafeOverrides:
    """Protections that an operator may lift, each by its own name."""

    accept_stored_time: bool = False
    loopback_unlimited: bool = False


@dataclass(frozen=True, slots=True)
class LogConfig:
    level: str = "info"
    format: str = "auto"
    output: str = "stderr"


@dataclass(frozen=True, slots=True)
class CardanoAccess:
    """Way to the cardano-node that knows the stake. `genesis` None: the cardano-node is asked for it."""

    socket: Path
    network_magic: int
    genesis: ShelleyGenesis | None = None


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Configuration of a node. Stake comes from `pools_file`, or from `cardano` if that is None. `host_addresses` may be empty only for a node to which nobody connects. Port 0
    takes a free one."""

    data_dir: Path
    local_socket: Path
    pools_file: Path | None
    cardano: CardanoAccess | None = None
    host_addresses: tuple[str, ...] = ()
    port: int = 3141
    network_magic: int = NETWORK_MAGICS["mithril-mainnet"]
    topology: Topology = field(default_factory=Topology)
    profiles: tuple[Profile, ...] = tuple(PROFILES.values())
    wire_profile: Profile = DEFAULT_PROFILE
    min_sig_delay_s: float | None = None
    """Seconds between messages of a pool; None: the value that the network prescribes."""
    refuse_equivocation: bool = False
    peer_sharing: bool = True
    private_peers: bool | None = None
    """Whether to dial addresses of no public network that peers share; None: on private networks, if this node itself
    listens at such addresses alone."""
    ledger_peers: bool = False
    """Whether to dial pools with SRV relays that the cardano-node names, if the topology wants them."""
    ledger_snapshot: LedgerPeers | None = None
    """Ledger peers of the topology's snapshot file, for the time before the cardano-node names any."""
    initiator_only: bool = False
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    targets: PeerTargets = field(default_factory=PeerTargets)
    mempool_messages_max: int = 50_000
    mempool_bytes_max: int = 160_000_000
    mempool_pool_percent: int = 25
    protocol_idle_timeout_s: float = 5.0
    churn_interval_s: float = 3300.0
    verification_processes: int = 0
    """Processes beside the loop; 0: one per further core."""
    metrics_port: int | None = 0
    """Port on loopback; None: no metrics, health and status over HTTP."""
    prometheus: TcpAddress | None = None
    """Address of a server with the metrics alone; None: there is none."""
    metrics_prefix: str = "dmq_node_"
    unsafe: UnsafeOverrides = field(default_factory=UnsafeOverrides)
    log: LogConfig = field(default_factory=LogConfig)
    restored_at: float | None = None
    """When the data folder was restored from a backup, in Unix seconds; None if it was not."""
    notes: tuple[str, ...] = ()
    """Settings in the files and flags without effect on this node, to be logged once."""

    @property
    def dials_private_peers(self) -> bool:
        if self.private_peers is not None:
            return self.private_peers
        is_public = self.network_magic in PUBLIC_MAGICS or any(map(is_global, self.host_addresses))
        return not is_public and not EVERY_ADDRESS.intersection(self.host_addresses)

    @property
    def uses_ledger_peers(self) -> bool:
        after_slot = self.topology.use_ledger_after_slot
        return self.ledger_peers and after_slot is not None and after_slot >= 0
