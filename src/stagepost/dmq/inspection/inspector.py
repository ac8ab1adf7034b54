"""The wire inspector: a captured byte stream in, a report of all messages and the first violation out.

The capture is a run of multiplexer segments: those of one side, or both sides' segments in the order in which
they passed. Nothing waits and nothing is asked for; work is linear in the size of the capture, and memory is
bounded.
"""

from __future__ import annotations

from typing import TypeAlias

from stagepost.dmq import validation as proof
from stagepost.dmq.inspection.connection import ConnectionRules, ProfileEvidence, profiles_with
from stagepost.dmq.inspection.following import BothSides, CapturedMessage, CaptureLane, OneSide
from stagepost.dmq.inspection.report import (
    BrokenRule,
    Coverage,
    InspectionReport,
    InspectionResult,
    Interruption,
    MessageFinding,
    ProtocolRecord,
    SegmentRecord,
)
from stagepost.dmq.inspection.rules import UnplacedFault
from stagepost.dmq.local_notification import ReplyMessagesBlocking, ReplyMessagesNonBlocking
from stagepost.dmq.local_submission import SubmitMessage
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile, profile_of
from stagepost.dmq.submission import ReplyMessages
from stagepost.errors import ConfigError, DecodeError, ErrorCode
from stagepost.ground.wire.mux import SEGMENT_HEADER_BYTES, SegmentHeader, decode_header

CAPTURE_BYTES_MAX = 64 * 1024 * 1024
ENTRIES_MAX = 500_000
"""Segments, messages and elements of their lists in a report; inspection stops there."""

_Follower: TypeAlias = BothSides | OneSide


def inspect_stream(
    data: bytes, *, one_direction: bool | None = None, check_signatures: bool = True
) -> InspectionReport:
    """Return the report on `data`. `one_direction` says which sides the capture holds; None finds out from
    the stream.

    Raise `ConfigError` if there is nothing to inspect, or too much.
    """
    if not data:
        raise ConfigError("the capture is empty", advice="give at least one whole segment")
    if len(data) > CAPTURE_BYTES_MAX:
        text = f"the capture has {len(data)} bytes, at most {CAPTURE_BYTES_MAX} are inspected"
        raise ConfigError(text, advice="give its beginning", limit=CAPTURE_BYTES_MAX, found=len(data))
    if one_direction is None:
        one_direction = _holds_one_direction(data)
    return _Inspection(data, one_direction=one_direction, check_signatures=check_signatures).run()


def _holds_one_direction(data: bytes) -> bool:
    """Return whether the two directions of this capture cannot be the two sides of the same conversations.

    A side that sends in both directions, but only one half of the handshake, runs instances of its own beside
    those that its peer began: that is one side of a duplex connection.
    """
    lanes: set[int] = set()
    at = 0
    while len(data) - at >= SEGMENT_HEADER_BYTES:
        try:
            header = decode_header(data, at)
        except DecodeError:
            break
        lanes.add(header.lane)
        at += SEGMENT_HEADER_BYTES + header.length
    directions = {lane >> 15 for lane in lanes}
    handshakes = sum(lane & 0x7FFF == 0 for lane in lanes)
    return len(directions) < 2 or handshakes == 1


