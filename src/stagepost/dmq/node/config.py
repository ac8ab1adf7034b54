"""The configuration of one DMQ node, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stagepost.dmq.profiles import DEFAULT_PROFILE, PROFILES, Profile
from stagepost.dmq.topology import Topology
from stagepost.ground.net.admission import AdmissionLimits
from stagepost.ground.net.version_data import NETWORK_MAGICS


@dataclass(frozen=True, slots=True)
class PeerTargets:
    """Numbers of peers to know, to be connected with and to exchange messages with."""

    root: int = 60
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


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Configuration of a node. `host_addresses` may be empty only for a node to which nobody connects. Port 0
    takes a free one."""

    data_dir: Path
    local_socket: Path
    pools_file: Path
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
    initiator_only: bool = False
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    targets: PeerTargets = field(default_factory=PeerTargets)
    mempool_messages_max: int = 50_000
    mempool_bytes_max: int = 160_000_000
    protocol_idle_timeout_s: float = 5.0
    churn_interval_s: float = 3300.0
    verification_processes: int = 0
    """Processes beside the loop; 0: one per further core."""
    metrics_port: int | None = 0
    """Port on loopback; None: no metrics, health and status over HTTP."""
    unsafe: UnsafeOverrides = field(default_factory=UnsafeOverrides)
    log: LogConfig = field(default_factory=LogConfig)
    notes: tuple[str, ...] = ()
    """Settings in the files and flags without effect on this node, to be logged once."""

    @property
    def connections_soft_max(self) -> int:
        return self.admission.soft_max

    @property
    def connections_hard_max(self) -> int:
        return self.admission.hard_max

    @property
    def connections_delay_s(self) -> float:
        return self.admission.delay_s

    @property
    def per_address_max(self) -> int:
        return self.admission.per_source_max
