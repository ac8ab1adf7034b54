"""The strict reader and the shortest-form writer, against another CBOR library and at every edge of a head."""

from __future__ import annotations

from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.wire.cbor import (
    ARRAY,
    BYTE_STRING,
    MAP,
    UNSIGNED,
    CborReader,
    head,
    write_array,
    write_boolean,
    write_bytes,
    write_indefinite_array,
    write_map,
    write_text,
    write_unsigned,
)
from tests.worlds.ground.strategies import WORD64, written_head

HEAD_EDGES = (0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1)


def refused(read: Callable[[], object]) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        read()
    return caught.value


def fault_if_any(read: Callable[[], object]) -> DecodeError | None:
    try:
        read()
    except DecodeError as fault:
        return fault
    return None


# Writing


@pytest.mark.parametrize("number", HEAD_EDGES)
def test_a_number_is_written_in_the_shortest_form(number: int) -> None:
    assert write_unsigned(number) == cbor2.dumps(number) == written_head(0, number)


@given(WORD64)
def test_any_number_is_written_as_another_library_writes_it(number: int) -> None:
    assert write_unsigned(number) == cbor2.dumps(number)


@given(st.binary(max_size=300))
def test_byte_strings_are_written_as_another_library_writes_them(value: bytes) -> None:
    assert write_bytes(value) == cbor2.dumps(value)


@given(st.text(max_size=300))
def test_texts_are_written_as_another_library_writes_them(value: str) -> None:
    assert write_text(value) == cbor2.dumps(value)


@given(st.lists(WORD64, max_size=30))
def test_both_forms_of_an_array_are_read_alike_by_another_library(values: list[int]) -> None:
    items = [write_unsigned(value) for value in values]

    assert write_array(*items) == cbor2.dumps(values)
    assert cbor2.loads(write_indefinite_array(*items)) == values
    assert write_indefinite_array(*items)[0] == 0x9F


def test_maps_and_booleans_are_written_as_another_library_writes_them() -> None:
    pairs = ((write_unsigned(1), write_boolean(True)), (write_unsigned(2), write_boolean(False)))

    assert write_map(*pairs) == cbor2.dumps({1: True, 2: False})


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_number_beyond_64_bits_is_not_written(number: int) -> None:
    with pytest.raises(OverflowError):
        write_unsigned(number)


def test_a_head_is_written_for_every_major_type() -> None:
    for major in (UNSIGNED, BYTE_STRING, ARRAY, MAP):
        for number in HEAD_EDGES:
            assert head(major, number) == written_head(major, number)


# Reading


@given(WORD64, st.integers(1, 64))
def test_a_number_is_read_if_it_fits_the_bits_of_its_field(number: int, bits: int) -> None:
    reader = CborReader(cbor2.dumps(number))

    if number < 2**bits:
        assert reader.unsigned(bits, "a number") == number
        assert reader.remaining == 0
    else:
        assert refused(lambda: reader.unsigned(bits, "a number")).code is ErrorCode.CBOR_INVALID


@given(WORD64, st.integers(1, 4))
def test_a_longer_form_than_needed_is_refused_except_inside_messages(number: int, extra: int) -> None:
    data = written_head(0, number, extra)

    assert CborReader(data, any_width=True).unsigned(64, "a number") == number
    if data == cbor2.dumps(number):
        assert CborReader(data).unsigned(64, "a number") == number
    else:
        fault = refused(lambda: CborReader(data).unsigned(64, "a number"))
        assert fault.code is ErrorCode.CBOR_INVALID
        assert fault.offset == 0


@pytest.mark.parametrize("low", [28, 29, 30, 31])
@pytest.mark.parametrize("major", range(8))
def test_reserved_and_indefinite_heads_are_no_numbers_lengths_or_counts(major: int, low: int) -> None:
    data = bytes([major << 5 | low]) + bytes(16)

    for read in (
        lambda: CborReader(data).unsigned(64, "it"),
        lambda: CborReader(data).byte_string(0, 100, "it"),
        lambda: CborReader(data).text(100, "it"),
        lambda: CborReader(data).array(3, "it"),
        lambda: CborReader(data).array_length("it"),
        lambda: CborReader(data).map_length("it"),
    ):
        assert refused(read).code is ErrorCode.CBOR_INVALID


@pytest.mark.parametrize("number", HEAD_EDGES)
def test_a_head_that_is_cut_is_truncated_at_its_own_offset(number: int) -> None:
    whole = b"\x00" + cbor2.dumps(number)
    for end in range(1, len(whole)):
        reader = CborReader(whole[:end], offset=1)
        fault = refused(lambda reader=reader: reader.unsigned(64, "it"))  # type: ignore[misc]
        assert (fault.code, fault.offset) == (ErrorCode.CBOR_TRUNCATED, 1)


