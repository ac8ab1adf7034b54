"""From flags and files to one configuration: who wins, what is refused, and every fault at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.config.dmq_node_json import WITHOUT_EFFECT, parse_dmq_config
from stagepost.config.effective import ConfigRequest, Flag, check_files, effective_config, load_node_config
from stagepost.config.settings import SETTINGS
from stagepost.config.settings_file import SETTINGS_FILE_BYTES_MAX, initial_file, parse_settings
from stagepost.dmq.node.config import NodeConfig, PeerTargets
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, PROFILES, SEED
from stagepost.errors import FAULTS_SHOWN_MAX, ConfigFaults, ErrorCode, FileFault
from stagepost.ground.net.admission import AdmissionLimits

POOLS = {"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": []}
TOPOLOGY: dict[str, Any] = {"localRoots": [], "publicRoots": []}
PRIVATE_MAGIC = 42


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An operator's folder with everything that a node needs."""
    monkeypatch.chdir(tmp_path)
    Path("pools.json").write_text(json.dumps(POOLS))
    Path("dmq.topology.json").write_text(json.dumps(TOPOLOGY))
    return tmp_path


def a_request(
    flags: Mapping[str, object] | None = None, *, context: str | None = None, config_file: str | None = None
) -> ConfigRequest:
    given = {"node.host_addr": "127.0.0.1", "node.pools": "pools.json", **(flags or {})}
    named = {key: Flag("--" + key, value) for key, value in given.items() if value is not None}
    return ConfigRequest(named, None if config_file is None else Path(config_file), context)


def load(flags: Mapping[str, object] | None = None, **others: Any) -> NodeConfig:
    return load_node_config(a_request(flags, **others))


def faults_of(request: ConfigRequest) -> dict[str, dict[str, str]]:
    with pytest.raises(ConfigFaults) as caught:
        load_node_config(request)
    assert caught.value.code is ErrorCode.CONFIG_INVALID
    return {
        file: {fault.where: fault.text for fault in faults} for file, faults in caught.value.faults.items()
    }


# ── what holds ───────────────────────────────────────────────────────────────────────────────────────────────


def test_without_any_file_the_defaults_are_those_of_dmq_node_and_the_published_limits() -> None:
    config = load()

    assert config.host_addresses == ("127.0.0.1",)
    assert (config.port, config.network_magic) == (3141, 2_912_307_721)
    assert (config.local_socket, config.data_dir) == (Path("dmq-node.socket"), Path("stagepost-data"))
    assert config.profiles == tuple(PROFILES.values())
    assert config.wire_profile is DMQ_NODE
    assert config.admission == AdmissionLimits()
    assert config.targets == PeerTargets(known=150, established=30, active=20)
    assert (config.mempool_messages_max, config.mempool_bytes_max) == (50_000, 160_000_000)
    assert (config.protocol_idle_timeout_s, config.churn_interval_s) == (5, 3300)
    assert config.min_sig_delay_s is None
    assert config.peer_sharing
    assert not config.initiator_only
    assert not config.refuse_equivocation
    assert config.metrics_port == 0
    assert config.notes == ()


def test_a_config_made_by_hand_has_the_same_defaults_as_the_settings() -> None:
    by_hand = NodeConfig(
        Path("stagepost-data"), Path("dmq-node.socket"), Path("pools.json"), host_addresses=("127.0.0.1",)
    )

    assert load() == by_hand


def test_flags_win_over_the_settings_file_that_over_dmq_nodes_file_that_over_defaults() -> None:
    Path("dmq.config.json").write_text(json.dumps({"PortNumber": 1, "NetworkMagic": 1, "ChurnInterval": 1}))
    Path("stagepost.toml").write_text("[node]\nport = 2\nnetwork_magic = 2\n")

    config = load({"node.port": 3})

    assert (config.port, config.network_magic, config.churn_interval_s) == (3, 2, 1.0)
    assert config.protocol_idle_timeout_s == 5.0


def test_a_context_goes_on_top_of_the_settings_file_and_below_flags() -> None:
    Path("stagepost.toml").write_text(
        "[node]\nport = 1\nnetwork_magic = 1\nchurn_interval_s = 1\n"
        "[contexts.preview]\nnode.port = 2\nnode.network_magic = 2147483650\n"
    )

    assert load().network_magic == 1
    config = load({"node.port": 3}, context="preview")
    assert (config.port, config.network_magic, config.churn_interval_s) == (3, 2_147_483_650, 1.0)


