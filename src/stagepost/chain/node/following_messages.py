"""The messages among nodes that follow the chain: a final block, and the question for missing ones."""

from __future__ import annotations

import msgspec

from stagepost.chain.agreement.messages import FRAME_BYTES_MAX
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import Reader, Writer, constructor_id

SESSIONS_ASKED_MAX = 512
"""Sessions in one question, at most; the others come with the next."""

BLOCKS_MAX = 128
BLOCKS_BYTES_MAX = 768 * 1024
"""Bytes of the blocks in one answer, at most; the first block is in it however large it is."""

_PLACE_BYTES = 36
_BLOCK_BYTES_MIN = 40

_BLOCK = "session:int256 number:int record:bytes"
FINAL_ID = constructor_id(f"stagepost.chain.final {_BLOCK} = stagepost.chain.Final")
GET_FINALS_ID = constructor_id(
    "stagepost.chain.getFinals places:(vector stagepost.chain.place) = stagepost.chain.Finals"
)
FINALS_ID = constructor_id(
    "stagepost.chain.finals blocks:(vector stagepost.chain.final) = stagepost.chain.Finals"
)


class Final(msgspec.Struct, frozen=True):
    """A block by its place in its session, counted from 1. `record`: the block and its proof, as agreement
    stores it.
    """

    session_id: bytes
    number: int
    record: bytes

    def write(self, writer: Writer) -> None:
        """Write the bare form."""
        writer.write_int256(self.session_id)
        writer.write_unsigned_int(self.number)
        writer.write_bytes(self.record)

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(FINAL_ID)
        self.write(writer)
        return writer.written()


class GetFinals(msgspec.Struct, frozen=True):
    """The number of the first block that is wanted, by session."""

    places: tuple[tuple[bytes, int], ...]

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(GET_FINALS_ID)
        writer.write_vector_count(len(self.places))
        for session_id, number in self.places:
            writer.write_int256(session_id)
            writer.write_unsigned_int(number)
        return writer.written()


class Finals(msgspec.Struct, frozen=True):
    """Final blocks, in order within each session."""

    blocks: tuple[Final, ...]

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(FINALS_ID)
        writer.write_vector_count(len(self.blocks))
        for block in self.blocks:
            block.write(writer)
        return writer.written()


def decode_final(data: bytes) -> Final:
    reader = Reader(data)
    reader.read_constructor(FINAL_ID)
    final = _read_final(reader)
    reader.expect_end()
    return final


def decode_get_finals(data: bytes) -> GetFinals:
    reader = Reader(data)
    reader.read_constructor(GET_FINALS_ID)
    count = reader.read_vector_count(SESSIONS_ASKED_MAX, _PLACE_BYTES)
    places = tuple((reader.read_int256(), _read_number(reader)) for _ in range(count))
    reader.expect_end()
    return GetFinals(places)


def decode_finals(data: bytes) -> Finals:
    reader = Reader(data)
    reader.read_constructor(FINALS_ID)
    count = reader.read_vector_count(BLOCKS_MAX, _BLOCK_BYTES_MIN)
    blocks = tuple(_read_final(reader) for _ in range(count))
    reader.expect_end()
    return Finals(blocks)


def _read_final(reader: Reader) -> Final:
    session_id, number = reader.read_int256(), _read_number(reader)
    return Final(session_id, number, reader.read_bytes(FRAME_BYTES_MAX, "final block"))


def _read_number(reader: Reader) -> int:
    start = reader.offset
    number = reader.read_unsigned_int()
    if number < 1:
        raise TlDecodeError(f"the block's number at offset {start} is 0; blocks count from 1", offset=start)
    return number