@given(st.binary(max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_a_byte_string_is_read_within_its_bounds_only(value: bytes, least: int, most: int) -> None:
    reader = CborReader(cbor2.dumps(value))

    if least <= len(value) <= most:
        assert reader.byte_string(least, most, "it") == value
    else:
        fault = refused(lambda: reader.byte_string(least, most, "it"))
        assert (fault.code, fault.found) == (ErrorCode.CBOR_INVALID, len(value))


def test_a_string_longer_than_what_is_there_is_truncated_whatever_it_promises() -> None:
    for promised in (5, 2**16, 2**32, 2**63):
        data = written_head(2, promised) + b"abcd"
        fault = refused(lambda data=data: CborReader(data).byte_string(0, 2**64, "it"))  # type: ignore[misc]
        assert fault.code is ErrorCode.CBOR_TRUNCATED


@pytest.mark.parametrize("promised", [3, 1_000_000, 2**40])
def test_a_count_is_believed_only_if_so_many_items_could_follow(promised: int) -> None:
    array = written_head(ARRAY, promised) + bytes(2)
    pairs = written_head(MAP, promised) + bytes(5)

    assert refused(lambda: CborReader(array).array_length("it")).code is ErrorCode.CBOR_TRUNCATED
    assert refused(lambda: CborReader(array).list_start("it")).code is ErrorCode.CBOR_TRUNCATED
    assert refused(lambda: CborReader(pairs).map_length("it")).code is ErrorCode.CBOR_TRUNCATED


def test_a_text_must_be_utf_8() -> None:
    assert CborReader(cbor2.dumps("für")).text(10, "it") == "für"
    assert refused(lambda: CborReader(b"\x62\xc3\x28").text(10, "it")).code is ErrorCode.CBOR_INVALID


def test_a_text_over_its_limit_is_refused_by_bytes_and_not_by_characters() -> None:
    assert CborReader(cbor2.dumps("üü")).text(4, "it") == "üü"
    assert refused(lambda: CborReader(cbor2.dumps("üü")).text(3, "it")).limit == 3


@pytest.mark.parametrize("initial", [byte for byte in range(256) if byte not in (0xF4, 0xF5)])
def test_only_two_bytes_are_booleans(initial: int) -> None:
    assert refused(lambda: CborReader(bytes([initial])).boolean("it")).code is ErrorCode.CBOR_INVALID


def test_booleans_are_read() -> None:
    reader = CborReader(b"\xf5\xf4")

    assert [reader.boolean("first"), reader.boolean("second")] == [True, False]


def test_an_array_of_another_length_is_refused() -> None:
    assert refused(lambda: CborReader(b"\x83\x01\x02\x03").array(4, "it")).offset == 0


def test_lists_in_both_forms_are_recognised() -> None:
    assert CborReader(b"\x82\x01\x02").list_start("it") == 2
    indefinite = CborReader(b"\x9f\xff")
    assert indefinite.list_start("it") is None
    assert indefinite.take_break()
    assert not CborReader(b"\x01").take_break()
    assert refused(lambda: CborReader(b"").take_break()).code is ErrorCode.CBOR_TRUNCATED


def test_nothing_may_be_left_over() -> None:
    reader = CborReader(b"\x01\x02")
    reader.unsigned(8, "it")

    fault = refused(lambda: reader.finish("it"))

    assert (fault.code, fault.offset) == (ErrorCode.CBOR_INVALID, 1)


def test_a_reader_never_looks_behind_its_end() -> None:
    data = cbor2.dumps(b"abcd")

    assert refused(lambda: CborReader(data, end=4).byte_string(0, 9, "it")).code is ErrorCode.CBOR_TRUNCATED
    assert refused(lambda: CborReader(data, end=0).peek()).code is ErrorCode.CBOR_TRUNCATED


@given(st.binary(max_size=30))
def test_any_bytes_give_a_value_or_a_decode_error_and_nothing_else(data: bytes) -> None:
    for read in (
        lambda: CborReader(data).unsigned(64, "it"),
        lambda: CborReader(data).boolean("it"),
        lambda: CborReader(data).byte_string(0, 100, "it"),
        lambda: CborReader(data).text(100, "it"),
        lambda: CborReader(data).list_start("it"),
        lambda: CborReader(data).map_length("it"),
        lambda: CborReader(data).array(2, "it"),
    ):
        fault = fault_if_any(read)
        assert fault is None or fault.offset in range(len(data) + 1)
