"""Blocks: what goes in comes out, limits hold exactly, and no bit can change unseen."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.errors import ErrorCode
from stagepost.topics.batch import Batch
from stagepost.topics.log import block
from stagepost.topics.log.appends import Router
from stagepost.topics.topic import Record, RecordRefused, partition_of
from tests.worlds.topics.topic_records import a_record, as_read

RECORDS = st.builds(
    Record,
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=200),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.integers(0, 2**63 - 1),
)


def rows_of(records: list[Record]) -> list[block.Row]:
    return [block.row_of(record, 0) for record in records]


def batch_of(written: bytes) -> Batch:
    header = block.read_header(written)
    columns = block.read_columns(written[block.HEADER_BYTES :], header.records)
    return Batch(0, header.base_offset, columns, 0, header.records)


@given(st.lists(RECORDS, min_size=1, max_size=40), st.integers(0, 2**62), st.data())
def test_what_is_written_is_read_whole_and_in_parts(
    records: list[Record], offset: int, data: st.DataObject
) -> None:
    batch = batch_of(block.write_block(rows_of(records), offset, 0, block.NO_DIGEST))
    start = data.draw(st.integers(0, len(records)))
    end = data.draw(st.integers(start, len(records)))

    assert list(batch) == as_read(records, offset)
    part = batch.within(offset + start, offset + end)
    assert list(part) == as_read(records[start:end], offset + start)
    assert part.next_offset == offset + end
    assert list(part.within(offset, offset + len(records))) == list(part)


def test_every_bit_of_a_block_is_covered_by_its_digest() -> None:
    written = block.write_block(rows_of([a_record(1), a_record(2, key=None)]), 5, 9, bytes(range(16)))
    digest = block.read_header(written).digest
    for place in set(range(8 * len(written))) - set(range(8 * block.FIELDS_BYTES, 8 * block.HEADER_BYTES)):
        changed = bytearray(written)
        changed[place // 8] ^= 1 << place % 8
        found = block.digest_of(bytes(changed[: block.FIELDS_BYTES]), bytes(changed[block.HEADER_BYTES :]))
        assert found != digest, f"bit {place}"


def test_columns_are_those_of_an_arrow_array_and_stand_on_multiples_of_eight() -> None:
    """As docs/topics.md says, so that an engine can use them where they stand."""
    records = [a_record(number, key=None if number == 1 else b"k" * number) for number in range(3)]
    written = block.write_block(rows_of(records), 0, 0, block.NO_DIGEST)
    columns = batch_of(written).columns
    body = written[block.HEADER_BYTES :]

    assert bytes(columns.timestamps) == struct.pack("<3q", *(record.timestamp_ms or 0 for record in records))
    assert struct.unpack("<4i", columns.keys.places) == (0, 0, 0, 2)
    assert bytes(columns.keys.validity) == b"\x05"
    assert bytes(columns.keys.content) == b"kk"
    assert len(body) % 8 == 0
    assert body.index(bytes(columns.values.content)) % 8 == 0


@pytest.mark.parametrize(
    ("field", "limit", "largest"),
    [
        ("key", block.KEY_BYTES_MAX, lambda size: b"x" * size),
        ("value", block.VALUE_BYTES_MAX, lambda size: b"x" * size),
        ("headers", block.HEADERS_BYTES_MAX, lambda size: {"a": "x" * (size - len('{"a":""}'))}),
    ],
)
def test_a_record_at_a_limit_is_taken_and_one_byte_more_is_refused(
    field: str, limit: int, largest: object
) -> None:
    assert callable(largest)
    block.row_of(a_record(**{field: largest(limit)}), 0)

    with pytest.raises(RecordRefused, match=f"may have {limit} bytes, this one has {limit + 1}") as refused:
        block.row_of(a_record(**{field: largest(limit + 1)}), 0)
    assert refused.value.code is ErrorCode.MSG_BODY_SIZE


def test_times_are_those_of_the_format() -> None:
    assert block.row_of(a_record(timestamp_ms=2**63 - 1), 0).timestamp_ms == 2**63 - 1
    assert block.row_of(a_record(timestamp_ms=None), 17).timestamp_ms == 17
    for wrong in (-1, 2**63):
        with pytest.raises(RecordRefused, match="milliseconds"):
            block.row_of(a_record(timestamp_ms=wrong), 0)


def test_an_append_holds_so_many_records_and_bytes_and_no_more() -> None:
    router = Router("t", 1, [0])
    small, large = Record(None, None), Record(b"", b"x" * block.VALUE_BYTES_MAX)
    many, much = block.RECORDS_MAX, block.CONTENT_BYTES_MAX // block.VALUE_BYTES_MAX

    assert len(router.routed([small] * many, 0)[0][0]) == many
    assert len(router.routed([large] * much, 0)[0][0]) == much
    with pytest.raises(RecordRefused, match=f"may hold {many} records, this one holds {many + 1}"):
        router.routed([small] * (many + 1), 0)
    with pytest.raises(RecordRefused, match=f"may hold {block.CONTENT_BYTES_MAX} bytes"):
        router.routed([large] * much + [Record(b"x", b"")], 0)


def test_the_largest_block_stays_within_what_readers_allow() -> None:
    row = block.row_of(Record(b"", bytes(block.CONTENT_BYTES_MAX // block.RECORDS_MAX)), 0)
    written = block.write_block([row] * block.RECORDS_MAX, 0, 0, block.NO_DIGEST)
    header = block.read_header(written)

    assert header.body_bytes == len(written) - block.HEADER_BYTES <= block.BODY_BYTES_MAX
    assert block.is_plausible(header, 0)
    assert not block.is_plausible(header._replace(body_bytes=block.BODY_BYTES_MAX + 1), 0)
    assert not block.is_plausible(header._replace(records=block.RECORDS_MAX + 1), 0)
    assert not block.is_plausible(header, 1)


def test_keys_go_to_the_partition_that_the_page_names() -> None:
    """Values that must never change: records would be looked for in the wrong place."""
    assert [partition_of(key, 8) for key in (b"", b"a", b"stagepost", bytes(32))] == [0, 3, 3, 5]


def test_records_without_a_key_go_round() -> None:
    routed = Router("t", 3, [0, 1, 2]).routed([Record(None, b"x")] * 9, 0)

    assert {partition: len(rows) for partition, (rows, _) in routed.items()} == {0: 3, 1: 3, 2: 3}


@pytest.mark.parametrize("count", [1, 3])
def test_a_body_that_its_columns_do_not_fill_is_refused(count: int) -> None:
    written = block.write_block(rows_of([a_record(n) for n in range(2)]), 0, 0, block.NO_DIGEST)

    for body in (written[block.HEADER_BYTES :] + bytes(8), written[block.HEADER_BYTES : -8]):
        with pytest.raises(ValueError, match="column"):
            block.read_columns(body, 2)
    with pytest.raises(ValueError, match="column"):
        block.read_columns(written[block.HEADER_BYTES :], count)
