"""Effective settings, each with its origin: flags, then `stagepost.toml`, then dmq-node's JSON, then defaults.

From a command line and its files to one `NodeConfig`, or to every fault of every file at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
from stagepost.dmq.node.config import LogConfig, NodeConfig, PeerTargets, UnsafeOverrides
from stagepost.dmq.pools import POOLS_FILE_BYTES_MAX, parse_pools
from stagepost.dmq.profiles import PROFILES
from stagepost.dmq.topology import TOPOLOGY_FILE_BYTES_MAX, Topology, parse_topology
from stagepost.dmq.validation import PUBLIC_MAGICS
from stagepost.errors import ConfigFaults, Fault
from stagepost.ground.files.documents import did_you_mean
from stagepost.ground.files.expected import UnexpectedValue
from stagepost.ground.files.small_files import read_small_file
from stagepost.ground.net.admission import AdmissionLimits

DEFAULT = "default"


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
    notes: tuple[str, ...] = ()
    """What was said on the command line without effect."""


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
            self.faults.add(COMMAND_LINE, Fault(key, text))
        else:
            self.faults.add(value.source, Fault(value.where, text))


def effective_config(request: ConfigRequest) -> EffectiveConfig:
    config = EffectiveConfig(
        {key: Value(setting.default) for key, setting in SETTINGS.items()}, FaultsByFile(), [*request.notes]
    )
    from_file = _from_settings_file(request, config)
    from_flags = _from_flags(request, config)
    config.values.update(from_file)
    config.values.update(from_flags)
    # Only now is it known which JSON file is meant; what it says goes below the other two.
    config.values.update(_from_dmq_config(config))
    config.values.update(from_file)
    config.values.update(from_flags)
    _check_together(config)
    return config


def _from_flags(request: ConfigRequest, config: EffectiveConfig) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key, flag in request.flags.items():
        try:
            values[key] = Value(SETTINGS[key].expected.read(flag.value), COMMAND_LINE, flag.name)
        except UnexpectedValue as error:
            config.faults.add(COMMAND_LINE, Fault(flag.name, str(error)))
    return values


def _from_settings_file(request: ConfigRequest, config: EffectiveConfig) -> dict[str, Value]:
    path = request.config_file or Path(SETTINGS_FILE)
    if request.config_file is None and not path.exists():
        if request.context is not None:
            text = f"expected a file with [{CONTEXTS}.{request.context}], found no {SETTINGS_FILE}"
            config.faults.add(COMMAND_LINE, Fault("--context", text))
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
        config.faults.add(str(path), Fault(f"{CONTEXTS}.{request.context}", f"no such context{hint}"))
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
        ("node.root_peers", "node.known_peers"),
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
    config.faults.raise_if_any()
    assert topology is not None
    return _node_config(config, topology)


def check_files(request: ConfigRequest) -> EffectiveConfig:
    """The same looks without the demands of a node that is about to start: flags may still give those."""
    config = effective_config(request)
    topology_path = config.path("node.topology")
    if config.values["node.topology"].is_default and not topology_path.exists():
        config.notes.append(f"no {topology_path} here; `stagepost node dmq` needs one")
    else:
        read_topology(config)
    if config["node.pools"] is None:
        config.notes.append("no pools file is named; `stagepost node dmq` needs one (node.pools or --pools)")
    else:
        check_pools(config)
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
    return topology


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
        config.faults.add(COMMAND_LINE, Fault("--host-addr", text))
    if config["node.pools"] is None:
        text = "expected the file that says which pools may send, found none (or set node.pools)"
        config.faults.add(COMMAND_LINE, Fault("--pools", text))


def _host_addresses(config: EffectiveConfig) -> tuple[str, ...]:
    given = (config["node.host_addr"], config["node.host_ipv6_addr"])
    return tuple(str(address) for address in given if address is not None)


def _node_config(config: EffectiveConfig, topology: Topology) -> NodeConfig:
    metrics_port = config["node.metrics_port"]
    min_sig_delay_s = config["node.min_sig_delay_s"]
    return NodeConfig(
        data_dir=config.path("node.data_dir"),
        local_socket=config.path("node.local_socket"),
        pools_file=config.path("node.pools"),
        host_addresses=_host_addresses(config),
        port=config.number("node.port"),
        network_magic=config.number("node.network_magic"),
        topology=topology,
        profiles=tuple(PROFILES[name] for name in config.words("node.profiles")),
        wire_profile=PROFILES[config.text("node.wire_profile")],
        min_sig_delay_s=None if min_sig_delay_s is None else config.seconds("node.min_sig_delay_s"),
        refuse_equivocation=config.flag("node.refuse_equivocation"),
        peer_sharing=config.flag("node.peer_sharing"),
        initiator_only=config.flag("node.initiator_only"),
        admission=AdmissionLimits(
            soft_max=config.number("node.connections_soft"),
            hard_max=config.number("node.connections_hard"),
            delay_s=config.seconds("node.connections_delay_s"),
            per_source_max=config.number("node.connections_per_address"),
        ),
        targets=PeerTargets(
            root=config.number("node.root_peers"),
            known=config.number("node.known_peers"),
            established=config.number("node.established_peers"),
            active=config.number("node.active_peers"),
        ),
        mempool_messages_max=config.number("node.mempool_messages"),
        mempool_bytes_max=config.number("node.mempool_bytes"),
        protocol_idle_timeout_s=config.seconds("node.protocol_idle_timeout_s"),
        churn_interval_s=config.seconds("node.churn_interval_s"),
        verification_processes=config.number("node.verification_processes"),
        metrics_port=None if metrics_port is None else config.number("node.metrics_port"),
        unsafe=UnsafeOverrides(
            accept_stored_time=config.flag("node.unsafe_accept_stored_time"),
            loopback_unlimited=config.flag("node.unsafe_loopback_unlimited"),
        ),
        log=LogConfig(config.text("log.level"), config.text("log.format")),
        notes=tuple(config.notes),
    )
