"""The wire inspector on captures that are in order: it names what they are, and reads everything in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq import local_notification, submission
from stagepost.dmq.inspection import inspector
from stagepost.dmq.inspection.inspector import inspect_stream
from stagepost.dmq.inspection.report import Coverage, InspectionReport, InspectionResult
from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import ConfigError, ErrorCode
from stagepost.ground.net import handshake
from stagepost.ground.net.version_data import ConnectionKind
from stagepost.ground.wire.mux import Direction
from tests.worlds.ground.captures import (
    INITIATOR,
    MAGIC,
    RESPONDER,
    Capture,
    a_local_connection,
    a_message,
    a_node_connection,
    a_submission,
    announced,
    older_layout,
    segment,
)

NODE_CAPTURES = [("dmq-node", 1), ("dmq-node", 2), ("gouroboros", 1), ("seed", 1)]


def names(report: InspectionReport) -> list[str]:
    return [type(record.message).__name__ for record in report.messages]


@pytest.mark.parametrize("cut", [1, 7, 12_288])
@pytest.mark.parametrize(("profile", "version"), NODE_CAPTURES)
def test_a_node_connection_is_named_and_clean(profile: str, version: int, cut: int) -> None:
    capture = a_node_connection(profile, version, cut)

    report = inspect_stream(capture.data)

    assert report.verdict is InspectionResult.CLEAN, report.broken
    assert report.profile == profile
    assert report.submission_version == version
    assert report.coverage is Coverage.BOTH_DIRECTIONS
    assert report.agreed is not None
    assert (report.agreed.version, report.agreed.network_magic) == (version, MAGIC)
    assert report.flavours == (("haskell",) if profile == "dmq-node" else ("cip",))
    assert [finding.is_valid for finding in report.findings] == [True, True]
    for finding in report.findings:
        if cut == 12_288:
            assert capture.data[finding.offset :].startswith((a_message(b"one").raw, a_message(b"two").raw))


@pytest.mark.parametrize("cut", [1, 12_288])
@pytest.mark.parametrize("profile", ["dmq-node", "gouroboros", "seed"])
def test_a_local_connection_is_named_and_clean(profile: str, cut: int) -> None:
    report = inspect_stream(a_local_connection(profile, cut).data)

    assert report.verdict is InspectionResult.CLEAN, report.broken
    assert report.profile == profile
    assert report.submission_version is None
    assert names(report)[-4:] == [
        "ReplyMessagesNonBlocking",
        "RequestMessages",
        "ReplyMessagesBlocking",
        "ClientDone",
    ]


def test_segments_are_cut_with_offset_time_number_and_direction() -> None:
    data = segment(INITIATOR, 12, b"\x82\x00\x05", 7) + segment(RESPONDER, 12, b"\x82\x01\x05", 9)

    first, second = inspect_stream(data).segments

    assert (first.offset, first.timestamp_us, first.number, first.direction) == (
        0,
        7,
        12,
        Direction.INITIATOR,
    )
    assert (second.offset, second.timestamp_us, second.length, second.direction) == (11, 9, 3, RESPONDER)
    assert first.protocol is MiniProtocol.KEEP_ALIVE
    assert first.profiles == ("dmq-node",)


def test_messages_carry_their_state_and_place() -> None:
    capture = Capture(submission_version=2)
    capture.say(INITIATOR, MiniProtocol.MESSAGE_SUBMISSION, submission.RequestMessageIds(True, 0, 3))
    capture.say(RESPONDER, MiniProtocol.MESSAGE_SUBMISSION, announced(a_message()))

    asked, answered = inspect_stream(capture.data).messages

    assert (asked.offset, asked.size, asked.segment, asked.state) == (8, 5, 0, "Idle")
    assert asked.message == submission.RequestMessageIds(True, 0, 3)
    assert (answered.offset, answered.segment, answered.state) == (21, 1, "MessageIdsBlocking")


def test_an_instance_may_run_again_after_it_ended() -> None:
    capture = a_submission(Capture(), a_message(b"one"))
    a_submission(capture, a_message(b"two"))

    report = inspect_stream(capture.data)

    assert report.verdict is InspectionResult.CLEAN, report.broken
    assert {record.instance for record in report.messages} == {1, 2}


def test_version_of_submission_is_told_by_the_first_message_where_no_handshake_was_captured() -> None:
    for version in (1, 2):
        capture = a_submission(Capture(submission_version=version), a_message())

        assert inspect_stream(capture.data).submission_version == version


# One direction


@pytest.mark.parametrize("direction", [INITIATOR, RESPONDER])
@pytest.mark.parametrize("with_handshake", [True, False])
@pytest.mark.parametrize(("profile", "version"), NODE_CAPTURES)
def test_one_direction_is_decoded_without_checking_order(
    profile: str, version: int, with_handshake: bool, direction: Direction
) -> None:
    whole = a_node_connection(profile, version)
    both = inspect_stream(whole.data)
    begin = 0 if with_handshake else 2
    data = b"".join(
        whole.data[each.offset : each.offset + 8 + each.length]
        for each in both.segments[begin:]
        if each.direction is direction
    )

    report = inspect_stream(data)

    assert report.verdict is InspectionResult.CLEAN, report.broken
    assert report.coverage is Coverage.ONE_DIRECTION
    assert report.submission_version == version
    assert report.profile == profile
    said = [record for record in both.messages[begin:] if record.direction is direction]
    assert [record.message for record in report.messages] == [record.message for record in said]


def test_one_side_of_a_duplex_connection_is_one_direction() -> None:
    connection = Capture().handshake(ConnectionKind.NODE)
    proposal = connection.data[: connection.boundaries[1]]
    own = segment(INITIATOR, 12, b"\x82\x00\x05")
    answer_to_the_other = segment(RESPONDER, 12, b"\x82\x01\x18\x63")

    report = inspect_stream(proposal + own + answer_to_the_other)

    assert report.coverage is Coverage.ONE_DIRECTION
    assert names(report) == ["ProposeVersions", "KeepAlive", "KeepAliveResponse"]


def test_a_capture_from_the_middle_can_be_read_as_one_direction() -> None:
    capture = Capture().say(
        RESPONDER, MiniProtocol.MESSAGE_SUBMISSION, submission.RequestMessageIds(True, 2, 3)
    )
    capture.say(INITIATOR, MiniProtocol.MESSAGE_SUBMISSION, announced(a_message()))

    assert inspect_stream(capture.data).verdict is InspectionResult.VIOLATION
    report = inspect_stream(capture.data, one_direction=True)

    assert report.verdict is InspectionResult.CLEAN
    assert report.messages[1].state == ""


# Captures written out by hand from the tables, without our encoder

MESSAGE = (
    "85 5820" + "11" * 32 + "83 585a" + "22" * 90 + "1878 1a6b49d200"  # id, [body, period, expiry
    "5901c0" + "33" * 448 + "84 5820" + "44" * 32 + "03 1876 5840" + "55" * 64 + "5820" + "66" * 32
)  # fmt: skip
ID = "5820" + "11" * 32


def by_hand(*lines: str) -> bytes:
    """Segments as `header payload` in hex; a header's last field is filled in from the payload."""
    data = b""
    for line in lines:
        header, _, payload = line.partition("|")
        content = bytes.fromhex(payload)
        data += bytes.fromhex(header) + len(content).to_bytes(2, "big") + content
    return data


