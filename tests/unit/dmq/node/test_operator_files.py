"""The files and command lines of the public guides: each is read as it stands, and every key without effect is named."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from stagepost.cli.options.node_flags import request_from, with_node_flags
from stagepost.config.dmq_node_json import parse_dmq_config
from stagepost.config.effective import ConfigRequest, Flag, effective_config, load_node_config
from stagepost.dmq.node.config import NodeConfig
from stagepost.dmq.topology import parse_topology
from stagepost.errors import ConfigFaults
from stagepost.ground.net.network import TcpAddress
from tests.worlds.dmq.cardano_answers import vectors
from tests.worlds.dmq.operator_machine import GUIDE, service_line

OPERATOR = vectors("operator-files")
FILES = {entry["id"]: entry for entry in OPERATOR["files"]}
LINES = {entry["id"]: entry["argv"] for entry in OPERATOR["command_lines"]}
TOPOLOGIES = {entry["id"]: entry for entry in OPERATOR["topologies"]}
CONFIGURATIONS = [entry for entry in FILES.values() if "topology" not in entry["id"]]
GENESIS = {entry["id"]: entry for entry in vectors("genesis-and-clock")["genesis_files"]}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arguments(*argv: str) -> ConfigRequest:
    found: list[ConfigRequest] = []

    @click.command()
    @with_node_flags()
    def command(**given: Any) -> None:
        found.append(request_from(given))

    result = CliRunner().invoke(command, argv, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


def load(configuration: Mapping[str, Any], topology: Mapping[str, Any], *argv: str) -> NodeConfig:
    Path("config.json").write_text(json.dumps(configuration))
    Path("topology.json").write_text(json.dumps(topology))
    return load_node_config(
        arguments("--configuration-file", "config.json", "--topology-file", "topology.json", *argv)
    )


@pytest.mark.parametrize("role", ["relay", "bp"])
def test_the_kept_bytes_of_the_guide_are_its_values(role: str) -> None:
    for kind in ("config", "topology"):
        name = f"{kind}-{role}.json"
        assert json.loads((GUIDE / name).read_bytes()) == FILES[name]["file"]
    assert service_line(role) == [
        "/opt/dmq/dmq-node",
        *LINES["relay" if role == "relay" else "block-producer"],
    ]


@pytest.mark.parametrize("entry", CONFIGURATIONS, ids=lambda entry: entry["id"])
@pytest.mark.parametrize(
    "topology", ["topology-relay.json", "topology-bp.json", "infra-topology", "dmq-node-repo-topology"]
)
def test_every_public_configuration_and_topology_is_taken(entry: Mapping[str, Any], topology: str) -> None:
    expected = entry["expected"]
    socket = entry["file"].get("CardanoNodeSocket")

    config = load(
        entry["file"], FILES[topology]["file"], "--host-addr", "127.0.0.1",
        *(() if socket else ("--cardano-node-socket", "x.socket")),
    )  # fmt: skip

    assert config.pools_file is None
    assert config.cardano is not None
    assert config.cardano.socket == Path(socket or "x.socket")
    assert config.cardano.network_magic == entry["file"].get("CardanoNetworkMagic", 764824073)
    assert config.network_magic == entry["file"].get("NetworkMagic", 2912307721)
    assert config.peer_sharing == expected.get("peer_sharing", True)
    if "prometheus" in expected:
        assert str(config.prometheus) == expected["prometheus"]
    assert config.metrics_prefix == expected.get("metrics_prefix", "dmq_node_")
    assert (config.log.output, config.log.format) == ("stdout", "json")
    for key in expected.get("ignored_keys", ()):
        assert f"config.json: {key} is not known and has no effect" in config.notes
    named = entry["file"].get("ShelleyGenesisFile")
    if named:
        assert f"{named} does not exist; the cardano-node is asked in its place" in config.notes


@pytest.mark.parametrize("entry", OPERATOR["command_lines"], ids=lambda entry: entry["id"])
def test_every_public_command_line_is_taken(entry: Mapping[str, Any]) -> None:
    argv = entry["argv"]
    given = dict(zip(argv[::2], argv[1::2], strict=True))

    flags = {flag.name: flag.value for flag in arguments(*argv).flags.values()}

    assert flags.keys() == given.keys()
    assert flags["--port"] == int(given["--port"])
    assert flags["--host-addr"] == given["--host-addr"]
    if "--min-sig-delay" in given:
        assert flags["--min-sig-delay"] == 0.01


def test_the_devnet_starts_with_its_delay_and_mainnet_refuses_one() -> None:
    devnet = FILES["devnet-config"]["file"]
    topology = FILES["infra-topology"]["file"]

    assert (
        load(devnet, topology, "--host-addr", "127.0.0.1", "--min-sig-delay", "0.01s").min_sig_delay_s == 0.01
    )
    with pytest.raises(ConfigFaults, match="public network"):
        load(
            FILES["config-relay.json"]["file"],
            topology,
            "--host-addr",
            "127.0.0.1",
            "--min-sig-delay",
            "0.01s",
        )


@pytest.mark.parametrize("name", ["topology-relay.json", "topology-bp.json"])
def test_the_guides_topology_is_fitted(name: str) -> None:
    entry = FILES[name]
    expected = entry["expected"]

    topology = parse_topology(json.dumps(entry["file"]).encode(), name)

    (group,) = topology.local_roots
    assert (group.hot_valency, group.warm_valency) == (1, 1)
    assert (len(group.access_points), group.advertise) == (expected["access_points"], expected["advertise"])
    assert [root.access_points for root in topology.public_roots] == [()]
    assert set(topology.unused) == {
        "bootstrapPeers", "localRoots[0].trustable", "localRoots[0].accessPoints[0].valency",
    }  # fmt: skip


def _topology(name: str) -> Any:
    return parse_topology(json.dumps(TOPOLOGIES[name]["file"]).encode(), name)


def test_built_topologies_are_read_as_stated() -> None:
    (srv,) = _topology("srv-access-point").local_roots
    assert [(point.address, point.port) for point in srv.access_points] == [
        ("_dmq._mithril._cardano._tcp.example.org", None)
    ]
    (warm,) = _topology("warm-below-hot").local_roots
    assert (warm.warm_valency, warm.hot_valency) == (1, 1)
    (wins,) = _topology("valency-wins").local_roots
    assert (wins.warm_valency, wins.hot_valency) == (2, 2)
    overlap = _topology("overlap").local_roots
    assert [[f"{point.address}:{point.port}" for point in group.access_points] for group in overlap] == (
        TOPOLOGIES["overlap"]["expected"]["groups"]
    )
    assert [group.hot_valency for group in overlap] == TOPOLOGIES["overlap"]["expected"]["hot"]
    assert _topology("behind-firewall").local_roots[0].is_behind_firewall
    assert _topology("ledger-off-by-minus-one").unused == ()
    assert _topology("ledger-always").use_ledger_after_slot == 0
    # dmq-node refuses a file without public roots; this node takes it, as it always has.
    assert _topology("no-public-roots").local_roots == ()


# Genesis


def _genesis_flags(**further: object) -> ConfigRequest:
    Path("dmq.topology.json").write_text('{"localRoots": [], "publicRoots": []}')
    flags = {"node.host_addr": "127.0.0.1", "node.cardano_node_socket": "x", **further}
    return ConfigRequest({key: Flag(key, value) for key, value in flags.items()})


@pytest.mark.parametrize("name", ["mainnet", "preprod", "preview"])
def test_a_genesis_file_is_used_if_it_is_of_the_network_and_has_the_hash(name: str) -> None:
    entry = GENESIS[name]
    magic = entry["expected"]["networkMagic"]
    Path("genesis.json").write_bytes(entry["file_text"].encode())
    request = {"node.shelley_genesis_file": "genesis.json", "node.cardano_network_magic": magic}

    config = load_node_config(
        _genesis_flags(**request, **{"node.shelley_genesis_hash": entry["blake2b_256"]})
    )

    assert config.cardano is not None
    assert config.cardano.genesis is not None
    assert config.cardano.genesis.kes_evolutions_max == 62
    with pytest.raises(ConfigFaults, match="BLAKE2b-256"):
        load_node_config(_genesis_flags(**request, **{"node.shelley_genesis_hash": "00" * 32}))
    with pytest.raises(ConfigFaults, match="CardanoNetworkMagic"):
        load_node_config(_genesis_flags(**request | {"node.cardano_network_magic": 43}))


def test_a_missing_genesis_file_is_a_fault_only_where_its_hash_is_demanded() -> None:
    request = {"node.shelley_genesis_file": "gone.json", "node.cardano_network_magic": 1}

    config = load_node_config(_genesis_flags(**request))

    assert config.cardano is not None
    assert config.cardano.genesis is None
    with pytest.raises(ConfigFaults, match=r"gone\.json"):
        load_node_config(_genesis_flags(**request, **{"node.shelley_genesis_hash": "00" * 32}))


def test_a_genesis_file_that_is_not_one_is_a_fault() -> None:
    Path("genesis.json").write_text('{"networkMagic": 1, "systemStart": "yesterday", "slotLength": 0}')

    with pytest.raises(ConfigFaults) as caught:
        load_node_config(_genesis_flags(**{"node.shelley_genesis_file": "genesis.json"}))

    places = {fault.where for fault in caught.value.faults["genesis.json"]}
    assert places == {"systemStart", "slotLength", "epochLength", "slotsPerKESPeriod", "maxKESEvolutions"}


# Trace options


def traced(root: Mapping[str, Any], **others: Any) -> Any:
    return parse_dmq_config(json.dumps({"TraceOptions": {"": root, **others}}).encode())


@pytest.mark.parametrize(
    ("backend", "address"),
    [
        ("PrometheusSimple suffix 127.0.0.1 12000", "127.0.0.1:12000"),
        ("PrometheusSimple nosuffix 0.0.0.0 12000", "0.0.0.0:12000"),
        ("PrometheusSimple 12000", "127.0.0.1:12000"),
        ("PrometheusSimple suffix 65535", "127.0.0.1:65535"),
    ],
)
def test_the_address_of_prometheus_is_read(backend: str, address: str) -> None:
    parsed = traced({"backends": [backend]})

    assert parsed.faults == ()
    assert parsed.values["node.prometheus"] == address


@pytest.mark.parametrize(
    "backend",
    [
        "PrometheusSimple",
        "PrometheusSimple suffix",
        "PrometheusSimple 65536",
        "PrometheusSimple a b c",
        f"PrometheusSimple {'9' * 5_000}",
        "PrometheusSimple ٣",
    ],
    ids=lambda backend: backend[:30],
)
def test_an_address_of_prometheus_that_is_none_is_a_fault(backend: str) -> None:
    (fault,) = traced({"backends": [backend]}).faults

    assert fault.where == "TraceOptions..backends[0]"


def test_other_backends_and_namespaces_are_named_as_without_effect() -> None:
    parsed = traced(
        {"backends": ["EKGBackend", "Forwarder", "Smoke"], "severity": "Notice", "detail": "DNormal"},
        Handshake={"severity": "Debug"},
    )

    assert parsed.values == {"log.level": "info"}
    assert [note.split(" has no effect")[0] for note in parsed.notes] == [
        "TraceOptions.Handshake", "TraceOptions..detail", "TraceOptions..backends[0]", "TraceOptions..backends[1]",
        "TraceOptions..backends[2]",
    ]  # fmt: skip


def test_an_unknown_severity_is_a_fault() -> None:
    assert traced({"severity": "Loud"}).faults[0].where == "TraceOptions..severity"


def test_old_names_of_trace_options_go_before_new_ones() -> None:
    both = {
        "TraceOptions": {"": {"severity": "Debug"}},
        "Options": {"": {"severity": "Error"}},
        "MetricsPrefix": "x.",
    }

    parsed = parse_dmq_config(json.dumps(both).encode())

    assert parsed.values == {"log.level": "debug"}
    assert [note.partition(" ")[0] for note in parsed.notes] == ["Options", "MetricsPrefix"]


def test_prometheus_can_be_given_in_our_own_file_too() -> None:
    Path("stagepost.toml").write_text('[node]\nprometheus = "0.0.0.0:9100"\n')

    assert load_node_config(_genesis_flags()).prometheus == TcpAddress("0.0.0.0", 9100)
    Path("stagepost.toml").write_text('[node]\nprometheus = "9100"\n')
    with pytest.raises(ConfigFaults, match="HOST:PORT"):
        load_node_config(_genesis_flags())


NOBODY = 65534


def test_data_lie_beside_the_socket_where_the_working_folder_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service of the guide begins in the root folder, as an ordinary user."""
    monkeypatch.chdir("/")
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        config = effective_config(
            ConfigRequest({"node.local_socket": Flag("--local-socket", "/dmq/ipc/node.socket")})
        )
        named = effective_config(ConfigRequest({"node.data_dir": Flag("--data", "mine")}))
    finally:
        os.seteuid(user)

    assert config.path("node.data_dir") == Path("/dmq/ipc/stagepost-data")
    assert any("/ cannot be written" in note for note in config.notes)
    assert named.path("node.data_dir") == Path("mine")
