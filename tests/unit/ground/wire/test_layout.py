"""One description serves both ways: fields, lists, records, unions and tagged layouts."""

from __future__ import annotations

from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.layout import (
    ArrayLayout,
    Boolean,
    ByteString,
    Field,
    Layout,
    ListForm,
    ListOf,
    Text,
    Union,
    Unsigned,
    read_head,
)


class Pair(msgspec.Struct, frozen=True):
    left: int
    right: bytes


class Short(msgspec.Struct, frozen=True):
    number: int


class Long(msgspec.Struct, frozen=True):
    number: int
    text: str


PAIR = ArrayLayout(Pair, (("left", Unsigned(16)), ("right", ByteString(2, 4))))
SHORT = Layout(Short, 3, (("number", Unsigned(8)),))
LONG = Layout(Long, 3, (("number", Unsigned(8)), ("text", Text(10))))
CHOICE = Union((SHORT, LONG))


def read_all(field: Field, data: bytes) -> Any:
    reader = CborReader(data)
    value = field.read(reader, "it")
    reader.finish("it")
    return value


@given(st.integers(0, 2**16 - 1), st.binary(min_size=2, max_size=4))
def test_a_record_is_a_definite_array_without_a_tag(left: int, right: bytes) -> None:
    data = PAIR.write(Pair(left, right))

    assert cbor2.loads(data) == [left, right]
    assert read_all(PAIR, data) == Pair(left, right)


@pytest.mark.parametrize(
    "value", [[1], [1, b"ab", 3], [b"ab", 1], [65_536, b"ab"], [1, b"a"], [1, b"abcde"], 7]
)
def test_a_record_of_another_shape_is_refused(value: object) -> None:
    with pytest.raises(DecodeError):
        read_all(PAIR, cbor2.dumps(value))


def test_a_record_of_indefinite_length_is_refused() -> None:
    with pytest.raises(DecodeError):
        read_all(PAIR, b"\x9f\x01\x42ab\xff")


@pytest.mark.parametrize("form", ListForm)
@given(values=st.lists(st.integers(0, 255), max_size=5))
def test_every_form_of_list_is_written_as_named_and_both_are_read(form: ListForm, values: list[int]) -> None:
    field = ListOf(Unsigned(8), form, 5)
    data = field.write(tuple(values))

    definite = form is ListForm.DEFINITE or (form is ListForm.EMPTY_DEFINITE and not values)
    assert (data[0] != 0x9F) is definite
    assert cbor2.loads(data) == values
    assert read_all(field, cbor2.dumps(values)) == tuple(values)
    indefinite = b"\x9f" + b"".join(map(cbor2.dumps, values)) + b"\xff"
    assert read_all(field, indefinite) == tuple(values)


@pytest.mark.parametrize("indefinite", [True, False])
def test_a_list_holds_as_many_as_it_may_and_no_more(indefinite: bool) -> None:
    def written(count: int) -> bytes:
        return b"\x9f" + bytes(count) + b"\xff" if indefinite else bytes([0x80 | count]) + bytes(count)

    field = ListOf(Unsigned(8), ListForm.DEFINITE, count_max=5, count_min=2)

    assert read_all(field, written(5)) == (0,) * 5
    assert read_all(field, written(2)) == (0,) * 2
    with pytest.raises(DecodeError) as too_many:
        read_all(field, written(6))
    assert (too_many.value.code, too_many.value.limit) == (ErrorCode.CBOR_LIMIT, 5)
    with pytest.raises(DecodeError) as too_few:
        read_all(field, written(1))
    assert too_few.value.code is ErrorCode.CBOR_INVALID


def test_an_unfinished_indefinite_list_is_truncated() -> None:
    with pytest.raises(DecodeError) as caught:
        read_all(ListOf(Unsigned(8), ListForm.DEFINITE, 5), b"\x9f\x00")
    assert caught.value.code is ErrorCode.CBOR_TRUNCATED


def test_a_fault_names_the_place_in_the_message() -> None:
    with pytest.raises(DecodeError, match=r"it\[1\]\.right"):
        read_all(ListOf(PAIR, ListForm.DEFINITE, 5), cbor2.dumps([[1, b"ab"], [1, b"a"]]))


def test_choices_are_told_apart_by_tag_and_length() -> None:
    assert read_all(CHOICE, cbor2.dumps([3, 9])) == Short(9)
    assert read_all(CHOICE, cbor2.dumps([3, 9, "x"])) == Long(9, "x")
    assert cbor2.loads(CHOICE.write(Short(9))) == [3, 9]
    assert cbor2.loads(CHOICE.write(Long(9, "x"))) == [3, 9, "x"]


@pytest.mark.parametrize("value", [[4, 9], [3], [3, 9, "x", 1], [], "text", 5, [300, 1]])
def test_what_is_none_of_the_choices_is_refused(value: object) -> None:
    with pytest.raises(DecodeError):
        read_all(CHOICE, cbor2.dumps(value))


def test_a_value_of_another_type_is_none_of_the_choices_to_write() -> None:
    with pytest.raises(TypeError):
        CHOICE.write(Pair(1, b"ab"))


@pytest.mark.parametrize(("bits", "value"), [(8, 256), (16, 65_536), (16, -1)])
def test_a_number_too_large_for_its_field_is_not_written(bits: int, value: int) -> None:
    with pytest.raises(OverflowError):
        Unsigned(bits).write(value)


def test_surplus_fields_are_read_and_forgotten_and_never_written() -> None:
    layout = Layout(Short, 3, (("number", Unsigned(8)),), surplus=(("flag", Boolean()),))
    reader = CborReader(cbor2.dumps([3, 9, True]))
    length, tag = read_head(reader)

    assert (length, tag) == (3, 3)
    assert list(layout.lengths) == [2, 3]
    assert layout.read_fields(reader, length) == Short(9)
    assert reader.remaining == 0
    assert layout.write(Short(9)) == cbor2.dumps([3, 9])


def test_a_surplus_field_that_was_announced_must_come_unless_it_may_be_missing() -> None:
    data = b"\x83\x03\x09"
    strict = Layout(Short, 3, (("number", Unsigned(8)),), surplus=(("flag", Boolean()),))
    tolerant = Layout(
        Short, 3, (("number", Unsigned(8)),), surplus=(("flag", Boolean()),), surplus_may_be_missing=True
    )

    assert tolerant.read_fields(CborReader(data, offset=2), 3) == Short(9)
    with pytest.raises(DecodeError):
        strict.read_fields(CborReader(data, offset=2), 3)


def test_a_message_is_never_an_empty_array() -> None:
    with pytest.raises(DecodeError):
        read_head(CborReader(b"\x80"))


@given(st.binary(max_size=20))
def test_any_bytes_give_a_value_or_a_decode_error(data: bytes) -> None:
    for field in (PAIR, CHOICE, ListOf(PAIR, ListForm.DEFINITE, 5)):
        try:
            value = read_all(field, data)
        except DecodeError as fault:
            offset = fault.offset
        else:
            assert read_all(field, field.write(value)) == value
            continue
        assert offset is not None
        assert 0 <= offset <= len(data)