DMQ_NODE_BY_HAND = by_hand(
    "000f4240 0000 | 8200a2 01841a80000002f401f4 02841a80000002f401f4",
    "000f4241 8000 | 830101 841a80000002f401f4",
    "000f4242 000b | 8106",
    "000f4243 800b | 8400f5001821",
    f"000f4244 000b | 82019f 82{ID}1902d4 ff",
    f"000f4245 800b | 82029f {ID} ff",
    f"000f4246 000b | 82039f {MESSAGE} ff",
    "000f4247 000c | 820019beef",
    "000f4248 800c | 820119beef",
    "000f4249 800b | 8400f501 0a",
    "000f424a 000b | 8104",
)
GOUROBOROS_BY_HAND = by_hand(
    "00000001 0000 | 8200a1 01841aad964a09f400f4",
    "00000002 8000 | 830101 841aad964a09f400f4",
    "00000003 000b | 8100",
    "00000004 800b | 8401f5000a",
    f"00000005 000b | 820281 82{ID}1902d4",
    f"00000006 800b | 820381 {ID}",
    f"00000007 000b | 820481 {MESSAGE}",
    "00000008 800b | 8401f5010a",
    "00000009 000b | 8105",
)
SEED_BY_HAND = by_hand(
    "00000001 0000 | 8200a1 0e841a2d964a09f400f4",  # Cardano's version 14
    "00000002 8000 | 83010e 841a2d964a09f400f4",
    "00000003 0011 | 8100",
    "00000004 8011 | 8401f5000a",
    "00000005 0011 | 820280",  # a blocking request may be answered with nothing here
    "00000006 8011 | 8401f5000a",
    f"00000007 0011 | 820281 82{ID}1902d4",
    "00000008 8011 | 8401f4000a",
    "00000009 0011 | 8105",  # done while not blocked
)
GOUROBOROS_LOCAL_BY_HAND = by_hand(
    "00000001 0000 | 8200a1 191001821aad964a09f4",
    "00000002 8000 | 8301191001821aad964a09f4",
    f"00000003 000e | 8200 {MESSAGE}",
    "00000004 800e | 8202 820160",
    "00000005 000e | 8103",
)
DMQ_NODE_LOCAL_BY_HAND = by_hand(
    "00000001 0000 | 8200a1 191001821aad964a09f4",
    "00000002 8000 | 8301191001821aad964a09f4",
    f"00000003 000e | 8200 {MESSAGE}",
    "00000004 800e | 8202 8101",
    "00000005 000f | 8200f5",
    f"00000006 800f | 83029f {MESSAGE} ff",  # three elements announced, two there
    "00000007 000f | 8200f4",
    "00000008 800f | 83019f ff f4",
    "00000009 000f | 8103",
)
SEED_LOCAL_BY_HAND = by_hand(
    f"00000001 0012 | 8200 {MESSAGE}", "00000002 8012 | 8101", "00000003 0013 | 8200f5"
)


