"""Effective settings, each with its origin: flags, then `stagepost.toml`, then dmq-node's JSON, then defaults.

From a command line and its files to one `NodeConfig`, or to every fault of every file at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from stagepost.config.dmq_node_json import DMQ_CONFIG_FILE_BYTES_MAX, parse_dmq_config
from stagepost.config.settings import SETTINGS
from stagepost.config.settings_file import (
    COMMAND_LINE,
    CONTEXTS,
    SETTINGS_FILE,
    SETTINGS_FILE_BYTES_MAX,
    FaultsByFile,
    parse_settings,
)
from stagepost.dmq.cardano.genesis import GENESIS_FILE_BYTES_MAX, ShelleyGenesis, parse_genesis
from stagepost.dmq.cardano.ledger_peers import LedgerPeers
from stagepost.dmq.cardano.peer_snapshot import SNAPSHOT_FILE_BYTES_MAX, parse_peer_snapshot
from stagepost.dmq.node.config import CardanoAccess, LogConfig, NodeConfig, PeerTargets, UnsafeOverrides
from stagepost.dmq.pools import POOLS_FILE_BYTES_MAX, parse_pools
from stagepost.dmq.profiles import PROFILES
from stagepost.dmq.topology import TOPOLOGY_FILE_BYTES_MAX, Topology, parse_topology
from stagepost.dmq.validation import PUBLIC_MAGICS
from stagepost.errors import ConfigFaults, FileFault
from stagepost.ground.files.documents import did_you_mean
from stagepost.ground.files.expected import UnexpectedValue
from stagepost.ground.files.small_files import read_small_file
from stagepost.ground.net.admission import AdmissionLimits
from stagepost.ground.net.network import TcpAddress, parse_address

DEFAULT = "default"
_CARDANO_SETTINGS = (
    "node.cardano_node_socket",
    "node.cardano_network_magic",
    "node.shelley_genesis_file",
    "node.shelley_genesis_hash",
    "node.ledger_peers",
)


@dataclass(frozen=True, slots=True)
class Flag:
    """A setting given on the command line; `name` is how the command spells it."""

    name: str
    value: object


@dataclass(frozen=True, slots=True)
class ConfigRequest:
    """Settings of the command line. `config_file` None means `stagepost.toml` here, if there is one."""

    flags: Mapping[str, Flag] = field(default_factory=dict)
    config_file: Path | None = None
    context: str | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """`source` is the file, the command line or `default`; `where` is the place inside it."""

    value: object
    source: str = DEFAULT
    where: str = ""

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT

    @property
    def origin(self) -> str:
        """For people: where to go to change it."""
        return f"{self.source}: {self.where}" if self.where else self.source


@dataclass
class EffectiveConfig:
    """Every setting with its value, everything that is wrong, and everything that is said in vain."""

    values: dict[str, Value]
    faults: FaultsByFile
    notes: list[str]

    def __getitem__(self, key: str) -> object:
        return self.values[key].value

    def number(self, key: str) -> int:
        value = self[key]
        assert isinstance(value, int)
        return value

    def seconds(self, key: str) -> float:
        value = self[key]
        assert isinstance(value, int | float)
        return float(value)

    def text(self, key: str) -> str:
        value = self[key]
        assert isinstance(value, str)
        return value

    def flag(self, key: str) -> bool:
        value = self[key]
        assert isinstance(value, bool)
        return value

    def path(self, key: str) -> Path:
        return Path(self.text(key))

    def words(self, key: str) -> tuple[str, ...]:
        value = self[key]
        assert isinstance(value, tuple)
        return value

    def fault(self, key: str, text: str) -> None:
        """At the place that set the value, so that it is found there."""
        value = self.values[key]
        if value.is_default:
            self.faults.add(COMMAND_LINE, FileFault(key, text))
        else:
            self.faults.add(value.source, FileFault(value.where, text))


def effective_config(request: ConfigRequest) -> EffectiveConfig:
    config = EffectiveConfig(
        {key: Value(setting.default) for key, setting in SETTINGS.items()}, FaultsByFile(), []
    )
    from_file = _from_settings_file(request, config)
    from_flags = _from_flags(request, config)
    config.values.update(from_file)
    config.values.update(from_flags)
    # Only now is it known which JSON file is meant; what it says goes below the other two.
    config.values.update(_from_dmq_config(config))
    config.values.update(from_file)
    config.values.update(from_flags)
    _place_data(config, Path.cwd())
    _check_together(config)
    return config


def _place_data(config: EffectiveConfig, here: Path) -> None:
    """Put the data beside the local socket where nobody named a folder and nothing can be written here: a
    service of systemd begins in the root folder."""
    data_dir = config.values["node.data_dir"]
    can_be_written = os.access(here, os.W_OK, effective_ids=True)
    if not data_dir.is_default or can_be_written or (here / str(data_dir.value)).exists():
        return
    beside = config.path("node.local_socket").parent / str(data_dir.value)
    config.values["node.data_dir"] = Value(str(beside))
    config.notes.append(f"{here} cannot be written; the data folder is {beside} (choose another with --data)")


def _from_flags(request: ConfigRequest, config: EffectiveConfig) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key, flag in request.flags.items():
        try:
            values[key] = Value(SETTINGS[key].expected.read(flag.value), COMMAND_LINE, flag.name)
        except UnexpectedValue as error:
            config.faults.add(COMMAND_LINE, FileFault(flag.name, str(error)))
    return values


def _from_settings_file(request: ConfigRequest, config: EffectiveConfig) -> dict[str, Value]:
    path = request.config_file or Path(SETTINGS_FILE)
    if request.config_file is None and not path.exists():
        if request.context is not None:
            text = f"expected a file with [{CONTEXTS}.{request.context}], found no {SETTINGS_FILE}"
            config.faults.add(COMMAND_LINE, FileFault("--context", text))
        return {}
    try:
        content, _ = read_small_file(path, SETTINGS_FILE_BYTES_MAX, "a configuration file")
    except ConfigFaults as error:
        config.faults.extend(error)
        return {}
    settings, contexts, faults = parse_settings(content, path.parent)
    config.faults.add(str(path), *faults)
    values = {key: Value(value, str(path), key) for key, value in settings.items()}
    if request.context is None:
        return values
    chosen = contexts.get(request.context)
    if chosen is None:
        hint = did_you_mean(request.context, contexts) or f"; it has {', '.join(contexts) or 'none'}"
        config.faults.add(str(path), FileFault(f"{CONTEXTS}.{request.context}", f"no such context{hint}"))
        return values
    prefix = f"{CONTEXTS}.{request.context}"
    return values | {key: Value(value, str(path), f"{prefix}.{key}") for key, value in chosen.items()}


def _from_dmq_config(config: EffectiveConfig) -> dict[str, Value]:
    path = config.path("node.dmq_config")
    if not path.exists():
        if not config.values["node.dmq_config"].is_default:
            config.notes.append(f"{path} does not exist; going on without it, as dmq-node does")
        return {}
    try:
        content, _ = read_small_file(path, DMQ_CONFIG_FILE_BYTES_MAX, "a configuration file of dmq-node")
    except ConfigFaults as error:
        config.faults.extend(error)
        return {}
    parsed = parse_dmq_config(content)
    config.faults.add(str(path), *parsed.faults)
    config.notes.extend(f"{path}: {note}" for note in parsed.notes)
    return {key: Value(value, str(path), parsed.places[key]) for key, value in parsed.values.items()}


def _check_together(config: EffectiveConfig) -> None:
    """Values that are each fine and do not fit one another."""
    pairs = (
        ("node.connections_soft", "node.connections_hard"),
        ("node.active_peers", "node.established_peers"),
        ("node.established_peers", "node.known_peers"),
    )
    for low, high in pairs:
        if config.number(low) > config.number(high):
            # Shown where somebody set something: a default is never to blame.
            blamed = high if config.values[low].is_default else low
            least, most = config.number(low), config.number(high)
            config.fault(blamed, f"expected {low} ({least}) to be at most {high} ({most})")
    magic = config.number("node.network_magic")
    if config["node.min_sig_delay_s"] is not None and magic in PUBLIC_MAGICS:
        config.fault(
            "node.min_sig_delay_s",
            f"expected none on a public network (magic {magic}), found {config.seconds('node.min_sig_delay_s'):g}",
        )


def load_node_config(request: ConfigRequest) -> NodeConfig:
    """Everything that a node needs, checked; `ConfigFaults` names all that is missing or wrong."""
    config = effective_config(request)
    _require_what_a_node_needs(config)
    topology = read_topology(config)
    check_pools(config)
    cardano = read_cardano_access(config)
    snapshot = read_peer_snapshot(config, topology)
    config.faults.raise_if_any()
    assert topology is not None
    return replace(_node_config(config, topology, cardano), ledger_snapshot=snapshot)


def check_files(request: ConfigRequest) -> EffectiveConfig:
    """The same looks without the demands of a node that is about to start: flags may still give those."""
    config = effective_config(request)
    topology_path = config.path("node.topology")
    if config.values["node.topology"].is_default and not topology_path.exists():
        config.notes.append(f"no {topology_path} here; `stagepost node dmq` needs one")
    else:
        read_peer_snapshot(config, read_topology(config))
    check_pools(config)
    read_cardano_access(config)
    if _lacks_stake(config):
        config.notes.append(
            "no cardano-node and no pools file is named; `stagepost node dmq` needs one of them"
            " (--cardano-node-socket or --pools)"
        )
    if not _host_addresses(config) and not config.flag("node.initiator_only"):
        config.notes.append(
            "no address to listen at; `stagepost node dmq` needs one (node.host_addr or --host-addr)"
        )
    return config


def read_topology(config: EffectiveConfig) -> Topology | None:
    path = config.path("node.topology")
    try:
        content, _ = read_small_file(path, TOPOLOGY_FILE_BYTES_MAX, "a topology file")
        topology = parse_topology(content, str(path))
    except ConfigFaults as error:
        config.faults.extend(error)
        return None
    config.notes.extend(f"{path}: {place} has no effect here" for place in topology.unused)
    after_slot = topology.use_ledger_after_slot
    wants_ledger, allows_ledger = config.flag("node.ledger_peers"), after_slot is not None and after_slot >= 0
    if allows_ledger and not wants_ledger:
        config.notes.append(f"{path}: useLedgerAfterSlot has no effect here: LedgerPeers is not true")
    if wants_ledger and not allows_ledger:
        origin = config.values["node.ledger_peers"].origin
        config.notes.append(f"{origin} has no effect here: {path} has no useLedgerAfterSlot of 0 or more")
    return topology


def read_peer_snapshot(config: EffectiveConfig, topology: Topology | None) -> LedgerPeers | None:
    """Return the ledger peers of the topology's snapshot file; None unless such peers are wanted."""
    if topology is None or topology.peer_snapshot_file is None:
        return None
    path = Path(topology.peer_snapshot_file)
    after_slot = topology.use_ledger_after_slot
    if not config.flag("node.ledger_peers") or after_slot is None or after_slot < 0:
        config.notes.append(f"peerSnapshotFile {path} has no effect here: ledger peers are not used")
        return None
    try:
        content, _ = read_small_file(path, SNAPSHOT_FILE_BYTES_MAX, "a peer snapshot file")
        return parse_peer_snapshot(content, str(path))
    except ConfigFaults as error:
        # dmq-node does not read the file at all, so that no operator's file may keep a node from starting.
        config.notes.append(f"peerSnapshotFile is not used: {' '.join(error.text.split())}")
        return None


