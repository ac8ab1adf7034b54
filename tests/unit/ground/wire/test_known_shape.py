"""Skipping a message whole finds the same end, and refuses the same things, as looking at each of its items."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.dmq.message import USUAL_SHAPE
from stagepost.errors import DecodeError
from stagepost.ground.wire.framing import Framer, ItemLimits, ItemScanner
from tests.worlds.dmq.pool_signers import Signer

MESSAGE = Signer().sign(1).raw
OTHER = Signer().sign(2).raw
LONG_WAY = ItemLimits(bytes_max=65_535)
SHORT_WAY = replace(LONG_WAY, known_shape=USUAL_SHAPE)


class Counted:
    """The usual shape, counting how often it was recognised."""

    initial = USUAL_SHAPE.initial
    items = USUAL_SHAPE.items
    depth = USUAL_SHAPE.depth

    def __init__(self) -> None:
        self.found = 0

    def end(self, data: bytes | bytearray, start: int) -> int | None:
        end = USUAL_SHAPE.end(data, start)
        self.found += end is not None
        return end


def outcome(data: bytes, limits: ItemLimits) -> object:
    try:
        return ItemScanner(limits).scan(data)
    except DecodeError as fault:
        return fault.code, fault.offset, fault.text


def both(data: bytes, *, bytes_max: int = 65_535, items_max: int = 4_096, depth_max: int = 8) -> object:
    limits = ItemLimits(bytes_max, items_max, depth_max)
    found = outcome(data, limits)
    assert outcome(data, replace(limits, known_shape=USUAL_SHAPE)) == found
    return found


REPLIES = {
    "alone": MESSAGE,
    "in a list": b"\x82\x05\x9f" + MESSAGE + OTHER + b"\xff",
    "in a definite list": b"\x82\x05\x82" + MESSAGE + OTHER,
    "followed by more": MESSAGE + b"\x00",
}


@pytest.mark.parametrize("data", REPLIES.values(), ids=REPLIES.keys())
def test_messages_end_where_the_long_way_says(data: bytes) -> None:
    shape = Counted()

    assert both(data) == outcome(data, replace(LONG_WAY, known_shape=shape))
    assert shape.found == data.count(MESSAGE) + data.count(OTHER)


def test_a_message_holds_as_many_items_as_the_shape_says() -> None:
    assert both(MESSAGE, items_max=USUAL_SHAPE.items) == len(MESSAGE)
    assert isinstance(both(MESSAGE, items_max=USUAL_SHAPE.items - 1), tuple)


@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize("opening", [b"\x81", b"\x9f"])
def test_nesting_is_refused_at_the_same_depth(opening: bytes, depth: int) -> None:
    closing = b"\xff" if opening == b"\x9f" else b""
    data = opening * depth + MESSAGE + closing * depth

    for depth_max in range(1, 8):
        both(data, depth_max=depth_max)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_the_byte_limit_is_the_same(over: int) -> None:
    both(b"\x81" + MESSAGE, bytes_max=len(MESSAGE) + 1 + over)


@given(st.integers(0, len(MESSAGE) - 1), st.integers(0, 255))
def test_any_changed_byte_leads_to_the_same_end_or_fault(at: int, value: int) -> None:
    changed = bytearray(MESSAGE)
    changed[at] = value

    both(b"\x82\x05\x9f" + bytes(changed) + OTHER + b"\xff")


@given(st.lists(st.integers(0, 2 * len(MESSAGE)), max_size=6))
def test_a_stream_cut_anywhere_gives_the_same_items(cuts: list[int]) -> None:
    stream = b"\x82\x05\x9f" + MESSAGE + OTHER + b"\xff" + b"\x81\x03"
    places = [0, *sorted(cuts), len(stream)]
    framer = Framer()
    found: list[bytes] = []
    for start, end in pairwise(places):
        framer.feed(stream[start:end])
        while (item := framer.next_item(SHORT_WAY)) is not None:
            found.append(item)

    assert b"".join(found) == stream
    assert len(found) == 2
