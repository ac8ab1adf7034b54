"""Records of the queue: published vectors, both ways, and what is refused."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path

import msgspec
import pytest

from rigs.remp_world import public_key_of, seed_of
from stagepost.catchain.budgets import AuthorAccount, Budget, Rates
from stagepost.errors import DecodeError
from stagepost.ground.wire.tl import constructor_id
from stagepost.remp.message import MESSAGE_BYTES_MAX, MessageBody, MessageQuery, RempMessage
from stagepost.remp.queue import records as records_module
from stagepost.remp.queue.records import (
    BLOCK_BYTES,
    COMMIT_ID,
    DIGEST_IDS_MAX,
    ERROR_TEXT_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    RECORDS_MAX,
    UPDATE_ID,
    Accept,
    Digest,
    HandOver,
    Header,
    Ids,
    LinkAnswer,
    LinkChallenge,
    Record,
    RejectRecord,
    Totals,
    content_of,
    decode_payload,
    decode_record,
    encode_payload,
    encode_record,
)
from stagepost.remp.queue.state import PendingRecords, RecordLimits
from stagepost.remp.receipts import statements
from stagepost.remp.receipts.statements import StatementLink
from stagepost.remp.shard import BlockId

ROOT = Path(__file__).parents[4]
VECTORS = ROOT / "tests" / "vectors" / "remp" / "rmq_payload_derived.json"
ZERO, ONE = bytes(32), bytes([1]) * 32
NOTHING = AuthorAccount()
HEADER = Header(ONE, ZERO, -1, ONE, ZERO, 3, 7, 1_700_000_000_000)


def test_the_frame_of_a_payload_is_that_of_published_nodes_and_their_records_are_refused() -> None:
    *filled, empty = json.loads(VECTORS.read_text())["items"]
    payload = encode_payload([], empty["payload_seqno"])
    assert payload.hex() == empty["payload"]
    assert decode_payload(payload) == []
    for item in filled:
        with pytest.raises(DecodeError):
            decode_payload(bytes.fromhex(item["payload"]))


@pytest.mark.parametrize(
    "record",
    [
        HEADER,
        msgspec.structs.replace(HEADER, hand_over=HandOver(1_900_000_000_000, bytes(64))),
        RejectRecord(ONE, ZERO, 5, "no"),
        Accept(ONE, ZERO, 5, BlockId(0, 1 << 62, 9, ONE, ZERO)),
        Digest(5, (Ids(ONE, ZERO),), (Ids(ZERO, ONE), Ids(ONE, ONE))),
        LinkChallenge(ONE, StatementLink(ONE, ONE, 2, ONE, ONE)),
        LinkChallenge(ONE, StatementLink(ONE, ONE, 0, ZERO, ZERO)),
        LinkAnswer(StatementLink(ONE, ONE, 1, ZERO, ONE)),
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


def test_date_and_totals_are_the_first_record_of_a_payload_or_none() -> None:
    totals = Totals(1_900_000_000_000, 3, 200, 1 << 40)
    assert decode_payload(encode_payload([totals, HEADER], 9)) == [totals, HEADER]
    wrong: list[list[Record]] = [[HEADER, totals], [totals, totals], [totals, HEADER, totals]]
    for records in wrong:
        with pytest.raises(DecodeError, match="must be the first"):
            decode_payload(encode_payload(records, 9))


@pytest.mark.parametrize("field", Totals.__struct_fields__)
def test_no_date_and_no_total_is_negative(field: str) -> None:
    assert decode_record(encode_record(Totals())) == Totals()
    with pytest.raises(DecodeError, match="none is below 0"):
        decode_record(encode_record(Totals(**{field: -1})))


@pytest.mark.parametrize(
    "hand_over", [HandOver(5), HandOver(0, bytes(63)), HandOver(5, bytes(65)), HandOver(5, bytes(4))]
)
def test_a_hand_over_has_a_whole_signature_or_nothing(hand_over: HandOver) -> None:
    with pytest.raises(DecodeError):
        decode_record(encode_record(msgspec.structs.replace(HEADER, hand_over=hand_over)))


def test_every_record_of_our_own_stands_in_the_schema_as_in_the_code() -> None:
    text = (ROOT / "specs/records.tl").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("//")]
    in_schema = {zlib.crc32(re.sub(r"[();]", "", line).encode()) for line in lines}
    of_published_nodes = {UPDATE_ID, COMMIT_ID}
    in_code = {
        value
        for module in (records_module, statements)
        for name, value in vars(module).items()
        if name.endswith("_ID") and isinstance(value, int)
    }

    bare = {
        constructor_id(
            "stagepost.remp.link session:int256 message:int256 number:int before:int256 receipt:int256 = stagepost.remp.Link"
        )
    }
    assert in_schema == in_code - of_published_nodes | bare


def test_two_payloads_of_a_member_are_never_equal() -> None:
    assert encode_payload([], 1) != encode_payload([], 2)


def test_limits_hold_at_their_edges() -> None:
    assert decode_record(encode_record(RejectRecord(ONE, ZERO, 5, "x" * ERROR_TEXT_BYTES_MAX)))
    with pytest.raises(DecodeError):
        decode_record(encode_record(RejectRecord(ONE, ZERO, 5, "x" * (ERROR_TEXT_BYTES_MAX + 1))))
    ids = tuple(Ids(ONE, ZERO) for _ in range(DIGEST_IDS_MAX))
    assert decode_record(encode_record(Digest(5, ids)))
    with pytest.raises(DecodeError):
        decode_record(encode_record(Digest(5, (*ids, Ids(ZERO, ZERO)))))
    small = Accept(ONE, ZERO, 5, BlockId())
    assert len(decode_payload(encode_payload([small] * RECORDS_MAX, 0))) == RECORDS_MAX
    with pytest.raises(DecodeError):
        decode_payload(encode_payload([small] * (RECORDS_MAX + 1), 0))


def test_a_payload_that_names_a_time_a_round_or_a_candidate_is_none_of_ours() -> None:
    payload = bytearray(encode_payload([HEADER], 0))
    for offset in (4, 20, 24):  # time, round, candidate
        changed = bytearray(payload)
        changed[offset] = 1
        with pytest.raises(DecodeError):
            decode_payload(bytes(changed))


def test_waiting_records_leave_in_order_and_within_what_a_block_holds() -> None:
    waiting = PendingRecords(RecordLimits(), Budget(0, Rates()))
    headers = [Header(bytes([n]) * 32, ZERO, 0, ONE, ONE, 0, 7, n) for n in range(RECORDS_MAX + 10)]
    for header in headers:
        waiting.add(header)
        waiting.add(header)
    first, second = waiting.next_payload(1, 5, NOTHING), waiting.next_payload(2, 6, NOTHING)
    assert first is not None
    assert second is not None
    assert len(first) <= PAYLOAD_BYTES_MAX
    assert len(decode_payload(first)) == RECORDS_MAX
    assert decode_payload(first)[1:] + decode_payload(second)[1:] == headers
    assert waiting.next_payload(3, 7, NOTHING) is None


def test_each_payload_begins_with_its_date_and_what_its_author_wrote_so_far() -> None:
    waiting = PendingRecords(RecordLimits(), Budget(0, Rates()))
    waiting.add(HEADER)
    waiting.add(RejectRecord(ONE, ZERO, 7, "no" * 200))
    first = waiting.next_payload(1, 2_000, NOTHING)
    waiting.add(Digest(5, (Ids(ONE, ZERO),), (Ids(ZERO, ONE), Ids(ONE, ONE))))
    waiting.add(msgspec.structs.replace(HEADER, message_id=ZERO))
    assert first is not None
    content = content_of(first)
    assert content is not None
    second = waiting.next_payload(2, 1_000, AuthorAccount(content.totals))
    assert second is not None

    assert decode_payload(first)[0] == Totals(2_000, 1, 0, BLOCK_BYTES + len(first))
    assert decode_payload(second)[0] == Totals(2_000, 2, 3, 2 * BLOCK_BYTES + len(first) + len(second)), (
        "dates do not fall"
    )


def test_totals_go_on_from_our_own_blocks_after_a_restart() -> None:
    waiting = PendingRecords(RecordLimits(), Budget(0, Rates()))
    waiting.add(HEADER)
    payload = waiting.next_payload(1, 1_000, AuthorAccount(Totals(9_000, 40, 5, 70_000)))
    assert payload is not None
    assert decode_payload(payload)[0] == Totals(9_000, 41, 5, 70_000 + BLOCK_BYTES + len(payload))


def test_what_somebody_else_has_announced_meanwhile_is_not_announced_again() -> None:
    waiting = PendingRecords(RecordLimits(), Budget(0, Rates()))
    waiting.add(HEADER)
    waiting.add(RejectRecord(HEADER.message_id, ZERO, 7, "no"))
    waiting.drop_headers(HEADER.message_id, [HEADER.source_key_id])
    payload = waiting.next_payload(1, 5, NOTHING)
    assert payload is not None
    assert decode_payload(payload)[1:] == [RejectRecord(HEADER.message_id, ZERO, 7, "no")]


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