def check_pools(config: EffectiveConfig) -> None:
    if config["node.pools"] is None:
        return
    path = config.path("node.pools")
    try:
        content, _ = read_small_file(path, POOLS_FILE_BYTES_MAX, "a pools file")
        parse_pools(content, str(path))
    except ConfigFaults as error:
        config.faults.extend(error)


def _require_what_a_node_needs(config: EffectiveConfig) -> None:
    if not _host_addresses(config) and not config.flag("node.initiator_only"):
        text = "expected an address to listen at here or in --host-ipv6-addr, found none"
        config.faults.add(COMMAND_LINE, FileFault("--host-addr", text))
    if _lacks_stake(config):
        text = (
            f"expected the socket of a cardano-node, found none at {config.path('node.cardano_node_socket')}"
            " (on a private network give --pools)"
        )
        config.faults.add(COMMAND_LINE, FileFault("--cardano-node-socket", text))


def _lacks_stake(config: EffectiveConfig) -> bool:
    """Return whether nobody named an origin of stake. A socket that was named may appear later."""
    socket = config.values["node.cardano_node_socket"]
    return config["node.pools"] is None and socket.is_default and not Path(str(socket.value)).exists()


def read_cardano_access(config: EffectiveConfig) -> CardanoAccess | None:
    """Return the way to the cardano-node; None if a pools file takes its place."""
    if config["node.pools"] is not None:
        for key in _CARDANO_SETTINGS:
            if not config.values[key].is_default:
                config.notes.append(
                    f"{config.values[key].origin} has no effect here: stake comes from the pools file"
                )
        return None
    magic = config.number("node.cardano_network_magic")
    return CardanoAccess(config.path("node.cardano_node_socket"), magic, _read_genesis(config, magic))


