"""Items are cut out of a stream wherever the pieces end, and what is too much is refused as soon as it shows."""

from __future__ import annotations

import contextlib
from io import BytesIO
from typing import Any, SupportsIndex

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.wire.cbor import CborReader
from stagepost.ground.wire.framing import (
    DEPTH_MAX,
    ITEMS_IN_NOTIFICATION_REPLY_MAX,
    ITEMS_MAX,
    Framer,
    ItemLimits,
    ItemScanner,
    skip_item,
)
from tests.worlds.ground.strategies import ARRAY, BYTES, MAP, TEXT, cbor_items, random_bytes, written_head

LIMITS = ItemLimits(bytes_max=65_535)
ANY = ItemLimits(bytes_max=65_535, any_type=True)
HEADLESS = b"\x83\x02"


def end_of(data: bytes, limits: ItemLimits = LIMITS) -> int | None:
    return ItemScanner(limits).scan(data)


def fault_of(data: bytes, limits: ItemLimits = LIMITS) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        end_of(data, limits)
    return caught.value


def test_the_named_limits_are_the_specified_ones() -> None:
    assert (DEPTH_MAX, ITEMS_MAX, ITEMS_IN_NOTIFICATION_REPLY_MAX) == (8, 4_096, 16_384)


# Agreement with another library


@given(cbor_items(), st.binary(max_size=3))
@settings(max_examples=300)
def test_an_item_of_any_type_ends_where_another_library_says(item: bytes, rest: bytes) -> None:
    stream = BytesIO(item + rest)
    cbor2.CBORDecoder(stream).decode()

    assert end_of(item + rest, ANY) == stream.tell() == len(item)


INDEFINITE = (
    "9fff",
    "9f0102ff",
    "9f9f9fffffff",
    "829f01ff02",
    "bfff",
    "bf0102ff",
    "bf01bfff029fffff",
    "5fff",
    "5f41014102ff",
    "7f6161ff",
    "c19f01ff",
)


@pytest.mark.parametrize("item", INDEFINITE)
def test_indefinite_items_end_where_another_library_says(item: str) -> None:
    data = bytes.fromhex(item)
    stream = BytesIO(data + b"\x00")
    decoder = cbor2.CBORDecoder(stream, tag_hook=lambda *_: None)
    try:
        decoder.decode()
        assert stream.tell() == len(data)
    except cbor2.CBORDecodeError:
        pass  # it refuses the meaning of a tag, not the shape of the item

    assert end_of(data + b"\x00", ANY) == len(data)


@given(cbor_items())
def test_no_beginning_of_an_item_is_taken_for_the_whole(item: bytes) -> None:
    for end in range(len(item)):
        assert end_of(item[:end], ANY) is None


