"""Every status that can occur, brought about in a whole network: validators, their chain and a full node, and each
receipt checked as anybody would check it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stagepost.chain.contracts import ContractKind, primes_body, transfer_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.switches import Choice
from stagepost.remp.block_id import BlockId
from stagepost.remp.queue_state import QueueOptions
from stagepost.runtime.virtual_time import run_in_virtual_time
from tests.chain_world import address
from tests.primes_world import PrimesWorld

SIZE = 4
RICH, OTHER = address(ContractKind.BALANCE, 1), address(ContractKind.BALANCE, 2)
SUMS = address(ContractKind.SUM_OF_PRIMES, 1)
HEAVY = address(ContractKind.HEAVY, 1)

Scenario = Callable[[PrimesWorld], Awaitable[None]]


def in_world(scenario: Scenario, size: int = SIZE, **options: Any) -> None:
    async def main() -> None:
        world = PrimesWorld(size, 1, **options)
        await asyncio.sleep(1.0)
        await scenario(world)
        await world.close()
        for house in world.full_nodes:
            assert house.bad_records() == []
            assert house.contradictions({one.key_id for one in world.validators}) == []
            assert house.complaints == []
        assert world.overlays.malformed == []
        assert world.overlays.refused == []

    run_in_virtual_time(main())


def a_sum(number: int = 10, salt: int = 0) -> bytes:
    return CanonicalMessage(SUMS, primes_body(number), salt=salt).encode()


def a_transfer(source: bytes, to: bytes, amount: int) -> bytes:
    return CanonicalMessage(source, transfer_body(to, amount)).encode()


def lanes(world: PrimesWorld, message_id: bytes) -> list[list[str]]:
    """What each validator said of it, in order."""
    (node,) = world.full_nodes
    said: dict[bytes, list[str]] = {house.key_id: [] for house in world.validators}
    for source, kind in node.kinds[message_id]:
        if source in said:
            said[source].append(kind)
    return list(said.values())


def of_full_node(world: PrimesWorld, message_id: bytes) -> list[str]:
    (node,) = world.full_nodes
    return [kind for source, kind in node.kinds[message_id] if source == node.key_id]


def until_first(count: int) -> Choice:
    """Of the first so many blocks with another number that it is asked about."""
    seen: dict[tuple[int, bytes], None] = {}

    def choose(block_id: BlockId) -> bool:
        seen[block_id.seqno, block_id.root_hash] = None
        return list(seen).index((block_id.seqno, block_id.root_hash)) < count

    return choose


def everywhere(world: PrimesWorld, name: str, choice: Choice) -> None:
    for house in world.validators:
        setattr(house.running.ledger.switches, name, choice)


def test_the_main_sequence() -> None:
    async def scenario(world: PrimesWorld) -> None:
        message_id = world.full_nodes[0].node.submit(a_sum())
        await asyncio.sleep(3.0)
        assert of_full_node(world, message_id) == ["SentToValidators", "Finalized"]
        collators = [lane for lane in lanes(world, message_id) if "IncludedIntoBlock" in lane]
        assert collators == [["PutIntoQueue", "IncludedIntoBlock", "IncludedIntoAcceptedBlock"]]
        for lane in lanes(world, message_id):
            assert [lane[0], lane[-1]] == ["PutIntoQueue", "IncludedIntoAcceptedBlock"]
            assert lane in collators or lane[1:-1] in ([], ["Duplicate"])

    in_world(scenario)


def test_rejection_by_the_full_node() -> None:
    async def scenario(world: PrimesWorld) -> None:
        message_id = world.full_nodes[0].node.submit(a_transfer(OTHER, RICH, 5))
        await asyncio.sleep(3.0)
        assert of_full_node(world, message_id) == ["RejectedByFullnode"]
        assert lanes(world, message_id) == [[]] * SIZE

    in_world(scenario)


def test_rejection_by_collators_one_after_the_other_and_then_by_the_queue() -> None:
    """Both would be fine alone; after the first, there is too little for the second."""

    async def scenario(world: PrimesWorld) -> None:
        node = world.full_nodes[0].node
        first = node.submit(a_transfer(RICH, SUMS, 80))
        second = node.submit(a_transfer(RICH, HEAVY, 70))
        await asyncio.sleep(20.0)
        ends = [of_full_node(world, one)[-1] for one in (first, second)]
        assert sorted(ends) == ["Finalized", "SentToValidators"]
        loser = lanes(world, (first, second)[ends.index("SentToValidators")])
        # Two thirds of four are three; then nobody takes it any more.
        assert sum("RejectedByCollator" in lane for lane in loser) >= 3
        assert {lane[-1] for lane in loser} <= {"RejectedByCollator", "RejectedByQueue"}

    in_world(scenario, balances=((RICH, 100),))


def test_acceptance_after_a_rejection_when_the_account_was_funded_in_between() -> None:
    """Five of seven must refuse it before nobody tries it any more; a transfer takes three blocks to arrive."""

    async def scenario(world: PrimesWorld) -> None:
        node = world.full_nodes[0].node
        pair = node.submit(a_transfer(RICH, SUMS, 80)), node.submit(a_transfer(RICH, HEAVY, 70))
        node.submit(a_transfer(OTHER, RICH, 100))
        await asyncio.sleep(20.0)
        assert [of_full_node(world, one)[-1] for one in pair] == ["Finalized", "Finalized"]
        assert any("RejectedByCollator" in lane for one in pair for lane in lanes(world, one))

    in_world(scenario, size=7, balances=((RICH, 100), (OTHER, 100)))


def test_a_full_block_leaves_a_message_out_and_the_next_one_takes_it() -> None:
    async def scenario(world: PrimesWorld) -> None:
        node = world.full_nodes[0].node
        ids = [node.submit(CanonicalMessage(HEAVY, b"%d" % number).encode()) for number in range(4)]
        await asyncio.sleep(10.0)
        assert all(of_full_node(world, one)[-1] == "Finalized" for one in ids)
        left_out = [lane for one in ids for lane in lanes(world, one) if "IgnoredByCollator" in lane]
        assert left_out
        for lane in left_out:
            assert lane[lane.index("IgnoredByCollator") + 1] == "PutIntoQueue"

    in_world(scenario)


def test_a_candidate_that_validators_refuse_gives_its_messages_back() -> None:
    async def scenario(world: PrimesWorld) -> None:
        everywhere(world, "refuses", until_first(1))
        message_id = world.full_nodes[0].node.submit(a_sum())
        await asyncio.sleep(10.0)
        assert of_full_node(world, message_id)[-1] == "Finalized"
        returned = [lane for lane in lanes(world, message_id) if "IgnoredByShardchain" in lane]
        assert returned
        for lane in returned:
            assert lane[lane.index("IgnoredByShardchain") + 1] == "PutIntoQueue"

    in_world(scenario)


def test_a_shard_block_that_the_masterchain_drops_gives_its_messages_back() -> None:
    async def scenario(world: PrimesWorld) -> None:
        everywhere(world, "leaves_out", until_first(1))
        message_id = world.full_nodes[0].node.submit(a_sum())
        await asyncio.sleep(15.0)
        assert of_full_node(world, message_id)[-1] == "Finalized"
        for lane in lanes(world, message_id):
            assert lane[lane.index("IgnoredByMasterchain") + 1] == "PutIntoQueue"
            assert lane.count("IncludedIntoAcceptedBlock") == 2

    in_world(scenario, lifetime_ms=4_000)


def test_every_validator_says_when_the_time_is_over() -> None:
    async def scenario(world: PrimesWorld) -> None:
        everywhere(world, "ignores", lambda block_id: True)
        message_id = world.full_nodes[0].node.submit(a_sum())
        await asyncio.sleep(12.0)
        assert of_full_node(world, message_id) == ["SentToValidators"]
        assert all([lane[0], lane[-1]] == ["PutIntoQueue", "Timeout"] for lane in lanes(world, message_id))

    in_world(scenario, queue_options=QueueOptions(message_timeout_s=6.0))


def test_a_body_that_was_sent_before_is_rejected_by_the_queue() -> None:
    async def scenario(world: PrimesWorld) -> None:
        node = world.full_nodes[0].node
        everywhere(world, "ignores", lambda block_id: True)
        ids = [node.submit(a_sum(10, salt)) for salt in range(2)]
        await asyncio.sleep(1.0)
        everywhere(world, "ignores", lambda block_id: False)
        await asyncio.sleep(5.0)
        ends = {one: of_full_node(world, one)[-1] for one in ids}
        assert ends == {min(ids): "Finalized", max(ids): "SentToValidators"}
        assert all(lane[-1] == "RejectedByQueue" for lane in lanes(world, max(ids)) if lane)

    in_world(scenario)


def test_a_queue_that_is_full_says_so() -> None:
    async def scenario(world: PrimesWorld) -> None:
        node = world.full_nodes[0].node
        everywhere(world, "ignores", lambda block_id: True)
        ids = [node.submit(a_sum(10 + number)) for number in range(8)]
        await asyncio.sleep(2.0)
        refused = [one for one in ids if any("RejectedByQueue" in lane for lane in lanes(world, one))]
        assert len(refused) >= len(ids) - 4
        everywhere(world, "ignores", lambda block_id: False)
        await asyncio.sleep(5.0)
        assert sum(of_full_node(world, one)[-1] == "Finalized" for one in ids) >= 4

    in_world(scenario, queue_options=QueueOptions(messages_max=4))


def test_validators_who_come_new_into_a_session_are_told_what_is_open_there() -> None:
    """They hear of it under the next catchain of the masterchain, and say that it is back in the queue."""

    async def scenario(world: PrimesWorld) -> None:
        everywhere(world, "ignores", lambda block_id: True)
        ids = [world.full_nodes[0].node.submit(a_sum(10 + number)) for number in range(5)]
        await asyncio.sleep(6.0)
        everywhere(world, "ignores", lambda block_id: False)
        await asyncio.sleep(10.0)
        said: Sequence[list[str]] = [lane for one in ids for lane in lanes(world, one)]
        assert any(lane[:2] == ["IgnoredByQueue", "PutIntoQueue"] for lane in said)
        assert all(of_full_node(world, one)[-1] == "Finalized" for one in ids)

    in_world(scenario, size=7, shard_validators=4, lifetime_ms=6_000)