class _Inspection:
    """Run over one capture."""

    def __init__(self, data: bytes, *, one_direction: bool, check_signatures: bool) -> None:
        self._data = data
        self._one_direction = one_direction
        self._check_signatures = check_signatures
        self._connection = ConnectionRules(checks_order=not one_direction)
        self._evidence = ProfileEvidence()
        self._segments: list[SegmentRecord] = []
        self._messages: list[ProtocolRecord] = []
        self._entries = 0
        self._lanes: dict[int, CaptureLane] = {}
        self._followers: dict[int, _Follower] = {}

    def run(self) -> InspectionReport:
        at = 0
        while at < len(self._data):
            if len(self._data) - at < SEGMENT_HEADER_BYTES:
                text = f"the stream ends {len(self._data) - at} bytes into a segment header"
                return self._report(InspectionResult.TRUNCATED, unfinished=Interruption(at, text))
            broken = self._segment(at)
            if broken is not None:
                return self._report(InspectionResult.VIOLATION, broken=broken)
            if self._entries >= ENTRIES_MAX:
                text = f"the report is full: it holds {ENTRIES_MAX} segments, messages and list elements"
                return self._report(InspectionResult.STOPPED, unfinished=Interruption(at, text))
            length = self._segments[-1].length
            payload_bytes = len(self._data) - at - SEGMENT_HEADER_BYTES
            if payload_bytes < length:
                text = f"the stream ends {payload_bytes} bytes into a segment of {length}"
                return self._report(InspectionResult.TRUNCATED, unfinished=Interruption(at, text))
            at += SEGMENT_HEADER_BYTES + length
        unfinished = self._unfinished_message()
        return self._report(
            InspectionResult.TRUNCATED if unfinished else InspectionResult.CLEAN, unfinished=unfinished
        )

    def _segment(self, at: int) -> BrokenRule | None:
        """Take in the segment at `at`, or the part of it that is there."""
        try:
            header = decode_header(self._data, at)
        except DecodeError as error:
            number = int.from_bytes(self._data[at + 4 : at + 6], "big")
            text = "the segment is empty: its length is 0"
            fault = UnplacedFault(at, error.code, "EmptySegment", text, "a length of 1 to 65535")
            return self._at_segment(fault, SegmentHeader(0, number, 0), None)
        known = profile_of(header.protocol, PROFILES.values())
        if known is None:
            text = f"no profile has a mini-protocol {header.protocol}"
            code = ErrorCode.MUX_UNKNOWN_PROTOCOL
            fault = UnplacedFault(at, code, "UnknownMiniProtocol", text, _known_numbers())
            return self._at_segment(fault, header, None)
        profile, protocol = known
        refusal = self._connection.refuses(at, header.protocol, protocol)
        if refusal is not None:
            return self._at_segment(refusal, header, protocol)
        self._segments.append(
            SegmentRecord(
                at,
                header.timestamp_us,
                header.protocol,
                header.direction,
                header.length,
                protocol,
                profiles_with(header.protocol),
            )
        )
        self._entries += 1
        self._evidence.number(header.protocol, protocol, at, header.direction)
        lane = self._lanes.get(header.lane)
        if lane is None:
            lane = self._lanes[header.lane] = CaptureLane(header.protocol, header.direction)
        start = at + SEGMENT_HEADER_BYTES
        lane.feed(self._data[start : start + header.length], start, len(self._segments) - 1)
        return self._follow(lane, profile, protocol)

    def _at_segment(
        self, fault: UnplacedFault, header: SegmentHeader, protocol: MiniProtocol | None
    ) -> BrokenRule:
        return BrokenRule(
            fault.at,
            fault.code,
            fault.rule,
            header.direction,
            fault.text,
            fault.allowed,
            header.protocol,
            protocol,
            segment=len(self._segments),
        )

    def _follow(self, lane: CaptureLane, profile: Profile, protocol: MiniProtocol) -> BrokenRule | None:
        while lane.buffered and self._entries < ENTRIES_MAX:
            follower = self._follower(lane, profile, protocol)
            if follower is None:
                return None
            said = follower.take(lane)
            if said is None:
                return None
            if isinstance(said, CapturedMessage):
                fault = self._connection.heard(said, protocol)
                if fault is None:
                    self._record(said, lane, protocol, follower.instance)
                    continue
                said = fault
            return _in_message(said, lane, protocol)
        return None

    def _follower(self, lane: CaptureLane, profile: Profile, protocol: MiniProtocol) -> _Follower | None:
        """Return the follower of the lane; None while the version of submission is not known yet."""
        key = lane.number | (lane.direction << 15 if self._one_direction else 0)
        follower = self._followers.get(key)
        if follower is None:
            version = self._connection.submission_version(profile, protocol, lane)
            if version is None:
                return None
            follower = self._followers[key] = (
                OneSide(profile, protocol, version, lane.role)
                if self._one_direction
                else BothSides(profile, protocol, version)
            )
        return follower

    def _record(
        self, said: CapturedMessage, lane: CaptureLane, protocol: MiniProtocol, instance: int
    ) -> None:
        offset, segment = lane.place(said.base)
        findings = findings_of(said, lane, check_signatures=self._check_signatures)
        self._messages.append(
            ProtocolRecord(
                offset,
                len(said.item),
                segment,
                lane.number,
                protocol,
                lane.direction,
                instance,
                said.state,
                said.message,
                said.flavour,
                findings,
            )
        )
        self._entries += 1 + elements(said.message)
        self._evidence.message(said.message, said.item, said.flavour, lane.number, offset, lane.direction)
        if protocol is MiniProtocol.HANDSHAKE and self._connection.agreed is not None:
            self._evidence.version(self._connection.agreed.version, offset, lane.direction)

    def _unfinished_message(self) -> Interruption | None:
        """Return the incomplete message that began first."""
        begun = [(lane.place(lane.offset)[0], lane) for lane in self._lanes.values() if lane.buffered]
        if not begun:
            return None
        offset, lane = min(begun, key=lambda entry: entry[0])
        protocol = profile_of(lane.number, PROFILES.values())
        name = protocol[1].value if protocol is not None else str(lane.number)
        text = f"the stream ends {lane.buffered} bytes into a message of {name}"
        return Interruption(offset, text)

    def _report(
        self,
        verdict: InspectionResult,
        *,
        broken: BrokenRule | None = None,
        unfinished: Interruption | None = None,
    ) -> InspectionReport:
        return InspectionReport(
            verdict=verdict,
            bytes_total=len(self._data),
            coverage=Coverage.ONE_DIRECTION if self._one_direction else Coverage.BOTH_DIRECTIONS,
            segments=tuple(self._segments),
            messages=tuple(self._messages),
            profiles=self._evidence.profiles,
            evidence=self._evidence.found,
            flavours=self._evidence.flavours,
            submission_version=self._connection.submission_seen,
            agreed=self._connection.agreed,
            broken=broken,
            unfinished=unfinished,
        )


