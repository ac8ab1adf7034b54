"""The newest messages of the topic of statuses and what became of them: joined states, and verdicts when asked for.

Receipts are checked here as everywhere, so a list never shows a verdict that a trace would not. What is kept is bounded
by messages and by receipts; the oldest message goes first, and lists say that they are not the whole history.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec

from stagepost.errors import ErrorCode
from stagepost.remp.hex_text import read_hash
from stagepost.remp.receipts.receipt import Counting, Quarantined, Receipt, check
from stagepost.remp.receipts.status import Stage, Status
from stagepost.remp.receipts.status_records import StatusRecord, read_record
from stagepost.remp.validator_sets import Role, ValidatorSets
from stagepost.remp.verdict.state import MessageState, ProvedEnd
from stagepost.remp.verdict.verdict import Verdict, evaluate
from stagepost.remp.verdict.words import verdict_words
from stagepost.trace.reasons import error_words

RECEIPTS_KEPT = 250_000
RECEIPTS_OF_ONE_MAX = 20_000
"""Of one message: more than 21 validators say in its life; what comes beyond is for its trace alone."""
BAD_OF_ONE_MAX = 10_000
STRANGERS_KEPT = 2_000
"""Records by signers that the sets do not know yet: looked at again when the sets change."""
AGAIN_AFTER_MS = 1_000
"""Time alone can end a message: a verdict on an open one is worked out again after so long."""

SENT_KIND = "SentToValidators"
_ID_DIGITS = 64
_STAGES = (Stage.QUEUED, Stage.INCLUDED, Stage.ACCEPTED)


class ShownRecord(msgspec.Struct, frozen=True):
    """Record as lists and streams show it. `source` is in words; `refused` is None for a receipt that counts."""

    position: str
    message_id: str | None
    timestamp_ms: int | None
    arrived_ms: int | None
    source: str
    source_id: str | None
    kind: str
    level: int | None
    colour: str
    refused: str | None
    error: str
    type: str = "receipt"


class Told(msgspec.Struct, frozen=True):
    """A verdict that has changed."""

    message_id: str
    verdict: str | None
    words: str
    at_ms: int
    first_ms: int | None
    final_after_ms: int | None
    is_open: bool
    is_proved: bool
    type: str = "verdict"


class Kept:
    """Message of the book. `is_cut`: its beginning lies before what was read."""

    __slots__ = (
        "arrived_ms", "bad", "bad_by", "delivery_id", "dmq_id", "error", "first_ms", "is_cut", "is_dirty", "kinds",
        "message_id", "said", "signers", "stage_ms", "state", "verdict", "verdict_as_of_ms",
    )  # fmt: skip

    def __init__(self, message_id: str, *, is_cut: bool) -> None:
        self.message_id = message_id
        self.state = MessageState()
        self.bad: set[bytes] = set()
        self.first_ms: int | None = None
        self.arrived_ms = 0
        self.dmq_id: str | None = None
        self.delivery_id: str | None = None
        self.kinds: set[str] = set()
        self.signers: dict[bytes, int] = {}
        """Time of the last receipt of each validator."""
        self.bad_by: dict[bytes, int] = {}
        """Refused receipts under the key id of each validator, repeated ones included."""
        self.stage_ms: dict[tuple[bytes, Stage], int] = {}
        """First time at which each validator reported each stage."""
        self.error = ""
        self.is_cut = is_cut
        self.is_dirty = True
        self.said: tuple[str, bool] | None = None
        self.verdict: Verdict | None = None
        self.verdict_as_of_ms = 0

    @property
    def order(self) -> tuple[int, str]:
        """Greater is newer; the same after a restart, so that a page can be gone on from."""
        return (self.arrived_ms if self.first_ms is None else self.first_ms), self.message_id

    @property
    def sent_ms(self) -> int | None:
        """First time at which a full node reported SentToValidators; None if no such receipt was read."""
        times = (at_ms for (_, kind), at_ms in self.state.full_node_first_ms.items() if kind == SENT_KIND)
        return min(times, default=None)

    @property
    def is_open(self) -> bool:
        return self.verdict is not None and self.verdict.is_open

    @property
    def words(self) -> str:
        return verdict_words(self.verdict)

    def after_ms(self, at_ms: int | None) -> int | None:
        return None if at_ms is None or self.first_ms is None else at_ms - self.first_ms


class MessageBook:
    """Written by the one tail, read by requests; `lock` is held for as long as either looks at it."""

    def __init__(self, messages_max: int) -> None:
        self.lock = threading.RLock()
        self.sets: ValidatorSets | None = None
        self.dropped = 0
        self.records = 0
        self.bad_by_reason: dict[str, int] = defaultdict(int)
        self._begins_late = False
        self._messages: dict[str, Kept] = {}
        self._ends: dict[str, ProvedEnd] = {}
        self._messages_max = messages_max
        self._receipts = 0
        self._dirty: set[str] = set()
        self._strangers: deque[StatusRecord] = deque(maxlen=STRANGERS_KEPT)

    def __len__(self) -> int:
        return len(self._messages)

    def learn(self, sets: ValidatorSets) -> None:
        """Learn who may sign: signers that were unknown may be known now."""
        with self.lock:
            self.sets = sets
            for kept in self._messages.values():
                self._touch(kept)
            waiting, self._strangers = self._strangers, deque(maxlen=STRANGERS_KEPT)
            for record in waiting:
                receipt = read_record(record)
                if isinstance(receipt, Receipt):
                    self._enter(record, receipt, check(receipt, sets, record.arrived_ms), is_cut=True)

    def add(self, record: StatusRecord, *, is_cut: bool = False) -> ShownRecord:
        """`is_cut`: the topic holds records before this one that nobody will read here."""
        assert self.sets is not None, "receipts are checked against sets"
        self._begins_late |= is_cut
        receipt = read_record(record)
        if isinstance(receipt, Quarantined):
            with self.lock:
                return self._refuse(record, receipt)
        outcome = check(receipt, self.sets, record.arrived_ms)
        with self.lock:
            return self._enter(record, receipt, outcome, is_cut=is_cut)

    def proved(self, message_id: str, end: ProvedEnd) -> None:
        """Note the end that a checked proof shows, also of a message whose receipts are still to come."""
        with self.lock:
            self._ends[message_id] = end
            while len(self._ends) > self._messages_max:
                del self._ends[next(iter(self._ends))]
            kept = self._messages.get(message_id)
            if kept is not None:
                kept.state.proved = end
                self._touch(kept)

    def _refuse(self, record: StatusRecord, fault: Quarantined) -> ShownRecord:
        self.records += 1
        self.bad_by_reason[fault.reason] += 1
        key = (record.key or "").lower()
        kept = self._messages.get(key)
        if kept is not None:
            self._note_bad(kept, record)
        message_id = key if len(key) == _ID_DIGITS else None
        return ShownRecord(
            record.position,
            message_id,
            None,
            record.arrived_ms,
            "no receipt",
            None,
            "",
            None,
            "red",
            fault.reason,
            fault.text,
        )

    def _enter(
        self, record: StatusRecord, receipt: Receipt, outcome: Counting | Quarantined, *, is_cut: bool
    ) -> ShownRecord:
        self.records += 1
        message_id = receipt.message_id.hex()
        kept = self._messages.get(message_id)
        if kept is None:
            kept = self._messages[message_id] = Kept(message_id, is_cut=is_cut)
            kept.arrived_ms = record.arrived_ms or receipt.timestamp_ms
            kept.state.proved = self._ends.get(message_id)
        self._touch(kept)
        if isinstance(outcome, Quarantined):
            self._note_bad(kept, record)
            self.bad_by_reason[outcome.reason] += 1
            if outcome.reason is ErrorCode.RECEIPT_SOURCE:
                self._strangers.append(record)
            elif self.sets is not None and self.sets.memberships(receipt.source_id):
                kept.bad_by[receipt.source_id] = kept.bad_by.get(receipt.source_id, 0) + 1
        else:
            self._count(kept, record, outcome)
        self._make_room()
        kind = receipt.kind
        return ShownRecord(
            record.position,
            message_id,
            receipt.timestamp_ms,
            record.arrived_ms,
            self.source_words(receipt.source_id, record.session_hint),
            receipt.source_id.hex(),
            kind.name,
            int(kind.level),
            kind.colour.value,
            None if isinstance(outcome, Counting) else str(outcome.reason),
            error_words(getattr(receipt.status, "error", "")),
        )

    def _count(self, kept: Kept, record: StatusRecord, counting: Counting) -> None:
        receipt, kind = counting.receipt, counting.receipt.kind
        if len(kept.state.signed) >= RECEIPTS_OF_ONE_MAX:
            kept.is_cut = True
            return
        before = len(kept.state.signed)
        kept.state.add(counting, record.session_hint)
        is_new = len(kept.state.signed) > before
        self._receipts += is_new
        if kept.first_ms is None or receipt.timestamp_ms < kept.first_ms:
            kept.first_ms = receipt.timestamp_ms
        if kind.name in ("SentToValidators", "RejectedByFullnode"):
            kept.is_cut = False
        kept.kinds.add(kind.name)
        kept.dmq_id = kept.dmq_id or record.headers.get("dmq_id")
        kept.delivery_id = kept.delivery_id or record.headers.get("delivery_id")
        if kind.status is Status.REJECTED:
            kept.error = error_words(getattr(receipt.status, "error", "")) or kind.name
        if counting.role is Role.VALIDATOR and is_new:
            kept.signers[receipt.source_id] = max(
                receipt.timestamp_ms, kept.signers.get(receipt.source_id, 0)
            )
            if kind.stage in _STAGES:
                reached = receipt.source_id, kind.stage
                at_ms = kept.stage_ms.get(reached, receipt.timestamp_ms)
                kept.stage_ms[reached] = min(at_ms, receipt.timestamp_ms)

    def _touch(self, kept: Kept) -> None:
        kept.is_dirty = True
        self._dirty.add(kept.message_id)

    def _note_bad(self, kept: Kept, record: StatusRecord) -> None:
        if len(kept.bad) < BAD_OF_ONE_MAX:
            digest = sha256(record.value or b"").digest()[:8]
            self._receipts += digest not in kept.bad
            kept.bad.add(digest)

    def _make_room(self) -> None:
        while len(self._messages) > 1 and (
            len(self._messages) > self._messages_max or self._receipts > RECEIPTS_KEPT
        ):
            oldest = self._messages.pop(next(iter(self._messages)))
            self._receipts -= len(oldest.state.signed) + len(oldest.bad)
            self._dirty.discard(oldest.message_id)
            self.dropped += 1

    # Reading

    def source_words(self, source_id: bytes, hint: str | None) -> str:
        """Return the words by which traces name a lane."""
        sets = self.sets
        if sets is None:
            return f"unknown {source_id.hex()[:6]}"
        if source_id in sets.full_nodes:
            return "full node"
        memberships = sets.memberships(source_id)
        if not memberships:
            return f"unknown {source_id.hex()[:6]}"
        _, validator = memberships.get(read_hash(hint) or b"") or max(
            memberships.values(), key=lambda found: found[0].age_key
        )
        return sets.name_of(source_id, validator.index)

    @property
    def whole_since_ms(self) -> int | None:
        """Time from which on the book has every message; None if it has all that the topic holds."""
        with self.lock:
            if not (self._begins_late or self.dropped):
                return None
            return min((kept.order[0] for kept in self._messages.values() if not kept.is_cut), default=None)

    def get(self, message_id: str, now_ms: int) -> Kept | None:
        with self.lock:
            kept = self._messages.get(message_id)
            return None if kept is None else self.judged(kept, now_ms)

    def judged(self, kept: Kept, now_ms: int) -> Kept:
        """With its verdict as of now."""
        is_old = kept.is_open and now_ms - kept.verdict_as_of_ms >= AGAIN_AFTER_MS
        if (kept.is_dirty or is_old) and self.sets is not None:
            kept.verdict = evaluate(kept.state, self.sets, now_ms)
            kept.verdict_as_of_ms = now_ms
            kept.is_dirty = False
        return kept

    def all(self, now_ms: int) -> list[Kept]:
        """The newest first."""
        with self.lock:
            found = [self.judged(kept, now_ms) for kept in self._messages.values()]
        return sorted(found, key=lambda kept: kept.order, reverse=True)

    def changed(self, now_ms: int, *, everything: bool = False) -> Iterator[Told]:
        """Verdicts that are not what was told last, each once. `everything`: also those that time alone has changed."""
        with self.lock:
            wanted = set(self._dirty)
            self._dirty.clear()
            if everything:
                wanted |= {kept.message_id for kept in self._messages.values() if kept.is_open}
            for message_id in sorted(wanted):
                kept = self.judged(self._messages[message_id], now_ms)
                said = kept.words, kept.state.proved is not None
                if said != kept.said:
                    kept.said = said
                    yield told(kept, now_ms)


def told(kept: Kept, now_ms: int) -> Told:
    verdict = kept.verdict
    return Told(
        kept.message_id,
        None if verdict is None else verdict.verdict,
        kept.words,
        now_ms,
        kept.first_ms,
        None if verdict is None else kept.after_ms(verdict.finalized_ms),
        kept.is_open,
        kept.state.proved is not None,
    )


def row_of(kept: Kept) -> dict[str, Any]:
    """The row of `messages`, and what screens need beside it."""
    verdict: dict[str, Any] = {} if kept.verdict is None else msgspec.to_builtins(kept.verdict)
    return {
        "message_id": kept.message_id,
        "verdict": None,
        **verdict,
        "delivery_id": kept.delivery_id,
        "dmq_id": kept.dmq_id,
        "receipts_bad": len(kept.bad),
        "first_ms": kept.first_ms,
        "words": kept.words,
        "error": kept.error,
        "is_cut": kept.is_cut,
    }
