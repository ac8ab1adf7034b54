"""What one DMQ node needs to know before it starts, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stagepost.dmq.profiles import DEFAULT_PROFILE, PROFILES, Profile
from stagepost.dmq.topology import Topology
from stagepost.dmq.version_data import NETWORK_MAGICS
from stagepost.node.settings import SETTINGS
from stagepost.runtime.admission import AdmissionLimits


def _default_number(key: str) -> int:
    value = SETTINGS[key].default
    assert isinstance(value, int)
    return value


def _default_seconds(key: str) -> float:
    value = SETTINGS[key].default
    assert isinstance(value, float)
    return value


@dataclass(frozen=True, slots=True)
class PeerTargets:
    """How many peers to know, to be connected with and to exchange messages with."""

    root: int = _default_number("node.root_peers")
    known: int = _default_number("node.known_peers")
    established: int = _default_number("node.established_peers")
    active: int = _default_number("node.active_peers")


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
    """`host_addresses` may be empty only for a node that nobody connects to. Ports 0 take a free one."""

    data_dir: Path
    local_socket: Path
    pools_file: Path
    host_addresses: tuple[str, ...] = ()
    port: int = _default_number("node.port")
    network_magic: int = NETWORK_MAGICS["mithril-mainnet"]
    topology: Topology = field(default_factory=Topology)
    profiles: tuple[Profile, ...] = tuple(PROFILES.values())
    wire_profile: Profile = DEFAULT_PROFILE
    min_sig_delay_s: float | None = None
    """None: what the network prescribes."""
    refuse_equivocation: bool = False
    peer_sharing: bool = True
    initiator_only: bool = False
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)
    targets: PeerTargets = field(default_factory=PeerTargets)
    mempool_messages_max: int = _default_number("node.mempool_messages")
    mempool_bytes_max: int = _default_number("node.mempool_bytes")
    protocol_idle_timeout_s: float = _default_seconds("node.protocol_idle_timeout_s")
    churn_interval_s: float = _default_seconds("node.churn_interval_s")
    verification_processes: int = 0
    """Beside the loop; 0: one per further core."""
    metrics_port: int | None = 0
    """None: no metrics, health and status over HTTP."""
    unsafe: UnsafeOverrides = field(default_factory=UnsafeOverrides)
    log: LogConfig = field(default_factory=LogConfig)
    notes: tuple[str, ...] = ()
    """What the files and flags say and this node does not act on: for the log, once."""

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
