"""Leaders let messages and shard blocks come together, and a lone message waits for nobody."""

from __future__ import annotations

import asyncio

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.node.validator import MASTER_PAUSE_S, SHARD_PAUSE_S
from stagepost.ground.loop.virtual_time import run_in_virtual_time
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


def blocks_made() -> tuple[list[int], int]:
    """Send messages at an even rate through a network; return the messages of each shard block that has any, and the number of
    master blocks.
    """

    async def main() -> tuple[list[int], int]:
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


def test_messages_that_come_within_a_pause_share_a_block() -> None:
    sizes, master_blocks = blocks_made()
    assert 2 < len(sizes) <= SECONDS / SHARD_PAUSE_S + 2
    assert max(sizes) >= RATE * SHARD_PAUSE_S
    assert master_blocks <= SECONDS / MASTER_PAUSE_S + 4


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
