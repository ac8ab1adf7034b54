"""Ledger peers from a cardano-node, in virtual time: asked for only if wanted, and never at the cost of the stake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stagepost.dmq.cardano.ledger_peers import LedgerPeers
from stagepost.dmq.cardano.ledger_watch import LOOK_AGAIN_S, PEERS_LIFE_S
from stagepost.dmq.cardano.state_query import QUERY_TIMEOUT_S
from stagepost.dmq.node.cardano_source import CardanoSource
from stagepost.dmq.node.config import CardanoAccess
from stagepost.ground.net.version_data import CARDANO_QUERY_VERSIONS
from tests.worlds.dmq.cardano_answers import vectors
from tests.worlds.dmq.cardano_node import ONLY_23, PEERS, STAKE, PretendCardanoNode
from tests.worlds.dmq.cardano_world import ELIGIBLE, LEDGER, SOCKET, World, run, world

PEER_ANSWER = bytes.fromhex(
    next(one for one in vectors("lsq-results-ledger-peers")["vectors"] if one["id"] == "peers-all-v23")[
        "cbor_hex"
    ]
)


def wanting(here: World) -> list[LedgerPeers]:
    """Make the world's source ask for ledger peers; they appear in the list."""
    found: list[LedgerPeers] = []
    access = CardanoAccess(SOCKET, 42)
    here.source = CardanoSource(access, here.machine, here.clock, here.folder, wants_peers=True)
    here.source.on_peers.append(found.append)
    return found


def with_peers(node: PretendCardanoNode, folder: Path, test: PeersTest) -> None:
    async def scene() -> None:
        here = World(folder, node, node.ledger.epoch_end_unix_s - node.ledger.epoch_s + 1_000.0)
        found = wanting(here)
        await here.node_up()
        here.begin()
        await asyncio.sleep(1)
        await test(here, found)
        await here.end()

    run(scene)


PeersTest = Callable[[World, list[LedgerPeers]], Coroutine[Any, Any, None]]


def test_ledger_peers_are_asked_for_only_if_wanted_and_once_in_their_life(tmp_path: Path) -> None:
    async def unwanted() -> None:
        async with world(tmp_path / "off", PretendCardanoNode(LEDGER)) as here:
            await asyncio.sleep(3 * LOOK_AGAIN_S)
            assert here.node.count(PEERS) == 0

    async def wanted(here: World, found: list[LedgerPeers]) -> None:
        assert [len(one.pools) for one in found] == [4]
        await asyncio.sleep(PEERS_LIFE_S - 10)
        assert here.node.count(PEERS) == 1
        await asyncio.sleep(20)
        assert here.node.count(PEERS) == 2
        assert here.node.count(STAKE) == 1
        assert here.node.held == 0

    (tmp_path / "off").mkdir()
    run(unwanted)
    with_peers(PretendCardanoNode(replace(LEDGER, peers=PEER_ANSWER)), tmp_path, wanted)


def test_a_cardano_node_before_version_23_is_not_asked_for_peers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = {number: shape for number, shape in CARDANO_QUERY_VERSIONS.items() if number not in ONLY_23}

    async def test(here: World, found: list[LedgerPeers]) -> None:
        assert here.knows_stake()
        assert (found, here.node.count(PEERS)) == ([], 0)
        assert "ledger peers not used" in caplog.text

    with_peers(PretendCardanoNode(LEDGER, versions=before), tmp_path, test)


@pytest.mark.parametrize("lie", [b"\x81\x82\x04\x80", b"\x80", PEER_ANSWER[:-9]])
def test_peers_that_cannot_be_read_do_not_cost_the_stake_and_are_not_asked_for_at_once(
    tmp_path: Path, lie: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(here: World, found: list[LedgerPeers]) -> None:
        await asyncio.sleep(2 * QUERY_TIMEOUT_S)
        assert here.knows_stake()
        assert here.source.stake(ELIGIBLE)
        assert here.source.not_ready_reason is None
        assert found == []
        assert "cardano-node cannot be asked" in caplog.text
        assert (here.node.connections, here.node.count(PEERS)) == (2, 1)
        await asyncio.sleep(PEERS_LIFE_S)
        assert here.node.count(PEERS) == 2

    node = PretendCardanoNode(LEDGER)
    if lie == PEER_ANSWER[:-9]:
        node.raw[PEERS] = [b"\x82\x04" + lie]
    else:
        node.replaced[PEERS] = lie
    with_peers(node, tmp_path, test)
