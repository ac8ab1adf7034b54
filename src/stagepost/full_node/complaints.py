"""Complaints about validators: receipts that one validator signed, put together so that anybody sees the broken promise.

A complaint holds the accused's own receipts and is signed by the full node that makes it; `fault_in` checks one against
the validator sets alone. If a validator forgets in a crash that a message was in its queue, that is not a complaint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import pairwise

import msgspec

from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import Writer, constructor_id, key_id
from stagepost.remp.receipts.receipt import Quarantined, Receipt, check
from stagepost.remp.receipts.status import Kind, Level, Status
from stagepost.remp.validator_sets import ValidatorSets

MESSAGES_MAX = 100_000
"""Messages whose receipts are kept for complaints; the oldest is forgotten for a further one."""

RECEIPTS_MAX = 64
"""Receipts of one validator about one message that are kept."""

_ID = constructor_id(
    "stagepost.remp.complaint kind:string message_id:int256 accused:int256 timestamp:long accuser:int256 "
    "evidence:(vector bytes) = stagepost.remp.Complaint"
)


class ComplaintKind(StrEnum):
    EQUIVOCATION = "equivocation"  # two statuses of one message with one date
    CONTRADICTION = "contradiction"  # in a block that was accepted, and rejected: both signed
    UNANSWERED = "unanswered"  # put into the queue, and never closed within the message's life


class Complaint(msgspec.Struct, frozen=True):
    """`evidence`: receipts of the accused, as JSON, in the order of their dates."""

    kind: ComplaintKind
    message_id: bytes
    accused: bytes
    timestamp_ms: int
    accuser: bytes
    evidence: tuple[str, ...]
    signature: bytes = b""

    @property
    def signed_bytes(self) -> bytes:
        writer = Writer()
        writer.write_constructor(_ID)
        writer.write_string(self.kind)
        writer.write_int256(self.message_id)
        writer.write_int256(self.accused)
        writer.write_long(self.timestamp_ms)
        writer.write_int256(self.accuser)
        writer.write_vector_count(len(self.evidence))
        for one in self.evidence:
            writer.write_bytes(one.encode())
        return writer.written()

    def sign(self, seed: bytes) -> Complaint:
        ours = msgspec.structs.replace(self, accuser=key_id(ed25519.public_key(seed)))
        return msgspec.structs.replace(ours, signature=ed25519.sign(seed, ours.signed_bytes))

    def to_json(self) -> bytes:
        fields = {
            "kind": str(self.kind),
            "message_id": self.message_id.hex(),
            "source_id": self.accused.hex(),
            "timestamp": self.timestamp_ms,
            "accuser": self.accuser.hex(),
            "evidence": self.evidence,
            "signature": self.signature.hex(),
        }
        return msgspec.json.encode(fields)


def fault_in(complaint: Complaint, sets: ValidatorSets) -> str | None:
    """Return why `complaint` proves nothing; None if the accused has broken a promise."""
    public_key = sets.full_nodes.get(complaint.accuser)
    if public_key is None:
        return f"no full node has the key id {complaint.accuser.hex()}"
    if not ed25519.verify(public_key, complaint.signed_bytes, complaint.signature):
        return "its signature does not hold"
    receipts: list[Receipt] = []
    for text in complaint.evidence:
        receipt = Receipt.from_json(text)
        if (receipt.message_id, receipt.source_id) != (complaint.message_id, complaint.accused):
            return "a receipt in evidence is of another message or of another source"
        checked = check(receipt, sets)
        if isinstance(checked, Quarantined):
            return f"a receipt in evidence does not count: {checked.text}"
        receipts.append(receipt)
    if complaint.kind not in broken(receipts, complaint.timestamp_ms, sets.message_timeout_ms):
        return f"its receipts show no {complaint.kind}"
    return None


def broken(receipts: Iterable[Receipt], now_ms: int, life_ms: int) -> set[ComplaintKind]:
    """Return the promises that one validator's receipts about one message show to be broken."""
    in_order = sorted(receipts, key=lambda one: one.timestamp_ms)
    found: set[ComplaintKind] = set()
    statuses: dict[int, object] = {}
    for receipt in in_order:
        if statuses.setdefault(receipt.timestamp_ms, receipt.status) != receipt.status:
            found.add(ComplaintKind.EQUIVOCATION)
    kinds = [receipt.kind for receipt in in_order]
    for before, after in pairwise(kinds):
        if (_is_accepted(before) and _is_rejected(after)) or (_is_rejected(before) and _is_included(after)):
            found.add(ComplaintKind.CONTRADICTION)
    if in_order and _is_waiting(kinds[-1]):
        first_ms = in_order[0].timestamp_ms
        if now_ms - max(first_ms, in_order[-1].timestamp_ms) > life_ms:
            found.add(ComplaintKind.UNANSWERED)
    return found


