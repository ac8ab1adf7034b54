"""Wall clocks of members that are wrong for a while, and set right again: the others go on, the member takes part again, and nobody is blamed."""

from __future__ import annotations

import asyncio

import pytest

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from tests.worlds.ground.memoised_signatures import memoised_signatures
from tests.worlds.remp.primes_world import PrimesWorld, Sum

SUMS = address(ContractKind.SUM_OF_PRIMES, 1)
DAY_S = 86_400.0
SESSION_S = 10.0
FULL_NODE = 4


@pytest.mark.parametrize("step_s", [DAY_S, -DAY_S, 600.0])
@pytest.mark.parametrize("member", [1, FULL_NODE], ids=["validator", "full node"])
def test_a_member_whose_clock_was_wrong_for_a_while_takes_part_again(member: int, step_s: float) -> None:
    async def main() -> None:
        world = PrimesWorld(4, 1, lifetime_ms=int(SESSION_S * 1_000), own_clocks=(member,))
        (node,) = world.full_nodes
        await asyncio.sleep(5.0)
        sent = 0

        async def send(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                sent += 1
                node.submit(Sum(SUMS, 1 + sent, sent).data)
                await asyncio.sleep(0.2)

        await send(5)
        await world.until(lambda: len(node.final_ids) == sent, "final before the step", 30.0)
        world.clock_of(member).step(step_s)
        if member != FULL_NODE or step_s < 0:
            await send(5)
            await world.until(lambda: len(node.final_ids) == sent, "final without one of four", 60.0)
        await asyncio.sleep(SESSION_S)
        world.clock_of(member).step(-step_s)
        await send(5)
        await world.until(lambda: len(node.final_ids) == sent, "final with the clock set right", 60.0)
        await asyncio.sleep(2 * SESSION_S)
        if member != FULL_NODE:
            # Nothing is finished any more without the validator whose clock was wrong.
            world.validators[2].crash()
        await send(5)
        await world.until(lambda: len(node.final_ids) == sent, "final by the vote of the one", 60.0)
        assert not any(house.blamed or house.halted for house in world.validators)
        assert not node.complaints
        await world.close()

    with memoised_signatures():
        run_in_virtual_time(main())
