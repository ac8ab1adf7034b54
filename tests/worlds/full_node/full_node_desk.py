"""Full node upon a chain that the test decides, with a real data folder, for tests that submit messages.

Its links accept every message and no validator answers, so a message becomes final when the test puts it into a block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.node.final_proof import final_block
from stagepost.chain.proofs.proof_making import ProofMaker
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.intake_desk import IntakeDesk
from stagepost.full_node.known_sets import KnownSets
from stagepost.full_node.local_server import LocalIntake, serving_programs
from stagepost.full_node.proof_keeping import ProofKeeper
from stagepost.full_node.staged_sending import SendingOptions
from stagepost.full_node.status_topic import RETRY_S, StatusTopic
from stagepost.ground.crypto import ed25519
from stagepost.ground.files.running_nodes import FullNodeFacts
from stagepost.ground.files.small_files import Files
from stagepost.ground.identifiers import PROOFS_TOPIC
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.net.network import SocketNetwork
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import Record
from stagepost.trace.kept_proofs import GENESIS_FILE
from tests.worlds.chain.chain_world import START_MS
from tests.worlds.chain.proved_chain import ProvedChain

SEED = sha256(b"a full node with a desk").digest()
MAGIC = 77
ACCOUNT = address(ContractKind.SUM_OF_PRIMES, 1)
EXPIRES_AT_S = START_MS // 1_000 + 50
"""Unix seconds: as far ahead as these chains look, less the time that a test takes."""

REFUSING = address(ContractKind.ALWAYS_REJECTS)


def primes(number: int = 10, account: bytes = ACCOUNT) -> bytes:
    return CanonicalMessage(account, primes_body(number), EXPIRES_AT_S).encode()


class FullNodeDesk:
    def __init__(self, data: Path, messages_max: int = 1_000, files: Files | None = None) -> None:
        self.data = data
        self.chain = ProvedChain()
        (data / GENESIS_FILE).write_bytes(self.chain.genesis.encode())
        proofs = create_topic(data, PROOFS_TOPIC)
        self.proofs = ProofKeeper(ProofMaker(self.chain.genesis), proofs.writer(retry_s=RETRY_S))
        self.chain.ledger.following.on_master = lambda kept, applied: self.proofs.take(
            final_block(kept), applied
        )
        self.topic = create_topic(data, STATUSES_TOPIC, partitions=3)
        writer = self.topic.writer(now_ms=lambda: START_MS + 3_000, retry_s=RETRY_S, files=files)
        self.statuses = StatusTopic(writer)
        self.node = FullNode(
            SEED,
            self.chain.ledger,
            self,
            self.statuses,
            KnownSets([ed25519.public_key(SEED)]),
            LoopClock(START_MS / 1_000 + 2.0),
            Random(1),
            options=SendingOptions(messages_max=messages_max),
            sets_changed=lambda known: known.write(data / SETS_FILE),
            expect=self.proofs.expect,
        )
        self.desk = IntakeDesk(self.node, data, self.proofs)
        self.statuses.written = self.desk.written
        self.proofs.on_proved = self.desk.proved
        self.node.start()

    def send(self, validator: bytes, message: bytes) -> bool:
        return True

    def in_a_final_block(self, data: bytes) -> None:
        session = self.chain.whole.session_id
        self.chain.shard_block(session, [self.chain.ledger.parse(data).message])
        self.node.heard(self.chain.heard())
        self.node.heard(self.chain.master_block())

    def status(self, message_id: bytes, number: int, size: int = 0) -> Record:
        """Return a record that is not a receipt: readers must cope with it."""
        value = b'{"number": %d, "padding": "%s"}' % (number, b"x" * size)
        return Record(message_id.hex().encode(), value)

    async def close(self) -> None:
        self.node.close()
        await self.statuses.close()
        await self.proofs.close()


@asynccontextmanager
async def a_desk(
    data: Path, messages_max: int = 1_000, files: Files | None = None
) -> AsyncIterator[FullNodeDesk]:
    found = FullNodeDesk(data, messages_max, files)
    try:
        yield found
    finally:
        await found.close()


@asynccontextmanager
async def a_served_desk(
    data: Path, files: Files | None = None, allowed_user_ids: frozenset[int] | None = None
) -> AsyncIterator[tuple[FullNodeDesk, FullNodeFacts]]:
    """Serve a desk at its local socket to `allowed_user_ids`."""
    async with (
        a_desk(data, files=files) as desk,
        serving_programs(LocalIntake(desk.desk, MAGIC, allowed_user_ids), data, SocketNetwork()) as path,
    ):
        facts = FullNodeFacts(1, str(path), MAGIC, str(data / SETS_FILE))
        facts.write(data)
        yield desk, facts
