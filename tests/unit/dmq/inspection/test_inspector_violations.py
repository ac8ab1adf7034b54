"""The wire inspector on broken streams: the first violation with its place, code, rule and culprit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stagepost.dmq.inspection.inspector import inspect_stream
from stagepost.dmq.inspection.report import BrokenRule, InspectionReport, InspectionResult
from stagepost.errors import ErrorCode
from stagepost.ground.wire.mux import Direction
from tests.worlds.ground.captures import INITIATOR, RESPONDER, a_message, message_bytes, older_layout, segment

MAGIC = "1a80000002"
NODE_DATA = f"84{MAGIC}f401f4"
MESSAGE = a_message()
ID = f"5820{MESSAGE.message_id.hex()}"
SIZE = len(MESSAGE.raw)
SIZE_HEX = f"19{SIZE:04x}"


def stream(*parts: tuple[Direction, int, str]) -> bytes:
    return b"".join(
        segment(direction, number, bytes.fromhex(payload)) for direction, number, payload in parts
    )


def i(number: int, payload: str) -> tuple[Direction, int, str]:
    return INITIATOR, number, payload


def r(number: int, payload: str) -> tuple[Direction, int, str]:
    return RESPONDER, number, payload


def version_1(*parts: tuple[Direction, int, str]) -> bytes:
    """Behind `[6]`, which takes bytes 0 to 9: the responder asks, the initiator supplies."""
    return stream(i(11, "8106"), *parts)


def one_announced(*parts: tuple[Direction, int, str], size: str = SIZE_HEX) -> bytes:
    return version_1(r(11, "8400f50005"), i(11, f"82019f82{ID}{size}ff"), *parts)


def handshaken(answer: str, *parts: tuple[Direction, int, str], proposal: str = f"a101{NODE_DATA}") -> bytes:
    return stream(i(0, f"8200{proposal}"), r(0, answer), *parts)


LONG_IDS = "82019f825a00011170" + "00" * 70_000 + "00ff"
ONE = len(one_announced())
SHAKEN = len(handshaken(f"830101{NODE_DATA}"))


@dataclass(frozen=True)
class Broken:
    what: str
    data: bytes
    offset: int
    code: ErrorCode
    rule: str
    by: Direction

    def __str__(self) -> str:
        return self.what


C = ErrorCode
BROKEN = [
    # Segments
    Broken(
        "empty segment",
        stream(i(12, "820005")) + bytes.fromhex("00000000 800c 0000"),
        11,
        C.PROTOCOL_SIZE,
        "EmptySegment",
        RESPONDER,
    ),
    Broken(
        "unknown number",
        stream(i(12, "820005"), r(99, "8101")),
        11,
        C.MUX_UNKNOWN_PROTOCOL,
        "UnknownMiniProtocol",
        RESPONDER,
    ),
    Broken(
        "other protocol before the handshake ended",
        stream(i(0, f"8200a101{NODE_DATA}"), i(11, "8106"), r(0, f"830101{NODE_DATA}")),
        21,
        C.MUX_UNKNOWN_PROTOCOL,
        "HandshakeNotFirst",
        INITIATOR,
    ),
    Broken(
        "handshake after others",
        stream(i(12, "820005"), r(12, "820105"), i(0, f"8200a101{NODE_DATA}"), r(0, f"830101{NODE_DATA}")),
        22,
        C.MUX_UNKNOWN_PROTOCOL,
        "HandshakeNotFirst",
        INITIATOR,
    ),
    Broken(
        "segment after a refusal",
        handshaken("8202820081 19 1001", i(11, "8106")),
        21 + 8 + 8,
        C.PROTOCOL_STATE,
        "AfterTheEnd",
        INITIATOR,
    ),
    Broken(
        "local protocol on a node connection",
        handshaken(f"830101{NODE_DATA}", i(14, "8103")),
        SHAKEN,
        C.MUX_UNKNOWN_PROTOCOL,
        "NotOnThisConnection",
        INITIATOR,
    ),
    Broken(
        "peer sharing that was not agreed",
        handshaken(f"83010184{MAGIC}f400f4", i(13, "820005")),
        SHAKEN,
        C.MUX_UNKNOWN_PROTOCOL,
        "PeerSharingNotAgreed",
        INITIATOR,
    ),
    # Turns and states
    Broken(
        "second request without waiting",
        stream(i(12, "820005"), r(12, "820105"), i(12, "820006"), i(12, "820007")),
        41,
        C.PROTOCOL_STATE,
        "OutOfTurn",
        INITIATOR,
    ),
    Broken(
        "answer to nothing",
        stream(r(14, "8101"), i(14, "8103")),
        8,
        C.PROTOCOL_STATE,
        "OutOfTurn",
        RESPONDER,
    ),
    Broken(
        "bytes out of turn", version_1(i(11, "00"), r(11, "00")), 18, C.PROTOCOL_STATE, "OutOfTurn", INITIATOR
    ),
    Broken(
        "said after the end",
        stream(i(12, "8102"), r(12, "820105")),
        18,
        C.PROTOCOL_STATE,
        "OutOfTurn",
        RESPONDER,
    ),
    Broken(
        "messages where ids are due",
        version_1(r(11, "8400f50005"), i(11, "82039fff")),
        31,
        C.PROTOCOL_STATE,
        "NotInThisState",
        INITIATOR,
    ),
    Broken(
        "done while not blocked",
        one_announced(r(11, "8400f40005"), i(11, "8104")),
        ONE + 13 + 8,
        C.PROTOCOL_STATE,
        "NotInThisState",
        INITIATOR,
    ),
    Broken(
        "blocking request said ahead",
        one_announced(r(11, f"82029f{ID}ff"), r(11, "8400f50105")),
        ONE + 8 + 38 + 8,
        C.PROTOCOL_STATE,
        "NotPipelined",
        RESPONDER,
    ),
    # Bytes
    Broken(
        "unknown tag",
        stream(i(12, "820905"), r(12, "820105")),
        8,
        C.CBOR_INVALID,
        "UnknownMessage",
        INITIATOR,
    ),
    Broken(
        "too many elements",
        stream(i(12, "83000505"), r(12, "820105")),
        8,
        C.CBOR_INVALID,
        "UnknownMessage",
        INITIATOR,
    ),
    Broken(
        "trailing byte",
        stream(i(12, "820005"), r(12, "820105"), i(12, "810200")),
        22 + 8 + 2,
        C.CBOR_INVALID,
        "WrongType",
        INITIATOR,
    ),
    Broken(
        "integer longer than needed",
        version_1(r(11, "8400f5180005")),
        10 + 8 + 3,
        C.CBOR_INVALID,
        "LongerThanNeeded",
        RESPONDER,
    ),
    Broken(
        "integer out of range",
        stream(i(12, "82001a00010000"), r(12, "820105")),
        10,
        C.CBOR_INVALID,
        "OutOfRange",
        INITIATOR,
    ),
    Broken(
        "forbidden type",
        stream(i(12, "8200a0"), r(12, "820105")),
        10,
        C.CBOR_INVALID,
        "ForbiddenType",
        INITIATOR,
    ),
    Broken("wrong type", version_1(r(11, "8400050005")), 10 + 8 + 2, C.CBOR_INVALID, "WrongType", RESPONDER),
    Broken(
        "undefined initial byte",
        stream(i(12, "82001c"), r(12, "820105")),
        10,
        C.CBOR_INVALID,
        "Malformed",
        INITIATOR,
    ),
    Broken(
        "too deep", stream(i(12, "82" + "81" * 12), r(12, "8100")), 16, C.CBOR_LIMIT, "TooDeep", INITIATOR
    ),
    Broken(
        "too many items",
        stream(i(12, "82009a00010000"), r(12, "8100")),
        10,
        C.CBOR_LIMIT,
        "TooManyItems",
        INITIATOR,
    ),
    Broken(
        "handshake message too long",
        stream(i(0, "8200a1185959" + "2000" + "00" * 100), r(0, "8100")),
        8,
        C.CBOR_LIMIT,
        "MessageTooLong",
        INITIATOR,
    ),
    Broken(
        "ids too long for their state",
        version_1(r(11, "8400f50005"), i(11, LONG_IDS[:100_000]), i(11, LONG_IDS[100_000:])),
        23 + 8,
        C.CBOR_LIMIT,
        "MessageTooLong",
        INITIATOR,
    ),
    Broken(
        "more ids than a list may hold",
        version_1(r(11, "8400f50005"), i(11, "8201990401" + f"82{ID}00" * 1_025)),
        23 + 8 + 2,
        C.CBOR_LIMIT,
        "ListTooLong",
        INITIATOR,
    ),
    Broken(
        "id of a wrong length",
        version_1(r(11, "8400f50005"), i(11, "82019f82 43010203 00 ff")),
        23 + 8 + 4,
        C.CBOR_INVALID,
        "WrongLength",
        INITIATOR,
    ),
    # The window
    Broken(
        "acknowledged too many",
        one_announced(r(11, "8400f40205")),
        ONE + 8,
        C.PROTOCOL_WINDOW,
        "AckedTooManySigIds",
        RESPONDER,
    ),
    Broken(
        "requested too many",
        version_1(r(11, "8400f5001885")),
        18,
        C.PROTOCOL_WINDOW,
        "RequestedTooManySigIds",
        RESPONDER,
    ),
    Broken(
        "requested nothing",
        version_1(r(11, "8400f50000")),
        18,
        C.PROTOCOL_REQUEST,
        "RequestedNothing",
        RESPONDER,
    ),
    Broken(
        "blocking with ids outstanding",
        one_announced(r(11, "8400f50005")),
        ONE + 8,
        C.PROTOCOL_REQUEST,
        "RequestBlocking",
        RESPONDER,
    ),
    Broken(
        "non-blocking with nothing outstanding",
        version_1(r(11, "8400f40005")),
        18,
        C.PROTOCOL_REQUEST,
        "RequestNonBlocking",
        RESPONDER,
    ),
    Broken(
        "more ids than requested",
        version_1(r(11, "8400f50001"), i(11, f"82019f82{ID}0082{ID}00ff")),
        31,
        C.PROTOCOL_WINDOW,
        "SigIdsNotRequested",
        INITIATOR,
    ),
    Broken(
        "empty blocking reply",
        version_1(r(11, "8400f50005"), i(11, "82019fff")),
        31,
        C.PROTOCOL_WINDOW,
        "EmptyBlockingReply",
        INITIATOR,
    ),
    Broken(
        "message that was never announced",
        version_1(r(11, f"82029f{ID}ff")),
        18,
        C.PROTOCOL_WINDOW,
        "RequestedUnavailableSig",
        RESPONDER,
    ),
    Broken(
        "message that was not requested",
        one_announced(r(11, "82029fff"), i(11, f"82039f{MESSAGE.raw.hex()}ff")),
        ONE + 12 + 8,
        C.PROTOCOL_WINDOW,
        "SigNotRequested",
        INITIATOR,
    ),
    Broken(
        "size other than announced",
        one_announced(
            r(11, f"82029f{ID}ff"), i(11, f"82039f{MESSAGE.raw.hex()}ff"), size=f"19{SIZE + 33:04x}"
        ),
        ONE + 46 + 8,
        C.PROTOCOL_SIZE,
        "TxSizeError",
        INITIATOR,
    ),
    # Keep-alive and handshake
    Broken(
        "cookie that was not sent",
        stream(i(12, "820005"), r(12, "820106")),
        11 + 8 + 2,
        C.PROTOCOL_STATE,
        "CookieMismatch",
        RESPONDER,
    ),
    Broken(
        "accepted version that was not proposed",
        handshaken(f"830102{NODE_DATA}"),
        21 + 8 + 2,
        C.HANDSHAKE_NO_VERSION,
        "VersionNotProposed",
        RESPONDER,
    ),
    Broken(
        "wrong magic",
        handshaken("83010184 1a80000003 f401f4"),
        21 + 8 + 4,
        C.HANDSHAKE_WRONG_NETWORK,
        "WrongNetworkMagic",
        RESPONDER,
    ),
    Broken(
        "accepted data of a wrong shape",
        handshaken(f"83010182{MAGIC}f4"),
        21 + 8 + 3,
        C.CBOR_INVALID,
        "WrongElementCount",
        RESPONDER,
    ),
    Broken(
        "versions out of order",
        handshaken(f"830101{NODE_DATA}", proposal=f"a202{NODE_DATA}01{NODE_DATA}"),
        8,
        C.CBOR_INVALID,
        "VersionsNotAscending",
        INITIATOR,
    ),
    Broken(
        "answer to a query that was not asked",
        handshaken(f"8203a101{NODE_DATA}"),
        29,
        C.PROTOCOL_STATE,
        "QueryNotAsked",
        RESPONDER,
    ),
    # DMQ messages
    Broken(
        "older layout on a number of running nodes",
        stream(i(14, "8200" + older_layout(MESSAGE).hex()), r(14, "8101")),
        10,
        C.CBOR_INVALID,
        "OlderMessageLayout",
        INITIATOR,
    ),
    Broken(
        "older layout among delivered messages",
        one_announced(r(11, f"82029f{ID}ff"), i(11, f"82039f{older_layout(MESSAGE).hex()}ff")),
        ONE + 46 + 8 + 3,
        C.CBOR_INVALID,
        "OlderMessageLayout",
        INITIATOR,
    ),
    Broken(
        "CompactSum signature",
        stream(i(14, "8200" + message_bytes(MESSAGE, kes_signature=bytes(288)).hex()), r(14, "8101")),
        10 + 35 + 1 + 2 + 100 + 2 + 5,
        C.CBOR_INVALID,
        "CompactSumSignature",
        INITIATOR,
    ),
    Broken(
        "short body",
        stream(i(14, "8200" + message_bytes(MESSAGE, body=bytes(89)).hex()), r(14, "8101")),
        10 + 36,
        C.MSG_BODY_SIZE,
        "BodySize",
        INITIATOR,
    ),
    Broken(
        "long body",
        stream(i(15, "8200f5"), r(15, "82029f" + message_bytes(MESSAGE, body=bytes(2_001)).hex() + "ff")),
        11 + 8 + 3 + 36,
        C.MSG_BODY_SIZE,
        "BodySize",
        RESPONDER,
    ),
    Broken(
        "empty blocking notification",
        stream(i(15, "8200f5"), r(15, "82029fff")),
        11 + 8 + 2,
        C.CBOR_INVALID,
        "EmptyBlockingReply",
        RESPONDER,
    ),
]


def broken_by(data: bytes) -> tuple[InspectionReport, BrokenRule]:
    report = inspect_stream(data)
    assert report.broken is not None, report.verdict
    return report, report.broken


@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_the_first_violation_is_named(case: Broken) -> None:
    report, broken = broken_by(case.data)

    assert report.verdict is InspectionResult.VIOLATION
    assert (broken.offset, broken.code, broken.rule, broken.direction) == (
        case.offset,
        case.code,
        case.rule,
        case.by,
    ), broken.text
    assert broken.text
    assert broken.allowed
    assert "offset" not in broken.text, "places are given once, and count from the start of the capture"


def test_at_least_fourteen_rules_are_told_apart() -> None:
    assert len({case.rule for case in BROKEN}) >= 14


def test_what_was_said_before_the_violation_is_in_the_report() -> None:
    report, broken = broken_by(one_announced(r(11, "8400f40205")))

    assert [type(record.message).__name__ for record in report.messages] == [
        "Init",
        "RequestMessageIds",
        "ReplyMessageIds",
    ]
    assert broken.text == "2 ids acknowledged, 1 are outstanding"
    assert broken.allowed == "acknowledge 0 to 1"
    assert (broken.state, broken.segment, broken.message_offset) == ("Idle", 3, broken.offset)


def test_a_violation_says_who_may_say_what() -> None:
    _, broken = broken_by(stream(r(14, "8101"), i(14, "8103")))

    assert broken.allowed == "initiator: SubmitMessage or Done"
    assert "responder says AcceptMessage in Idle, where it is the initiator's turn" in broken.text


def test_a_fault_behind_a_segment_border_is_placed_in_the_file() -> None:
    data = stream(i(12, "82"), i(12, "00"), i(12, "a0"), r(12, "820105"))

    _, broken = broken_by(data)

    assert (broken.offset, broken.segment, broken.message_offset) == (26, 2, 8)


def test_pulling_from_the_other_side_in_version_2_is_explained() -> None:
    proposal = f"a102{NODE_DATA}"
    _, broken = broken_by(handshaken(f"830102{NODE_DATA}", r(11, "8401f50005"), proposal=proposal))

    assert broken.rule == "OutOfTurn"
    assert "gouroboros" in broken.text


def test_two_runs_of_one_number_are_suspected_where_turns_do_not_fit() -> None:
    _, broken = broken_by(stream(i(12, "820005"), i(12, "820063"), r(12, "820105"), r(12, "820163")))

    assert broken.rule == "OutOfTurn"
    assert "if both sides opened this mini-protocol" in broken.text


def test_what_a_side_never_says_is_refused_in_one_direction_too() -> None:
    _, broken = broken_by(stream(i(14, "8101")))

    assert (broken.rule, broken.code, broken.offset) == ("OutOfTurn", ErrorCode.PROTOCOL_STATE, 8)
    assert broken.allowed == "initiator: SubmitMessage or Done"


def test_too_long_for_its_state_is_refused_in_one_direction_too() -> None:
    data = stream(i(11, "8106"), i(11, LONG_IDS[:100_000]), i(11, LONG_IDS[100_000:]))

    _, broken = broken_by(data)

    assert (broken.rule, broken.offset) == ("MessageTooLong", 18)


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (stream(i(12, "820005"))[:7], 0),
        (stream(i(12, "820005"))[:8], 0),
        (stream(i(12, "820005"))[:10], 0),
        (stream(i(12, "820005"), r(12, "8201")), 19),
        (stream(i(12, "820005"), i(11, "82"), r(12, "8201")), 19),
    ],
)
def test_a_stream_that_ends_in_the_middle_is_truncated(data: bytes, offset: int) -> None:
    report = inspect_stream(data)

    assert report.verdict is InspectionResult.TRUNCATED
    assert report.unfinished is not None
    assert report.unfinished.offset == offset


def test_whole_messages_in_a_cut_segment_are_read() -> None:
    report = inspect_stream(stream(i(12, "820005" * 2))[:-2], one_direction=True)

    assert report.verdict is InspectionResult.TRUNCATED
    assert len(report.messages) == 1


def test_the_documents_rules_hold_on_their_numbers() -> None:
    asked = "8401f50005"
    data = stream(i(17, "8100"), r(17, asked), i(17, "820280"), r(17, "8401f40005"), i(17, "820280"))

    assert inspect_stream(data).verdict is InspectionResult.CLEAN
