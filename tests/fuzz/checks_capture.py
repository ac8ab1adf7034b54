"""What must hold for the wire inspector: any capture gets a report, and the report fits the capture."""

from __future__ import annotations

from functools import partial
from zlib import crc32

from stagepost.dmq import local_notification, local_submission, submission
from stagepost.dmq.inspection.inspector import inspect_stream
from stagepost.dmq.inspection.report import InspectionReport
from stagepost.dmq.inspection.report import InspectionResult as ReportVerdict
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for
from stagepost.errors import ConfigError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.net import handshake
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.wire.mux import SEGMENT_HEADER_BYTES, Direction, lane_number, split_payload
from tests.fuzz.harness import Verdict, attempt, require
from tests.fuzz.samples import NETWORK_MAGIC, a_message, an_older_message, streams

# Signatures cost more than all the rest, and are not read from the stream: one input in so many has them checked.
SIGNATURES_EVERY = 16


def check_capture(data: bytes) -> Verdict:
    choice = crc32(data)
    found = None
    for one_direction in (None, choice % 2 == 0):
        inspect = partial(
            inspect_stream,
            data,
            one_direction=one_direction,
            check_signatures=choice % SIGNATURES_EVERY == 0,
        )
        report = attempt(inspect, len(data), ConfigError)
        require((report is None) == (not data), "a capture was refused, or an empty one was not")
        if report is not None:
            _check_report(report, data)
            found = found or report
    clean = found is not None and found.verdict is ReportVerdict.CLEAN
    return Verdict.ACCEPTED if clean else Verdict.REFUSED


def _check_report(report: InspectionReport, data: bytes) -> None:
    require(report.bytes_total == len(data), "the report is of another capture")
    require(
        (report.broken is not None) == (report.verdict is ReportVerdict.VIOLATION),
        "verdict and violation differ",
    )
    at = 0
    for segment in report.segments:
        require(segment.offset == at, f"a segment at {segment.offset}, expected at {at}")
        at += SEGMENT_HEADER_BYTES + segment.length
    offsets = [message.offset for message in report.messages]
    offsets += [finding.offset for message in report.messages for finding in message.findings]
    if report.broken is not None:
        offsets.append(report.broken.offset)
        require(bool(report.broken.text and report.broken.rule), "a violation without a rule or a text")
    if report.unfinished is not None:
        offsets.append(report.unfinished.offset)
    require(all(0 <= offset <= len(data) for offset in offsets), f"offsets outside of the capture: {offsets}")


def capture_samples() -> tuple[bytes, ...]:
    node = [_node_capture(profile) for profile in PROFILES.values()]
    local = [_local_capture(profile) for profile in PROFILES.values()]
    return (*node, *local, *streams())


def _node_capture(profile: Profile) -> bytes:
    """A handshake, then one message announced, asked for and sent, in version 1."""
    message = an_older_message() if profile.follows_documents else a_message()
    message_id = MessageId(message.message_id)
    announced = submission.MessageIdAndSize(message_id, len(message.raw))
    said: list[tuple[Direction, object]] = [
        (Direction.INITIATOR, submission.Init()),
        (Direction.RESPONDER, submission.RequestMessageIds(blocking=True, acknowledged=0, requested=3)),
        (Direction.INITIATOR, submission.ReplyMessageIds((announced,))),
        (Direction.RESPONDER, submission.RequestMessages((message_id,))),
        (Direction.INITIATOR, submission.ReplyMessages((message,))),
        (Direction.RESPONDER, submission.RequestMessageIds(blocking=True, acknowledged=1, requested=3)),
        (Direction.INITIATOR, submission.Done()),
    ]
    return _handshake(profile, ConnectionKind.NODE) + _segments(
        profile, MiniProtocol.MESSAGE_SUBMISSION, said
    )


def _local_capture(profile: Profile) -> bytes:
    submitted: list[tuple[Direction, object]] = [
        (Direction.INITIATOR, local_submission.SubmitMessage(a_message())),
        (Direction.RESPONDER, local_submission.RejectMessage(local_submission.Expired())),
        (Direction.INITIATOR, local_submission.Done()),
    ]
    notified: list[tuple[Direction, object]] = [
        (Direction.INITIATOR, local_notification.RequestMessages(blocking=True)),
        (Direction.RESPONDER, local_notification.ReplyMessagesBlocking((a_message(),))),
        (Direction.INITIATOR, local_notification.ClientDone()),
    ]
    return (
        _handshake(profile, ConnectionKind.CLIENT)
        + _segments(profile, MiniProtocol.LOCAL_MESSAGE_SUBMISSION, submitted)
        + _segments(profile, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, notified)
    )


def _handshake(profile: Profile, kind: ConnectionKind) -> bytes:
    terms = profile.proposal_terms(kind, VersionData(NETWORK_MAGIC))
    answer, _ = handshake.answer(terms.proposal(), terms)
    said: list[tuple[Direction, object]] = [
        (Direction.INITIATOR, terms.proposal()),
        (Direction.RESPONDER, answer),
    ]
    return _segments(profile, MiniProtocol.HANDSHAKE, said)


def _segments(profile: Profile, protocol: MiniProtocol, said: list[tuple[Direction, object]]) -> bytes:
    codec = codec_for(profile, protocol)
    number = profile.numbers[protocol]
    return b"".join(
        segment
        for direction, message in said
        for segment in split_payload(codec.encode(message), lane_number(number, direction), 1_000, 1_000)
    )
