"""The life of one message, as its receipts tell it: the verdict, and a lane for every source that has spoken
or should have.

Nothing is altered and nothing left out: a receipt that does not count stands in its lane with the reason, and
a silent source has an empty lane.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec

from stagepost.errors import ErrorCode
from stagepost.remp.receipts.message_status import Accepted, SentToValidators, block_of
from stagepost.remp.receipts.receipt import Counting, Quarantined, Receipt, check
from stagepost.remp.receipts.status import Kind, Status, is_finally_accepted
from stagepost.remp.receipts.status_records import StatusRecord, read_record
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.state import MessageState, ProvedEnd
from stagepost.remp.verdict.verdict import Verdict, evaluate
from stagepost.remp.verdict.words import verdict_words


class Mark(Enum):
    """The meaning of a point of a lane; the value is the sign that text shows."""

    QUEUED = "○"
    ON_ITS_WAY = "●"
    FINAL = "◆"
    NEVER = "✕"
    RETURNED = "↩"
    DUPLICATE = "◦"
    UNTRUSTED = "⚠"


_TROUBLES = (Mark.NEVER, Mark.RETURNED, Mark.UNTRUSTED)
"""Marks that a person should look at."""


class Point(msgspec.Struct, frozen=True):
    """A receipt in a lane. `refused` is None for one that counts."""

    receipt: Receipt
    mark: Mark
    refused: Quarantined | None
    position: str

    @property
    def timestamp_ms(self) -> int:
        return self.receipt.timestamp_ms

    @property
    def is_trouble(self) -> bool:
        return self.mark in _TROUBLES

    @property
    def label(self) -> str:
        """Text beside the lane."""
        words = self.receipt.kind.name
        if isinstance(self.receipt.status, SentToValidators):
            words += f" {self.receipt.status.sent_to}/{self.receipt.status.total_validators}"
        if self.refused is not None:
            words += f": {_REFUSED_WORDS.get(self.refused.reason, self.refused.text)}"
        error = getattr(self.receipt.status, "error", "")
        return f"{words}: {error}" if error else words


_REFUSED_WORDS = {
    ErrorCode.RECEIPT_SIGNATURE: "SIGNATURE INVALID",
    ErrorCode.RECEIPT_UNSIGNED: "UNSIGNED",
    ErrorCode.RECEIPT_SOURCE: "UNKNOWN SIGNER",
    ErrorCode.RECEIPT_FUTURE: "DATED IN THE FUTURE",
    ErrorCode.RECEIPT_ROLE: "NOT FOR THIS ROLE TO SAY",
}


class Lane(msgspec.Struct, frozen=True):
    """The receipts of one source: a full node, a member of the deciding session, or another. Points are in
    order of time.
    """

    name: str
    source_id: bytes | None
    points: tuple[Point, ...]
    seat: int | None = None
    """Index in the deciding session; None for sources that are not its members."""
    address: str | None = None

    @property
    def troubles(self) -> tuple[Point, ...]:
        """Points worth a word. A `Duplicate` is none: it only says that another validator was faster."""
        return tuple(point for point in self.points if point.is_trouble)

    @property
    def last(self) -> Point | None:
        """The last point that counts; None if none does."""
        counting = [point for point in self.points if point.refused is None]
        return counting[-1] if counting else None


class WayStep(msgspec.Struct, frozen=True):
    """Something that happened to a message before the full node, with its words."""

    timestamp_ms: int
    mark: Mark
    label: str


class StepLane(msgspec.Struct, frozen=True):
    """The steps of the program, of a DMQ node, of its peers or of a recipient, in order of time."""

    name: str
    points: tuple[WayStep, ...]

    @property
    def troubles(self) -> tuple[WayStep, ...]:
        return tuple(step for step in self.points if step.mark in _TROUBLES)


EXTERNAL_LAYER = "external message id"
"""Name of the layer whose ids are those of the chain."""


class Way(msgspec.Struct, frozen=True):
    """The way of a message from the program to the network: its lanes, its ids with the names of their layers, the topic
    and the payload of reliable delivery, and the state of the delivery in words, with the reason for it.
    """

    lanes: tuple[StepLane, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    topic: str | None = None
    payload: bytes | None = None
    words: str = ""
    why: str = ""
    reached: tuple[str, ...] = ()
    """Of `stored`, `sent` and `acked`: what the delivery has reached."""
    has_ended: bool = False
    """True if the delivery is all that will happen to the message, and is over."""
    traceparent: str = ""
    """W3C trace context of the caller that published the message; empty if there is none."""


class Trace(msgspec.Struct, frozen=True):
    """`verdict` is None if no receipt counts. `unreadable` are records under the message's key that are not
    receipts. `way` is the part before the full node, where records tell of it.
    """

    message_id: bytes
    verdict: Verdict | None
    lanes: tuple[Lane, ...]
    unreadable: tuple[tuple[str, Quarantined], ...]
    as_of_ms: int | None
    message_timeout_ms: int
    dmq_id: str | None
    delivery_id: str | None
    proved: ProvedEnd | None = None
    way: Way = Way()

    @property
    def words(self) -> str:
        """Return the state of the message: the verdict where there is one, else that of its delivery."""
        return (
            verdict_words(self.verdict) if self.verdict is not None or not self.way.words else self.way.words
        )

    @property
    def points(self) -> list[Point]:
        return sorted(
            (point for lane in self.lanes for point in lane.points), key=lambda point: point.timestamp_ms
        )

    @property
    def is_open(self) -> bool:
        return self.verdict is not None and self.verdict.is_open

    @property
    def first_ms(self) -> int | None:
        """Time at which the message's life begins on screens: that of its first step, or of the first receipt that counts.

        A full node reports its sending after it is done, and the first validators may have answered by then.
        """
        points = [point for point in self.points if point.refused is None] or self.points
        times = [points[0].timestamp_ms] if points else []
        times += [lane.points[0].timestamp_ms for lane in self.way.lanes if lane.points]
        return min(times, default=None)


def trace_of(
    message_id: bytes,
    records: Iterable[StatusRecord],
    sets: ValidatorSets,
    as_of_ms: int | None,
    *,
    message_timeout_ms: int | None = None,
    proved: ProvedEnd | None = None,
) -> Trace:
    """Return the trace of a message. `records` are all records of it: by their key, or by the id inside. `proved` is its
    end, if a checked proof shows one.
    """
    state = MessageState()
    state.proved = proved
    points: dict[bytes, dict[tuple[bytes, str], Point]] = {}
    unreadable: list[tuple[str, Quarantined]] = []
    ids: dict[str, str] = {}
    for record in records:
        receipt = read_record(record)
        if isinstance(receipt, Quarantined):
            unreadable.append((record.position, receipt))
            continue
        outcome = check(receipt, sets, record.arrived_ms)
        refused = outcome if isinstance(outcome, Quarantined) else None
        if isinstance(outcome, Counting):
            state.add(outcome, record.session_hint)
            for name in ("dmq_id", "delivery_id"):
                if name in record.headers:
                    ids.setdefault(name, record.headers[name])
        point = Point(receipt, _mark(receipt.kind, refused), refused, record.position)
        # Copies of one receipt say it once.
        said = points.setdefault(receipt.source_id, {})
        said.setdefault((receipt.signed_bytes, receipt.signature_text), point)
    verdict = evaluate(state, sets, as_of_ms, message_timeout_ms=message_timeout_ms)
    timeout_ms = sets.message_timeout_ms if message_timeout_ms is None else message_timeout_ms
    lanes = _lanes({source: list(said.values()) for source, said in points.items()}, verdict, sets)
    return Trace(
        message_id,
        verdict,
        tuple(lanes),
        tuple(unreadable),
        as_of_ms,
        timeout_ms,
        ids.get("dmq_id"),
        ids.get("delivery_id"),
        proved,
    )


def _lanes(points: dict[bytes, list[Point]], verdict: Verdict | None, sets: ValidatorSets) -> list[Lane]:
    """Return the lanes: full nodes first, then every member of the deciding session, then all other sources."""
    lanes: list[Lane] = []
    full_nodes = [source for source in points if source in sets.full_nodes]
    for number, source in enumerate(sorted(full_nodes), start=1):
        name = "full node" if len(full_nodes) == 1 else f"full node {number}"
        lanes.append(_lane(name, source, points.pop(source)))
    if verdict is not None and verdict.session_id is not None:
        session = sets.sessions[bytes.fromhex(verdict.session_id)]
        # Seats change with each session; people look for a machine by its name.
        for validator in sorted(session.validators, key=lambda one: sets.name_order(one.key_id, one.index)):
            found = _lane(
                sets.name_of(validator.key_id, validator.index),
                validator.key_id,
                points.pop(validator.key_id, []),
            )
            address = sets.addresses.get(validator.key_id)
            lanes.append(msgspec.structs.replace(found, seat=validator.index, address=address))
    for source in sorted(points):
        lanes.append(_lane(_other_name(source, sets), source, points[source]))
    return lanes


def _other_name(source: bytes, sets: ValidatorSets) -> str:
    """Return the name of a member of another session, or of a stranger."""
    memberships = sets.memberships(source)
    if not memberships:
        return f"unknown {source.hex()[:6]}"
    session, validator = max(memberships.values(), key=lambda found: found[0].age_key)
    return f"{sets.name_of(source, validator.index)} of {session.catchain_seqno}"


def _lane(name: str, source: bytes, points: list[Point]) -> Lane:
    return Lane(name, source, tuple(sorted(points, key=_order)))


def _order(point: Point) -> tuple[int, int, int]:
    kind = point.receipt.kind
    return point.timestamp_ms, int(kind.level), kind.rank


def _mark(kind: Kind, refused: Quarantined | None) -> Mark:
    if refused is not None:
        return Mark.UNTRUSTED
    match kind.status:
        case Status.NEW:
            return Mark.QUEUED
        case Status.ACCEPTED:
            return Mark.FINAL if is_finally_accepted(kind) else Mark.ON_ITS_WAY
        case Status.SENT_TO_VALIDATORS:
            return Mark.ON_ITS_WAY
        case Status.REJECTED | Status.TIMEOUT:
            return Mark.NEVER
        case Status.IGNORED:
            return Mark.RETURNED
        case Status.DUPLICATE:
            return Mark.DUPLICATE


def block_named(trace: Trace) -> tuple[str | None, int | None]:
    """Return the shard of the block that included the message, and the master block's number, from the
    receipt nearest to finality.
    """
    shard: str | None = None
    master_seqno: int | None = None
    best = -1
    for point in trace.points:
        status = point.receipt.status
        if point.refused is None and isinstance(status, Accepted) and status.level >= best:
            block = block_of(status)
            if block.is_named:
                best, shard = status.level, f"{block.workchain}:{block.shard:016x}"
            if status.master_id.is_named:
                master_seqno = status.master_id.seqno
    return shard, master_seqno


def signatures_valid(trace: Trace) -> tuple[int, int]:
    """Return how many of all distinct receipts count, and how many there are."""
    points = trace.points
    return sum(point.refused is None for point in points), len(points)
