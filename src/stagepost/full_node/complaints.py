"""Complaints about validators: two linked receipts that one validator signed, put together so that anybody sees the broken
promise.

A complaint holds the accused's own receipts and statements and is signed by the full node that makes it; `fault_in` checks
one against the validator sets alone, and believes nothing that the accuser says: neither its date, nor that there is no
further receipt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from stagepost.errors import DecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import Writer, constructor_id, key_id
from stagepost.remp.receipts.chain_faults import ChainFault, LinkedReceipt, fault_between, why_unbound
from stagepost.remp.receipts.receipt import Quarantined, Receipt, check
from stagepost.remp.receipts.statements import PlacedLink, read_link_header
from stagepost.remp.validator_sets import ReceiptSource, ValidatorSets

MESSAGES_MAX = 100_000
"""Messages whose receipts are kept for complaints; the one of which no receipt came for longest is forgotten for a further
one.
"""

RECEIPTS_MAX = 64
"""Receipts of one validator about one message in one session that are kept."""

_ID = constructor_id(
    "stagepost.remp.complaint kind:string message_id:int256 accused:int256 timestamp:long accuser:int256 "
    "evidence:(vector bytes) links:(vector bytes) = stagepost.remp.Complaint"
)


class Complaint(msgspec.Struct, frozen=True):
    """`evidence`: two receipts of the accused, as JSON; `links`: the place of each in its chain, as on the topic."""

    kind: ChainFault
    message_id: bytes
    accused: bytes
    timestamp_ms: int
    accuser: bytes
    evidence: tuple[str, ...]
    links: tuple[str, ...]
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
        for texts in (self.evidence, self.links):
            writer.write_vector_count(len(texts))
            for one in texts:
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
            "links": self.links,
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
    if len(complaint.evidence) != 2 or len(complaint.links) != 2:
        return "it does not show two receipts with their links"
    shown: list[LinkedReceipt] = []
    for text, header in zip(complaint.evidence, complaint.links, strict=True):
        try:
            linked = LinkedReceipt(Receipt.from_json(text), read_link_header(header))
        except DecodeError as error:
            return f"its evidence cannot be read: {error.text}"
        receipt = linked.receipt
        if (receipt.message_id, receipt.source_id) != (complaint.message_id, complaint.accused):
            return "a receipt in evidence is of another message or of another source"
        checked = check(receipt, sets)
        source = sets.source(receipt.source_id, receipt.timestamp_ms)
        if isinstance(checked, Quarantined) or not isinstance(source, ReceiptSource):
            return f"a receipt in evidence does not count: {getattr(checked, 'text', source)}"
        unbound = why_unbound(linked, source.public_key)
        if unbound is not None:
            return f"a receipt in evidence is not bound: {unbound}"
        shown.append(linked)
    if fault_between(*shown) is not complaint.kind:
        return f"its receipts show no {complaint.kind}"
    return None


Chain: TypeAlias = tuple[bytes, bytes]
"""A validator and a session."""


class ComplaintBook:
    """Book of linked receipts by message, as a full node hears them. The book makes each complaint once."""

    def __init__(self, seed: bytes, life_ms: int, complain: Callable[[Complaint], None]) -> None:
        self._seed = seed
        self._life_ms = life_ms
        self._complain = complain
        self._receipts: dict[bytes, dict[Chain, dict[int, LinkedReceipt]]] = {}
        """By message, chain and number; the message of which a receipt came last at the end."""
        self._heard_ms: dict[bytes, int] = {}
        self._made: set[tuple[bytes, bytes, ChainFault]] = set()

    def heard(self, receipt: Receipt, link: PlacedLink | None, now_ms: int) -> None:
        """Add a validator's receipt that counts. A receipt without a link proves nothing."""
        if link is None:
            return
        linked = LinkedReceipt(receipt, link)
        message_id = receipt.message_id
        of_message = self._receipts.pop(message_id, {})
        self._receipts[message_id] = of_message
        self._heard_ms[message_id] = now_ms
        chain = of_message.setdefault((receipt.source_id, link.link.session_id), {})
        number = link.link.number
        for near in (number - 1, number, number + 1):
            other = chain.get(near)
            fault = None if other is None else fault_between(other, linked)
            if other is not None and fault is not None:
                self._make(fault, other, linked, now_ms)
        if len(chain) < RECEIPTS_MAX:
            chain.setdefault(number, linked)
        while len(self._receipts) > MESSAGES_MAX:
            self._forget(next(iter(self._receipts)))

    def tick(self, now_ms: int) -> None:
        """Forget the messages of which no receipt came for a whole life of a message."""
        for message_id in list(self._receipts):
            if now_ms - self._heard_ms[message_id] <= self._life_ms:
                break
            self._forget(message_id)

    def _make(self, fault: ChainFault, one: LinkedReceipt, other: LinkedReceipt, now_ms: int) -> None:
        accused, message_id = one.receipt.source_id, one.receipt.message_id
        if (message_id, accused, fault) in self._made:
            return
        self._made.add((message_id, accused, fault))
        pair = sorted((one, other), key=lambda linked: linked.link.number)
        evidence = tuple(linked.receipt.to_json() for linked in pair)
        links = tuple(linked.placed.to_header() for linked in pair)
        complaint = Complaint(fault, message_id, accused, now_ms, b"", evidence, links)
        self._complain(complaint.sign(self._seed))

    def _forget(self, message_id: bytes) -> None:
        chains = self._receipts.pop(message_id, {})
        self._heard_ms.pop(message_id, None)
        if self._made:
            self._made -= {(message_id, source, kind) for source, _ in chains for kind in ChainFault}
