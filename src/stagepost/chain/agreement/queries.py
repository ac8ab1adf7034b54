"""Binary forms of the one question of a validator that is behind, and of its answer.

An answer is a handful of ordinary messages, each of which is checked as if it had come by itself.
"""

from __future__ import annotations

import msgspec

from stagepost.chain.agreement.messages import FRAME_BYTES_MAX
from stagepost.chain.agreement.votes import read_slot
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import INT256_BYTES, Reader, Writer, constructor_id

CANDIDATES_ASKED_MAX = 8
SKIPS_ASKED_MAX = 64
FRAMES_MAX = 1_024
ANSWER_BYTES_MAX = 1024 * 1024
SLOT_BYTES = 4
FRAME_BYTES_MIN = 4

GET_PROGRESS_ID = constructor_id(
    "agreement.getProgress final_slot:int from_slot:int slot:int is_starting:int candidates:(vector int256) "
    "skips:(vector int) = agreement.Progress"
)
PROGRESS_ID = constructor_id("agreement.progress slot:int frames:(vector bytes) = agreement.Progress")


class GetProgress(msgspec.Struct, frozen=True):
    """`final_slot`: last slot up to which the asker's chain is final. `from_slot`: the first slot of which it
    knows neither a block that its chain leads to nor that it was skipped. `slot`: the slot that it is in.
    `is_starting`: it listens for its own earlier votes. `candidates` and `skips`: further blocks and
    certificates that it lacks.
    """

    final_slot: int
    from_slot: int
    slot: int
    is_starting: bool = False
    candidates: tuple[bytes, ...] = ()
    skips: tuple[int, ...] = ()

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(GET_PROGRESS_ID)
        for number in (self.final_slot, self.from_slot, self.slot, int(self.is_starting)):
            writer.write_int(number)
        writer.write_vector_count(len(self.candidates))
        for block in self.candidates:
            writer.write_int256(block)
        writer.write_vector_count(len(self.skips))
        for slot in self.skips:
            writer.write_int(slot)
        return writer.written()


class Progress(msgspec.Struct, frozen=True):
    """`slot`: the slot that the answering validator is in."""

    slot: int
    frames: tuple[bytes, ...]

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(PROGRESS_ID)
        writer.write_int(self.slot)
        writer.write_vector_count(len(self.frames))
        for frame in self.frames:
            writer.write_bytes(frame)
        return writer.written()


def decode_query(data: bytes) -> GetProgress:
    reader = Reader(data)
    reader.read_constructor(GET_PROGRESS_ID)
    final_slot = reader.read_int()
    if final_slot < 0:
        raise TlDecodeError(f"the final slot is {final_slot}; nothing is below 0", found=final_slot, offset=4)
    from_slot, slot = read_slot(reader), read_slot(reader)
    start = reader.offset
    is_starting = reader.read_int()
    if is_starting not in (0, 1):
        raise TlDecodeError(f"is_starting at offset {start} is {is_starting}; it is 0 or 1", offset=start)
    count = reader.read_vector_count(CANDIDATES_ASKED_MAX, INT256_BYTES)
    candidates = tuple(reader.read_int256() for _ in range(count))
    count = reader.read_vector_count(SKIPS_ASKED_MAX, SLOT_BYTES)
    skips = tuple(read_slot(reader) for _ in range(count))
    reader.expect_end()
    return GetProgress(final_slot, from_slot, slot, bool(is_starting), candidates, skips)


def decode_answer(data: bytes) -> Progress:
    reader = Reader(data)
    reader.read_constructor(PROGRESS_ID)
    slot = read_slot(reader)
    count = reader.read_vector_count(FRAMES_MAX, FRAME_BYTES_MIN)
    frames = tuple(reader.read_bytes(FRAME_BYTES_MAX, "frame") for _ in range(count))
    reader.expect_end()
    return Progress(slot, frames)