def _is_accepted(kind: Kind) -> bool:
    return kind.status is Status.ACCEPTED and kind.level >= Level.SHARDCHAIN


def _is_included(kind: Kind) -> bool:
    """Return whether the validator collated the message: one that has refused a message does not, though others may."""
    return kind.status is Status.ACCEPTED and kind.level is Level.COLLATOR


def _is_rejected(kind: Kind) -> bool:
    return kind.status is Status.REJECTED


def _is_waiting(kind: Kind) -> bool:
    return kind.status in (Status.NEW, Status.IGNORED, Status.DUPLICATE)


class ComplaintBook:
    """Book of receipts by message, as a full node hears them. The book makes each complaint once."""

    def __init__(self, seed: bytes, life_ms: int, complain: Callable[[Complaint], None]) -> None:
        self._seed = seed
        self._life_ms = life_ms
        self._complain = complain
        self._receipts: dict[bytes, dict[bytes, list[Receipt]]] = {}
        self._ended: set[bytes] = set()
        """Messages of `_receipts` that are final: a receipt of theirs may come late, and owes no further one."""
        self._made: set[tuple[bytes, bytes, ComplaintKind]] = set()

    def heard(self, receipt: Receipt, now_ms: int, *, is_final: bool = False) -> None:
        """Add a validator's receipt that counts. `is_final`: the message was final before the receipt came."""
        if is_final:
            self._ended.add(receipt.message_id)
        of_message = self._receipts.setdefault(receipt.message_id, {})
        receipts = of_message.setdefault(receipt.source_id, [])
        if len(receipts) < RECEIPTS_MAX:
            receipts.append(receipt)
            self._look_at(receipts, now_ms)
        while len(self._receipts) > MESSAGES_MAX:
            self._forget(next(iter(self._receipts)))

    def finalized(self, message_id: bytes) -> None:
        """Forget a message that was not lost: a validator that did not report its end need not do so any more."""
        self._forget(message_id)

    def tick(self, now_ms: int) -> None:
        """Look for the last time at messages of which no receipt came for a whole life of a message."""
        for message_id, sources in list(self._receipts.items()):
            lasts = [receipts[-1].timestamp_ms for receipts in sources.values()]
            if now_ms - max(lasts) > self._life_ms:
                for receipts in sources.values():
                    self._look_at(receipts, now_ms)
                self._forget(message_id)

    def _look_at(self, receipts: list[Receipt], now_ms: int) -> None:
        accused, message_id = receipts[0].source_id, receipts[0].message_id
        kinds = broken(receipts, now_ms, self._life_ms)
        if message_id in self._ended:
            kinds.discard(ComplaintKind.UNANSWERED)
        for kind in sorted(kinds):
            if (message_id, accused, kind) not in self._made:
                self._made.add((message_id, accused, kind))
                in_order = sorted(receipts, key=lambda one: one.timestamp_ms)
                evidence = tuple(receipt.to_json() for receipt in in_order)
                complaint = Complaint(kind, message_id, accused, now_ms, b"", evidence)
                self._complain(complaint.sign(self._seed))

    def _forget(self, message_id: bytes) -> None:
        sources = self._receipts.pop(message_id, {})
        self._ended.discard(message_id)
        if self._made:
            self._made -= {(message_id, source, kind) for source in sources for kind in ComplaintKind}
