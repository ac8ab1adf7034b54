"""The topology file: cardano-node's syntax, our profiles, and every fault at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq import topology as topology_module
from stagepost.dmq.profiles import DMQ_NODE, SEED
from stagepost.dmq.topology import (
    VALENCY_MAX,
    AccessPoint,
    LocalRoot,
    PublicRoot,
    Topology,
    parse_topology,
)
from stagepost.errors import ConfigFaults, FileFault
from stagepost.ground.files.expected import HOST_NAME_CHARACTERS_MAX

POINT = {"address": "10.0.0.1", "port": 3141}


def a_group(**changes: Any) -> dict[str, Any]:
    return {"accessPoints": [POINT], "advertise": False, "valency": 1} | changes


def parse(file: Any) -> Topology:
    return parse_topology(json.dumps(file).encode(), "dmq.topology.json")


def faults_of(file: Any) -> dict[str, str]:
    with pytest.raises(ConfigFaults) as caught:
        parse(file)
    return {fault.where: fault.text for fault in caught.value.faults["dmq.topology.json"]}


def test_a_whole_file_of_cardano_node_is_read() -> None:
    topology = parse(
        {
            "bootstrapPeers": [{"address": "b", "port": 1}],
            "localRoots": [
                {
                    "accessPoints": [POINT, {"address": "relay.example", "port": 3142}],
                    "advertise": True,
                    "hotValency": 1,
                    "warmValency": 2,
                    "trustable": True,
                    "diffusionMode": "InitiatorOnly",
                }
            ],
            "publicRoots": [{"accessPoints": [{"address": "::1", "port": 3143}], "advertise": False}],
            "useLedgerAfterSlot": -1,
            "peerSnapshotFile": "peers.json",
        }
    )

    assert topology.local_roots == (
        LocalRoot(
            (AccessPoint("10.0.0.1", 3141), AccessPoint("relay.example", 3142)),
            hot_valency=1,
            warm_valency=2,
            advertise=True,
            initiator_only=True,
        ),
    )
    assert topology.public_roots == (PublicRoot((AccessPoint("::1", 3143),)),)
    assert topology.use_ledger_after_slot == -1
    assert topology.unused == ("bootstrapPeers", "localRoots[0].trustable")
    assert topology.peer_snapshot_file == "peers.json"


def test_a_minimal_file_has_defaults() -> None:
    topology = parse({"localRoots": [{"accessPoints": [POINT], "valency": 1}]})

    assert topology.local_roots == (LocalRoot((AccessPoint("10.0.0.1", 3141),), 1, 1),)
    assert topology.public_roots == ()
    assert topology.unused == ()


def test_nobody_to_connect_to_is_fine() -> None:
    assert parse({"localRoots": [], "publicRoots": []}) == Topology()


def test_the_older_name_of_the_valency_wins_as_in_running_nodes() -> None:
    group = a_group(accessPoints=[POINT, POINT | {"port": 1}], valency=2, hotValency=1)

    assert parse({"localRoots": [group]}).local_roots[0].hot_valency == 2


def test_a_profile_holds_for_a_group_and_an_access_point_may_differ() -> None:
    points = [POINT, POINT | {"profile": "dmq-node", "port": 3142}]
    topology = parse(
        {
            "localRoots": [a_group(accessPoints=points, profile="seed")],
            "publicRoots": [{"accessPoints": points}],
        }
    )

    assert [point.profile for point in topology.local_roots[0].access_points] == [SEED, DMQ_NODE]
    assert [point.profile for point in topology.public_roots[0].access_points] == [None, DMQ_NODE]


def test_the_slot_of_ledger_peers_may_be_absent() -> None:
    assert parse({"localRoots": [], "useLedgerAfterSlot": 0}).use_ledger_after_slot == 0
    assert parse({"localRoots": [], "useLedgerAfterSlot": None}).use_ledger_after_slot is None


def test_every_fault_is_listed_with_its_place() -> None:
    faults = faults_of(
        {
            "localRoots": [
                {"accessPoints": [POINT, POINT | {"port": "3001"}], "valency": 1},
                {"accessPoints": "10.0.0.1", "advertise": "yes"},
                a_group(profile="haskell", diffusionMode="Both"),
                None,
            ],
            "publicRoots": {"accessPoints": []},
            "useLedgerAfterSlot": "never",
        }
    )

    assert faults == {
        "localRoots[0].accessPoints[1].port": 'expected a number, found "3001" (remove the quotes)',
        "localRoots[1].accessPoints": 'expected a list of objects, found "10.0.0.1"',
        "localRoots[1].hotValency": "expected a number, found nothing",
        "localRoots[1].advertise": 'expected true or false, found "yes"',
        "localRoots[2].profile": 'expected one of dmq-node, gouroboros, seed, found "haskell"',
        "localRoots[2].diffusionMode": 'expected one of InitiatorAndResponder, InitiatorOnly, found "Both"',
        "localRoots[3]": "expected an object, found null",
        "publicRoots": "expected a list of objects, found an object",
        "useLedgerAfterSlot": 'expected a number, found "never"',
    }


def test_an_address_without_a_port_is_the_name_of_an_srv_record() -> None:
    (group,) = parse({"localRoots": [a_group(accessPoints=[{"address": "_dmq._tcp.example"}])]}).local_roots

    assert group.access_points == (AccessPoint("_dmq._tcp.example", None),)


def test_valencies_are_fitted_to_what_there_is_and_never_a_fault() -> None:
    two = [POINT, POINT | {"port": 3142}]
    groups = [
        a_group(accessPoints=two, valency=9, warmValency=9),
        a_group(accessPoints=two, valency=2),
        a_group(accessPoints=[*two, POINT | {"port": 3143}], valency=2, warmValency=1),
        a_group(accessPoints=[]),
        a_group(accessPoints=[POINT | {"port": 3144}], valency=0),
    ]

    fitted = parse({"localRoots": groups}).local_roots

    assert [(root.hot_valency, root.warm_valency, len(root.access_points)) for root in fitted] == [
        (2, 2, 2),
        (1, 1, 1),
    ]
    assert [point.port for point in fitted[1].access_points] == [3143]


def test_a_peer_behind_a_firewall_is_marked() -> None:
    (group,) = parse({"localRoots": [a_group(behindFirewall=True)]}).local_roots

    assert group.is_behind_firewall


def test_a_misspelt_key_is_a_fault_and_a_foreign_one_is_not() -> None:
    assert parse({"localRoots": [], "x-comment": "ours"}).unused == ("x-comment",)
    assert faults_of({"localRoots": [a_group(advertize=True)]}) == {
        "localRoots[0].advertize": "unknown key; did you mean advertise?"
    }
    assert "did you mean localRoots?" in faults_of({"localroots": []})["localroots"]


@pytest.mark.parametrize(
    ("group", "where"),
    [
        (a_group(valency=-1), "valency"),
        (a_group(valency=VALENCY_MAX + 1), "valency"),
        (a_group(accessPoints=[POINT | {"port": 0}]), "accessPoints[0].port"),
        (a_group(accessPoints=[POINT | {"port": 65_536}]), "accessPoints[0].port"),
        (a_group(accessPoints=[POINT | {"address": ""}]), "accessPoints[0].address"),
        (a_group(accessPoints=[POINT | {"address": "a\nb"}]), "accessPoints[0].address"),
        (
            a_group(accessPoints=[POINT | {"address": "a" * (HOST_NAME_CHARACTERS_MAX + 1)}]),
            "accessPoints[0].address",
        ),
    ],
)
def test_a_value_beyond_its_limit_is_a_fault(group: dict[str, Any], where: str) -> None:
    assert faults_of({"localRoots": [group]}).keys() == {f"localRoots[0].{where}"}


@pytest.mark.parametrize(
    "group",
    [
        a_group(valency=VALENCY_MAX),
        a_group(accessPoints=[POINT | {"port": 65_535, "address": "a" * HOST_NAME_CHARACTERS_MAX}]),
    ],
)
def test_a_value_at_its_limit_is_fine(group: dict[str, Any]) -> None:
    assert len(parse({"localRoots": [group]}).local_roots) == 1


def test_too_many_access_points_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_module, "ACCESS_POINTS_MAX", 2)
    two = {"localRoots": [a_group()], "publicRoots": [{"accessPoints": [POINT]}]}

    assert len(parse(two).public_roots) == 1
    other = a_group(accessPoints=[POINT | {"port": 1}])
    assert faults_of(two | {"localRoots": [a_group(), other]}).keys() == {"localRoots"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["localRoots", "publicRoots", "accessPoints", "address", "port", "valency", "profile"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_any_values_give_a_topology_or_faults(file: Any) -> None:
    found: Topology | Sequence[FileFault]
    try:
        found = parse(file)
    except ConfigFaults as error:
        found = error.faults["dmq.topology.json"]

    assert found, "neither a topology nor a fault"
