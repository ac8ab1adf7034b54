"""The network file: what it says, and what is wrong with one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.devnet.devnet import DevnetPlan, chain_of, genesis_of, member_of
from stagepost.errors import ConfigError, ConfigFaults, StagepostError
from stagepost.full_node.network import (
    NETWORK_FILE,
    NetworkMember,
    RempNetwork,
    WatchedNetworkFile,
    load_network,
)

PLAN = DevnetPlan(validators=3)


def a_network() -> RempNetwork:
    members = tuple(member_of(PLAN, name, 4_000 + number) for number, name in enumerate(PLAN.names))
    return RempNetwork(7, genesis_of(PLAN, 1_800_000_000_000).encode().hex(), members)


def test_it_says_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    network = a_network()
    network.write(tmp_path / NETWORK_FILE)
    again = load_network(tmp_path / NETWORK_FILE)
    assert again == network
    assert [member.name for member in again.validators] == ["validator-1", "validator-2", "validator-3"]
    assert [member.name for member in again.full_nodes] == ["full-node"]
    assert again.place_of(again.full_nodes[0].key) == 3


def _twice(document: dict[str, Any]) -> None:
    document["members"][1]["public_key"] = document["members"][0]["public_key"]


def _short(document: dict[str, Any]) -> None:
    document["members"][0]["public_key"] = "ab"


def _no_genesis(document: dict[str, Any]) -> None:
    document["genesis"] = "00"


def _unknown(document: dict[str, Any]) -> None:
    document["colour"] = "blue"


def _no_hex(document: dict[str, Any]) -> None:
    document["genesis"] = "xx"


@pytest.mark.parametrize("change", [_twice, _short, _no_genesis, _unknown, _no_hex])
def test_a_file_with_a_fault_is_refused_by_name(
    change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    a_network().write(tmp_path / NETWORK_FILE)
    document = json.loads((tmp_path / NETWORK_FILE).read_text())
    change(document)
    (tmp_path / NETWORK_FILE).write_text(json.dumps(document))
    with pytest.raises(ConfigFaults, match=NETWORK_FILE):
        load_network(tmp_path / NETWORK_FILE)


def test_a_key_that_is_no_member_is_refused() -> None:
    with pytest.raises(ConfigError, match="not the key of a member"):
        a_network().place_of(bytes(32))


def test_a_devnet_goes_on_with_the_chain_of_its_folder_or_refuses_it(tmp_path: Path) -> None:
    network = a_network()
    network.write(tmp_path / NETWORK_FILE)
    assert chain_of(PLAN, tmp_path, 1) == network.chain
    with pytest.raises(StagepostError, match="other validators"):
        chain_of(DevnetPlan(validators=4), tmp_path, 1)


NEW = NetworkMember("validator-4", "ab" * 32, "10.0.0.4", 4_004, True)


def rewrite(path: Path, network: RempNetwork, at_s: int) -> None:
    network.write(path)
    os.utime(path, (at_s, at_s))


def test_a_running_node_takes_members_that_stand_behind_the_others_once(tmp_path: Path) -> None:
    path, network = tmp_path / NETWORK_FILE, a_network()
    rewrite(path, network, 1_000)
    watched = WatchedNetworkFile(path, network)
    assert watched.added() == ()
    grown = msgspec.structs.replace(network, members=(*network.members, NEW))
    rewrite(path, grown, 2_000)
    assert watched.added() == (NEW,)
    assert watched.network == grown
    assert watched.added() == ()
    assert WatchedNetworkFile(None, network).added() == ()


def test_a_running_node_leaves_a_file_alone_that_changes_anything_else(tmp_path: Path) -> None:
    path, network = tmp_path / NETWORK_FILE, a_network()
    rewrite(path, network, 1_000)
    watched = WatchedNetworkFile(path, network)
    first, *rest = network.members
    moved = msgspec.structs.replace(first, port=1)
    wrong = [
        msgspec.structs.replace(network, network_magic=8, members=(*network.members, NEW)),
        msgspec.structs.replace(network, members=(NEW, *network.members)),
        msgspec.structs.replace(network, members=(moved, *rest, NEW)),
        msgspec.structs.replace(network, members=network.members[:-1]),
        msgspec.structs.replace(
            network, members=(*network.members, msgspec.structs.replace(first, name="again"))
        ),
    ]
    for number, one in enumerate(wrong):
        rewrite(path, one, 2_000 + number)
        assert watched.added() == ()
        assert watched.network == network
    path.unlink()
    assert watched.added() == ()
