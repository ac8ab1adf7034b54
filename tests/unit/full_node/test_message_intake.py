"""Intake of a full node from topics and deliveries: which messages it takes or refuses, and when the position moves on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from random import Random

import pytest

from rigs.chain_messages import SIMULATED_EXPIRY_S, address
from rigs.memory_topic import MemoryTopic
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.delivery.identity import delivery_id
from stagepost.delivery.shell.handling import Busy, Message, Reject
from stagepost.full_node.earlier_life import earlier_life
from stagepost.full_node.from_delivery import DeliveryIntake
from stagepost.full_node.from_topic import COMMIT_EVERY_S, GROUP, MESSAGES_TOPIC, MessageIntake
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.known_sets import KnownSets
from stagepost.full_node.message_record import RecordState
from stagepost.full_node.staged_sending import SendingOptions
from stagepost.full_node.status_topic import RETRY_S, EarlierIds, StatusTopic
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.message import RempMessage
from stagepost.remp.receipts.message_status import New
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.topics.topic import Record
from tests.worlds.chain.chain_world import START_MS, DecidedChain

SEED = sha256(b"a full node").digest()


def primes(number: int) -> bytes:
    account = address(ContractKind.SUM_OF_PRIMES, 1)
    return CanonicalMessage(account, primes_body(number), SIMULATED_EXPIRY_S).encode()


class Desk:
    """Desk whose topics outlive the full node. `is_linked`: validators can be reached; `is_answered`: they answer. `kinds`
    are the statuses that the full node publishes itself."""

    def __init__(self) -> None:
        self.chain = DecidedChain()
        self.messages = MemoryTopic(MESSAGES_TOPIC)
        self.statuses = MemoryTopic(STATUSES_TOPIC)
        self.clock = LoopClock(START_MS / 1_000 + 2.0)
        self.is_linked = True
        self.is_answered = True
        self.sent: list[bytes] = []
        self.kinds: list[tuple[bytes, str]] = []

    def send(self, validator: bytes, message: bytes) -> bool:
        if self.is_linked:
            message_id = ExternalMessageId(RempMessage.decode(message).message_id)
            self.sent.append(message_id)
            if self.is_answered:
                receipt = Receipt(message_id, New(), int(self.clock.unix_s() * 1_000), validator, "AA==")
                asyncio.get_running_loop().call_soon(lambda: self.node._receipt_checked(receipt, None))
        return self.is_linked

    def heard(self, receipt: Receipt) -> None:
        if receipt.source_id == self.node.source_id:
            self.kinds.append((receipt.message_id, receipt.kind.name))

    def start(self) -> None:
        self.topic = StatusTopic(
            self.statuses.writer(lambda: int(self.clock.unix_s() * 1_000), retry_s=RETRY_S)
        )
        self.node = FullNode(
            SEED,
            self.chain.ledger,
            self,
            self.topic,
            KnownSets([]),
            self.clock,
            Random(1),
            options=SendingOptions(round_pause_s=0.5),
            on_status=self.heard,
        )
        self.node.start(
            earlier_life(self.statuses.reader(), self.node.now_ms, 240_000, {self.node.source_id})
        )
        self.intake = MessageIntake(self.messages.reader(), self.messages.positions(GROUP), self.node)
        self.intake.start()

    def settled(self, now_ms: int | None = None, life_ms: int = 240_000) -> dict[bytes, EarlierIds]:
        """Return the messages that the next life waits for, with their earlier ids."""
        now_ms = self.node.now_ms if now_ms is None else now_ms
        left = earlier_life(self.statuses.reader(), now_ms, life_ms, {self.node.source_id})
        return {one: left[one].earlier_ids for one in left if left[one].state is RecordState.SETTLED}

    async def stop(self) -> None:
        await self.intake.close()
        self.node.close()
        await self.topic.close()

    async def write(self, *records: Record) -> None:
        writer = self.messages.writer()
        await writer.append(records)
        await writer.close()

    @property
    def position(self) -> int:
        return self.messages.positions(GROUP).committed.get(0, 0)

    def final(self, data: bytes) -> None:
        session = self.chain.whole.session_id
        self.chain.shard_block(session, [self.chain.ledger.parse(data).message])
        self.chain.master_block()
        self.node.heard(self.chain.events)
        self.chain.events.clear()


def at_a_desk(scenario: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        desk = Desk()
        desk.start()
        await scenario(desk)
        await desk.stop()

    run_in_virtual_time(main())


def test_messages_under_hex_or_raw_ids_are_handed_over_and_the_position_moves_on() -> None:
    async def scenario(desk: Desk) -> None:
        first, second = primes(10), primes(11)
        ids = [sha256(one).digest() for one in (first, second)]
        await desk.write(Record(ids[0].hex().encode(), first), Record(ids[1], second))
        await asyncio.sleep(5.0)
        assert set(desk.sent) == set(ids)
        assert {kind for _, kind in desk.kinds} == {"SentToValidators"}
        assert desk.position == 2

    at_a_desk(scenario)


def test_the_position_waits_until_somebody_has_the_message() -> None:
    async def scenario(desk: Desk) -> None:
        desk.is_linked = False
        await desk.write(Record(sha256(primes(10)).digest(), primes(10)))
        await asyncio.sleep(5.0)
        assert desk.position == 0
        await desk.stop()
        desk.is_linked = True
        desk.start()  # and there it is again
        await asyncio.sleep(5.0)
        assert desk.sent[0] == sha256(primes(10)).digest()
        assert desk.position == 1

    at_a_desk(scenario)


def test_that_validators_were_told_is_not_enough_they_must_answer() -> None:
    async def scenario(desk: Desk) -> None:
        desk.is_answered = False
        await desk.write(Record(sha256(primes(10)).digest(), primes(10)))
        await asyncio.sleep(60.0)
        assert [kind for _, kind in desk.kinds] == ["SentToValidators"]
        assert desk.position == 0
        await desk.stop()
        desk.is_answered = True
        desk.start()
        await asyncio.sleep(5.0)
        assert desk.position == 1

    at_a_desk(scenario)


def test_what_is_no_message_is_refused_under_its_key_and_passed() -> None:
    async def scenario(desk: Desk) -> None:
        await desk.write(
            Record(b"k" * 32, b"no message"), Record(None, primes(10)), Record(b"short", primes(10)),
            Record(b"k" * 32, b""), Record(b"k" * 32, None),
        )  # fmt: skip
        await asyncio.sleep(1.0)
        assert desk.kinds == [(b"k" * 32, "RejectedByFullnode")]
        assert desk.intake.refused == 5
        assert desk.sent == []
        assert desk.position == 5

    at_a_desk(scenario)


def test_the_same_message_again_is_passed_without_a_word() -> None:
    async def scenario(desk: Desk) -> None:
        record = Record(sha256(primes(10)).digest(), primes(10))
        await desk.write(record, record)
        await asyncio.sleep(5.0)
        desk.final(primes(10))
        await desk.write(record)
        await asyncio.sleep(1.0)
        assert [kind for _, kind in desk.kinds] == ["SentToValidators", "Finalized"]
        assert desk.position == 3

    at_a_desk(scenario)


def test_ids_of_earlier_layers_come_along() -> None:
    async def scenario(desk: Desk) -> None:
        headers = {"dmq_id": "ab" * 32, "delivery_id": "cd" * 16}
        await desk.write(Record(sha256(primes(10)).digest(), primes(10), headers))
        await asyncio.sleep(5.0)
        assert desk.settled() == {sha256(primes(10)).digest(): EarlierIds("ab" * 32, "cd" * 16)}

    at_a_desk(scenario)


# After a restart


def test_a_message_that_becomes_final_after_a_restart_is_published_once() -> None:
    async def scenario(desk: Desk) -> None:
        message_id = desk.node.submit(primes(10))
        await asyncio.sleep(5.0)
        await desk.stop()
        desk.start()
        desk.final(primes(10))
        await desk.stop()
        desk.start()
        assert [kind for one, kind in desk.kinds if one == message_id] == ["SentToValidators", "Finalized"]

    at_a_desk(scenario)


def test_a_message_that_became_final_while_nobody_was_here_is_published_at_the_start() -> None:
    async def scenario(desk: Desk) -> None:
        desk.node.submit(primes(10))
        await asyncio.sleep(5.0)
        await desk.stop()
        desk.chain.shard_block(desk.chain.whole.session_id, [desk.chain.ledger.parse(primes(10)).message])
        desk.chain.master_block()
        desk.start()
        await asyncio.sleep(1.0)  # the topic comes first
        assert [kind for _, kind in desk.kinds] == ["SentToValidators", "Finalized"]

    at_a_desk(scenario)


def test_what_is_older_than_its_life_is_not_waited_for_any_more() -> None:
    async def scenario(desk: Desk) -> None:
        desk.node.submit(primes(10))
        await asyncio.sleep(5.0)
        last_ms = desk.statuses.reader()
        stamps = [stamp for batch in last_ms.batches(0, 0) for stamp in batch.timestamps]
        assert desk.settled(max(stamps) + 1_000, 1_000)
        assert not desk.settled(max(stamps) + 1_001, 1_000)
        assert COMMIT_EVERY_S < 1.0

    at_a_desk(scenario)


# From reliable delivery


def delivered(data: bytes) -> Message:
    identifier = delivery_id(b"s" * 32, "t", bytes(16), data).hex()
    return Message("t", data, identifier, "s", 0, 0, maybe_duplicate=False)


def test_a_delivery_that_an_earlier_life_has_settled_is_confirmed_at_once() -> None:
    async def scenario(desk: Desk) -> None:
        desk.node.submit(primes(10))
        await asyncio.sleep(5.0)
        await desk.stop()
        desk.start()
        desk.is_linked = False
        intake = DeliveryIntake(desk.node)
        desk.node.on_settled = intake.heard
        await asyncio.wait_for(intake.handle(delivered(primes(10))), 0.001)
        with pytest.raises(Busy):
            await intake.handle(delivered(primes(11)))
        assert intake.taken == 1

    at_a_desk(scenario)


def test_a_delivery_that_the_account_refuses_is_refused_when_the_refusal_is_on_disk() -> None:
    async def scenario(desk: Desk) -> None:
        intake = DeliveryIntake(desk.node)
        desk.node.on_settled = intake.heard
        data = CanonicalMessage(address(ContractKind.ALWAYS_REJECTS), b"", SIMULATED_EXPIRY_S).encode()
        desk.statuses.is_full = True
        handled = asyncio.create_task(intake.handle(delivered(data)))
        await asyncio.sleep(3 * RETRY_S)
        assert not handled.done()
        desk.statuses.is_full = False
        with pytest.raises(Reject):
            await handled

    at_a_desk(scenario)
