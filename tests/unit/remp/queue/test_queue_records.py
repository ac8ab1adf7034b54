"""Records of the queue: published vectors, both ways, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rigs.remp_world import public_key_of, seed_of
from stagepost.errors import DecodeError
from stagepost.remp.message import MESSAGE_BYTES_MAX, MessageBody, MessageQuery, RempMessage
from stagepost.remp.queue.records import (
    DIGEST_IDS_MAX,
    ERROR_TEXT_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MAX_OLDER,
    RECORDS_MAX,
    RECORDS_MAX_OLDER,
    Accept,
    Digest,
    Header,
    Ids,
    OlderDigest,
    OlderHeader,
    Record,
    Reject,
    decode_payload,
    decode_record,
    encode_payload,
    encode_record,
)
from stagepost.remp.queue.state import PendingRecords, RecordLimits
from stagepost.remp.shard import BlockId

VECTORS = Path(__file__).parents[3] / "vectors" / "remp" / "rmq_payload_derived.json"
ZERO, ONE = bytes(32), bytes([1]) * 32
HEADER = Header(ONE, ZERO, -1, ONE, ZERO, 3, 7, 1_700_000_000_000)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_payloads_of_published_nodes_are_written_and_read(number: int) -> None:
    item = json.loads(VECTORS.read_text())["items"][number]
    records: list[Record] = [
        [OlderHeader(ZERO, ZERO, ZERO, index, index) for index in range(4)],
        [OlderDigest(index, (Ids(ZERO, ZERO),)) for index in range(4)],
        [],
    ][number]  # type: ignore[assignment]
    payload = encode_payload(records, item["payload_seqno"])
    assert payload.hex() == item["payload"]
    assert len(payload) == item["length"] <= PAYLOAD_BYTES_MAX_OLDER
    assert decode_payload(payload) == records


@pytest.mark.parametrize(
    "record",
    [
        HEADER,
        OlderHeader(ONE, ZERO, ONE, 2, 5),
        Reject(ONE, ZERO, 5, "no"),
        Accept(ONE, ZERO, 5, BlockId(0, 1 << 62, 9, ONE, ZERO)),
        Digest(5, (Ids(ONE, ZERO),), (Ids(ZERO, ONE), Ids(ONE, ONE))),
        OlderDigest(5, (Ids(ONE, ZERO),)),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_is_read_as_it_was_written_and_never_with_a_byte_more_or_less(record: Record) -> None:
    data = encode_record(record)
    assert decode_record(data) == record
    assert decode_payload(encode_payload([record, record], 9)) == [record, record]
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            decode_record(data[:cut])
    with pytest.raises(DecodeError):
        decode_record(data + bytes(4))


def test_two_payloads_of_a_member_are_never_equal() -> None:
    assert encode_payload([], 1) != encode_payload([], 2)


def test_limits_hold_at_their_edges() -> None:
    assert decode_record(encode_record(Reject(ONE, ZERO, 5, "x" * ERROR_TEXT_BYTES_MAX)))
    with pytest.raises(DecodeError):
        decode_record(encode_record(Reject(ONE, ZERO, 5, "x" * (ERROR_TEXT_BYTES_MAX + 1))))
    ids = tuple(Ids(ONE, ZERO) for _ in range(DIGEST_IDS_MAX))
    assert decode_record(encode_record(OlderDigest(5, ids)))
    with pytest.raises(DecodeError):
        decode_record(encode_record(OlderDigest(5, (*ids, Ids(ZERO, ZERO)))))
    older = OlderHeader(ONE, ZERO, ONE, 2, 5)
    assert len(decode_payload(encode_payload([older] * RECORDS_MAX, 0))) == RECORDS_MAX
    with pytest.raises(DecodeError):
        decode_payload(encode_payload([older] * (RECORDS_MAX + 1), 0))


def test_a_payload_that_names_a_time_a_round_or_a_candidate_is_none_of_ours() -> None:
    payload = bytearray(encode_payload([HEADER], 0))
    for offset in (4, 20, 24):  # time, round, candidate
        changed = bytearray(payload)
        changed[offset] = 1
        with pytest.raises(DecodeError):
            decode_payload(bytes(changed))


def test_waiting_records_leave_in_order_and_within_what_a_block_holds() -> None:
    waiting = PendingRecords(RecordLimits())
    headers = [Header(bytes([n]) * 32, ZERO, 0, ONE, ONE, 0, 7, n) for n in range(RECORDS_MAX + 10)]
    for header in headers:
        waiting.add(header)
        waiting.add(header)
    first, second = waiting.next_payload(1), waiting.next_payload(2)
    assert first is not None
    assert second is not None
    assert len(first) <= PAYLOAD_BYTES_MAX
    assert decode_payload(first) + decode_payload(second) == headers
    assert waiting.next_payload(3) is None


def test_older_networks_get_fewer_records_and_the_older_header() -> None:
    limits = RecordLimits(RECORDS_MAX_OLDER, PAYLOAD_BYTES_MAX_OLDER, older_records=True)
    waiting = PendingRecords(limits)
    for number in range(6):
        waiting.add(Header(bytes([number]) * 32, ZERO, 0, ONE, ONE, 0, 7, number))
    payload = waiting.next_payload(1)
    assert payload is not None
    assert len(payload) <= PAYLOAD_BYTES_MAX_OLDER
    records = decode_payload(payload)
    assert len(records) == RECORDS_MAX_OLDER
    assert all(isinstance(record, OlderHeader) for record in records)


def test_what_somebody_else_has_announced_meanwhile_is_not_announced_again() -> None:
    waiting = PendingRecords(RecordLimits())
    waiting.add(HEADER)
    waiting.add(Reject(HEADER.message_id, ZERO, 7, "no"))
    waiting.drop_header(HEADER.message_id)
    payload = waiting.next_payload(1)
    assert payload is not None
    assert decode_payload(payload) == [Reject(HEADER.message_id, ZERO, 7, "no")]


def test_a_full_nodes_message_is_signed_over_time_source_and_id() -> None:
    message = RempMessage(b"content", ONE, 5).sign(seed_of(1))
    assert RempMessage.decode(message.encode()) == message
    assert message.is_signed_by(public_key_of(1))
    assert not message.is_signed_by(public_key_of(2))
    assert not RempMessage(b"content", ZERO, 5, message.signature).is_signed_by(public_key_of(1))
    assert not RempMessage(b"content", ONE, 6, message.signature).is_signed_by(public_key_of(1))


def test_bodies_and_questions_for_them_are_read_as_they_were_written() -> None:
    body = MessageBody(b"x" * MESSAGE_BYTES_MAX)
    assert MessageBody.decode(body.encode()) == body
    with pytest.raises(DecodeError):
        MessageBody.decode(MessageBody(b"x" * (MESSAGE_BYTES_MAX + 1)).encode())
    query = MessageQuery(ONE)
    assert MessageQuery.decode(query.encode()) == query
    assert not query.is_for_nothing
    assert MessageQuery(ZERO).is_for_nothing
