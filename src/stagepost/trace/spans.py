"""The trace of a message as spans of OpenTelemetry: one tree, made from the same record as the page, and nothing else.

    message                       from the first step to the end; its parent is the caller's span, where there is one
    ├── program                   a span for each lane: program, DMQ nodes, peers, recipients, full node, validators
    │   ├── published             a span for each step of the lane, from the step before it
    │   └── sent
    ├── chain                     queued, included, accepted and final, as the verdict counts them
    └── end                       the end of the message, with the proof where there is one

All ids follow from the message's id, so that a record that is read twice gives the same spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from hashlib import sha256

import msgspec

from stagepost.ground.wire.trace_context import SPAN_ID_BYTES, TRACE_ID_BYTES, TraceParent
from stagepost.remp.verdict.trace import Lane, Mark, Point, StepLane, Trace, WayStep
from stagepost.remp.verdict.verdict import Conclusion
from stagepost.remp.verdict.words import end_words
from stagepost.trace.reasons import member_name, why

SPANS_MAX = 2_000
"""Spans, at most, of one message: strangers may add any number of steps to its record."""
TEXT_CHARACTERS_MAX = 500
"""Characters, at most, of a text that a span carries: reasons come from other machines."""
ROOT = "message"

_DOMAIN = b"stagepost span 1\0"
_GOOD = frozenset(one.value for one in (Conclusion.FINALIZED, Conclusion.ACCEPTED, Conclusion.INCLUDED))
_BAD = frozenset(
    one.value
    for one in (
        Conclusion.EXECUTED_AS,
        Conclusion.REJECTED,
        Conclusion.REJECTED_BY_FULLNODE,
        Conclusion.EXPIRED,
        Conclusion.LIKELY_REJECTED,
    )
)
_BAD_MARKS = (Mark.NEVER, Mark.UNTRUSTED)

Attribute = str | int | bool


class SpanStatus(Enum):
    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


class SpanRecord(msgspec.Struct, frozen=True):
    """A span. `parent_id` is empty for the root of a trace. Times are Unix milliseconds."""

    name: str
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    start_ms: int
    end_ms: int
    attributes: dict[str, Attribute] = {}
    status: SpanStatus = SpanStatus.UNSET
    status_text: str = ""


def has_ended(trace: Trace) -> bool:
    """Return whether the record is whole: nodes and recipients say nothing more about the message."""
    if trace.proved is not None:
        return True
    return trace.way.has_ended if trace.verdict is None else not trace.is_open


def spans_of(trace: Trace) -> list[SpanRecord]:
    """Return the spans of a message, each after its parent; none if the record holds no step yet."""
    return list(_Tree(trace).spans())[:SPANS_MAX]


class _Tree:
    def __init__(self, trace: Trace) -> None:
        parent = TraceParent.parse(trace.way.traceparent) if trace.way.traceparent else None
        self._trace = trace
        self._trace_id = trace.message_id[:TRACE_ID_BYTES] if parent is None else parent.trace_id
        self._caller = b"" if parent is None else parent.span_id
        self._root = self._id(ROOT)

    def spans(self) -> Iterator[SpanRecord]:
        trace = self._trace
        times = [step.timestamp_ms for lane in trace.way.lanes for step in lane.points]
        times += [point.timestamp_ms for point in trace.points if point.refused is None]
        if not times:
            return
        start_ms, end_ms = min(times), max(times)
        if trace.verdict is not None and trace.verdict.timeout_ms is not None:
            end_ms = max(end_ms, trace.verdict.timeout_ms)
        status, text = self._outcome()
        yield SpanRecord(
            ROOT,
            self._trace_id,
            self._root,
            self._caller,
            start_ms,
            end_ms,
            self._attributes(),
            status,
            text,
        )
        for way_lane in trace.way.lanes:
            yield from self._lane(f"way {way_lane.name}", way_lane.name, way_lane, {})
        for lane in trace.lanes:
            yield from self._lane(f"lane {lane.name}", lane.name, lane, _member(lane))
        yield from self._chain()
        if has_ended(trace):
            yield self._end(end_ms, status, text)

    def _lane(
        self, path: str, name: str, lane: StepLane | Lane, attributes: dict[str, Attribute]
    ) -> Iterator[SpanRecord]:
        """Yield the span of a lane, and one for each of its steps, which lasts since the step before it."""
        points: tuple[WayStep | Point, ...] = tuple(lane.points)
        if not points:
            return
        own = self._id(path)
        first_ms = points[0].timestamp_ms
        last = points[-1]
        yield self._span(name, own, self._root, first_ms, last.timestamp_ms, attributes, *_step_status(last))
        before_ms = first_ms
        for place, point in enumerate(points):
            step_name, about = _step_words(point)
            yield self._span(
                step_name,
                self._id(f"{path} {place}"),
                own,
                before_ms,
                point.timestamp_ms,
                about,
                *_step_status(point),
            )
            before_ms = point.timestamp_ms

    def _chain(self) -> Iterator[SpanRecord]:
        verdict = self._trace.verdict
        if verdict is None:
            return
        stages = [
            ("queued", verdict.queued_ms),
            ("included", verdict.included_ms),
            ("accepted", verdict.accepted_ms),
            ("final", verdict.finalized_ms),
        ]
        reached = [(name, at_ms) for name, at_ms in stages if at_ms is not None]
        if not reached:
            return
        begin_ms = min(at_ms for _, at_ms in reached)
        if verdict.sent_ms is not None:
            begin_ms = min(begin_ms, verdict.sent_ms)
        own = self._id("chain")
        yield self._span("chain", own, self._root, begin_ms, max(at_ms for _, at_ms in reached), {})
        before_ms = begin_ms
        for name, at_ms in reached:
            yield self._span(name, self._id(f"chain {name}"), own, min(before_ms, at_ms), at_ms, {})
            before_ms = at_ms

    def _end(self, end_ms: int, status: SpanStatus, text: str) -> SpanRecord:
        trace = self._trace
        attributes: dict[str, Attribute] = {"stagepost.end": trace.words}
        if trace.verdict is not None:
            attributes["stagepost.end.proved"] = trace.proved is not None
            attributes["stagepost.end.words"] = end_words(trace.verdict)
        if trace.proved is not None:
            attributes["stagepost.proof.kind"] = trace.proved.kind
            attributes["stagepost.proof.block"] = trace.proved.block
            attributes["stagepost.proof.signers"] = trace.proved.signers
            attributes["stagepost.proof.validators"] = trace.proved.validators
        return self._span("end", self._id("end"), self._root, end_ms, end_ms, attributes, status, text)

    def _span(
        self,
        name: str,
        span_id: bytes,
        parent_id: bytes,
        start_ms: int,
        end_ms: int,
        attributes: dict[str, Attribute],
        status: SpanStatus = SpanStatus.UNSET,
        text: str = "",
    ) -> SpanRecord:
        bounded = {
            key: value[:TEXT_CHARACTERS_MAX] if isinstance(value, str) else value
            for key, value in attributes.items()
        }
        return SpanRecord(
            name[:TEXT_CHARACTERS_MAX],
            self._trace_id,
            span_id,
            parent_id,
            min(start_ms, end_ms),
            end_ms,
            bounded,
            status,
            text[:TEXT_CHARACTERS_MAX],
        )

    def _id(self, path: str) -> bytes:
        return sha256(_DOMAIN + self._trace.message_id + path.encode()).digest()[:SPAN_ID_BYTES]

    def _attributes(self) -> dict[str, Attribute]:
        trace = self._trace
        found: dict[str, Attribute] = {
            "messaging.system": "stagepost",
            "messaging.message.id": trace.message_id.hex(),
            "stagepost.state": trace.words,
            "stagepost.reason": why(trace)[:TEXT_CHARACTERS_MAX],
        }
        if trace.way.topic is not None:
            found["messaging.destination.name"] = trace.way.topic
        if trace.way.payload is not None:
            found["messaging.message.body.size"] = len(trace.way.payload)
        for layer, identifier in trace.way.names:
            found.setdefault(f"stagepost.{layer.replace(' ', '_').lower()}", identifier)
        return {key: value for key, value in found.items() if value != ""}

    def _outcome(self) -> tuple[SpanStatus, str]:
        trace = self._trace
        if trace.verdict is None:
            if trace.way.words in ("Failed", "Refused"):
                return SpanStatus.ERROR, (trace.way.why or trace.way.words)[:TEXT_CHARACTERS_MAX]
            return (SpanStatus.OK if trace.way.has_ended else SpanStatus.UNSET), ""
        if trace.verdict.verdict in _BAD:
            return SpanStatus.ERROR, (why(trace) or trace.words)[:TEXT_CHARACTERS_MAX]
        return (SpanStatus.OK if trace.verdict.verdict in _GOOD else SpanStatus.UNSET), ""


def _member(lane: Lane) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {"stagepost.source": member_name(lane)}
    if lane.source_id is not None:
        found["stagepost.source_id"] = lane.source_id.hex()
    return found


def _step_words(point: WayStep | Point) -> tuple[str, dict[str, Attribute]]:
    """Return the name of a step, which is one of few, and its attributes."""
    attributes: dict[str, Attribute] = {"stagepost.step": point.label}
    if isinstance(point, Point):
        attributes["stagepost.signature"] = "counts" if point.refused is None else str(point.refused.reason)
        return point.receipt.kind.name, attributes
    return point.label.partition(":")[0].partition(",")[0].partition(" by ")[0].partition(" from ")[
        0
    ], attributes


def _step_status(point: WayStep | Point) -> tuple[SpanStatus, str]:
    if point.mark in _BAD_MARKS:
        return SpanStatus.ERROR, point.label[:TEXT_CHARACTERS_MAX]
    return SpanStatus.UNSET, ""
