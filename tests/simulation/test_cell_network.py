"""Network that `stagepost network init --takes-cells` founds: bags of cells are executed there, and refused elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from pytoniq_core import Builder

from rigs.chain_messages import address
from stagepost.chain.configuration import Configuration
from stagepost.chain.contracts import ContractKind, primes_body, sum_of_primes
from stagepost.chain.messages import read_message
from stagepost.cli.network.command import network
from stagepost.errors import StagepostError
from stagepost.full_node.network import load_network
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from tests.worlds.remp.primes_proofs import faults_of_proofs
from tests.worlds.remp.primes_world import PrimesWorld

ACCOUNT = address(ContractKind.SUM_OF_PRIMES, 1)
UP_TO = 100


def founded(folder: Path, *options: str) -> Configuration:
    """Found a network by commands; return the configuration in its genesis."""
    runner = CliRunner()
    cards = []
    for number in range(1, 6):
        where = folder / f"m{number}"
        kind = ["--full-node"] if number == 5 else []
        made = ["join", str(where), "--name", f"m{number}", "--address", f"127.0.0.1:{4_000 + number}", *kind]
        assert runner.invoke(network, made).exit_code == 0
        cards.append(str(where / "member.json"))
    out = folder / "network.json"
    said = runner.invoke(network, ["init", *cards, "--name", "cells", "--out", str(out), *options])
    assert said.exit_code == 0, said.output
    assert ("nobody can prove" in said.output) is ("--takes-cells" in options)
    return load_network(out).chain.configuration


def like(chosen: Configuration) -> Callable[[Configuration], Configuration]:
    """Return a function that gives the world's own validators the settings of `chosen`."""
    return lambda own: msgspec.structs.replace(chosen, current=own.current)


def bag() -> bytes:
    builder = Builder().store_uint(0b10, 2).store_uint(0b00, 2).store_uint(0b100, 3).store_uint(0, 8)
    builder.store_bytes(ACCOUNT).store_coins(0).store_bit(0).store_bit(0).store_bytes(primes_body(UP_TO))
    return bytes(builder.end_cell().to_boc())


async def _executed(configuration: Configuration, seed: int) -> None:
    world = PrimesWorld(4, seed, configure=like(configuration))
    house = world.full_nodes[0]
    message_id = read_message(bag(), takes_cells=True).external.message_id
    assert message_id != sha256(bag()).digest()
    await asyncio.sleep(2.0)
    house.submit(bag())
    await world.until(lambda: bool(house.count_of(message_id, "Finalized")), "the bag is final", 60.0)
    await world.until(lambda: message_id in house.proofs.ends, "its end is proved", 60.0)
    assert house.proofs.ends[message_id].kind == "executed"
    assert faults_of_proofs(house.proofs, {message_id}, set()) == []
    assert world.sums([ACCOUNT]) == [(sum_of_primes(UP_TO), 1)]
    await world.close()


async def _refused(configuration: Configuration, seed: int) -> None:
    world = PrimesWorld(4, seed, configure=like(configuration))
    await asyncio.sleep(2.0)
    with pytest.raises(StagepostError, match="cells"):
        world.full_nodes[0].node.submit(bag())
    await world.close()


def test_a_bag_of_cells_is_executed_and_proved_where_the_founders_chose_so(
    tmp_path: Path, run_seed: int
) -> None:
    print(f"seed {run_seed}")
    configuration = founded(tmp_path, "--takes-cells")
    assert (configuration.takes_cells, configuration.must_expire) == (True, False)
    run_in_virtual_time(_executed(configuration, run_seed))


def test_a_bag_of_cells_is_refused_by_name_elsewhere(tmp_path: Path, run_seed: int) -> None:
    print(f"seed {run_seed}")
    configuration = founded(tmp_path)
    assert (configuration.takes_cells, configuration.must_expire) == (False, True)
    run_in_virtual_time(_refused(configuration, run_seed))
