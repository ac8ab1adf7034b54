"""The present KES period of private and public networks: from a cardano-node's era history, a genesis file or the table."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stagepost.dmq.cardano.answers import decode_answer
from stagepost.dmq.cardano.genesis import ShelleyGenesis, parse_genesis
from stagepost.dmq.cardano.queries import GetEraHistory, GetSystemStart
from stagepost.dmq.keys.kes_clock import (
    ANSWERS_WITHIN_S,
    ASK_AGAIN_S,
    RETRY_S,
    KesClock,
    KesSchedule,
    kes_schedule_for,
    schedule_of_genesis,
    schedule_of_history,
)
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.dmq.keys.signer import DmqSigner
from stagepost.dmq.validation import check_proof
from stagepost.errors import ErrorCode, KesExhausted, SigningError
from stagepost.ground.files.data_folder import NODE_FILE
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.version_data import NETWORK_MAGICS
from stagepost.simulation.network import SimulatedNetwork
from tests.worlds.dmq.cardano_answers import LedgerState, vectors
from tests.worlds.dmq.cardano_node import PretendCardanoNode

SOCKET = Path("/run/cardano/node.socket")
PRIVATE = 7_777
TIME = {vector["id"]: vector for vector in vectors("lsq-results-time")["vectors"]}
CLOCK = vectors("genesis-and-clock")
GENESIS = {
    name: parse_genesis(one["file_text"].encode(), name)
    for name, one in zip(("mainnet", "preprod", "preview"), CLOCK["genesis_files"], strict=True)
}
LEDGER = LedgerState(epoch=3, epoch_s=10_000)
"""Periods of 100 slots of a second."""
BODY = bytes(90)


class World:
    """A program that signs, and the cardano-node that it asks."""

    def __init__(self, node: PretendCardanoNode) -> None:
        self.node = node
        self.machine = SimulatedNetwork(Random(1)).process("10.0.0.1")
        self.clock = LoopClock(node.ledger.epoch_end_unix_s - 5_000.0)

    def kes_clock(self, magic: int | None = 42, genesis: ShelleyGenesis | None = None) -> KesClock:
        return KesClock(
            PRIVATE,
            cardano_socket=SOCKET,
            cardano_magic=magic,
            genesis=genesis,
            clock=self.clock,
            network=self.machine,
        )

    @property
    def period(self) -> int:
        return int(self.clock.unix_s() - self.node.ledger.system_start_unix_s) // 100

    async def up(self) -> None:
        await self.node.start(self.machine, SOCKET)


def run(scene: Callable[[World], Coroutine[Any, Any, None]], node: PretendCardanoNode | None = None) -> None:
    async def main() -> None:
        await scene(World(node or PretendCardanoNode(LEDGER)))

    run_in_virtual_time(main())


def test_a_private_network_signs_for_the_period_of_its_cardano_node_across_a_border(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        await here.up()
        keys = tmp_path / "keys"
        make_keys(keys, start_kes_period=here.period - 5, issue_number=0)
        before = {path: path.read_bytes() for path in keys.iterdir()}
        signer = DmqSigner(keys, schedule=here.kes_clock(), clock=here.clock, beside_the_loop=False)
        for _ in range(12):
            message = await signer.sign(BODY, 1_900_000_000)
            assert message.kes_period == here.period
            assert check_proof(message) is None
            await asyncio.sleep(10)
        assert here.period > 0
        assert here.node.connections == 1, "one answer serves for an hour"
        assert {path: path.read_bytes() for path in keys.iterdir()} == before
        await signer.close()

    run(scene)


def test_evolutions_of_the_chain_bound_the_certificate(tmp_path: Path) -> None:
    genesis = LEDGER.genesis().replace(b"\x18\x3e", b"\x0a")  # 62 becomes 10

    async def scene(here: World) -> None:
        await here.up()
        make_keys(tmp_path / "keys", start_kes_period=here.period - 10, issue_number=0)
        signer = DmqSigner(
            tmp_path / "keys", schedule=here.kes_clock(), clock=here.clock, beside_the_loop=False
        )
        with pytest.raises(KesExhausted, match="ended on 20"):
            await signer.sign(BODY, 1_900_000_000)
        await signer.close()

    run(scene, PretendCardanoNode(LEDGER, replaced={"genesis": genesis}))


def test_a_cardano_node_that_is_away_at_first_is_named_and_asked_again() -> None:
    async def scene(here: World) -> None:
        clock = here.kes_clock()
        with pytest.raises(SigningError, match="present KES period is not known: cardano-node at") as caught:
            await clock.schedule()
        assert caught.value.code is ErrorCode.NOT_READY
        await here.up()
        schedule = await clock.schedule()
        assert schedule is not None
        assert schedule.period_at(here.clock.unix_s()) == here.period

    run(scene)


def test_an_answer_holds_while_the_cardano_node_is_away(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(here: World) -> None:
        await here.up()
        clock = here.kes_clock()
        first = await clock.schedule()
        await here.node.stop()
        for _ in range(3):
            await asyncio.sleep(ASK_AGAIN_S)
            assert await clock.schedule() == first
        assert "KES period not confirmed" in caplog.text
        await here.up()
        asked = here.node.connections
        await asyncio.sleep(RETRY_S - 1)
        await clock.schedule()
        assert here.node.connections == asked, "not at every signature"
        await asyncio.sleep(1)
        await clock.schedule()
        assert here.node.connections == asked + 1

    run(scene)


def test_signatures_at_once_ask_once() -> None:
    async def scene(here: World) -> None:
        await here.up()
        clock = here.kes_clock()
        found = await asyncio.gather(*(clock.schedule() for _ in range(20)))
        assert len(set(found)) == 1
        assert here.node.connections == 1

    run(scene)


REFUSALS: Mapping[str, tuple[PretendCardanoNode, str]] = {
    "behind": (PretendCardanoNode(replace(LEDGER, horizon=0)), "says nothing about"),
    "in Byron": (PretendCardanoNode(replace(LEDGER, era=0)), "Byron"),
    "another network": (PretendCardanoNode(replace(LEDGER, magic=1)), "asks for network 42"),
    "a stall": (PretendCardanoNode(LEDGER, stalls_at={"history"}), f"within {ANSWERS_WITHIN_S:g} s"),
    "a lie": (PretendCardanoNode(LEDGER, replaced={"history": b"\x80"}), "has no era"),
    "a close": (PretendCardanoNode(LEDGER, closes_at={"genesis"}), "closed the connection"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_cardano_node_that_cannot_tell_the_period_is_refused_in_a_sentence(name: str) -> None:
    node, words = REFUSALS[name]

    async def scene(here: World) -> None:
        await here.up()
        with pytest.raises(SigningError, match=words):
            await here.kes_clock().schedule()

    run(scene, node)


def test_a_genesis_file_of_another_network_is_refused() -> None:
    async def scene(here: World) -> None:
        await here.up()
        other = replace(GENESIS["preview"], network_magic=42)
        with pytest.raises(SigningError, match="that of the genesis"):
            await here.kes_clock(None, other).schedule()

    run(scene)


def test_a_private_network_without_a_magic_is_refused_with_the_flag_that_is_missing() -> None:
    async def scene(here: World) -> None:
        with pytest.raises(SigningError) as caught:
            await here.kes_clock(None).schedule()
        assert "--cardano-network-magic" in caught.value.advice

    run(scene)


def test_the_dmq_nodes_note_names_the_cardano_node_also_when_it_comes_later(tmp_path: Path) -> None:
    local = tmp_path / "dmq.socket"

    async def scene(here: World) -> None:
        await here.up()
        clock = KesClock.beside_node(PRIVATE, local, None, here.clock, here.machine)
        assert await clock.schedule() is None
        cardano = {"socket": str(SOCKET), "network_magic": 42}
        facts = {"pid": 1, "local_socket": str(local), "network_magic": PRIVATE, "cardano": cardano}
        (tmp_path / NODE_FILE).write_text(json.dumps(facts))
        await asyncio.sleep(1)
        schedule = await clock.schedule()
        assert schedule is not None
        assert schedule.period_at(here.clock.unix_s()) == here.period

    run(scene)


@pytest.mark.parametrize("magic", ["mithril-mainnet", "mithril-preprod", "mithril-preview"])
def test_public_networks_need_nobody(magic: str, tmp_path: Path) -> None:
    clock = KesClock.beside_node(NETWORK_MAGICS[magic], tmp_path / "dmq.socket", None)

    assert asyncio.run(clock.schedule()) == kes_schedule_for(NETWORK_MAGICS[magic])


# Equal by every way


def test_a_genesis_alone_is_right_without_byron_and_for_public_chains() -> None:
    genesis = replace(GENESIS["preview"], network_magic=99, slot_us=100_000, slots_per_kes_period=500)

    assert schedule_of_genesis(genesis) == KesSchedule(1_666_656_000, 50.0, 62)
    for name, one in GENESIS.items():
        assert schedule_of_genesis(one) == kes_schedule_for(NETWORK_MAGICS[f"mithril-{name}"])


HISTORIES = {
    "mainnet": ("system-start-mainnet", "interpreter-mainnet-bignum"),
    "preprod": ("system-start-preprod", "interpreter-preprod-two-eras"),
}


@pytest.mark.parametrize("network", HISTORIES)
def test_the_history_leads_to_the_table_although_byron_slots_were_longer(network: str) -> None:
    start_name, history_name = HISTORIES[network]
    start_ps = decode_answer(GetSystemStart(), bytes.fromhex(TIME[start_name]["cbor_hex"]))
    history = decode_answer(GetEraHistory(), bytes.fromhex(TIME[history_name]["cbor_hex"]))
    table = kes_schedule_for(NETWORK_MAGICS[f"mithril-{network}"])
    points = [point for point in CLOCK["clock"]["points"] if point["network"] == network]
    found = {
        point["slot"]: schedule_of_history(history, start_ps, GENESIS[network], point["unix"])
        for point in points
    }

    assert table in found.values()
    for point in points:
        schedule = found[point["slot"]]
        if schedule is not None:  # else the stored history ends before
            assert schedule.period_at(point["unix"]) == point["kes_period"]
