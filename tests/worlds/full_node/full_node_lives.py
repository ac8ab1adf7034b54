"""Lives of one full node that is killed again and again, in virtual time. A life leaves its two topics, and the blocks of
the chain that its disk had. The chain itself goes on without the node.

Validators accept every message; one of them is dishonest: it answers, and sends nothing on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from hashlib import sha256
from random import Random

from rigs.chain_messages import SIMULATED_EXPIRY_S, address
from rigs.memory_topic import MemoryFaults, MemoryTopic
from stagepost.chain.configuration import Limits
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.messages import CanonicalMessage
from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.earlier_life import earlier_life
from stagepost.full_node.from_topic import GROUP, MESSAGES_TOPIC, MessageIntake
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.known_sets import KnownSets
from stagepost.full_node.message_record import MessageRecord
from stagepost.full_node.status_topic import RETRY_S, StatusTopic
from stagepost.ground.loop.clock import LoopClock
from stagepost.remp.message import ExternalMessage, RempMessage
from stagepost.remp.receipts.message_status import New
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.topics.topic import Record
from tests.worlds.chain.chain_world import START_MS, DecidedChain, a_configuration, a_genesis

SEED = sha256(b"a full node that is killed").digest()
ACCOUNT = address(ContractKind.SUM_OF_PRIMES, 1)
LIFE_MS = 480_000
WAY_S = 0.02
"""Seconds of the way to a validator, or back."""


def primes(number: int) -> bytes:
    return CanonicalMessage(ACCOUNT, primes_body(number), SIMULATED_EXPIRY_S).encode()


def id_of(number: int) -> bytes:
    return sha256(primes(number)).digest()


class FullNodeLives:
    """Lives of one full node. `forgets_finals` is a planted defect: the next life does not know the ends on the topic."""

    def __init__(self, *, write_s: float = 0.0, seed: int = 0, forgets_finals: bool = False) -> None:
        self.random = Random(seed)
        self.chain = DecidedChain(a_genesis(a_configuration(limits=Limits())))
        self.dishonest = min(member.key_id for member in self.chain.whole.facts.members)
        self.messages = MemoryTopic(MESSAGES_TOPIC)
        self.statuses = MemoryTopic(STATUSES_TOPIC, faults=MemoryFaults(seed, delay_s_max=write_s))
        self.clock = LoopClock(START_MS / 1_000 + 2.0)
        self.on_disk = 0
        self.pool: dict[bytes, ExternalMessage] = {}
        self._forgets_finals = forgets_finals
        self.start()

    # The full node

    def start(self) -> None:
        """Start a life with the first `on_disk` blocks of the chain."""
        self.ledger = EmbeddedLedger(self.chain.genesis)
        self.followed = 0
        self.follow(self.on_disk)
        self.ledger.events()
        self._topic = StatusTopic(self.statuses.writer(lambda: self.now_ms, retry_s=RETRY_S))
        self.links = _Links(self)
        self.node = FullNode(
            SEED,
            self.ledger,
            self.links,
            self._topic,
            KnownSets([]),
            self.clock,
            Random(self.random.random()),
        )
        self.links.node = self.node
        self.node.start(self.earlier_life())
        self.intake = MessageIntake(self.messages.reader(), self.messages.positions(GROUP), self.node)
        self.intake.start()

    def earlier_life(self) -> dict[bytes, MessageRecord]:
        found = earlier_life(self.statuses.reader(), self.now_ms, LIFE_MS, {self.node.source_id})
        return {
            one: record for one, record in found.items() if not (self._forgets_finals and record.is_final)
        }

    def follow(self, upto: int | None = None) -> None:
        """Follow the chain to its end, or up to `upto` blocks; the node hears of them by `hear`."""
        blocks = list(self.chain.kept.blocks())[: upto if upto is None else max(upto, self.followed)]
        for kept in blocks[self.followed :]:
            self.ledger.finalised(kept.session_id, kept.candidate, kept.payload, kept.certificate)
        self.followed = max(self.followed, len(blocks))

    def hear(self) -> None:
        self.follow()
        self.node.heard(self.ledger.events())

    def synced(self) -> None:
        """Put every followed block on disk."""
        self.on_disk = self.followed

    def kill(self) -> None:
        """End the life without a word: records and blocks that were not synced are gone."""
        for task in self.intake._tasks:
            task.cancel()
        self.node.close()
        self.links.node = None
        self.statuses.crash()

    async def close(self) -> None:
        await self.intake.close()
        self.node.close()
        await self._topic.close()

    # Senders

    async def write(self, number: int) -> None:
        """Write a message to the topic of messages, durably."""
        writer = self.messages.writer()
        await writer.append([Record(id_of(number), primes(number))])
        await writer.close()

    def bring(self, number: int) -> None:
        """Submit a message by hand, as programs do; a repetition is not a fault."""
        try:
            self.node.receive(primes(number))
        except StagepostError as error:
            if error.code is not ErrorCode.MSG_DUPLICATE:
                raise

    # The chain

    def shard_block(self) -> None:
        """Make a shard block of all messages that honest validators have."""
        self.chain.shard_block(self.chain.whole.session_id, list(self.pool.values()))
        self.pool.clear()

    def came(self, body: bytes) -> None:
        message = self.chain.ledger.parse(body).message
        if self.chain.ledger.dry_run(message, self.chain.now_ms).refused is None:
            self.pool[message.message_id] = message

    @property
    def now_ms(self) -> int:
        return int(self.clock.unix_s() * 1_000)

    # What can be read

    def kinds(self, message_id: bytes) -> list[str]:
        """Return the kinds of all statuses of a message on the topic, in order."""
        receipts = [
            Receipt.from_json(one.value or b"")
            for batch in self.statuses.reader().batches(0, self.statuses.reader().start_offset(0))
            for one in batch
        ]
        return [receipt.kind.name for receipt in receipts if receipt.message_id == message_id]

    def finals(self, message_id: bytes) -> int:
        return Counter(self.kinds(message_id))["Finalized"]


class _Links:
    """Links of one life: frames on the way die with the life, and nobody hears the answers of validators."""

    def __init__(self, lives: FullNodeLives) -> None:
        self.node: FullNode | None = None
        self._lives = lives

    def send(self, validator: bytes, message: bytes) -> bool:
        asyncio.get_running_loop().call_later(WAY_S, self._arrive, validator, RempMessage.decode(message))
        return True

    def _arrive(self, validator: bytes, sent: RempMessage) -> None:
        lives = self._lives
        if self.node is not lives.node:
            return
        if validator != lives.dishonest:
            lives.came(sent.message)
        receipt = Receipt(ExternalMessageId(sent.message_id), New(), lives.now_ms, validator, "AA==")
        asyncio.get_running_loop().call_later(WAY_S, self._answer, receipt)

    def _answer(self, receipt: Receipt) -> None:
        if self.node is not None and self.node is self._lives.node:
            self.node._receipt_checked(receipt, None)
