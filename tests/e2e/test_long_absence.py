"""A full node that was away for many sessions, in a network without another one: it follows the chain again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from rigs.ports import free_ports
from stagepost.devnet.devnet import FULL_NODE, NETWORK_MAGIC, DevnetPlan, genesis_of, member_of
from stagepost.full_node.network import RempNetwork
from stagepost.full_node.running import start_full_node
from stagepost.ground.loop.clock import SystemClock
from stagepost.validator.running import start_validator

PLAN = DevnetPlan(validators=1, session_lifetime_s=1.0)
AWAY_SESSIONS = 8
"""More than a validator keeps of the chain for its own sake."""
WITHIN_S = 60.0


async def until(what: str, holds: Callable[[], bool]) -> None:
    try:
        async with asyncio.timeout(WITHIN_S):
            while not holds():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {WITHIN_S:g} s: {what}") from None


def test_the_only_full_node_follows_again_after_many_sessions(tmp_path: Path) -> None:
    """Validators kept the blocks of three sessions: a full node that was away for a quarter of an hour stood still for ever."""
    now_ms = int(SystemClock().unix_s() * 1_000)
    members = tuple(member_of(PLAN, name, port) for name, port in zip(PLAN.names, free_ports(2), strict=True))
    network = RempNetwork(NETWORK_MAGIC, genesis_of(PLAN, now_ms).encode().hex(), members)

    async def main() -> None:
        async with AsyncExitStack() as parts:
            validator = await start_validator(network, PLAN.seed_of(PLAN.names[0]), tmp_path / "validator")
            parts.push_async_callback(validator.close)
            ledger = validator.validator.chain.ledger
            for count in (1, AWAY_SESSIONS):
                last = ledger.master.catchain_seqno + count
                await until("sessions", lambda: ledger.master.catchain_seqno >= last)  # noqa: B023
                height = ledger.master.seqno
                full_node = await start_full_node(network, PLAN.seed_of(FULL_NODE), tmp_path / FULL_NODE)
                try:
                    followed = full_node.follower
                    await until("the full node follows", lambda: followed.ledger.master.seqno >= height)  # noqa: B023
                finally:
                    await full_node.close()

    asyncio.run(main())
