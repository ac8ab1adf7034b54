"""The whole story in virtual time: a program publishes reliably, a full node takes the message from the network, hands it
to validators and acknowledges it, the chain makes it final; one trace has the ids of all layers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import NoReturn

import pytest

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage, MessageDraft, stamped_draft
from stagepost.chain.proofs.proof_rules import ProofRefused, ProofVerifier
from stagepost.delivery import (
    ErrAckTimeout,
    ErrNacked,
    MemoryNetwork,
    Receiver,
    ReceiverConfig,
    ReliablePublisher,
)
from stagepost.delivery.endings import FailedMessage
from stagepost.errors import StorageError
from stagepost.full_node.from_delivery import DeliveryIntake
from stagepost.full_node.from_topic import MESSAGES_TOPIC
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.verdict.trace import trace_of
from tests.worlds.chain.chain_world import EXPIRES_AT_S
from tests.worlds.delivery.delivery_world import an_acked_config, settle
from tests.worlds.remp.primes_world import PrimesWorld

SUMS = address(ContractKind.SUM_OF_PRIMES, 1)
FULL_NODE, PROGRAM = "bob", "alice"

Story = Callable[[PrimesWorld, ReliablePublisher, DeliveryIntake], Awaitable[None]]


def told(story: Story) -> None:
    async def main() -> None:
        world = PrimesWorld(4, 1)
        await asyncio.sleep(1.0)
        (house,) = world.full_nodes
        intake = DeliveryIntake(house.node)
        house.node.on_settled = intake.heard
        network = MemoryNetwork(seed=1)
        receiver = Receiver(
            intake.over(network.join(FULL_NODE)),
            intake.handlers,
            config=ReceiverConfig(ack_delay=0.0),
            clock=world.clock,
        )
        publisher = ReliablePublisher(
            network.join(PROGRAM), an_acked_config(FULL_NODE, max_retries=20), clock=world.clock
        )
        async with receiver, publisher:
            await settle()
            await story(world, publisher, intake)
        await world.close()
        assert house.bad_records() == []

    run_in_virtual_time(main())


def a_sum(number: int = 10, account: bytes = SUMS) -> bytes:
    return CanonicalMessage(account, primes_body(number), EXPIRES_AT_S).encode()


def test_from_a_programs_hand_to_finality_under_one_trace() -> None:
    async def story(world: PrimesWorld, publisher: ReliablePublisher, intake: DeliveryIntake) -> None:
        result = await publisher.publish_with_ack(MESSAGES_TOPIC, a_sum())
        (house,) = world.full_nodes
        (message_id,) = house.sent or {one.message_id for one in house.receipts}
        assert "SentToValidators" in [kind for _, kind in house.kinds[message_id]]
        await asyncio.sleep(5.0)
        assert house.count_of(message_id, "Finalized") == 1
        trace = trace_of(message_id, house.records(), house.node.known_sets.sets, world.now_ms)
        assert trace.verdict is not None
        assert trace.verdict.verdict == "finalized"
        assert trace.delivery_id == result.message_id
        assert trace.dmq_id is not None
        assert world.sums([SUMS])[0][1] == 1

    told(story)


def test_the_same_message_delivered_twice_counts_once() -> None:
    async def story(world: PrimesWorld, publisher: ReliablePublisher, intake: DeliveryIntake) -> None:
        for _ in range(2):
            await publisher.publish_with_ack(MESSAGES_TOPIC, a_sum())
        await asyncio.sleep(5.0)
        await publisher.publish_with_ack(MESSAGES_TOPIC, a_sum())
        assert world.sums([SUMS])[0][1] == 1
        assert intake.taken == 2  # the third came when it was final

    told(story)


def test_a_draft_is_executed_once_under_the_id_that_its_first_transmission_made() -> None:
    async def story(world: PrimesWorld, publisher: ReliablePublisher, intake: DeliveryIntake) -> None:
        draft = MessageDraft(SUMS, primes_body(10), 60)
        world.overlays.cut |= set(range(4))
        first_sent_ms = world.now_ms
        publishing = asyncio.create_task(
            publisher.publish_with_ack(MESSAGES_TOPIC, draft.encode(), timeout=120.0)
        )
        await asyncio.sleep(25.0)  # several transmissions, and nobody to take the message
        world.overlays.cut.clear()
        result = await publishing
        await asyncio.sleep(10.0)
        (house,) = world.full_nodes
        message_id = sha256(draft.stamped(first_sent_ms).encode()).digest()
        assert house.count_of(message_id, "Finalized") == 1
        trace = trace_of(message_id, house.records(), house.node.known_sets.sets, world.now_ms)
        assert trace.delivery_id == result.message_id
        assert world.sums([SUMS])[0][1] == 1

    told(story)


def test_a_draft_that_expired_is_sent_again_only_with_the_proof_that_it_was_never_executed() -> None:
    """While the full node is away the draft expires in the outbox. Then its id is refused, and proved never executed; with
    that proof the outbox makes another id, which is executed.
    """

    async def story(world: PrimesWorld, publisher: ReliablePublisher, intake: DeliveryIntake) -> None:
        (house,) = world.full_nodes
        draft = MessageDraft(SUMS, primes_body(10), 5)
        receive = intake._full_node.receive

        def away(*given: object) -> NoReturn:
            raise StorageError("the disk of the full node is full")

        intake._full_node.receive = away  # type: ignore[method-assign, assignment]
        with pytest.raises(ErrAckTimeout):
            await publisher.publish_with_ack(MESSAGES_TOPIC, draft.encode(), timeout=8.0)
        intake._full_node.receive = receive  # type: ignore[method-assign]
        (letter,) = await publisher.dead_letters()
        first = draft.stamped(letter.stamped_ms).encode()
        verifier = ProofVerifier(world.genesis)

        def require_never(found: FailedMessage) -> None:
            content = house.proofs.files().get(sha256(first).digest(), b"")
            verifier.require_never(content, stamped_draft(found.payload, found.stamped_ms))

        with pytest.raises(ProofRefused):
            await publisher.replay(letter.message_id, require_never=require_never)
        await publisher.replay(letter.message_id)  # the same id, which has expired
        while letter in await publisher.dead_letters() or publisher.stats()["live"]:
            await asyncio.sleep(0.5)
        (again,) = await publisher.dead_letters()
        assert (again.error, again.stamped_ms) == ("ErrNacked", letter.stamped_ms)
        house.submit(a_sum(11))  # a block of the shard, whose time is past the expiry
        await asyncio.sleep(5.0)
        assert await publisher.replay(again.message_id, require_never=require_never) == letter.message_id
        await asyncio.sleep(4.0)
        second = [one for one in house.final_ids if one != sha256(a_sum(11)).digest()]
        assert len(second) == 1
        assert second[0] != sha256(first).digest()
        assert {house.proofs.ends[one].kind for one in second} == {"executed"}
        assert house.proofs.ends[sha256(first).digest()].kind == "never"
        assert world.sums([SUMS])[0][1] == 2

    told(story)


def test_a_message_without_expiry_is_refused_by_the_full_node_where_all_must_expire() -> None:
    async def story(world: PrimesWorld, publisher: ReliablePublisher, intake: DeliveryIntake) -> None:
        with pytest.raises(ErrNacked):
            await publisher.publish_with_ack(MESSAGES_TOPIC, CanonicalMessage(SUMS, primes_body(10)).encode())
        (house,) = world.full_nodes
        assert {kind for kinds in house.kinds.values() for _, kind in kinds} == {"RejectedByFullnode"}

    told(story)


@pytest.mark.parametrize(
    "data",
    [b"no message", a_sum(account=address(ContractKind.ALWAYS_REJECTS))],
    ids=["no message", "refused by the account"],
)
def test_what_cannot_be_taken_is_refused_to_the_program(data: bytes) -> None:
    async def story(world: PrimesWorld, publisher: ReliablePublisher, intake: DeliveryIntake) -> None:
        with pytest.raises(ErrNacked):
            await publisher.publish_with_ack(MESSAGES_TOPIC, data)
        assert intake.taken == 0

    told(story)


def test_while_no_validator_is_there_the_program_waits_and_gets_its_word_in_the_end() -> None:
    async def story(world: PrimesWorld, publisher: ReliablePublisher, intake: DeliveryIntake) -> None:
        world.overlays.cut |= set(range(4))
        publishing = asyncio.create_task(publisher.publish_with_ack(MESSAGES_TOPIC, a_sum(), timeout=120.0))
        await asyncio.sleep(25.0)
        assert not publishing.done()
        world.overlays.cut.clear()
        await publishing
        await asyncio.sleep(10.0)
        assert world.sums([SUMS])[0][1] == 1

    told(story)
