"""A validator that crashes goes on from what it has said: its receipts before and after are one lane, as if nothing had been."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind, primes_body, transfer_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.validator.receipt_chains import ReceiptChains
from stagepost.validator.receipts import Statements
from tests.worlds.chain.chain_world import EXPIRES_AT_S
from tests.worlds.remp.primes_world import PrimesWorld, ValidatorHouse

SIZE = 4
RICH = address(ContractKind.BALANCE, 1)
SUMS, HEAVY = address(ContractKind.SUM_OF_PRIMES, 1), address(ContractKind.HEAVY, 1)


def lane(world: PrimesWorld, message_id: bytes, house: ValidatorHouse) -> list[str]:
    (node,) = world.full_nodes
    return [kind for source, kind in node.kinds[message_id] if source == house.key_id]


async def crash_and_return(house: ValidatorHouse) -> None:
    house.crash()
    await asyncio.sleep(0.5)
    house.start()
    await asyncio.sleep(3.0)


def in_world(scenario: Any, **options: Any) -> None:
    async def main() -> None:
        world = PrimesWorld(SIZE, 1, **options)
        await asyncio.sleep(1.0)
        await scenario(world)
        await world.close()
        (node,) = world.full_nodes
        assert node.bad_records() == []
        assert node.contradictions({one.key_id for one in world.validators}) == []
        assert node.complaints == []

    run_in_virtual_time(main())


async def undecided(world: PrimesWorld) -> None:
    """While nobody votes, one says that its own candidate holds a message, and crashes."""
    for house in world.validators:
        house.switches.ignores = lambda block_id: True
    message_id = world.full_nodes[0].node.submit(
        CanonicalMessage(SUMS, primes_body(10), EXPIRES_AT_S).encode()
    )
    collators: list[ValidatorHouse] = []

    def is_included() -> bool:
        lanes = [(one, lane(world, message_id, one)) for one in world.validators]
        collators[:] = [one for one, said in lanes if said and said[-1] == "IncludedIntoBlock"]
        return bool(collators)

    await world.until(is_included, "it is in a candidate", 5.0)
    house = collators[0]
    before = lane(world, message_id, house)
    await crash_and_return(house)
    assert lane(world, message_id, house)[: len(before) + 2] == [
        *before,
        "IgnoredByShardchain",
        "PutIntoQueue",
    ]
    for one in world.validators:
        one.switches.ignores = lambda block_id: False
    (node,) = world.full_nodes
    await world.until(lambda: node.count_of(message_id, "Finalized") == 1, "it is final", 60.0)
    assert lane(world, message_id, house)[-1] == "IncludedIntoAcceptedBlock"


async def refused(world: PrimesWorld) -> None:
    """There is too little for a second transfer; one who has refused it crashes."""
    node = world.full_nodes[0].node
    pair = [
        node.submit(CanonicalMessage(RICH, transfer_body(to, amount), EXPIRES_AT_S).encode())
        for to, amount in ((SUMS, 80), (HEAVY, 70))
    ]
    await asyncio.sleep(20.0)
    (loser,) = [one for one in pair if not world.full_nodes[0].count_of(one, "Finalized")]
    house = next(one for one in world.validators if lane(world, loser, one)[-1] == "RejectedByCollator")
    before = lane(world, loser, house)
    await crash_and_return(house)
    assert lane(world, loser, house) == before, "what was closed is closed"


def test_a_message_in_an_undecided_candidate_returns_to_the_queue_and_the_receipts_say_so() -> None:
    in_world(undecided)


def test_what_was_refused_stays_refused() -> None:
    in_world(refused, balances=((RICH, 100),))


def test_a_validator_that_forgets_what_it_has_said_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Statements.__init__

    def forget(self: Statements, *arguments: Any) -> None:
        read(self, *arguments)
        self.earlier.clear()
        self.chains = ReceiptChains()

    monkeypatch.setattr(Statements, "__init__", forget)
    with pytest.raises(AssertionError):
        in_world(undecided)
    with pytest.raises(AssertionError, match="what was closed is closed"):
        in_world(refused, balances=((RICH, 100),))