def test_a_second_body_for_a_slot_is_refused_if_the_settings_file_says_so() -> None:
    Path("stagepost.toml").write_text("[node]\nrefuse_equivocation = true\n")

    assert load().refuse_equivocation


def test_every_value_says_where_it_comes_from() -> None:
    Path("dmq.config.json").write_text(json.dumps({"PeerSharing": False}))
    Path("stagepost.toml").write_text('[node]\nport = 2\n[contexts.a]\nlog.level = "debug"\n')

    values = effective_config(
        a_request({"node.min_sig_delay_s": 0, "node.network_magic": 1}, context="a")
    ).values

    assert values["node.peer_sharing"].origin == "dmq.config.json: PeerSharing"
    assert values["node.port"].origin == "stagepost.toml: node.port"
    assert values["log.level"].origin == "stagepost.toml: contexts.a.log.level"
    assert values["node.min_sig_delay_s"].origin == "command line: --node.min_sig_delay_s"
    assert values["web.port"].origin == "default"


def test_paths_count_from_the_folder_of_the_settings_file(here: Path) -> None:
    (here / "etc").mkdir()
    (here / "etc" / "my.toml").write_text('[node]\npools = "pools.json"\ndata_dir = "/absolute"\n')
    (here / "etc" / "pools.json").write_text(json.dumps(POOLS))

    config = load({"node.pools": None}, config_file="etc/my.toml")

    assert config.pools_file == Path("etc/pools.json")
    assert config.data_dir == Path("/absolute")
    assert config.local_socket == Path("dmq-node.socket")


def test_both_addresses_may_be_given() -> None:
    assert load({"node.host_ipv6_addr": "::1"}).host_addresses == ("127.0.0.1", "::1")


def test_profiles_and_metrics_can_be_chosen() -> None:
    config = load(
        {"node.profiles": ["seed", "gouroboros"], "node.wire_profile": "seed", "node.metrics_port": "off"}
    )

    assert config.profiles == (SEED, GOUROBOROS)
    assert config.wire_profile is SEED
    assert config.metrics_port is None


def test_a_node_that_only_connects_needs_no_address() -> None:
    Path("dmq.config.json").write_text(json.dumps({"DiffusionMode": "InitiatorOnly"}))

    config = load({"node.host_addr": None})

    assert config.initiator_only
    assert config.host_addresses == ()


# ── dmq-node's own file ──────────────────────────────────────────────────────────────────────────────────────


def test_every_key_of_dmq_nodes_configuration_is_taken() -> None:
    file = {
        "IPv4": "10.0.0.1",
        "IPv6": "::1",
        "PortNumber": 3001,
        "LocalAddress": "run/x.socket",
        "NetworkMagic": 3141592,
        "CardanoNetworkMagic": 1,
        "CardanoNodeSocket": "node.socket",
        "ShelleyGenesisFile": "genesis.json",
        "ShelleyGenesisHash": "00",
        "DiffusionMode": "InitiatorAndResponder",
        "PeerSharing": False,
        "LedgerPeers": False,
        "AcceptedConnectionsLimit": {"hardLimit": 20, "softLimit": 10, "delay": 1},
        "ProtocolIdleTimeout": 6,
        "ChurnInterval": 300,
        "TargetNumberOfRootPeers": 6,
        "TargetNumberOfKnownPeers": 15,
        "TargetNumberOfEstablishedPeers": 3,
        "TargetNumberOfActivePeers": 2,
        "TargetNumberOfKnownBigLedgerPeers": 1,
        "TargetNumberOfEstablishedBigLedgerPeers": 1,
        "TargetNumberOfActiveBigLedgerPeers": 1,
        "TraceOptions": {"": {"severity": "Info"}},
        "TraceOptionMetricsPrefix": "dmq_node_",
    }
    Path("dmq.config.json").write_text(json.dumps(file))

    config = load({"node.host_addr": None})

    assert config.host_addresses == ("10.0.0.1", "::1")
    assert (config.port, config.local_socket, config.network_magic) == (3001, Path("run/x.socket"), 3141592)
    assert (config.peer_sharing, config.initiator_only) == (False, False)
    assert config.admission == AdmissionLimits(soft_max=10, hard_max=20, delay_s=1)
    assert config.targets == PeerTargets(known=15, established=3, active=2)
    assert (config.protocol_idle_timeout_s, config.churn_interval_s) == (6, 300)
    assert config.metrics_prefix == "dmq_node_"
    assert config.log.level == "info"
    in_vain = (
        *WITHOUT_EFFECT,
        "LedgerPeers",
        "CardanoNetworkMagic",
        "CardanoNodeSocket",
        "ShelleyGenesisFile",
        "ShelleyGenesisHash",
    )
    assert len(config.notes) == len(in_vain)
    assert (
        "dmq.config.json: CardanoNodeSocket has no effect here: stake comes from the pools file"
        in config.notes
    )


