"""A node that lets few in and takes little: what is above its limits is refused, with the reason, and harms nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.attacker import KEEP_ALIVE, OTHER_SIDE, Attacker
from tests.hostile.cbor_bytes import array, uint
from tests.hostile.forged_messages import Forger, message
from tests.hostile.honest_program import submit
from tests.hostile.rows_messages import OTHER
from tests.hostile.victim import Victim, write_stakes
from tests.node_processes import ending

pytestmark = pytest.mark.xdist_group("storms")

GRACE_S = 10.0
PER_ADDRESS_MAX = 4
HARD_MAX = 6
MEMPOOL_MESSAGES_MAX = 6
SETTINGS = f"""
[node]
min_sig_delay_s = 60.0
connections_per_address = {PER_ADDRESS_MAX}
connections_soft = {HARD_MAX}
connections_hard = {HARD_MAX}
mempool_messages = {MEMPOOL_MESSAGES_MAX}
"""


def against(tmp_path: Path, scenario: Any, pools: int = 10) -> None:
    (tmp_path / "stagepost.toml").write_text(SETTINGS)
    forgers = [Forger() for _ in range(pools)]
    stakes = write_stakes(tmp_path / "pools.json", [(forger, 1) for forger in forgers])
    victim = Victim(tmp_path / "node", stakes, flags=("--config", str(tmp_path / "stagepost.toml")))
    with ending([victim]):
        victim.start()
        played: Coroutine[Any, Any, None] = scenario(victim, forgers)
        asyncio.run(played)
        assert not victim.faults_of_its_own()
        assert victim.terminate() == 0


async def is_served(attacker: Attacker) -> bool:
    """Whether a peer may shake hands and is answered."""
    try:
        await attacker.shake_hands(1, 2)
        await attacker.say(KEEP_ALIVE, array(uint(0), uint(1)))
        return bool(await attacker.hear(KEEP_ALIVE | OTHER_SIDE) == [1, 1])
    except Exception:
        return False


def test_pool_that_talks_too_much_is_refused_and_others_are_not(tmp_path: Path) -> None:
    async def scenario(victim: Victim, pools: list[Forger]) -> None:
        assert await submit(victim.target, message(pools[0])) == [1]
        for _ in range(50):
            kind, (reason, text) = await submit(victim.target, message(pools[0]))
            assert (kind, reason) == (2, OTHER)
            assert text.startswith("MSG_TOO_FREQUENT: ")
        for other in pools[1:4]:
            assert await submit(victim.target, message(other)) == [1]

    against(tmp_path, scenario)


def test_full_mempool_refuses_and_keeps_what_it_has(tmp_path: Path) -> None:
    async def scenario(victim: Victim, pools: list[Forger]) -> None:
        for pool in pools[:MEMPOOL_MESSAGES_MAX]:
            assert await submit(victim.target, message(pool)) == [1]
        for pool in pools[MEMPOOL_MESSAGES_MAX:]:
            kind, (reason, text) = await submit(victim.target, message(pool))
            assert (kind, reason) == (2, OTHER)
            assert text.startswith("QUEUE_FULL: ")
        assert (await victim.status())["mempool"]["messages"] == MEMPOOL_MESSAGES_MAX

    against(tmp_path, scenario)


def test_one_address_gets_so_many_connections_and_no_more(tmp_path: Path) -> None:
    async def scenario(victim: Victim, pools: list[Forger]) -> None:
        taken = [await Attacker.tcp(victim.target, source="127.0.0.2") for _ in range(PER_ADDRESS_MAX)]
        assert [await is_served(one) for one in taken] == [True] * PER_ADDRESS_MAX
        surplus = await Attacker.tcp(victim.target, source="127.0.0.2")
        assert await surplus.wait_ended(GRACE_S) is not None
        elsewhere = [await Attacker.tcp(victim.target, source=f"127.0.0.{n}") for n in (3, 4)]
        assert [await is_served(one) for one in elsewhere] == [True, True]
        last = await Attacker.tcp(victim.target, source="127.0.0.5")  # all are taken
        assert await last.wait_ended(GRACE_S) is not None
        assert await submit(victim.target, message(pools[0])) == [1]
        for one in (*taken, *elsewhere, surplus, last):
            await one.leave()

    against(tmp_path, scenario)


def test_address_that_broke_a_rule_is_kept_out_for_a_while(tmp_path: Path) -> None:
    async def scenario(victim: Victim, pools: list[Forger]) -> None:
        for source, lane in (("127.0.0.2", 999), ("127.0.0.3", None)):
            attacker = await Attacker.tcp(victim.target, source=source)
            if lane is None:  # already in its handshake
                await attacker.say(0, b"\x82\x00\x80")
            else:
                assert await is_served(attacker)
                await attacker.say(lane, b"\x80")
            assert await attacker.wait_ended(GRACE_S) is not None
            await attacker.leave()
            again = await Attacker.tcp(victim.target, source=source)
            assert not await is_served(again)
            await again.leave()
        stranger = await Attacker.tcp(victim.target, source="127.0.0.4")
        assert await is_served(stranger)
        await stranger.leave()

    against(tmp_path, scenario)
