"""Every status that can occur, brought about in a whole network: validators, their chain and a full node, and each
receipt checked as anybody would check it. Each scenario says which kinds it shows; a table says that none is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any

import pytest

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind, primes_body, transfer_body
from stagepost.chain.declined import Choice
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.node.validator import LOOK_EVERY_S
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.queue.state import QueueOptions
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import KINDS
from stagepost.remp.receipts.status_records import StatusRecord, read_record
from stagepost.remp.shard import BlockId
from tests.worlds.chain.chain_world import EXPIRES_AT_S
from tests.worlds.remp.primes_world import PrimesWorld

SIZE = 4
RICH, OTHER = address(ContractKind.BALANCE, 1), address(ContractKind.BALANCE, 2)
SUMS = address(ContractKind.SUM_OF_PRIMES, 1)
HEAVY = address(ContractKind.HEAVY, 1)

Scenario = Callable[[PrimesWorld], Awaitable[None]]


IMPOSSIBLE = {
    "AcceptedByFullnode": "a full node says SentToValidators or RejectedByFullnode",
    "AcceptedByQueue": "that the collator has taken a message is nobody else's business",
    "IgnoredByFullNode": "a full node that cannot send a message tells whoever brought it, who may try again",
    "RejectedByMasterchain": "the masterchain drops blocks, never messages: they return as IgnoredByMasterchain",
}
"""Kinds that nobody says, and why; they are read where others say them."""

PRODUCED: dict[str, list[str]] = {}
"""Kinds by the tests that show them."""

seen: set[str] = set()
"""Kinds of receipts that were checked, in the scenario at hand."""


def produces(*kinds: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """The scenario shows receipts of these kinds, which hold when anybody checks them."""

    def mark(test: Callable[[], None]) -> Callable[[], None]:
        for kind in kinds:
            PRODUCED.setdefault(kind, []).append(test.__name__)

        @wraps(test)
        def shows() -> None:
            seen.clear()
            test()
            assert set(kinds) <= seen, f"not shown: {set(kinds) - seen}"

        return shows

    return mark


def in_world(scenario: Scenario, size: int = SIZE, **options: Any) -> None:
    async def main() -> None:
        world = PrimesWorld(size, 1, **options)
        await asyncio.sleep(1.0)
        await scenario(world)
        await world.close()
        for house in world.full_nodes:
            assert house.bad_records() == []
            seen.update(read_kind(record) for record in house.records())
            assert house.contradictions({one.key_id for one in world.validators}) == []
            assert house.complaints == []
        assert world.overlays.malformed == []
        assert world.overlays.refused == []

    run_in_virtual_time(main())


def read_kind(record: StatusRecord) -> str:
    receipt = read_record(record)
    assert isinstance(receipt, Receipt), "all of them have been checked"
    return receipt.kind.name


def a_sum(number: int = 10, salt: int = 0) -> bytes:
    return CanonicalMessage(SUMS, primes_body(number), EXPIRES_AT_S, salt).encode()


def a_transfer(source: bytes, to: bytes, amount: int) -> bytes:
    return CanonicalMessage(source, transfer_body(to, amount), EXPIRES_AT_S).encode()


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


@produces("SentToValidators", "PutIntoQueue", "IncludedIntoBlock", "IncludedIntoAcceptedBlock", "Finalized")
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
        # Told when three have it, and dated when it went out.
        (node,) = world.full_nodes
        receipts = [receipt for receipt in map(read_record, node.records()) if isinstance(receipt, Receipt)]
        first = min(receipts, key=lambda receipt: receipt.timestamp_ms)
        assert first.kind.name == "SentToValidators"

    in_world(scenario)


@produces("RejectedByFullnode")
def test_rejection_by_the_full_node() -> None:
    async def scenario(world: PrimesWorld) -> None:
        message_id = world.full_nodes[0].node.submit(a_transfer(OTHER, RICH, 5))
        await asyncio.sleep(3.0)
        assert of_full_node(world, message_id) == ["RejectedByFullnode"]
        assert lanes(world, message_id) == [[]] * SIZE

    in_world(scenario)


@produces("RejectedByCollator")
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


@produces("RejectedByCollator", "Finalized")
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


@produces("IgnoredByCollator")
def test_a_full_block_leaves_a_message_out_and_the_next_one_takes_it() -> None:
    async def scenario(world: PrimesWorld) -> None:
        node = world.full_nodes[0].node
        ids = [
            node.submit(CanonicalMessage(HEAVY, b"%d" % number, EXPIRES_AT_S).encode()) for number in range(4)
        ]
        await asyncio.sleep(10.0)
        assert all(of_full_node(world, one)[-1] == "Finalized" for one in ids)
        left_out = [lane for one in ids for lane in lanes(world, one) if "IgnoredByCollator" in lane]
        assert left_out
        for lane in left_out:
            assert lane[lane.index("IgnoredByCollator") + 1] == "PutIntoQueue"

    in_world(scenario)


@produces("IgnoredByShardchain", "Duplicate")
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


def test_collators_that_lose_every_candidate_try_again_with_pauses_and_nothing_else_suffers() -> None:
    async def scenario(world: PrimesWorld) -> None:
        tried = 0

        def always(block_id: BlockId) -> bool:
            nonlocal tried
            tried += 1
            return True

        everywhere(world, "loses", always)
        message_id = world.full_nodes[0].node.submit(a_sum())
        await asyncio.sleep(4.0)
        assert 4 <= tried <= 4.0 * SIZE / LOOK_EVERY_S
        everywhere(world, "loses", lambda block_id: False)
        await asyncio.sleep(6.0)
        assert of_full_node(world, message_id)[-1] == "Finalized"

    in_world(scenario)


@produces("IgnoredByMasterchain")
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


@produces("Timeout")
def test_every_validator_says_when_the_time_is_over() -> None:
    async def scenario(world: PrimesWorld) -> None:
        everywhere(world, "ignores", lambda block_id: True)
        message_id = world.full_nodes[0].node.submit(a_sum())
        await asyncio.sleep(12.0)
        assert of_full_node(world, message_id) == ["SentToValidators"]
        assert all([lane[0], lane[-1]] == ["PutIntoQueue", "Timeout"] for lane in lanes(world, message_id))

    in_world(scenario, queue_options=QueueOptions(message_timeout_s=6.0))


@produces("RejectedByQueue")
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


@produces("RejectedByQueue")
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


@produces("IgnoredByQueue")
def test_validators_who_come_new_into_a_session_are_told_what_is_open_there() -> None:
    """The full node has not told them ahead. They hear of it under the next catchain of the masterchain, and say that it is
    back in the queue.
    """

    async def scenario(world: PrimesWorld) -> None:
        everywhere(world, "ignores", lambda block_id: True)
        ids = [world.full_nodes[0].node.submit(a_sum(10 + number)) for number in range(5)]
        await asyncio.sleep(6.0)
        everywhere(world, "ignores", lambda block_id: False)
        await asyncio.sleep(10.0)
        said: Sequence[list[str]] = [lane for one in ids for lane in lanes(world, one)]
        assert any(lane[:2] == ["IgnoredByQueue", "PutIntoQueue"] for lane in said)
        assert all(of_full_node(world, one)[-1] == "Finalized" for one in ids)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("stagepost.full_node.full_node.LOOK_AHEAD_S", 0.0)
        in_world(scenario, size=7, shard_validators=4, lifetime_ms=6_000)


@produces("RejectedByShardchain")
def test_validators_who_find_a_replay_in_a_candidate_close_its_message() -> None:
    """The queues have forgotten it, which takes them fewer catchains here, the accounts have not; a full node sends it again although it must know better, and a
    collator takes it although it must not."""

    async def scenario(world: PrimesWorld) -> None:
        first, second = world.full_nodes
        message_id = first.node.submit(a_sum())
        await asyncio.sleep(15.0)
        assert (first.key_id, "Finalized") in first.kinds[message_id]
        bad, *honest = world.validators
        bad.misbehave("replays")
        for house in honest:
            house.running.bridge.take = lambda session_id: []  # type: ignore[method-assign]  # they leave it to others
        second.node._records.clear()
        second.node._send(world.ledger.parse(a_sum()).message, None)
        await asyncio.sleep(8.0)
        for house in honest:
            said = [kind for source, kind in second.kinds[message_id] if source == house.key_id]
            assert said == ["PutIntoQueue", "RejectedByShardchain"]
        assert world.sums([SUMS]) == [(17, 1)]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("stagepost.remp.queue.message_cache.LET_GO_CATCHAINS", 2)
        in_world(scenario, full_nodes=2, lifetime_ms=3_000)


def test_every_kind_is_shown_by_a_scenario_or_cannot_occur() -> None:
    kinds = {kind.name for kind in KINDS}
    assert PRODUCED.keys() | IMPOSSIBLE.keys() == kinds
    assert not PRODUCED.keys() & IMPOSSIBLE.keys()
    assert {kind.name for kind in KINDS if not kind.is_emitted} <= IMPOSSIBLE.keys()


def test_a_scenario_that_does_not_show_what_it_says_is_found() -> None:
    def scenario() -> None:
        seen.add("PutIntoQueue")

    with pytest.raises(AssertionError, match=r"not shown: {'Timeout'}"):
        produces("PutIntoQueue", "Timeout")(scenario)()
    for names in PRODUCED.values():
        if "scenario" in names:
            names.remove("scenario")
