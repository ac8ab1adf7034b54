"""Ingress limits at their edges, what is refused by header, and fair turns for sending."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.errors import ErrorCode, LimitExceeded, LocalProtocolError, RemoteProtocolError
from stagepost.ground.wire.mux import (
    SEGMENT_HEADER_BYTES,
    SEGMENT_PAYLOAD_BYTES_SENT_MAX,
    Direction,
    Segment,
    SegmentReader,
    encode_header,
    lane_number,
    split_payload,
)
from stagepost.ground.wire.mux_queues import (
    EGRESS_BYTES_MAX,
    HANDSHAKE_INGRESS_BYTES_MAX,
    KEEP_ALIVE_INGRESS_BYTES_MAX,
    LOCAL_INGRESS_BYTES_MAX,
    LOCAL_INGRESS_BYTES_MAX_PUBLISHED,
    MESSAGE_SUBMISSION_INGRESS_BYTES_MAX,
    PEER_SHARING_INGRESS_BYTES_MAX,
    SHARED_BATCH_BYTES,
    WRITE_BATCH_BYTES_MAX,
    Demultiplexer,
    Egress,
    SharedBytes,
)

INGRESS_LIMITS = [
    HANDSHAKE_INGRESS_BYTES_MAX,
    MESSAGE_SUBMISSION_INGRESS_BYTES_MAX,
    KEEP_ALIVE_INGRESS_BYTES_MAX,
    PEER_SHARING_INGRESS_BYTES_MAX,
    LOCAL_INGRESS_BYTES_MAX,
]


def segments_of(protocol: int, direction: Direction, payload: bytes) -> bytes:
    return b"".join(split_payload(payload, lane_number(protocol, direction), 0))


def lanes_in(batch: bytes) -> list[int]:
    lanes: list[int] = []
    SegmentReader(lambda segment: lanes.append(segment.protocol)).feed(batch)
    return lanes


def payloads_in(batch: bytes, protocol: int) -> bytes:
    found: list[bytes] = []
    SegmentReader(lambda segment: found.append(segment.payload * (segment.protocol == protocol))).feed(batch)
    return b"".join(found)


def all_batches(egress: Egress) -> list[bytes]:
    batches = []
    while not egress.is_empty:
        batches.append(egress.next_batch(0))
    return batches


def test_limits_are_those_of_the_table() -> None:
    assert MESSAGE_SUBMISSION_INGRESS_BYTES_MAX == 33 * 2_800 * 11 // 10
    assert KEEP_ALIVE_INGRESS_BYTES_MAX == 1_280 * 11 // 10
    assert PEER_SHARING_INGRESS_BYTES_MAX == 4 * 1_440
    assert LOCAL_INGRESS_BYTES_MAX == 2**20
    assert LOCAL_INGRESS_BYTES_MAX_PUBLISHED == 2**32 - 1
    assert (EGRESS_BYTES_MAX, WRITE_BATCH_BYTES_MAX) == (262_143, 131_072)


def test_payloads_reach_the_lane_they_are_for() -> None:
    demultiplexer = Demultiplexer()
    ours = demultiplexer.register(11, Direction.RESPONDER, 1_000)
    theirs = demultiplexer.register(11, Direction.INITIATOR, 1_000)

    demultiplexer.reader.feed(
        segments_of(11, Direction.RESPONDER, b"one")
        + segments_of(11, Direction.INITIATOR, b"two")
        + segments_of(11, Direction.RESPONDER, b"three")
        + segments_of(11, Direction.RESPONDER, b"four")
    )

    assert ours.queued_bytes == 12
    assert ours.take() == b"onethreefour"
    assert (ours.queued_bytes, ours.take()) == (0, b"")
    assert theirs.take() == b"two"


@pytest.mark.parametrize("limit", INGRESS_LIMITS)
def test_queue_holds_exactly_its_limit(limit: int) -> None:
    demultiplexer = Demultiplexer()
    ingress = demultiplexer.register(11, Direction.INITIATOR, limit)

    demultiplexer.reader.feed(segments_of(11, Direction.INITIATOR, bytes(limit)))
    assert ingress.queued_bytes == limit
    with pytest.raises(LimitExceeded, match=f"1 bytes on top of {limit} unread ones") as caught:
        demultiplexer.reader.feed(segments_of(11, Direction.INITIATOR, b"x"))

    assert caught.value.code is ErrorCode.MUX_INGRESS_OVERFLOW
    assert (caught.value.limit, caught.value.found) == (limit, limit + 1)
    assert len(ingress.take()) == limit


def test_room_comes_back_when_the_queue_is_read() -> None:
    demultiplexer = Demultiplexer()
    ingress = demultiplexer.register(11, Direction.INITIATOR, 10)

    for _ in range(100):
        demultiplexer.reader.feed(segments_of(11, Direction.INITIATOR, bytes(10)))
        assert ingress.take() == bytes(10)


def test_what_cannot_fit_at_all_is_refused_by_its_header() -> None:
    demultiplexer = Demultiplexer()
    demultiplexer.register(12, Direction.INITIATOR, 1_408)
    lane = lane_number(12, Direction.INITIATOR)

    assert demultiplexer.reader.feed(encode_header(0, lane, 1_408))
    demultiplexer.reader.feed(bytes(1_408))
    with pytest.raises(LimitExceeded) as caught:
        demultiplexer.reader.feed(encode_header(0, lane, 1_409))

    assert caught.value.code is ErrorCode.MUX_INGRESS_OVERFLOW


@pytest.mark.parametrize("body", [b"", b"x"], ids=["header alone", "whole segment"])
@pytest.mark.parametrize(
    ("protocol", "direction"),
    [
        (12, Direction.INITIATOR),
        (11, Direction.RESPONDER),
        (0, Direction.INITIATOR),
        (0x7FFF, Direction.RESPONDER),
    ],
)
def test_lane_that_is_not_run_is_refused_by_its_header(
    protocol: int, direction: Direction, body: bytes
) -> None:
    demultiplexer = Demultiplexer()
    demultiplexer.register(11, Direction.INITIATOR, 100)
    demultiplexer.reader.feed(segments_of(11, Direction.INITIATOR, b"fine"))

    with pytest.raises(
        RemoteProtocolError, match=f"at offset 12 is for mini-protocol {protocol}, "
    ) as caught:
        demultiplexer.reader.feed(encode_header(0, lane_number(protocol, direction), 1) + body)

    assert caught.value.code is ErrorCode.MUX_UNKNOWN_PROTOCOL
    assert (caught.value.found, caught.value.offset) == (protocol, 12)


@pytest.mark.parametrize("has_body", [False, True])
def test_payload_above_a_configured_limit_is_refused_by_its_header(has_body: bool) -> None:
    demultiplexer = Demultiplexer()
    ingress = demultiplexer.register(11, Direction.INITIATOR, 100_000, payload_bytes_max=1_000)
    demultiplexer.reader.feed(segments_of(11, Direction.INITIATOR, bytes(1_000)))

    with pytest.raises(LimitExceeded, match="announces 1001 bytes; at most 1000") as caught:
        demultiplexer.reader.feed(
            encode_header(0, lane_number(11, Direction.INITIATOR), 1_001) + bytes(1_001 * has_body)
        )

    assert caught.value.code is ErrorCode.MUX_TOO_LARGE
    assert (caught.value.limit, caught.value.found, caught.value.offset) == (1_000, 1_001, 1_008)
    assert ingress.queued_bytes == 1_000


def test_lane_is_registered_once_and_can_be_registered_again_after_release() -> None:
    demultiplexer = Demultiplexer()
    first = demultiplexer.register(11, Direction.INITIATOR, 100)
    with pytest.raises(LocalProtocolError, match="already registered"):
        demultiplexer.register(11, Direction.INITIATOR, 100)

    demultiplexer.unregister(first)
    second = demultiplexer.register(11, Direction.INITIATOR, 100)
    demultiplexer.unregister(first)  # an old handle does not take away the new lane
    demultiplexer.reader.feed(segments_of(11, Direction.INITIATOR, b"again"))

    assert second.take() == b"again"


def test_sleeping_reader_is_told_of_arrival() -> None:
    demultiplexer = Demultiplexer()
    ingress = demultiplexer.register(11, Direction.INITIATOR, 100)
    told: list[int] = []
    ingress.on_arrival = lambda: told.append(ingress.queued_bytes)

    demultiplexer.reader.feed(segments_of(11, Direction.INITIATOR, b"abc"))

    assert told == [3]


def test_tiny_segments_cost_no_more_memory_than_their_bytes() -> None:
    demultiplexer = Demultiplexer()
    ingress = demultiplexer.register(11, Direction.INITIATOR, 10_000)
    for _ in range(5_000):
        demultiplexer.reader.feed(segments_of(11, Direction.INITIATOR, b"ab"))

    assert ingress.take() == b"ab" * 5_000


def test_trace_sees_every_whole_segment_also_a_refused_one() -> None:
    seen: list[Segment] = []
    demultiplexer = Demultiplexer(seen.append)
    with pytest.raises(RemoteProtocolError):
        demultiplexer.reader.feed(segments_of(3, Direction.INITIATOR, b"who?"))

    assert [(segment.protocol, segment.payload) for segment in seen] == [(3, b"who?")]


def test_each_ready_protocol_gets_one_segment_per_turn() -> None:
    egress = Egress()
    bulk = egress.register(11, Direction.INITIATOR)
    small = egress.register(12, Direction.INITIATOR)
    medium = egress.register(13, Direction.INITIATOR)

    egress.put(bulk, bytes(4 * SEGMENT_PAYLOAD_BYTES_SENT_MAX))
    egress.put(small, b"ping")
    egress.put(medium, bytes(SEGMENT_PAYLOAD_BYTES_SENT_MAX + 1))

    assert lanes_in(egress.next_batch(0)) == [11, 12, 13, 11, 13, 11, 11]
    assert egress.is_empty


def test_latecomer_waits_for_one_segment_of_each_other_lane() -> None:
    egress = Egress()
    bulk = egress.register(11, Direction.INITIATOR)
    egress.put(bulk, bytes(EGRESS_BYTES_MAX))
    egress.next_batch(0)

    egress.put(egress.register(12, Direction.INITIATOR), b"ping")

    assert lanes_in(egress.next_batch(0))[:2] == [11, 12]


def test_messages_of_one_lane_share_a_segment() -> None:
    egress = Egress()
    lane = egress.register(11, Direction.RESPONDER)
    egress.put(lane, b"one")
    egress.put(lane, b"")
    egress.put(lane, b"two")

    batch = egress.next_batch(5)

    assert bytes(batch) == Segment(5, lane.lane, b"onetwo").encode()


@pytest.mark.parametrize("spare", [0, 1])
def test_batch_never_exceeds_its_limit(spare: int) -> None:
    egress = Egress()
    lane = egress.register(11, Direction.INITIATOR)
    # Ten full segments leave room for a last one of exactly this size.
    last = (
        WRITE_BATCH_BYTES_MAX
        - 10 * (SEGMENT_HEADER_BYTES + SEGMENT_PAYLOAD_BYTES_SENT_MAX)
        - SEGMENT_HEADER_BYTES
    )
    egress.put(lane, bytes(10 * SEGMENT_PAYLOAD_BYTES_SENT_MAX + last + spare))

    first = egress.next_batch(0)

    assert len(first) == WRITE_BATCH_BYTES_MAX - (last + SEGMENT_HEADER_BYTES) * spare
    assert len(egress.next_batch(0)) == (last + SEGMENT_HEADER_BYTES + spare) * spare


def test_writer_waits_above_the_limit_and_is_told_of_room() -> None:
    egress = Egress()
    lane = egress.register(11, Direction.INITIATOR)
    told: list[int] = []

    egress.put(lane, bytes(EGRESS_BYTES_MAX))
    at_the_limit = lane.has_room
    egress.put(lane, b"x")
    above_the_limit = lane.has_room
    lane.on_room = lambda: told.append(lane.waiting_bytes)
    egress.next_batch(0)

    assert (at_the_limit, above_the_limit, lane.has_room) == (True, False, True)
    assert told[0] == EGRESS_BYTES_MAX + 1 - SEGMENT_PAYLOAD_BYTES_SENT_MAX


def test_released_lane_drains_and_can_be_taken_up_again() -> None:
    egress = Egress()
    lane = egress.register(11, Direction.INITIATOR)
    egress.put(lane, b"done")
    egress.unregister(lane)

    again = egress.register(11, Direction.INITIATOR)
    egress.put(again, b"init")

    assert egress.next_batch(0)[SEGMENT_HEADER_BYTES:] == b"doneinit"
    egress.unregister(again)
    assert egress.register(11, Direction.INITIATOR) is not again


@pytest.mark.parametrize(
    "length", [1, SEGMENT_PAYLOAD_BYTES_SENT_MAX + 1, SHARED_BATCH_BYTES, SHARED_BATCH_BYTES + 1]
)
def test_a_message_for_many_is_cut_into_the_same_segments_once(length: int) -> None:
    content = bytes(index % 251 for index in range(length))
    plain, shared = Egress(), SharedBytes(content)
    plain.put(plain.register(11, Direction.RESPONDER), content)
    expected = all_batches(plain)

    sent = []
    for _ in range(3):
        egress = Egress()
        egress.put(egress.register(11, Direction.RESPONDER), shared)
        sent.append(all_batches(egress))

    assert [b"".join(batches) for batches in sent] == [b"".join(expected)] * 3
    assert all(len(batch) <= WRITE_BATCH_BYTES_MAX for batch in sent[0])
    if length > SEGMENT_PAYLOAD_BYTES_SENT_MAX:
        assert all(one is other for one, other in zip(sent[0], sent[1], strict=True))


def test_a_message_for_many_takes_fair_turns_with_other_lanes() -> None:
    egress = Egress()
    bulk = egress.register(11, Direction.INITIATOR)
    egress.put(bulk, SharedBytes(3 * SHARED_BATCH_BYTES))
    first = egress.next_batch(0)
    egress.put(egress.register(12, Direction.INITIATOR), b"ping")
    second = egress.next_batch(0)
    egress.put(bulk, b"behind")
    rest = all_batches(egress)

    assert set(lanes_in(first)) == {11}
    assert lanes_in(second)[:2] == [11, 12]
    payload = b"".join(payloads_in(batch, 11) for batch in (first, second, *rest))
    assert payload == bytes(3 * SHARED_BATCH_BYTES) + b"behind"
    assert egress.is_empty
    assert bulk.waiting_bytes == 0


@given(st.lists(st.one_of(st.integers(1, 3_000), st.just(-1)), max_size=40))
def test_whatever_is_put_comes_out_in_order(steps: list[int]) -> None:
    """A number of bytes is put; -1 takes a batch."""
    egress = Egress(payload_bytes_max=700)
    lane = egress.register(11, Direction.INITIATOR)
    put, taken = b"", b""
    for number, step in enumerate(steps):
        if step < 0:
            taken += payloads_in(egress.next_batch(0), 11)
        else:
            piece = bytes([number]) * step
            egress.put(lane, SharedBytes(piece) if number % 3 == 0 else piece)
            put += piece
        assert lane.waiting_bytes == len(put) - len(taken)
    taken += b"".join(payloads_in(batch, 11) for batch in all_batches(egress))

    assert taken == put
