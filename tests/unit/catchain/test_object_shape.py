"""Objects on links are found whole: with the same end, and the same refusals, as by looking at each item."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.catchain.overlay_protocol import DIALECT, OBJECT_BYTES_MAX, SPEAKING, Ask, ObjectShape, Push
from stagepost.errors import DecodeError
from stagepost.ground.wire.framing import Framer, ItemLimits, ItemScanner

LONG_WAY = ItemLimits(SPEAKING.message_bytes_max, SPEAKING.items_max)
SHORT_WAY = replace(LONG_WAY, known_shape=ObjectShape())
WRITERS = {layout.message: layout for layout in DIALECT.layouts}
LENGTHS = (4, 23, 24, 255, 256, 65_535, 65_536, OBJECT_BYTES_MAX, OBJECT_BYTES_MAX + 100)


def pushed(length: int) -> bytes:
    return WRITERS[Push].write(Push(b"o" * length))


def outcome(data: bytes, limits: ItemLimits) -> object:
    try:
        return ItemScanner(limits).scan(data)
    except DecodeError as fault:
        return fault.code, fault.offset, fault.text


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("missing", [0, 1, 5])
def test_both_ways_find_the_same_end(length: int, missing: int) -> None:
    data = pushed(length)[: -missing or None]
    assert outcome(data, SHORT_WAY) == outcome(data, LONG_WAY)


@pytest.mark.parametrize("length", [4, 23, 24, 255, 256, 65_535])
def test_the_usual_ones_are_found_the_short_way(length: int) -> None:
    data = b"before" + pushed(length) + b"behind"
    assert ObjectShape.end(data, 6) == len(data) - 6


@given(st.binary(max_size=12))
def test_whatever_comes_is_seen_alike(rest: bytes) -> None:
    for data in (
        rest,
        b"\x82" + rest,
        b"\x82\x00" + rest,
        b"\x82\x00\x58" + rest,
        b"\x82\x00\x59\x00" + rest,
    ):
        assert outcome(data, SHORT_WAY) == outcome(data, LONG_WAY)


def test_several_in_one_piece_come_out_one_by_one() -> None:
    said = [pushed(100), WRITERS[Ask].write(Ask(7, b"query")), pushed(300), pushed(4)]
    framer = Framer()
    framer.feed(b"".join(said))
    assert [framer.next_item(SHORT_WAY) for _ in said] == said
    assert framer.next_item(SHORT_WAY) is None
