"""TL primitives against their table, the published constructor ids and real key ids."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from stagepost.errors import DecodeError, ErrorCode, LocalProtocolError, TlDecodeError
from stagepost.ground.wire.tl import (
    LENGTH_MAX,
    Reader,
    Writer,
    constructor_bytes,
    constructor_id,
    key_id,
    normalise_schema_line,
)

FOLDER = Path(__file__).parents[3] / "vectors" / "remp"
CONSTRUCTORS = json.loads((FOLDER / "tl_constructor_ids.json").read_text(encoding="utf-8"))["items"]
KEYS = json.loads((FOLDER / "key_ids.json").read_text(encoding="utf-8"))["items"]


def written(write: Callable[[Writer], None]) -> bytes:
    writer = Writer()
    write(writer)
    return writer.written()


@pytest.mark.parametrize("item", CONSTRUCTORS, ids=lambda item: item["name"])
def test_constructor_id_is_the_published_one(item: dict[str, str]) -> None:
    identifier = constructor_id(item["line"])

    assert f"{identifier:08x}" == item["id"]
    assert constructor_bytes(identifier).hex() == item["wire_le"]
    assert Reader(constructor_bytes(identifier)).read_constructor(identifier) == identifier


@pytest.mark.parametrize("item", KEYS, ids=lambda item: item["key_id"][:8])
def test_key_id_is_that_of_the_real_network(item: dict[str, str]) -> None:
    assert key_id(bytes.fromhex(item["public_key"])).hex() == item["key_id"]


def test_key_of_another_length_has_no_id() -> None:
    for size in (0, 31, 33):
        with pytest.raises(LocalProtocolError, match=f"32 bytes, not {size}"):
            key_id(bytes(size))


@pytest.mark.parametrize(
    "line",
    [
        "catchain.blocks blocks:(vector catchain.block) = catchain.Blocks;",
        "  catchain.blocks\tblocks:( vector   catchain.block )  =  catchain.Blocks ; // many",
        "catchain.blocks blocks:vector /* of */ catchain.block=catchain.Blocks",
    ],
)
def test_spelling_of_a_schema_line_does_not_matter(line: str) -> None:
    assert normalise_schema_line(line) == "catchain.blocks blocks:vector catchain.block = catchain.Blocks"
    assert constructor_id(line) == 0x50ECD1C1


@pytest.mark.parametrize(
    "line", ["", "boolTrue", "= Bool", "boolTrue =", "a = B = C", "böse = Bool", "// a = B"]
)
def test_line_without_the_form_of_a_schema_is_refused(line: str) -> None:
    with pytest.raises(LocalProtocolError, match="schema line"):
        constructor_id(line)


def test_numbers_are_little_endian() -> None:
    reader = Reader(bytes.fromhex("feffffff0100000000000080000000000000f03fff"))

    assert reader.read_int() == -2
    assert reader.read_long() == -(2**63) + 1
    assert reader.read_double() == 1.0
    assert reader.read_byte() == 255
    reader.expect_end()


@pytest.mark.parametrize("value", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_int_at_its_edges(value: int) -> None:
    assert Reader(written(lambda writer: writer.write_int(value))).read_int() == value


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_long_at_its_edges(value: int) -> None:
    assert Reader(written(lambda writer: writer.write_long(value))).read_long() == value


def test_double_carries_infinity_and_not_a_number() -> None:
    assert Reader(written(lambda writer: writer.write_double(-math.inf))).read_double() == -math.inf
    assert math.isnan(Reader(written(lambda writer: writer.write_double(math.nan))).read_double())


@pytest.mark.parametrize(
    "write",
    [
        lambda writer: writer.write_int(2**31),
        lambda writer: writer.write_int(-(2**31) - 1),
        lambda writer: writer.write_long(2**63),
        lambda writer: writer.write_byte(256),
        lambda writer: writer.write_byte(-1),
        lambda writer: writer.write_int256(bytes(31)),
        lambda writer: writer.write_int512(bytes(65)),
        lambda writer: writer.write_bytes(bytes(LENGTH_MAX + 1)),
        lambda writer: writer.write_vector_count(-1),
    ],
)
def test_value_that_does_not_fit_is_not_written(write: Callable[[Writer], None]) -> None:
    writer = Writer()
    with pytest.raises(LocalProtocolError):
        write(writer)
    assert writer.written() == b""


def test_hashes_and_signatures_are_raw() -> None:
    writer = Writer()
    writer.write_int256(b"a" * 32)
    writer.write_int512(b"b" * 64)
    reader = Reader(writer.written())

    assert reader.remaining_bytes == 96
    assert (reader.read_int256(), reader.read_int512()) == (b"a" * 32, b"b" * 64)
    reader.expect_end()


@pytest.mark.parametrize(
    ("length", "head", "total"),
    [
        (0, "00", 4),
        (1, "01", 4),
        (3, "03", 4),
        (4, "04", 8),
        (253, "fd", 256),
        (254, "fefe0000", 260),
        (255, "feff0000", 260),
        (256, "fe000100", 260),
        (65_535, "feffff00", 65_540),
    ],
)
def test_bytes_have_the_short_form_below_254_and_are_padded_to_four(
    length: int, head: str, total: int
) -> None:
    value = b"\xaa" * length

    data = written(lambda writer: writer.write_bytes(value))
    reader = Reader(data)

    assert data.hex().startswith(head)
    assert len(data) == total
    assert reader.read_bytes(length) == value
    reader.expect_end()


def test_largest_bytes_survive() -> None:
    data = written(lambda writer: writer.write_bytes(bytes(LENGTH_MAX)))
    assert len(Reader(data).read_bytes()) == LENGTH_MAX


def test_padding_counts_from_the_field_not_from_the_object() -> None:
    # A lone byte shifts everything after it: the string's own prefix and data decide its padding.
    reader = Reader(bytes.fromhex("070361626302646500"))

    assert (reader.read_byte(), reader.read_string(), reader.read_bytes()) == (7, "abc", b"de")
    reader.expect_end()


@pytest.mark.parametrize(
    ("raw", "offset", "words"),
    [
        ("02616201", 3, "padding at offset 3 is not zero"),
        ("00000100", 1, "padding at offset 1 is not zero"),
        ("fefd0000" + "00" * 256, 0, "length 253 is written in the long form"),
        ("fe00000000000000", 0, "length 0 is written in the long form"),
        ("ff000000", 0, "0xff is not a valid first byte of a length"),
    ],
)
def test_bytes_in_another_form_are_refused(raw: str, offset: int, words: str) -> None:
    with pytest.raises(DecodeError, match=words) as caught:
        Reader(bytes.fromhex(raw)).read_bytes()
    assert caught.value.offset == offset
    assert caught.value.code is ErrorCode.TL_INVALID


def test_length_limit_holds_before_the_bytes_are_looked_for() -> None:
    assert Reader(bytes.fromhex("0361626300000000")).read_bytes(3) == b"abc"
    with pytest.raises(
        DecodeError, match="has 16777215 bytes at offset 0; at most 100 are accepted"
    ) as caught:
        Reader(bytes.fromhex("feffffff")).read_bytes(100)
    assert caught.value.code is ErrorCode.TL_LIMIT
    assert (caught.value.limit, caught.value.found) == (100, LENGTH_MAX)


def test_string_must_be_utf8() -> None:
    assert Reader(written(lambda writer: writer.write_string("größer"))).read_string() == "größer"
    with pytest.raises(DecodeError, match="not UTF-8"):
        Reader(bytes.fromhex("02c32800")).read_string()


def test_every_object_cut_short_is_refused_at_the_field_that_lacks() -> None:
    def write(writer: Writer) -> None:
        writer.write_constructor(0x3122B7A2)
        writer.write_int(1)
        writer.write_long(2)
        writer.write_double(3.0)
        writer.write_byte(4)
        writer.write_int256(bytes(32))
        writer.write_bytes(b"hello")
        writer.write_vector_count(2)
        writer.write_int512(bytes(64))
        writer.write_int512(bytes(64))

    def read(data: bytes) -> None:
        reader = Reader(data)
        reader.read_constructor(0x3122B7A2)
        reader.read_int()
        reader.read_long()
        reader.read_double()
        reader.read_byte()
        reader.read_int256()
        reader.read_bytes(100)
        for _ in range(reader.read_vector_count(2, 64)):
            reader.read_int512()
        reader.expect_end()

    data = written(write)
    read(data)
    for size in range(len(data)):
        with pytest.raises(DecodeError) as caught:
            read(data[:size])
        assert caught.value.code is ErrorCode.TL_TRUNCATED
        assert caught.value.offset is not None
        assert caught.value.offset <= size
    with pytest.raises(DecodeError, match="1 bytes left over"):
        read(data + b"\0")


def test_vector_count_is_limited_before_items_are_read() -> None:
    assert Reader(bytes.fromhex("02000000" + "00" * 8)).read_vector_count(2, 4) == 2
    for raw, words in (
        ("03000000" + "00" * 12, "has 3 items at offset 0; at most 2"),
        ("ffffffff", "has -1 items"),
        ("02000000" + "00" * 7, "2 items of at least 4 bytes do not fit"),
    ):
        with pytest.raises(DecodeError, match=words):
            Reader(bytes.fromhex(raw)).read_vector_count(2, 4)


def test_unexpected_constructor_is_named_with_the_expected_ones() -> None:
    reader = Reader(bytes.fromhex("b5757299"))
    with pytest.raises(DecodeError, match="is 997275b5; expected bc799737 or 00000001"):
        reader.read_constructor(0xBC799737, 1)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7, 8, 252, 253])
def test_short_byte_strings_are_read_alike_wherever_they_are_cut_or_padded(length: int) -> None:
    writer = Writer()
    writer.write_bytes(bytes(range(1, 254))[:length])
    data = writer.written()
    assert Reader(data).read_bytes() == bytes(range(1, 254))[:length]
    assert Reader(data).read_bytes(length) == bytes(range(1, 254))[:length]
    for end in range(len(data)):
        with pytest.raises(TlDecodeError) as cut:
            Reader(data[:end]).read_bytes()
        assert cut.value.code == ErrorCode.TL_TRUNCATED
    for place in range(length + 1, len(data)):
        with pytest.raises(TlDecodeError, match="is not zero"):
            Reader(data[:place] + b"\1" + data[place + 1 :]).read_bytes()
    if length:
        with pytest.raises(TlDecodeError, match="at most"):
            Reader(data).read_bytes(length - 1)


def test_a_number_that_is_cut_leaves_the_reader_where_it_was() -> None:
    for read, count in (
        (Reader.read_int, 4),
        (Reader.read_unsigned_int, 4),
        (Reader.read_long, 8),
        (Reader.read_unsigned_long, 8),
        (Reader.read_double, 8),
    ):
        reader = Reader(bytes(count + 1))
        reader.read_raw(2)
        with pytest.raises(TlDecodeError, match=f"needs {count} bytes; {count - 1} are left"):
            read(reader)
        assert reader.offset == 2