def test_a_key_that_dmq_node_does_not_know_either_is_ignored_and_told() -> None:
    parsed = parse_dmq_config(json.dumps({"PortNumbr": 1, "MuxTracer": True, "IPv4": None}).encode())

    assert parsed.values == {}
    assert parsed.faults == ()
    assert parsed.notes == (
        "PortNumbr is not known and has no effect; did you mean PortNumber?",
        "MuxTracer is not known and has no effect",
    )


def test_faults_of_dmq_nodes_file_are_all_listed() -> None:
    Path("dmq.config.json").write_text(
        json.dumps(
            {
                "IPv4": "::1",
                "PortNumber": "3001",
                "DiffusionMode": "Both",
                "AcceptedConnectionsLimit": {"hardLimit": 0, "delay": 1},
            }
        )
    )

    assert faults_of(a_request()) == {
        "dmq.config.json": {
            "IPv4": 'expected an IPv4 address, found "::1" (this is IPv6)',
            "PortNumber": 'expected a number, found "3001" (remove the quotes)',
            "DiffusionMode": 'expected one of InitiatorAndResponder, InitiatorOnly, found "Both"',
            "AcceptedConnectionsLimit.hardLimit": "expected a number in 1..4294967295, found 0",
            "AcceptedConnectionsLimit.softLimit": "expected a number, found nothing",
        }
    }


def test_a_missing_configuration_file_is_fine_and_told_when_it_was_named() -> None:
    assert load().notes == ()
    assert "gone.json" in load({"node.dmq_config": "gone.json"}).notes[0]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────


def test_every_fault_of_every_file_comes_at_once_as_people_should_see_it() -> None:
    Path("stagepost.toml").write_text('[delivery]\nqueue_sise = 5\nack_timeout_s = "soon"\n')
    group = {"accessPoints": [{"address": "a", "port": 1}, {"address": "b", "port": "3001"}], "valency": 1}
    Path("dmq.topology.json").write_text(json.dumps({"localRoots": [group]}))

    with pytest.raises(ConfigFaults) as caught:
        load()

    assert caught.value.text.splitlines() == [
        "stagepost.toml: 2 problems",
        "  delivery.queue_sise      unknown key; did you mean queue_size?",
        '  delivery.ack_timeout_s   expected seconds as a number, found "soon"',
        "dmq.topology.json: 1 problem",
        '  localRoots[0].accessPoints[1].port   expected a number, found "3001" (remove the quotes)',
    ]


def test_without_pools_and_address_a_node_does_not_start() -> None:
    faults = faults_of(a_request({"node.pools": None, "node.host_addr": None}))

    assert faults.keys() == {"command line"}
    assert faults["command line"].keys() == {"--cardano-node-socket", "--host-addr"}
    assert "give --pools" in faults["command line"]["--cardano-node-socket"]


def test_missing_files_are_faults_of_their_own() -> None:
    Path("dmq.topology.json").unlink()
    Path("pools.json").unlink()

    faults = faults_of(a_request())

    assert faults["dmq.topology.json"] == {
        "the file": "expected a topology file, found none (no such file or directory)"
    }
    assert faults["pools.json"] == {
        "the file": "expected a pools file, found none (no such file or directory)"
    }


def test_a_named_settings_file_must_exist() -> None:
    assert faults_of(a_request(config_file="gone.toml")).keys() == {"gone.toml"}


def test_a_settings_file_of_sensible_size_is_read_and_a_larger_one_is_not() -> None:
    Path("stagepost.toml").write_bytes(b"#" * SETTINGS_FILE_BYTES_MAX)
    assert load().port == 3141

    Path("stagepost.toml").write_bytes(b"#" * (SETTINGS_FILE_BYTES_MAX + 1))
    assert "at most" in faults_of(a_request())["stagepost.toml"]["the file"]


def test_a_folder_in_place_of_a_file_is_a_fault(here: Path) -> None:
    (here / "folder").mkdir()

    assert "not a regular file" in faults_of(a_request({"node.pools": "folder"}))["folder"]["the file"]


