"""A month of sessions at one full node: the chain that the world decides goes on by whole sessions, the disks are real.

Each switch brings messages that validators acknowledge, a shard block, and master blocks with certificates. What the world
leaves out is links, and the idle blocks of the 250 seconds in between.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import Counter
from pathlib import Path
from random import Random

import msgspec

from rigs.chain_messages import address
from stagepost.chain.configuration import Configuration
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.genesis import Genesis
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.node.final_proof import final_block
from stagepost.chain.node.follower import SnapshotKeeper
from stagepost.chain.node.store import ChainStore, open_chain_store
from stagepost.chain.proofs.proof_making import ProofMaker
from stagepost.chain.snapshots import restored
from stagepost.errors import ErrorCode, StagepostError
from stagepost.full_node.earlier_life import earlier_life
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.known_sets import KnownSets, SessionLog
from stagepost.full_node.proof_keeping import ProofKeeper
from stagepost.full_node.status_topic import RETRY_S, StatusTopic
from stagepost.ground.crypto import ed25519
from stagepost.ground.identifiers import PROOFS_TOPIC
from stagepost.ground.wire.tl import key_id
from stagepost.remp.ledger import LedgerSession, MasterApplied
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import New
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import MESSAGE_TIMEOUT_MS, SETS_FILE
from stagepost.topics.log.file_topic import create_topic, open_topic
from tests.worlds.chain.chain_world import START_MS
from tests.worlds.chain.proved_chain import SEEDS, ProvedChain, a_signing_set

SESSION_MS = 250_000
WINDOW_MS = 1_800_000
MONTH_MS = 31 * 24 * 3_600 * 1_000
MESSAGES_PER_SESSION = 10
SEED = bytes(range(32))
DRAINED_EVERY = 16


def a_month_genesis() -> Genesis:
    members = a_signing_set(7)
    lasting = msgspec.structs.replace(members, until_ms=START_MS + 2 * MONTH_MS)
    configuration = Configuration(
        lasting,
        None,
        shard_validators=4,
        master_lifetime_ms=SESSION_MS,
        shard_lifetime_ms=SESSION_MS,
        expiry_ahead_max_ms=WINDOW_MS,
        proof_window_ms=WINDOW_MS,
    )
    return Genesis("month", START_MS, configuration, ())


class StoredChain(ProvedChain):
    """Chain whose history is a store on disk, with snapshots as a follower takes them."""

    def __init__(
        self, genesis: Genesis, store: ChainStore, proofs: ProofKeeper, maker: ProofMaker, now_ms: int
    ) -> None:
        super().__init__(genesis)
        self.maker = maker
        self.store = store
        self.ledger = restored(
            genesis, store, None, lambda kept, applied: proofs.take(final_block(kept), applied)
        )
        self.now_ms = now_ms
        self.snapshots = SnapshotKeeper(store, maker.seals)

    def finalise(self, session: bytes, payload: bytes) -> None:
        known = next(
            one
            for one in (self.ledger.master_session(), *self.ledger.sessions())
            if one.session_id == session
        )
        self._keys = {session: known.public_keys}
        kept = self.store.of_session(session)
        if kept:
            last = final_block(kept[-1]).candidate
            self._tops[session] = last.hash, last.slot
        self.close(session, payload)
        self._tops.clear()
        self.finals.clear()
        self.made.clear()
        self.events.clear()


class _WorldClock:
    def __init__(self, start_ms: int) -> None:
        self.now_ms = start_ms

    def unix_s(self) -> float:
        return self.now_ms / 1_000

    def mono_s(self) -> float:
        return (self.now_ms - START_MS) / 1_000


class MonthOfSessions:
    """One life of the full node after the other, in one data folder."""

    def __init__(self, data: Path, seed: int) -> None:
        self.data = data
        self.genesis = a_month_genesis()
        self.switches = 0
        self.sent: list[bytes] = []
        self.last: list[bytes] = []
        self._random = Random(seed)
        self._now_ms = START_MS + 1_000

    # Lives

    def begin(self) -> float:
        """Start the node from its folder; return the seconds of processor time that this took."""
        began = time.process_time()
        self.store = open_chain_store(self.data / "chain", self.genesis, has_archive=True)
        maker = ProofMaker(self.genesis, self.store.snapshot())
        proofs_topic = create_topic(self.data, PROOFS_TOPIC)
        self.proofs = ProofKeeper(maker, proofs_topic.writer(retry_s=RETRY_S))
        self.chain = StoredChain(self.genesis, self.store, self.proofs, maker, self._now_ms)
        self.store.begin()
        self.clock = _WorldClock(self._now_ms)
        topic = create_topic(self.data, STATUSES_TOPIC)
        self.statuses = StatusTopic(topic.writer(retry_s=RETRY_S))
        known_sets = KnownSets([ed25519.public_key(SEED)])
        self.session_log = SessionLog(self.data, self._now_ms, known_sets, lambda error: None)
        self.node = FullNode(
            SEED,
            self.chain.ledger,
            self,
            self.statuses,
            known_sets,
            self.clock,
            self._random,
            sets_changed=self.session_log.changed,
            expect=self.proofs.expect,
        )
        known_sets.write(self.data / SETS_FILE)
        own = {self.node.source_id}
        self.node.start(earlier_life(topic.reader(), self._now_ms, 2 * MESSAGE_TIMEOUT_MS, own))
        remembered_ms = self.chain.ledger.master.configuration.remembered_ms
        self.proofs.start(proofs_topic.reader(), self._now_ms - 2 * remembered_ms)
        return time.process_time() - began

    async def end(self) -> None:
        self._now_ms = self.chain.now_ms
        self.node.close()
        await self.store.close()
        await self.statuses.close()
        await self.proofs.close()
        await self.session_log.close()

    def send(self, validator: bytes, message: bytes) -> bool:
        return True

    # Sessions

    async def play(self, switches: int) -> None:
        for _ in range(switches):
            self._session()
            self.switches += 1
            if self.switches % DRAINED_EVERY == 0:
                while self.statuses.waiting:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0)

    def _session(self) -> None:
        chain = self.chain
        (session,) = chain.ledger.sessions()
        messages = [self._message(number) for number in range(MESSAGES_PER_SESSION)]
        self.last = messages
        self._move_to(chain.now_ms)
        ids = [self.node.receive(one).message_id for one in messages]
        self._acknowledge(session, ids)
        chain.shard_block(session.session_id, [chain.ledger.parse(one).message for one in messages])
        self._master(chain.now_ms + 1_000)
        self._master(chain.now_ms + SESSION_MS)
        self.sent += ids

    def _message(self, number: int) -> bytes:
        expires_at_s = self.chain.now_ms // 1_000 + 120
        account = address(ContractKind.SUM_OF_PRIMES, number)
        return CanonicalMessage(account, primes_body(10), expires_at_s, self.switches).encode()

    def _acknowledge(self, session: LedgerSession, ids: list[bytes]) -> None:
        """More than a third of the session say that they have the messages."""
        for public_key in session.public_keys[:2]:
            source, now_ms = key_id(public_key), self.node.now_ms
            receipts = []
            for one in ids:
                receipt = Receipt(ExternalMessageId(one), New(), now_ms, source)
                receipts.append(receipt.with_signature(ed25519.sign(SEEDS[public_key], receipt.signed_bytes)))
            self.node.receipts_came(source, CombinedReceipt(source, tuple(receipts)).encode())

    def _master(self, at_ms: int) -> None:
        chain = self.chain
        chain.now_ms = max(chain.now_ms, at_ms)
        self._move_to(chain.now_ms)
        self.node.heard(chain.heard())
        events = chain.master_block()
        for event in events:
            if isinstance(event, MasterApplied) and event.started:
                chain.snapshots.session_rotated(chain.ledger)
        self.node.heard(events)

    def _move_to(self, now_ms: int) -> None:
        self.clock.now_ms = now_ms
        self.node._wake()

    # What can be seen

    @property
    def resident_bytes(self) -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def counts(self) -> dict[str, int]:
        """Sizes of what the node holds in memory."""
        return {
            "records": len(self.node._records),
            "sending": len(self.node.sending),
            "sessions": len(self.node.sets.sessions),
            "blocks": len(list(self.store.blocks())),
            "charged": self.node.shares.total.messages,
        }

    @property
    def bytes_by_part(self) -> dict[str, int]:
        """Bytes on disk of the store, the archive and each topic."""
        found: Counter[str] = Counter()
        for path in self.data.rglob("*"):
            if path.is_file():
                parts = path.relative_to(self.data).parts
                name = parts[1] if parts[0] == "topics" else path.name if parts[0] == "chain" else parts[0]
                found[name] += path.stat().st_size
        return dict(found)

    def inexact(self) -> list[str]:
        """Compare the topic with what was sent: SentToValidators and Finalized of this node, each once for each message."""
        own = self.node.source_id.hex()
        found: Counter[tuple[str, str]] = Counter()
        reader = open_topic(self.data, STATUSES_TOPIC).reader()
        for partition in range(reader.partitions):
            for batch in reader.batches(partition, reader.start_offset(partition)):
                for one in batch:
                    told = msgspec.json.decode(one.value or b"")
                    if told["source_id"] == own:
                        found[(one.key or b"").decode(), told["kind"]] += 1
        wanted = Counter((one.hex(), kind) for one in self.sent for kind in ("SentToValidators", "Finalized"))
        return [
            f"{key}: {found[key]} instead of {wanted[key]}"
            for key in wanted.keys() | found.keys()
            if found[key] != wanted[key]
        ]

    def replayed(self) -> list[str]:
        """Submit the last messages once more; return those that were taken."""
        taken = []
        for one in self.last:
            try:
                told = self.node.receive(one)
            except StagepostError as error:
                if error.code is not ErrorCode.MSG_DUPLICATE:
                    raise
            else:
                taken += [told.message_id.hex()] if told.refused is None else []
        return taken
