"""The report of an inspection of a captured byte stream: values only, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stagepost.dmq.outcome import Rejected
from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import MessageId, PoolId
from stagepost.ground.wire.mux import Direction


class InspectionResult(Enum):
    """Result of an inspection. The value is the word that people read."""

    CLEAN = "clean"
    VIOLATION = "violation"
    TRUNCATED = "truncated"
    STOPPED = "stopped"  # more content than a report holds: what was read so far is clean


class Coverage(Enum):
    """Part of the conversation that the capture shows."""

    BOTH_DIRECTIONS = "both directions"
    ONE_DIRECTION = "one direction only: order not checked"


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """Segment of the capture. `offset` is that of its header; `length` counts the payload that the header
    announces."""

    offset: int
    timestamp_us: int
    number: int
    direction: Direction
    length: int
    protocol: MiniProtocol
    profiles: tuple[str, ...]  # those that use this number


@dataclass(frozen=True, slots=True)
class MessageFinding:
    """DMQ message inside a protocol message, and the faults in its proof. A bad message breaks no protocol
    rule."""

    offset: int
    message_id: MessageId
    pool_id: PoolId
    size_in_bytes: int
    kes_period: int
    kes_evolution: int
    expires_at: int
    elements: int
    faults: tuple[Rejected, ...]

    @property
    def is_valid(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class ProtocolRecord:
    """Protocol message. `state` is the state in which it was sent; "" where one direction alone does not show
    it."""

    offset: int
    size: int
    segment: int  # index of the segment in which it begins
    number: int
    protocol: MiniProtocol
    direction: Direction
    instance: int  # counts the runs of this mini-protocol in the capture, from 1
    state: str
    message: object
    flavour: str | None  # the only dialect that writes this message so; None if all do
    findings: tuple[MessageFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """First violation: its place, the rule, the side that broke it, and what would have been right."""

    offset: int
    code: ErrorCode
    rule: str
    direction: Direction
    text: str
    allowed: str
    number: int
    protocol: MiniProtocol | None
    state: str = ""
    message_offset: int | None = None  # of the message that it lies in; None if a segment itself is at fault
    segment: int = 0


@dataclass(frozen=True, slots=True)
class Interruption:
    """Place where the capture, or the report, ends in the middle of something."""

    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class ProfileFeature:
    """Feature of the stream that only some profiles have, and the place where it was first seen."""

    offset: int
    direction: Direction
    text: str
    profiles: frozenset[str]


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """Result of the handshake in the capture; None for values that the data do not show."""

    version: int
    kind: str | None = None
    network_magic: int | None = None
    peer_sharing: bool | None = None


@dataclass(frozen=True, slots=True)
class InspectionReport:
    verdict: InspectionResult
    bytes_total: int
    coverage: Coverage
    segments: tuple[SegmentRecord, ...]
    messages: tuple[ProtocolRecord, ...]
    profiles: tuple[str, ...]  # that fit all evidence; none of them: a mixture
    evidence: tuple[ProfileFeature, ...]
    flavours: tuple[str, ...]
    submission_version: int | None
    agreed: HandshakeResult | None
    broken: BrokenRule | None = None
    unfinished: Interruption | None = None

    @property
    def profile(self) -> str:
        """The profile as one phrase."""
        if self.profiles:
            return " or ".join(self.profiles)
        told = sorted({name for piece in self.evidence for name in piece.profiles})
        return f"mixture of {' and '.join(told)}" if told else "unknown"

    @property
    def findings(self) -> tuple[MessageFinding, ...]:
        return tuple(finding for record in self.messages for finding in record.findings)