@pytest.mark.parametrize("magic", [2_912_307_721, 2_147_483_649, 2_147_483_650])
def test_the_gap_between_messages_is_not_ours_to_choose_on_a_public_network(magic: int) -> None:
    faults = faults_of(a_request({"node.min_sig_delay_s": 1.0, "node.network_magic": magic}))

    assert "public network" in faults["command line"]["--node.min_sig_delay_s"]


def test_the_gap_between_messages_can_be_chosen_elsewhere() -> None:
    assert load({"node.min_sig_delay_s": 0, "node.network_magic": PRIVATE_MAGIC}).min_sig_delay_s == 0.0


@pytest.mark.parametrize(
    ("settings", "blamed"),
    [
        ("connections_soft = 600", "node.connections_soft"),
        ("connections_hard = 10", "node.connections_hard"),
        ("active_peers = 31", "node.active_peers"),
        ("established_peers = 151", "node.established_peers"),
    ],
)
def test_values_that_do_not_fit_one_another_are_blamed_on_the_one_that_was_set(
    settings: str, blamed: str
) -> None:
    Path("stagepost.toml").write_text(f"[node]\n{settings}\n")

    assert blamed in faults_of(a_request())["stagepost.toml"]


def test_values_that_just_fit_one_another_are_fine() -> None:
    Path("stagepost.toml").write_text("[node]\nconnections_soft = 512\nactive_peers = 30\n")

    assert load().admission.soft_max == 512


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("node.port", 65_536),
        ("node.port", -1),
        ("node.network_magic", 2**32),
        ("node.host_addr", "localhost"),
        ("node.host_ipv6_addr", "127.0.0.1"),
        ("node.profiles", []),
        ("node.profiles", ["seed", "seed"]),
        ("node.profiles", ["haskell"]),
        ("node.metrics_port", "on"),
        ("node.metrics_port", 65_536),
        ("node.churn_interval_s", 0),
        ("node.churn_interval_s", float("nan")),
        ("node.churn_interval_s", float("inf")),
        ("node.churn_interval_s", True),
        ("node.data_dir", ""),
        ("node.data_dir", "a\0b"),
        ("node.connections_per_address", 0),
        ("node.mempool_messages", 0),
        ("delivery.queue_size", 0),
        ("delivery.max_retries", -1),
        ("delivery.critical_peers", "relay-1"),
        ("delivery.flush_interval_s", 0),
        ("remp.message_timeout_s", 0),
        ("web.host", "0.0.0.0"),
        ("web.host", "example.org"),
        ("web.port", 0),
        ("log.level", "loud"),
        ("log.format", "xml"),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_refused(key: str, value: object) -> None:
    effective = effective_config(a_request({key: value}))

    assert [fault.where for fault in effective.faults.of("command line")] == [f"--{key}"]


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.key)
def test_every_default_is_a_value_that_the_setting_can_have(setting: Any) -> None:
    shown = setting.example if setting.default is None else setting.default

    assert setting.expected.read(shown) == shown


# ── the settings file ────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_file_sets_nothing_and_without_its_comment_signs_sets_every_default() -> None:
    assert parse_settings(initial_file().encode(), Path()) == ({}, {}, [])

    lines = [line.removeprefix("# ") if " = " in line else line for line in initial_file().splitlines()]
    body = "\n".join(lines).partition("# Named parts")[0]
    settings, _, faults = parse_settings(body.encode(), Path())
    assert faults == []
    expected = {
        key: setting.example if setting.default is None else setting.default
        for key, setting in SETTINGS.items()
    }
    assert settings == expected