@pytest.mark.parametrize(
    ("data", "profile", "messages"),
    [
        (DMQ_NODE_BY_HAND, "dmq-node", 11),
        (GOUROBOROS_BY_HAND, "gouroboros", 9),
        (SEED_BY_HAND, "seed", 9),
        (GOUROBOROS_LOCAL_BY_HAND, "gouroboros", 5),
        (DMQ_NODE_LOCAL_BY_HAND, "dmq-node", 9),
        (SEED_LOCAL_BY_HAND, "seed", 3),
    ],
)
def test_captures_written_by_hand_are_named(data: bytes, profile: str, messages: int) -> None:
    report = inspect_stream(data)

    assert report.verdict is InspectionResult.CLEAN, report.broken
    assert report.profile == profile
    assert len(report.messages) == messages


def test_a_straggling_boolean_belongs_to_the_reply_before_it() -> None:
    data = by_hand("00000001 000f | 8200f5", f"00000002 800f | 83029f {MESSAGE} ff", "00000003 800f | f4")

    report = inspect_stream(data)

    assert report.verdict is InspectionResult.CLEAN, report.broken
    assert isinstance(report.messages[1].message, local_notification.ReplyMessagesBlocking)


def test_local_numbers_alone_fit_two_profiles() -> None:
    data = by_hand("00000001 000f | 8200f5", "00000002 000e | 8103")

    assert inspect_stream(data).profile == "dmq-node or gouroboros"


def test_a_handshake_alone_fits_every_profile() -> None:
    report = inspect_stream(Capture().handshake(ConnectionKind.CLIENT).data)

    assert report.profile == "dmq-node or gouroboros or seed"


def test_contradicting_evidence_is_a_mixture_with_its_sources() -> None:
    data = by_hand(
        "00000001 000b | 8106", "00000002 800b | 8400f5000a", f"00000003 000b | 820181 82{ID}1902d4"
    )

    report = inspect_stream(data)

    assert report.profile == "mixture of dmq-node and gouroboros"
    assert [piece.text for piece in report.evidence] == [
        "message-submission 11",
        "haskell tags",
        "definite lists",
    ]


# Messages are judged, and break no rule of the protocols


