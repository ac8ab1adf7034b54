"""Complaints about validators, and the questions that come before: challenges.

A complaint is two linked receipts that one validator signed, put together so that anybody sees the broken promise.

A complaint holds the accused's own receipts and statements and is signed by the full node that makes it; `fault_in` checks
one against the validator sets alone, and believes nothing that the accuser says: neither its date, nor that there is no
further receipt.

Silence is no ground for a complaint: whoever shows receipts may have left the rest out. So a full node to which a validator
says nothing more asks others of its session to challenge it (`QuestionBook`), and believes of the outcome only what the
accused has signed, or what more validators say than may lie.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from random import Random
from typing import TypeAlias

import msgspec

from stagepost.errors import DecodeError, StorageError
from stagepost.full_node.staged_sending import StagedSending
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.alarm import Alarm
from stagepost.ground.loop.clock import Clock
from stagepost.ground.wire.tl import Writer, constructor_id, key_id
from stagepost.remp.queue.message_states import CLOSED, place_of
from stagepost.remp.queue.records import answer_in_block, subject_of
from stagepost.remp.receipts.chain_faults import ChainFault, LinkedReceipt, fault_between, why_unbound
from stagepost.remp.receipts.receipt import Quarantined, Receipt, check
from stagepost.remp.receipts.statements import (
    AskedChallenge,
    ChallengeOutcome,
    PlacedLink,
    StatementLink,
    empty_chain,
    read_link_header,
)
from stagepost.remp.validator_sets import ReceiptSource, ValidatorSets, is_more_than_a_third

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

    def newest(self, message_id: bytes, source: bytes) -> StatementLink | None:
        """Return the last link that is known of what `source` says of the message; one of no receipt, in a session of others,
        if it has said nothing. None if nobody's link is known.
        """
        of_message = self._receipts.get(message_id, {})
        heads = [
            max(chain.values(), key=lambda linked: linked.link.number)
            for (author, _), chain in of_message.items()
            if author == source
        ]
        if heads:
            return max(heads, key=lambda linked: linked.receipt.timestamp_ms).link
        sessions = [session_id for _, session_id in of_message]
        return empty_chain(sessions[-1], message_id) if sessions else None

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


SILENT_LIVES = 1 / 8
"""Part of a message's life for which a validator may be silent after others have closed the message."""

ASK_NEXT_S = 30.0
"""Seconds after which the next validator is asked, while no outcome is known."""

ASKED_MAX = 256
"""Challenges, at most, whose outcomes are awaited at a time; further ones are not asked for."""


class ChallengeEnd(StrEnum):
    """Ends of a challenge. Only `OTHER` and `CONVICTED` accuse anybody."""

    SAME = "same"  # the accused has signed nothing beyond what this node has
    FURTHER = "further"  # it has signed receipts that did not come here
    FEWER = "fewer"  # it knows fewer than this node has: its session is over, or its disk went back
    OTHER = "other"  # it states another receipt in a place that a statement of its own fills
    CONVICTED = "convicted"  # one validator more than may lie has blamed it
    UNKNOWN = "unknown"  # nobody who was asked has told of an outcome


class ChallengeReport(msgspec.Struct, frozen=True):
    """`known` is the accused's last link that was known here, `newest` that of its answer; `block` holds the answer, under
    the signature of the accused, where the answer accuses it.
    """

    outcome: ChallengeEnd
    accused: bytes
    known: StatementLink
    newest: StatementLink | None = None
    block: bytes = b""

    def to_json(self, at_ms: int) -> bytes:
        fields = {
            "outcome": str(self.outcome),
            "message_id": self.known.message_id.hex(),
            "session": self.known.session_id.hex(),
            "source_id": self.accused.hex(),
            "timestamp": at_ms,
            "known": self.known.number,
            "newest": None if self.newest is None else self.newest.number,
            "block": self.block.hex(),
        }
        return msgspec.json.encode(fields)


class _OpenQuestion:
    """A challenge that was asked for. `relays` are those that can still be asked."""

    __slots__ = ("asked", "blamed_by", "due_at", "known", "needed", "relays")

    def __init__(self, known: StatementLink, relays: list[bytes], needed: int, now: float) -> None:
        self.known = known
        self.relays = relays
        self.needed = needed
        self.asked: set[bytes] = set()
        self.blamed_by: set[bytes] = set()
        self.due_at = now