@given(st.lists(cbor_items(), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_stream_cut_anywhere_gives_the_same_items(items: list[bytes], random: Any) -> None:
    stream = b"".join(items)
    framer = Framer()
    found = []
    position = 0
    while position < len(stream):
        size = random.randint(1, 7)
        framer.feed(stream[position : position + size])
        position += size
        while (item := framer.next_item(ANY)) is not None:
            found.append(item)

    assert found == items
    assert framer.offset == len(stream)
    framer.finish()


@given(st.binary(max_size=40))
@settings(max_examples=300)
def test_any_bytes_are_an_item_or_unfinished_or_a_decode_error(data: bytes) -> None:
    for limits in (LIMITS, ANY):
        with contextlib.suppress(DecodeError):
            end = end_of(data, limits)
            assert end is None or 0 < end <= len(data)


# Limits


@pytest.mark.parametrize("opening", [b"\x81", b"\x9f"])
def test_nesting_is_allowed_to_depth_8_and_no_further(opening: bytes) -> None:
    closing = b"\xff" if opening == b"\x9f" else b""

    assert end_of(opening * 8 + b"\x00" + closing * 8) == 9 + 8 * len(closing)
    assert fault_of(opening * 9 + b"\x00" + closing * 9).code is ErrorCode.CBOR_LIMIT


@pytest.mark.parametrize("opening", [b"\xc6", b"\xa1\x00"])
def test_tags_and_maps_count_as_nesting(opening: bytes) -> None:
    assert end_of(opening * 8 + b"\x00", ANY) == 8 * len(opening) + 1
    assert fault_of(opening * 9 + b"\x00", ANY).code is ErrorCode.CBOR_LIMIT


def test_a_tail_of_closed_arrays_is_no_nesting() -> None:
    assert end_of(b"\x94" + b"\x81\x00" * 20) == 41


def test_an_item_holds_4096_items_and_no_more() -> None:
    assert end_of(written_head(ARRAY, 4_095) + bytes(4_095)) == 3 + 4_095
    assert fault_of(written_head(ARRAY, 4_096) + bytes(4_096)).code is ErrorCode.CBOR_LIMIT
    assert end_of(b"\x9f" + bytes(4_095) + b"\xff") == 4_097
    assert fault_of(b"\x9f" + bytes(4_096) + b"\xff").code is ErrorCode.CBOR_LIMIT


def test_the_pairs_of_a_map_count_twice() -> None:
    assert end_of(written_head(MAP, 2_047) + bytes(2 * 2_047), ANY) == 3 + 2 * 2_047
    assert fault_of(written_head(MAP, 2_048) + bytes(2 * 2_048), ANY).code is ErrorCode.CBOR_LIMIT


def test_a_count_over_the_limit_is_refused_before_its_items_come() -> None:
    for count in (4_096, 2**32, 2**64 - 1):
        assert fault_of(written_head(ARRAY, count)).code is ErrorCode.CBOR_LIMIT
        assert fault_of(written_head(MAP, count), ANY).code is ErrorCode.CBOR_LIMIT


def test_an_item_of_exactly_the_byte_limit_passes_and_one_more_does_not() -> None:
    def item(size: int) -> bytes:
        return written_head(BYTES, size - 3) + bytes(size - 3)

    limits = ItemLimits(bytes_max=1_000)

    assert end_of(item(1_000), limits) == 1_000
    fault = fault_of(item(1_001), limits)
    assert (fault.code, fault.limit) == (ErrorCode.CBOR_LIMIT, 1_000)


def test_many_small_items_over_the_byte_limit_are_refused_too() -> None:
    limits = ItemLimits(bytes_max=100)

    assert end_of(b"\x98\x62" + bytes(98), limits) == 100
    assert fault_of(b"\x98\x63" + bytes(99), limits).code is ErrorCode.CBOR_LIMIT


@pytest.mark.parametrize("major", [BYTES, TEXT])
@pytest.mark.parametrize("length", [65_536, 2**32 - 1, 2**64 - 1])
def test_a_length_over_the_limit_is_refused_before_its_bytes_come(major: int, length: int) -> None:
    framer = Framer()
    framer.feed(b"\x82\x00" + written_head(major, length))

    with pytest.raises(DecodeError) as caught:
        framer.next_item(LIMITS)

    assert caught.value.code is ErrorCode.CBOR_LIMIT
    assert framer.buffered < 16


def test_lengths_that_pass_one_by_one_are_refused_by_their_sum() -> None:
    framer = Framer()
    framer.feed(b"\x82" + written_head(BYTES, 40_000) + bytes(40_000) + written_head(BYTES, 40_000))

    with pytest.raises(DecodeError) as caught:
        framer.next_item(LIMITS)

    assert caught.value.code is ErrorCode.CBOR_LIMIT
    assert framer.buffered < 41_000


def test_an_unfinished_item_never_holds_more_than_its_limit() -> None:
    framer = Framer()
    limits = ItemLimits(bytes_max=1_000)
    framer.feed(b"\x9f" + b"\x00" * 99)
    for _ in range(9):
        assert framer.next_item(limits) is None
        framer.feed(b"\x9f\xff\x00\x00" * 25)

    assert framer.next_item(limits) is None
    assert framer.buffered == 1_000
    framer.feed(b"\x00")
    with pytest.raises(DecodeError) as caught:
        framer.next_item(limits)
    assert caught.value.code is ErrorCode.CBOR_LIMIT


# Types


FORBIDDEN = {
    "a negative number": "20",
    "a map": "a0",
    "an indefinite map": "bfff",
    "a tag": "c100",
    "null": "f6",
    "undefined": "f7",
    "a simple value": "e0",
    "a simple value of two bytes": "f820",
    "a half float": "f90000",
    "a float": "fa00000000",
    "a double": "fb0000000000000000",
    "an indefinite byte string": "5f4100ff",
    "an indefinite text": "7f6161ff",
}


@pytest.mark.parametrize("item", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_forbidden_types_are_refused_at_their_offset_and_admitted_where_any_type_is(item: str) -> None:
    data = b"\x82\x00" + bytes.fromhex(item)

    fault = fault_of(data)

    assert (fault.code, fault.offset) == (ErrorCode.CBOR_INVALID, 2)
    assert end_of(data, ANY) == len(data)


ALLOWED = {
    "a number": "1b0000000100000000",
    "a byte string": "4100",
    "a text": "6161",
    "an array": "820001",
    "an indefinite array": "9f00ff",
    "true": "f5",
    "false": "f4",
}


@pytest.mark.parametrize("item", ALLOWED.values(), ids=ALLOWED.keys())
def test_the_types_of_our_protocols_pass(item: str) -> None:
    data = bytes.fromhex(item)

    assert end_of(data) == len(data)


ILL_FORMED = {
    "a break alone": "ff",
    "a break in a definite array": "82ff",
    "a break behind a tag": "c1ff",
    "a break between key and value": "bf00ff",
    "a number of indefinite length": "1f",
    "a negative number of indefinite length": "3f",
    "a tag of indefinite length": "df",
    "reserved 28": "1c",
    "reserved 29": "5d",
    "reserved 30": "9e",
    "a number inside an indefinite byte string": "5f00ff",
    "a text inside an indefinite byte string": "5f6161ff",
    "an indefinite piece of an indefinite byte string": "5f5fffff",
}


@pytest.mark.parametrize("item", ILL_FORMED.values(), ids=ILL_FORMED.keys())
def test_what_is_no_cbor_is_refused_even_where_any_type_passes(item: str) -> None:
    assert fault_of(bytes.fromhex(item), ANY).code is ErrorCode.CBOR_INVALID


# Work


class CountingBuffer(bytearray):
    """Counts how often it is looked into."""

    looks = 0

    def __getitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> Any:
        CountingBuffer.looks += 1
        return super().__getitem__(index)


def _a_large_item(size: int) -> bytes:
    piece = b"\x83\x18\x64\x46abcdef\x82\x00\xf5"
    count = (size - 3) // len(piece)
    return b"\x9f" + piece * count + b"\xff"


@pytest.mark.parametrize("beginning", [b"", HEADLESS])
def test_an_item_that_drips_in_byte_by_byte_costs_linear_work(beginning: bytes) -> None:
    data = beginning + _a_large_item(60_000)
    limits = ItemLimits(bytes_max=65_535, items_max=40_000)
    framer = Framer()
    framer._buffer = CountingBuffer()
    CountingBuffer.looks = 0
    whole = None
    for position in range(len(data)):
        framer.feed(data[position : position + 1])
        whole = framer.next_item(limits, headless_third=HEADLESS)

    assert whole == data
    assert CountingBuffer.looks < 6 * len(data)


def test_the_scanner_keeps_its_place_between_pieces() -> None:
    scanner = ItemScanner(ItemLimits(bytes_max=65_535, items_max=40_000))
    data = _a_large_item(60_000)
    places = []
    for end in range(0, len(data), 1_000):
        assert scanner.scan(data[:end]) is None
        places.append(scanner.position)

    assert scanner.scan(data) == len(data)
    assert places == sorted(places)
    assert all(place >= end - 9 for place, end in zip(places, range(0, len(data), 1_000), strict=True))


def test_many_small_items_in_one_piece_come_out_one_by_one() -> None:
    framer = Framer()
    framer.feed(b"\x81\x03" * 5_000)

    found = [framer.next_item(LIMITS) for _ in range(5_000)]

    assert found == [b"\x81\x03"] * 5_000
    assert framer.next_item(LIMITS) is None
    assert framer.offset == 10_000


# The end of the stream


def test_a_stream_that_ends_inside_an_item_is_truncated() -> None:
    framer = Framer()
    framer.feed(b"\x81\x03\x82\x00")
    assert framer.next_item(LIMITS) == b"\x81\x03"
    assert framer.next_item(LIMITS) is None

    with pytest.raises(DecodeError) as caught:
        framer.finish()

    assert (caught.value.code, caught.value.offset) == (ErrorCode.CBOR_TRUNCATED, 2)


# Three elements announced, the third a boolean that may be missing


def test_the_third_element_belongs_to_the_item_if_it_is_there() -> None:
    framer = Framer()
    framer.feed(b"\x83\x02\x81\x00\xf4" + b"\x81\x03")

    assert framer.next_item(LIMITS, headless_third=HEADLESS) == b"\x83\x02\x81\x00\xf4"
    assert framer.next_item(LIMITS) == b"\x81\x03"


def test_the_item_is_complete_without_its_third_element() -> None:
    framer = Framer()
    framer.feed(b"\x83\x02\x81\x00" + b"\x82\x00\xf5")

    assert framer.next_item(LIMITS, headless_third=HEADLESS) == b"\x83\x02\x81\x00"
    assert framer.next_item(LIMITS, headless_third=HEADLESS) == b"\x82\x00\xf5"


@pytest.mark.parametrize("third", [b"\xf4", b"\xf5"])
def test_a_third_element_that_comes_later_is_dropped_once(third: bytes) -> None:
    framer = Framer()
    framer.feed(b"\x83\x02\x81\x00")
    assert framer.next_item(LIMITS, headless_third=HEADLESS) == b"\x83\x02\x81\x00"
    framer.feed(third)
    assert framer.next_item(LIMITS, headless_third=HEADLESS) is None
    assert framer.buffered == 0
    framer.finish()
    framer.feed(b"\x81\x03" + third)

    assert framer.next_item(LIMITS) == b"\x81\x03"
    assert framer.next_item(LIMITS) == third


def test_three_elements_of_another_beginning_are_an_ordinary_item() -> None:
    framer = Framer()
    framer.feed(b"\x83\x01\x80")
    assert framer.next_item(LIMITS, headless_third=HEADLESS) is None
    framer.feed(b"\xf4")

    assert framer.next_item(LIMITS, headless_third=HEADLESS) == b"\x83\x01\x80\xf4"


@given(st.binary(max_size=12), st.lists(st.integers(1, 12), max_size=4))
def test_any_bytes_behind_the_tolerated_beginning_are_an_item_or_a_decode_error(
    tail: bytes, sizes: list[int]
) -> None:
    framer = Framer()
    stream = HEADLESS + tail
    found: list[bytes] = []
    with contextlib.suppress(DecodeError):
        for size in [*sizes, len(stream)]:
            framer.feed(stream[:size])
            stream = stream[size:]
            while (item := framer.next_item(LIMITS, headless_third=HEADLESS)) is not None:
                found.append(item)

    # Only a boolean may be dropped between items; no item holds a byte that did not come.
    assert sum(map(len, found)) <= len(HEADLESS + tail)
    assert not found or found[0].startswith(HEADLESS)


# Skipping


@given(cbor_items(), random_bytes(5))
def test_skipping_an_item_leaves_the_reader_behind_it(item: bytes, around: bytes) -> None:
    reader = CborReader(around + item + around, offset=5)

    assert skip_item(reader, ANY, "it") == item
    assert reader.offset == 5 + len(item)


def test_skipping_a_cut_item_is_truncated() -> None:
    with pytest.raises(DecodeError) as caught:
        skip_item(CborReader(b"\x82\x00"), ANY, "it")
    assert caught.value.code is ErrorCode.CBOR_TRUNCATED

    with pytest.raises(DecodeError) as caught:
        skip_item(CborReader(b"\x82\x00\x00", end=2), ANY, "it")
    assert caught.value.code is ErrorCode.CBOR_TRUNCATED