def test_a_message_that_proves_nothing_is_found_and_no_violation() -> None:
    report = inspect_stream(DMQ_NODE_LOCAL_BY_HAND)

    first = report.findings[0]
    assert report.verdict is InspectionResult.CLEAN
    assert [fault.code for fault in first.faults] == [
        ErrorCode.MSG_BAD_ID,
        ErrorCode.OPCERT_SIGNATURE,
        ErrorCode.KES_SIGNATURE,
    ]
    assert (first.kes_period, first.kes_evolution, first.size_in_bytes) == (120, 2, 724)


def test_the_older_layout_is_read_on_the_documents_numbers() -> None:
    payload = b"\x82\x00" + older_layout(a_message())
    data = segment(INITIATOR, 18, payload) + segment(RESPONDER, 18, b"\x81\x01")

    report = inspect_stream(data)

    assert report.verdict is InspectionResult.CLEAN, report.broken
    assert report.findings[0].elements == 4


def test_signatures_can_be_left_unchecked() -> None:
    report = inspect_stream(DMQ_NODE_BY_HAND, check_signatures=False)

    assert all(finding.is_valid for finding in report.findings)


def test_a_handshake_that_crossed_is_read_and_the_higher_version_counts() -> None:
    proposal = "8200a2 01841a80000002f401f4 02841a80000002f401f4"
    data = by_hand(f"00000001 0000 | {proposal}", f"00000002 8000 | {proposal}", "00000003 000b | 8401f50005")

    report = inspect_stream(data)

    assert report.verdict is InspectionResult.CLEAN, report.broken
    assert isinstance(report.messages[1].message, handshake.ReplyVersions)
    assert report.submission_version == 2


# Bounds


def test_nothing_to_inspect_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        inspect_stream(b"")


def test_a_capture_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "CAPTURE_BYTES_MAX", 100)

    with pytest.raises(ConfigError) as refusal:
        inspect_stream(bytes(101))

    assert refusal.value.limit == 100


def test_inspection_stops_when_the_report_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector, "ENTRIES_MAX", 6)
    data = segment(INITIATOR, 12, b"\x82\x00\x01" * 1_000)

    report = inspect_stream(data)

    assert report.verdict is InspectionResult.STOPPED
    assert len(report.messages) == 5


# Anything


@pytest.mark.parametrize(
    "capture",
    [a_node_connection(profile, version) for profile, version in NODE_CAPTURES]
    + [a_local_connection(profile) for profile in ("dmq-node", "gouroboros", "seed")],
)
def test_a_capture_cut_anywhere_is_clean_on_message_borders_only(capture: Capture) -> None:
    borders = set(capture.boundaries)
    for size in range(1, len(capture.data)):
        report = inspect_stream(capture.data[:size], check_signatures=False)

        expected = InspectionResult.CLEAN if size in borders else InspectionResult.TRUNCATED
        assert report.verdict is expected, (size, report.broken)


@given(st.binary(max_size=200))
def test_any_bytes_give_a_report_or_a_refusal(data: bytes) -> None:
    try:
        report = inspect_stream(data)
    except ConfigError:
        return
    assert report.bytes_total == len(data)


_SEGMENTS = st.lists(
    st.tuples(st.sampled_from(list(Direction)), st.sampled_from([0, 8, 11, 12, 13, 14, 15, 17, 18, 19]), st.binary(min_size=1, max_size=40)),
    min_size=1,
)  # fmt: skip


@given(_SEGMENTS, st.sampled_from([None, True, False]))
def test_any_segments_give_a_report(
    parts: list[tuple[Direction, int, bytes]], one_direction: bool | None
) -> None:
    data = b"".join(segment(*part) for part in parts)

    report = inspect_stream(data, one_direction=one_direction)

    if report.broken is not None:
        assert 0 <= report.broken.offset < len(data)


@given(st.data())
def test_a_capture_with_changed_bytes_gives_a_report(draw: st.DataObject) -> None:
    good = draw.draw(st.sampled_from([DMQ_NODE_BY_HAND, SEED_BY_HAND, DMQ_NODE_LOCAL_BY_HAND]))
    changed = bytearray(good)
    for _ in range(draw.draw(st.integers(1, 3))):
        changed[draw.draw(st.integers(0, len(good) - 1))] = draw.draw(st.integers(0, 255))

    report = inspect_stream(bytes(changed), check_signatures=False)

    if report.broken is not None:
        assert 0 <= report.broken.offset < len(changed)