class QuestionBook:
    """Book of the challenges that this node has asked validators for; each message and accused once.

    `record` is called before anything is asked, and raises `StorageError` if that is impossible; `send` sends to a validator
    and returns whether it has a link; `report` gets each outcome once.
    """

    def __init__(
        self,
        random: Random,
        send: Callable[[bytes, bytes], bool],
        report: Callable[[ChallengeReport], None],
        record: Callable[[bytes, bytes], None],
    ) -> None:
        self._random = random
        self._send = send
        self._report = report
        self._record = record
        self._awaited: dict[tuple[bytes, bytes], _OpenQuestion] = {}
        self._asked: dict[bytes, set[bytes]] = {}
        """The accused by message, until the message is forgotten."""

    @property
    def next_wake(self) -> float | None:
        return min((one.due_at for one in self._awaited.values()), default=None)

    def ask(self, accused: bytes, known: StatementLink, members: frozenset[bytes], now: float) -> bool:
        """Ask a member of the session to challenge the accused. Return whether the question is new and was recorded."""
        key = known.message_id, accused
        if accused in self._asked.get(known.message_id, ()) or len(self._awaited) >= ASKED_MAX:
            return False
        relays = sorted(members - {accused})
        self._random.shuffle(relays)
        try:
            self._record(accused, known.message_id)
        except StorageError:
            return False
        self._asked.setdefault(known.message_id, set()).add(accused)
        self._awaited[key] = _OpenQuestion(known, relays, len(members) // 3 + 1, now)
        self._ask_next(key, now)
        return True

    def tick(self, now: float) -> None:
        for key, awaited in list(self._awaited.items()):
            if awaited.due_at <= now:
                self._ask_next(key, now)

    def forget(self, message_id: bytes) -> None:
        """Ask nothing more about a message that is forgotten, or whose end is known."""
        for accused in self._asked.pop(message_id, ()):
            self._awaited.pop((message_id, accused), None)

    def came(
        self,
        relay: bytes,
        outcome: ChallengeOutcome,
        public_key: bytes | None,
        known: StatementLink | None,
        now: float,
    ) -> None:
        """Take what a validator says of a challenge. `public_key` is the accused's, `known` its last link as of now.
        `DecodeError` for an answer that the accused has not signed.
        """
        key = outcome.message_id, outcome.accused
        awaited = self._awaited.get(key)
        if awaited is None or relay not in awaited.asked or public_key is None:
            return
        if not outcome.block:
            is_first = relay not in awaited.blamed_by
            awaited.blamed_by.add(relay)
            if len(awaited.blamed_by) >= awaited.needed:
                self._end(key, ChallengeEnd.CONVICTED)
            elif is_first:
                self._ask_next(key, now)
            return
        newest = answer_in_block(outcome.block, public_key, subject_of(awaited.known))
        if known is not None and known.chain == newest.chain and known.number > awaited.known.number:
            awaited.known = known
        result = _compared(awaited.known, newest)
        self._end(key, result, newest, outcome.block if result is ChallengeEnd.OTHER else b"")

    def _ask_next(self, key: tuple[bytes, bytes], now: float) -> None:
        awaited = self._awaited[key]
        question = AskedChallenge(key[1], awaited.known).encode()
        while awaited.relays and len(awaited.asked) < 2 * awaited.needed:
            relay = awaited.relays.pop()
            if self._send(relay, question):
                awaited.asked.add(relay)
                awaited.due_at = now + ASK_NEXT_S
                return
        if awaited.due_at <= now:
            self._end(key, ChallengeEnd.UNKNOWN)

    def _end(
        self,
        key: tuple[bytes, bytes],
        outcome: ChallengeEnd,
        newest: StatementLink | None = None,
        block: bytes = b"",
    ) -> None:
        awaited = self._awaited.pop(key)
        self._report(ChallengeReport(outcome, key[1], awaited.known, newest, block))


def _compared(known: StatementLink, newest: StatementLink) -> ChallengeEnd:
    """Return what an answer says, beside the last link that is known."""
    if newest.number < known.number:
        return ChallengeEnd.FEWER
    if newest.number == known.number:
        return ChallengeEnd.SAME if newest == known else ChallengeEnd.OTHER
    does_follow = newest.number > known.number + 1 or newest.before == known.receipt
    return ChallengeEnd.FURTHER if does_follow else ChallengeEnd.OTHER


class SilenceWatch:
    """Watch over validators that say nothing while more than a third of the session has closed a message: it asks for
    challenges of them. A message whose end is known needs none. `is_final` returns whether the chain holds a message.
    """

    def __init__(
        self,
        clock: Clock,
        sending: StagedSending,
        complaints: ComplaintBook,
        book: QuestionBook,
        is_final: Callable[[bytes], bool],
        life_ms: int,
    ) -> None:
        self.asked = 0
        self._clock = clock
        self._sending = sending
        self._complaints = complaints
        self._book = book
        self._is_final = is_final
        self._silent_s = SILENT_LIVES * life_ms / 1_000
        self._due: dict[bytes, float] = {}
        """When to look at each message that a validator has closed, the earliest first."""
        self._alarm = Alarm(clock, self._look)

    def heard(self, receipt: Receipt) -> None:
        """Note a receipt that counts: if it closes the message, the others have a part of a message's life to follow."""
        message_id = receipt.message_id
        if place_of(receipt.status) in CLOSED and message_id not in self._due:
            at = self._clock.mono_s() + self._silent_s
            self._due[message_id] = at
            self._alarm.set(at)

    def outcome_came(self, relay: bytes, outcome: ChallengeOutcome, public_key: bytes | None) -> None:
        """Take the outcome of a challenge from a validator; `public_key` is that of the accused, if it is known."""
        known = self._complaints.newest(outcome.message_id, outcome.accused)
        self._book.came(relay, outcome, public_key, known, self._clock.mono_s())
        self._alarm.set(self._book.next_wake)

    def forget(self, message_id: bytes) -> None:
        self._due.pop(message_id, None)
        self._book.forget(message_id)

    def close(self) -> None:
        self._alarm.cancel()

    def _look(self) -> None:
        now = self._clock.mono_s()
        while self._due:
            message_id, at = next(iter(self._due.items()))
            if at > now:
                break
            del self._due[message_id]
            self._challenge_silent(message_id, now)
        self._book.tick(now)
        self._alarm.set(next(iter(self._due.values()), None))
        self._alarm.set(self._book.next_wake)

    def _challenge_silent(self, message_id: bytes, now: float) -> None:
        history = self._sending.get(message_id)
        if history is None or self._is_final(message_id):
            return
        members = history.targets
        over = {one for one, status in history.last_statuses.items() if place_of(status) in CLOSED}
        if not is_more_than_a_third(len(members & over), len(members)):
            return
        for accused in sorted(members - over):
            known = self._complaints.newest(message_id, accused)
            if known is not None:
                self.asked += self._book.ask(accused, known, members, now)
