"""From a command line and its files to one `NodeConfig`, or to every fault of every file at once."""

from __future__ import annotations

from stagepost.config.config_faults import COMMAND_LINE
from stagepost.config.effective import ConfigRequest, EffectiveConfig, effective_config
from stagepost.dmq.node.config import LogConfig, NodeConfig, PeerTargets, UnsafeOverrides
from stagepost.dmq.pools import POOLS_FILE_BYTES_MAX, parse_pools
from stagepost.dmq.profiles import PROFILES
from stagepost.dmq.topology import TOPOLOGY_FILE_BYTES_MAX, Topology, parse_topology
from stagepost.errors import ConfigFaults, Fault
from stagepost.ground.files.small_files import read_small_file
from stagepost.ground.net.admission import AdmissionLimits


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