def _read_genesis(config: EffectiveConfig, magic: int) -> ShelleyGenesis | None:
    path = config.path("node.shelley_genesis_file")
    is_named = not config.values["node.shelley_genesis_file"].is_default
    wanted_hash = config["node.shelley_genesis_hash"]
    if not path.exists() and wanted_hash is None:
        if is_named:
            config.notes.append(f"{path} does not exist; the cardano-node is asked in its place")
        return None
    try:
        content, _ = read_small_file(path, GENESIS_FILE_BYTES_MAX, "a Shelley genesis file")
        genesis = parse_genesis(content, str(path), None if wanted_hash is None else str(wanted_hash))
    except ConfigFaults as error:
        config.faults.extend(error)
        return None
    if genesis.network_magic == magic:
        return genesis
    if is_named:
        text = f"expected the magic of network {magic} (CardanoNetworkMagic), found {genesis.network_magic}"
        config.faults.add(str(path), FileFault("networkMagic", text))
    else:
        config.notes.append(f"{path} is of network {genesis.network_magic}, not {magic}, and is not used")
    return None


def _host_addresses(config: EffectiveConfig) -> tuple[str, ...]:
    given = (config["node.host_addr"], config["node.host_ipv6_addr"])
    return tuple(str(address) for address in given if address is not None)