def _in_message(fault: UnplacedFault, lane: CaptureLane, protocol: MiniProtocol) -> BrokenRule:
    offset, segment = lane.place(fault.at)
    message_offset = None if fault.message_at is None else lane.place(fault.message_at)[0]
    return BrokenRule(
        offset,
        fault.code,
        fault.rule,
        lane.direction,
        fault.text,
        fault.allowed,
        lane.number,
        protocol,
        fault.state,
        message_offset,
        segment,
    )


def _known_numbers() -> str:
    numbers = sorted({number for profile in PROFILES.values() for number in profile.numbers.values()})
    return f"one of the numbers {', '.join(map(str, numbers))}"


_CHECKS = (proof.check_id, proof.check_period, proof.check_certificate, proof.check_kes_signature)


def findings_of(
    said: CapturedMessage, lane: CaptureLane, *, check_signatures: bool
) -> tuple[MessageFinding, ...]:
    found = []
    searched = 0
    for message in _carried(said.message):
        # Each message kept its own bytes, so they stand in the item, one after the other.
        start = said.item.index(message.raw, searched)
        searched = start + len(message.raw)
        offset, _ = lane.place(said.base + start)
        found.append(_finding(message, offset, check_signatures))
    return tuple(found)


def elements(message: object) -> int:
    """Return the number of list elements that `message` keeps in memory."""
    names: tuple[str, ...] = getattr(message, "__struct_fields__", ())
    values = (getattr(message, name) for name in names)
    return sum(len(value) for value in values if isinstance(value, tuple))


def _carried(message: object) -> tuple[DmqMessage, ...]:
    match message:
        case SubmitMessage(DmqMessage() as submitted):
            return (submitted,)
        case ReplyMessages(messages) | ReplyMessagesBlocking(messages) | ReplyMessagesNonBlocking(messages):
            return messages
        case _:
            return ()


def _finding(message: DmqMessage, offset: int, check_signatures: bool) -> MessageFinding:
    faults: list[Rejected] = []
    if check_signatures:
        faults = [fault for check in _CHECKS if (fault := check(message)) is not None]
    return MessageFinding(
        offset,
        message.message_id,
        message.pool_id,
        len(message.raw),
        message.kes_period,
        message.kes_evolution,
        message.expires_at,
        message.layout.value,
        tuple(faults),
    )