def test_the_sample_of_the_manual_is_taken() -> None:
    sample = """
        [node]
        data_dir = "stagepost-data"
        local_socket = "dmq-node.socket"
        port = 3141
        topology = "dmq.topology.json"
        wire_profile = "dmq-node"
        [delivery]
        queue_size = 1000
        flush_interval_s = 1.0
        flush_batch_size = 10
        enable_ack = false
        ack_timeout_s = 5.0
        max_retries = 3
        critical_peers = []
        require_all_acks = false
        [remp]
        message_timeout_s = 240
        [web]
        host = "127.0.0.1"
        port = 8137
        live_rows_max = 500
        page_rows = 50
        query_timeout_s = 10
        [log]
        level = "info"
        format = "auto"
        [contexts.preview]
        node.network_magic = 2147483650
    """

    settings, contexts, faults = parse_settings(sample.encode(), Path())

    assert faults == []
    assert settings == {key: SETTINGS[key].default for key in settings}
    assert contexts == {"preview": {"node.network_magic": 2_147_483_650}}


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("port = 1", "port", "unknown section"),
        ("[nodes]", "nodes", "did you mean node?"),
        ("node = 3", "node", "expected a section, found 3"),
        ("[node]\nprot = 1", "node.prot", "unknown key; did you mean port?"),
        ("[node]\nroot_peers = 60", "node.root_peers", "unknown key; it never had an effect"),
        ("contexts = 3", "contexts", "expected named parts"),
        ("[contexts]\na = 3", "contexts.a", "expected settings"),
        ("[contexts.a]\nnode.prot = 1", "contexts.a.node.prot", "did you mean port?"),
        ("[contexts.a.contexts.b]", "contexts.a.contexts", "unknown section"),
        ("[node]\nport = 2026-01-01", "node.port", "expected a number, found a date"),
        ("[node\n", "line 1", "expected TOML"),
        ("[node]\nport = 1\nport = 2\n", "line 3", "expected TOML"),
        ("port = ", "end of document", "expected TOML"),
        ("x = " + "[" * 10_000, "the whole file", "too large to read"),
        ("x = " + "9" * 10_000, "the whole file", "too large to read"),
    ],
)
def test_a_fault_of_the_settings_file_says_where_and_what(text: str, where: str, what: str) -> None:
    _, _, faults = parse_settings(text.encode(), Path())

    assert len(faults) == 1
    assert faults[0].where.partition(", column")[0] == where
    assert what in faults[0].text


def test_faults_of_a_context_that_is_not_chosen_are_found_too() -> None:
    Path("stagepost.toml").write_text("[contexts.a]\nnode.port = -1\n")

    assert faults_of(a_request())["stagepost.toml"].keys() == {"contexts.a.node.port"}


def test_an_unknown_context_is_a_fault_that_names_the_known_ones() -> None:
    Path("stagepost.toml").write_text("[contexts.mainnet]\n[contexts.other]\n")

    assert (
        "did you mean mainnet?" in faults_of(a_request(context="mainet"))["stagepost.toml"]["contexts.mainet"]
    )
    assert "it has mainnet, other" in faults_of(a_request(context="x"))["stagepost.toml"]["contexts.x"]
    Path("stagepost.toml").unlink()
    assert "--context" in faults_of(a_request(context="x"))["command line"]


@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_any_bytes_give_settings_or_faults(content: bytes) -> None:
    settings, _, _ = parse_settings(content, Path())

    assert settings.keys() <= SETTINGS.keys()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(["IPv4", "PortNumber", "AcceptedConnectionsLimit", "Port"]), _JSON))
def test_any_values_of_dmq_nodes_file_give_settings_or_faults(file: dict[str, Any]) -> None:
    assert parse_dmq_config(json.dumps(file).encode()).values.keys() <= SETTINGS.keys()


# ── looking without starting ─────────────────────────────────────────────────────────────────────────────────


def test_looking_asks_for_nothing_that_flags_may_still_give() -> None:
    Path("dmq.topology.json").unlink()

    effective = check_files(ConfigRequest())

    assert not effective.faults
    assert len(effective.notes) == 3


def test_looking_finds_a_topology_that_was_named_and_is_missing() -> None:
    Path("stagepost.toml").write_text('[node]\ntopology = "gone.json"\n')

    assert check_files(ConfigRequest()).faults.error().faults.keys() == {"gone.json"}


def test_what_a_topology_says_in_vain_is_told() -> None:
    Path("dmq.topology.json").write_text(json.dumps(TOPOLOGY | {"bootstrapPeers": None}))

    assert load().notes == ("dmq.topology.json: bootstrapPeers has no effect here",)


def test_a_file_of_the_wrong_kind_does_not_fill_the_screen() -> None:
    faults = [FileFault(f"[{n}]", "wrong") for n in range(FAULTS_SHOWN_MAX + 1)]

    assert len(ConfigFaults({"x": faults[:-1]}).text.splitlines()) == FAULTS_SHOWN_MAX + 1
    assert ConfigFaults({"x": faults}).text.splitlines()[-1] == "  and 1 more"
    assert ConfigFaults({"x": faults}).text.startswith(f"x: {FAULTS_SHOWN_MAX + 1} problems")