def _prometheus(config: EffectiveConfig) -> TcpAddress | None:
    if config["node.prometheus"] is None:
        return None
    address = parse_address(config.text("node.prometheus"))
    assert isinstance(address, TcpAddress)
    return address


def _node_config(config: EffectiveConfig, topology: Topology, cardano: CardanoAccess | None) -> NodeConfig:
    metrics_port = config["node.metrics_port"]
    min_sig_delay_s = config["node.min_sig_delay_s"]
    return NodeConfig(
        data_dir=config.path("node.data_dir"),
        local_socket=config.path("node.local_socket"),
        pools_file=None if config["node.pools"] is None else config.path("node.pools"),
        cardano=cardano,
        host_addresses=_host_addresses(config),
        port=config.number("node.port"),
        network_magic=config.number("node.network_magic"),
        topology=topology,
        profiles=tuple(PROFILES[name] for name in config.words("node.profiles")),
        wire_profile=PROFILES[config.text("node.wire_profile")],
        min_sig_delay_s=None if min_sig_delay_s is None else config.seconds("node.min_sig_delay_s"),
        refuse_equivocation=config.flag("node.refuse_equivocation"),
        peer_sharing=config.flag("node.peer_sharing"),
        private_peers=None if config["node.private_peers"] is None else config.flag("node.private_peers"),
        ledger_peers=config.flag("node.ledger_peers"),
        initiator_only=config.flag("node.initiator_only"),
        admission=AdmissionLimits(
            soft_max=config.number("node.connections_soft"),
            hard_max=config.number("node.connections_hard"),
            delay_s=config.seconds("node.connections_delay_s"),
            per_source_max=config.number("node.connections_per_address"),
        ),
        targets=PeerTargets(
            known=config.number("node.known_peers"),
            established=config.number("node.established_peers"),
            active=config.number("node.active_peers"),
        ),
        mempool_messages_max=config.number("node.mempool_messages"),
        mempool_bytes_max=config.number("node.mempool_bytes"),
        mempool_pool_percent=config.number("node.mempool_pool_percent"),
        protocol_idle_timeout_s=config.seconds("node.protocol_idle_timeout_s"),
        churn_interval_s=config.seconds("node.churn_interval_s"),
        verification_processes=config.number("node.verification_processes"),
        metrics_port=None if metrics_port is None else config.number("node.metrics_port"),
        prometheus=_prometheus(config),
        metrics_prefix=config.text("node.metrics_prefix"),
        unsafe=UnsafeOverrides(
            accept_stored_time=config.flag("node.unsafe_accept_stored_time"),
            loopback_unlimited=config.flag("node.unsafe_loopback_unlimited"),
        ),
        log=LogConfig(config.text("log.level"), config.text("log.format"), config.text("log.output")),
        notes=tuple(config.notes),
    )
