"""Leaders let messages and shard blocks come together: a busy process makes few blocks, and one with time to spare loses none."""

from __future__ import annotations

import asyncio

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.node.validator import LOAD_PAUSE_MAX_S, MASTER_PAUSE_S, SHARD_PAUSE_S
from stagepost.ground.loop.pacer import BUSY_SHARE
from stagepost.ground.loop.virtual_time import VirtualTimeLoop, run_in_virtual_time
from stagepost.remp.receipts.receipt import Receipt
from tests.worlds.chain.chain_world import EXPIRES_AT_S
from tests.worlds.ground.memoised_signatures import memoised_signatures
from tests.worlds.remp.primes_checks import committed_blocks
from tests.worlds.remp.primes_world import PrimesWorld

SUMS = address(ContractKind.SUM_OF_PRIMES, 1)
RATE = 50
SECONDS = 1.5


def a_sum(number: int) -> bytes:
    return CanonicalMessage(SUMS, primes_body(2 + number), EXPIRES_AT_S).encode()


def blocks_at(load_share: float) -> tuple[list[int], int]:
    """Send messages at an even rate through a network with that load; return the messages of each shard block that has any,
    and the number of master blocks.
    """

    async def main() -> tuple[list[int], int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.load_share = load_share
        world = PrimesWorld(4, 1)
        await asyncio.sleep(2.0)
        (node,) = world.full_nodes
        began = world.ledger.master.seqno
        count = round(RATE * SECONDS)
        for number in range(count):
            node.submit(a_sum(number))
            await asyncio.sleep(1 / RATE)
        await world.until(lambda: len(node.final_ids) == count, "all of them are final", 10.0)
        blocks = committed_blocks(kept.payload for kept in node.store.blocks())
        sizes = [len(one.messages) for one in blocks.values() if one.messages]
        master_blocks = world.ledger.master.seqno - began
        await world.close()
        return sizes, master_blocks

    with memoised_signatures():
        return run_in_virtual_time(main())


def test_a_busy_process_makes_few_blocks_that_hold_much() -> None:
    calm, calm_masters = blocks_at(0.0)
    assert 2 < len(calm) <= SECONDS / SHARD_PAUSE_S + 2
    assert calm_masters <= SECONDS / MASTER_PAUSE_S + 4
    assert max(calm) < RATE * (SHARD_PAUSE_S + LOAD_PAUSE_MAX_S)
    busy, busy_masters = blocks_at(BUSY_SHARE)
    assert 2 < len(busy) <= SECONDS / (SHARD_PAUSE_S + LOAD_PAUSE_MAX_S) + 2
    assert busy_masters < calm_masters
    assert max(busy) >= RATE * (SHARD_PAUSE_S + LOAD_PAUSE_MAX_S)


def test_the_same_load_makes_the_same_blocks() -> None:
    assert blocks_at(BUSY_SHARE) == blocks_at(BUSY_SHARE)


def test_a_lone_message_waits_for_nothing() -> None:
    async def main() -> None:
        world = PrimesWorld(4, 1)
        await asyncio.sleep(2.0)
        (node,) = world.full_nodes
        loop = asyncio.get_running_loop()
        took: list[float] = []

        def heard(receipt: Receipt) -> None:
            if receipt.kind.name == "IncludedIntoBlock":
                took.append(loop.time() - began)

        node.listeners.append(heard)
        began = loop.time()
        node.submit(a_sum(0))
        await asyncio.sleep(1.0)
        assert took[0] < SHARD_PAUSE_S
        await world.close()

    run_in_virtual_time(main())
