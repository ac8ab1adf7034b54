"""Queries by which members catch up, and their answers: binary forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from stagepost.catchain.block import SOURCES_MAX, Block, Dependency, read_block, read_dependency
from stagepost.ground.wire.tl import INT256_BYTES, Reader, Writer, constructor_id

BLOCKS_ASKED_MAX = 100
HEIGHT_BYTES = 4
BLAMED_HEIGHT = -1
"""Height that stands for a blamed member, from which the asker wants no more blocks."""

GET_BLOCK_ID = constructor_id("catchain.getBlock block:int256 = catchain.BlockResult")
GET_BLOCKS_ID = constructor_id("catchain.getBlocks blocks:(vector int256) = catchain.Sent")
GET_DIFFERENCE_ID = constructor_id("catchain.getDifference rt:(vector int) = catchain.Difference")
GET_HISTORY_ID = constructor_id(
    "catchain.getBlockHistory block:int256 height:long stop_if:(vector int256) = catchain.Sent"
)
DIFFERENCE_ID = constructor_id("catchain.difference sent_upto:(vector int) = catchain.Difference")
DIFFERENCE_FORK_ID = constructor_id(
    "catchain.differenceFork left:catchain.block.dep right:catchain.block.dep = catchain.Difference"
)
NOT_FOUND_ID = constructor_id("catchain.blockNotFound = catchain.BlockResult")
RESULT_ID = constructor_id("catchain.blockResult block:catchain.block = catchain.BlockResult")
SENT_ID = constructor_id("catchain.sent cnt:int = catchain.Sent")


class GetBlock(msgspec.Struct, frozen=True):
    block_hash: bytes


class GetBlocks(msgspec.Struct, frozen=True):
    """Query that is answered by the blocks, as updates, and their number."""

    block_hashes: tuple[bytes, ...]


class GetDifference(msgspec.Struct, frozen=True):
    """Query with the height up to which the asker has each member's blocks; older nodes send the delivered
    heights."""

    heights: tuple[int, ...]


class GetBlockHistory(msgspec.Struct, frozen=True):
    """Query for a block and its ancestors, down to blocks that the asker has."""

    block_hash: bytes
    count: int
    stop_at: tuple[bytes, ...]


class Difference(msgspec.Struct, frozen=True):
    """Answer with the height of each member up to which the missing blocks were sent."""

    sent_up_to: tuple[int, ...]


class DifferenceFork(msgspec.Struct, frozen=True):
    """Answer with the proof of a fork by a member that the asker has not blamed yet."""

    left: Dependency
    right: Dependency


class BlockNotFound(msgspec.Struct, frozen=True):
    pass


class BlockResult(msgspec.Struct, frozen=True):
    """Answer with a block. The payload follows raw, to the end, without a length in front of it."""

    block: Block


class Sent(msgspec.Struct, frozen=True):
    count: int


Query: TypeAlias = GetBlock | GetBlocks | GetDifference | GetBlockHistory
Answer: TypeAlias = Difference | DifferenceFork | BlockNotFound | BlockResult | Sent


def encode_query(query: Query) -> bytes:
    writer = Writer()
    match query:
        case GetBlock(block_hash):
            writer.write_constructor(GET_BLOCK_ID)
            writer.write_int256(block_hash)
        case GetBlocks(block_hashes):
            writer.write_constructor(GET_BLOCKS_ID)
            _write_hashes(writer, block_hashes)
        case GetDifference(heights):
            writer.write_constructor(GET_DIFFERENCE_ID)
            _write_heights(writer, heights)
        case GetBlockHistory(block_hash, count, stop_at):
            writer.write_constructor(GET_HISTORY_ID)
            writer.write_int256(block_hash)
            writer.write_long(count)
            _write_hashes(writer, stop_at)
    return writer.written()


def decode_query(data: bytes) -> Query:
    reader = Reader(data)
    query: Query
    match reader.read_constructor(GET_BLOCK_ID, GET_BLOCKS_ID, GET_DIFFERENCE_ID, GET_HISTORY_ID):
        case identifier if identifier == GET_BLOCK_ID:
            query = GetBlock(reader.read_int256())
        case identifier if identifier == GET_BLOCKS_ID:
            query = GetBlocks(_read_hashes(reader))
        case identifier if identifier == GET_DIFFERENCE_ID:
            query = GetDifference(_read_heights(reader))
        case _:
            query = GetBlockHistory(reader.read_int256(), reader.read_long(), _read_hashes(reader))
    reader.expect_end()
    return query


def encode_answer(answer: Answer) -> bytes:
    writer = Writer()
    match answer:
        case Difference(sent_up_to):
            writer.write_constructor(DIFFERENCE_ID)
            _write_heights(writer, sent_up_to)
        case DifferenceFork(left, right):
            writer.write_constructor(DIFFERENCE_FORK_ID)
            left.write(writer)
            right.write(writer)
        case BlockNotFound():
            writer.write_constructor(NOT_FOUND_ID)
        case BlockResult(block):
            writer.write_constructor(RESULT_ID)
            block.write(writer)
            writer.write_raw(block.payload)
        case Sent(count):
            writer.write_constructor(SENT_ID)
            writer.write_int(count)
    return writer.written()


def decode_answer(data: bytes) -> Answer:
    reader = Reader(data)
    answer: Answer
    match reader.read_constructor(DIFFERENCE_ID, DIFFERENCE_FORK_ID, NOT_FOUND_ID, RESULT_ID, SENT_ID):
        case identifier if identifier == DIFFERENCE_ID:
            answer = Difference(_read_heights(reader))
        case identifier if identifier == DIFFERENCE_FORK_ID:
            answer = DifferenceFork(read_dependency(reader), read_dependency(reader))
        case identifier if identifier == NOT_FOUND_ID:
            answer = BlockNotFound()
        case identifier if identifier == RESULT_ID:
            answer = BlockResult(read_block(reader))
        case _:
            answer = Sent(reader.read_int())
    reader.expect_end()
    return answer


def _write_hashes(writer: Writer, hashes: Sequence[bytes]) -> None:
    writer.write_vector_count(len(hashes))
    for one in hashes:
        writer.write_int256(one)


def _read_hashes(reader: Reader) -> tuple[bytes, ...]:
    count = reader.read_vector_count(BLOCKS_ASKED_MAX, INT256_BYTES)
    return tuple(reader.read_int256() for _ in range(count))


def _write_heights(writer: Writer, heights: Sequence[int]) -> None:
    writer.write_vector_count(len(heights))
    for height in heights:
        writer.write_int(height)


def _read_heights(reader: Reader) -> tuple[int, ...]:
    count = reader.read_vector_count(SOURCES_MAX, HEIGHT_BYTES)
    return tuple(reader.read_int() for _ in range(count))
