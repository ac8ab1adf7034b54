"""A data folder as a full node leaves it: a topic of signed receipts, the sets behind them, and stories worth looking at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from random import Random

from rigs.remp_world import FULL_NODE, seed_of, session, session_name, sets_file
from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    SentToValidators,
)
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.log.file_topic import FileTopicWriter, create_topic
from stagepost.topics.topic import Record

TIMEOUT_MS = 240_000
FEW = range(7)
MANY = range(100, 121)
"""The members of the two sessions: seven, and as many as a drawing has room for."""
SHARDS = ("3800000000000000", "c000000000000000")
STRANGER = 900

Step = tuple[int, MessageStatus, int]
"""Who, what, how long after the beginning."""


def message_id(name: str) -> ExternalMessageId:
    return ExternalMessageId(sha256(name.encode()).digest())


def block(seqno: int, shard: str = SHARDS[0]) -> BlockId:
    root = sha256(b"block %d" % seqno).digest()
    return BlockId(0, int(shard, 16), seqno, root, sha256(root).digest())


def master(seqno: int) -> BlockId:
    root = sha256(b"master %d" % seqno).digest()
    return BlockId(-1, 1 << 63, seqno, root, sha256(root).digest())


class DashboardWorld:
    """Open it once; `tell` may be called for as long as it is. `start_ms` is when its stories begin."""

    def __init__(self, data: Path, start_ms: int, *, partitions: int = 1) -> None:
        self.data = data
        self.start_ms = start_ms
        data.mkdir(parents=True, exist_ok=True)
        self.write_sets()
        self._writer: FileTopicWriter = create_topic(data, STATUSES_TOPIC, partitions).writer(
            now_ms=lambda: start_ms
        )

    def write_sets(self) -> None:
        sessions = (
            session(1, FEW, seqno=100, shard=SHARDS[0]),
            session(2, MANY, seqno=101, shard=SHARDS[1]),
        )
        (self.data / SETS_FILE).write_text(json.dumps(sets_file(*sessions, timeout_ms=TIMEOUT_MS)))

    def tell(
        self,
        name: str,
        steps: Sequence[Step],
        *,
        begin_ms: int | None = None,
        forged: Sequence[int] = (),
        number: int = 1,
        headers: dict[str, str] | None = None,
    ) -> str:
        """One message's receipts, in order of time; `forged` are the places of those whose signature is another's."""
        begin = self.start_ms if begin_ms is None else begin_ms
        records = []
        for place, (who, status, after_ms) in enumerate(steps):
            receipt = Receipt(message_id(name), status, begin + after_ms, b"").sign(seed_of(who))
            if place in forged:
                receipt = receipt.with_signature(bytes(64))
            said = {"session": session_name(number).hex(), **(headers or {})}
            records.append(
                Record(receipt.message_id.hex().encode(), receipt.to_json().encode(), said, begin + after_ms)
            )
        self.append(records)
        return message_id(name).hex()

    def append(self, records: Sequence[Record]) -> None:
        from threading import Event

        done = Event()
        self._writer.append_soon(records, lambda outcome: done.set())
        assert done.wait(30), "the topic did not take the records"

    def close(self) -> None:
        self._writer.close_now()

    # Stories

    def finalized(self, name: str = "finalized", begin_ms: int | None = None, delay_ms: int = 0) -> str:
        steps: list[Step] = [(FULL_NODE, SentToValidators(7, 7), 0)]
        steps += [(who, New(), 44 + 5 * who + delay_ms) for who in FEW]
        for who in FEW:
            steps.append((who, Accepted(Level.COLLATOR, block(17)), 236 + 7 * who + delay_ms))
            steps.append((who, Accepted(Level.SHARDCHAIN, block(17)), 527 + 9 * who + 2 * delay_ms))
        steps.append((FULL_NODE, Accepted(Level.MASTERCHAIN, block(17), master(234)), 1_230 + 3 * delay_ms))
        headers = {
            kind: sha256(f"{kind} of {name}".encode()).hexdigest() for kind in ("dmq_id", "delivery_id")
        }
        return self.tell(name, steps, begin_ms=begin_ms, headers=headers)

    def rejected(
        self, name: str = "rejected", begin_ms: int | None = None, reason: str = "contract error 52"
    ) -> str:
        steps: list[Step] = [(FULL_NODE, SentToValidators(7, 7), 0)]
        steps += [(who, New(), 30 + 6 * who) for who in FEW]
        steps += [(who, Rejected(Level.COLLATOR, reason, block(18)), 210 + 11 * who) for who in FEW]
        return self.tell(name, steps, begin_ms=begin_ms)

    def returned(self, name: str = "returned", begin_ms: int | None = None) -> str:
        """Three validators saw it in a block that came to nothing, gave it back, and took it again."""
        steps: list[Step] = [(FULL_NODE, SentToValidators(7, 7), 20)]
        steps += [(who, New(), 8 + 5 * who) for who in range(6)]
        for who in (0, 1, 2):
            steps.append((who, Accepted(Level.COLLATOR, block(16)), 120 + 4 * who))
            steps.append((who, Ignored(Level.SHARDCHAIN, block(16)), 260 + 9 * who))
            steps.append((who, New(), 285 + 9 * who))
        steps.append((4, Rejected(Level.COLLATOR, "contract error 52"), 430))
        for who in (0, 1, 2, 3, 5):
            steps.append((who, Accepted(Level.COLLATOR, block(17)), 420 + 6 * who))
            steps.append((who, Accepted(Level.SHARDCHAIN, block(17)), 590 + 7 * who))
        steps.append((FULL_NODE, Accepted(Level.MASTERCHAIN, block(17), master(235)), 910))
        return self.tell(name, steps, begin_ms=begin_ms)

    def open(self, name: str = "open", begin_ms: int | None = None) -> str:
        """Five of seven have it in their queues, two say nothing."""
        steps: list[Step] = [(FULL_NODE, SentToValidators(7, 7), 0)]
        steps += [(who, New(), 40 + 9 * who) for who in (0, 2, 3, 4, 6)]
        return self.tell(name, steps, begin_ms=begin_ms)

    def forged(self, name: str = "forged", begin_ms: int | None = None) -> str:
        """Final, although one validator's receipt is not its own, and a stranger has spoken."""
        steps: list[Step] = [(FULL_NODE, SentToValidators(7, 7), 0)]
        steps += [(who, New(), 25 + 4 * who) for who in FEW]
        for who in (0, 1, 2, 4, 6):
            steps.append((who, Accepted(Level.COLLATOR, block(19)), 180 + 5 * who))
            steps.append((who, Accepted(Level.SHARDCHAIN, block(19)), 410 + 8 * who))
        steps.append((5, Ignored(Level.COLLATOR, block(19)), 240))
        steps.append((5, Duplicate(block(19)), 360))
        steps.append((STRANGER, New(), 300))
        steps.append((FULL_NODE, Accepted(Level.MASTERCHAIN, block(19), master(236)), 1_010))
        bad = len(steps) - 3
        return self.tell(name, steps, begin_ms=begin_ms, forged=(bad,))

    def largest(self, name: str = "largest", begin_ms: int | None = None, turns: int = 95) -> str:
        """Twenty-one validators who take it up and give it back, again and again: 2,000 receipts."""
        steps: list[Step] = [(FULL_NODE, SentToValidators(21, 21), 0)]
        for place, who in enumerate(MANY):
            for turn in range(turns):
                status: MessageStatus = (
                    New() if turn % 2 == 0 else Ignored(Level.COLLATOR, block(20 + turn, SHARDS[1]))
                )
                steps.append((who, status, 20 + 40 * turn + place))
        for who in MANY[:4]:
            steps.append((who, Accepted(Level.COLLATOR, block(200, SHARDS[1])), 4_000 + who))
        return self.tell(name, steps, begin_ms=begin_ms, number=2)

    def expired(self, name: str = "expired", begin_ms: int | None = None) -> str:
        begin = self.start_ms - 2 * TIMEOUT_MS if begin_ms is None else begin_ms
        return self.tell(name, [(FULL_NODE, SentToValidators(7, 7), 0), (1, New(), 60)], begin_ms=begin)

    def many(self, count: int, seed: int = 7, over_ms: int = 280_000) -> list[str]:
        """A busy while: mostly finalized, some rejected for a handful of reasons, spread over `over_ms`."""
        random = Random(seed)
        found = []
        for number in range(count):
            begin = self.start_ms - over_ms + over_ms * number // count
            name = f"many {seed} {number}"
            if random.random() < 0.06:
                reason = random.choice(["contract error 52", "no funds", "account is frozen"])
                found.append(self.rejected(name, begin, reason))
            else:
                found.append(self.finalized(name, begin, random.randrange(0, 400)))
        return found
