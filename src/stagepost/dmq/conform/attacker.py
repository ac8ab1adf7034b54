"""Connection to a node under test: bytes out as they are given, segments in, and the node's end of the connection.

`NodeTarget` says where the node can be reached, and which numbers it gives to the mini-protocols. Cases name each
mini-protocol by dmq-node's number; `NodeTarget.lanes` translates.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from stagepost.dmq.conform.cbor_bytes import AlienBytes, Unfinished, array, boolean, mapping, read, uint

HANDSHAKE = 0
SUBMISSION, KEEP_ALIVE, PEER_SHARING, LOCAL_SUBMISSION, NOTIFICATION = 11, 12, 13, 14, 15
SEED_SUBMISSION, SEED_KEEP_ALIVE, SEED_LOCAL_SUBMISSION, SEED_NOTIFICATION = 17, 8, 18, 19
LOCAL_VERSION = 4_097
OTHER_SIDE = 0x8000
"""Direction bit: the speaker did not open this instance."""

PAYLOAD_BYTES = 12_288
"""Bytes of a segment's payload, as dmq-node cuts them."""
PIECES_KEPT_MAX = 32
"""Pieces of each direction that a record keeps."""
PIECE_BYTES_KEPT_MAX = 256
"""Bytes of a piece that a record keeps."""
PATIENCE_S = 30.0
"""Seconds for which a connection waits for a word of the node."""
UNREAD_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of the node that a connection keeps until a case asks for them: twice the longest reply to a program. A node that
says more is not heard any further."""
READING_SHARE = 4.0
"""Times as long as the last attempt to read an unfinished answer took that the next attempt waits at least."""
FLUSHED_WITHIN_S = 1.0
"""Seconds for which a connection that is left waits for the node to read the last bytes."""
TEXT_CHARS_MAX = 400
"""Characters of a sentence about an answer: the node chooses how long the answer is."""


def shortened(text: str) -> str:
    rest = len(text) - TEXT_CHARS_MAX
    return text if rest <= 0 else f"{text[:TEXT_CHARS_MAX]} … and {rest:,} characters more"


class NodeClosed(Exception):
    """The node ended the connection while the case still wanted to hear something."""


class UnexpectedAnswer(Exception):
    """The node said something that the rules do not allow there."""

    def __init__(self, text: str) -> None:
        super().__init__(shortened(text))


class NothingSeen(Exception):
    """The node has nothing at hand by which the rule could be judged."""


class NothingToTry(Exception):
    """Absence of an answer to an honest handshake: nothing at the place can be judged. `advice` says what to do."""

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(shortened(text))
        self.advice = advice


def require(holds: bool, text: str) -> None:
    """Raise `UnexpectedAnswer` with `text` unless `holds`."""
    if not holds:
        raise UnexpectedAnswer(text)


@dataclass(frozen=True)
class NodeTarget:
    """Place of a node, and the numbers that it gives to the mini-protocols where they are not those of dmq-node."""

    port: int | None
    socket: Path | None
    magic: int
    host: str = "127.0.0.1"
    lanes: Mapping[int, int] = field(default_factory=dict)
    patience_s: float = PATIENCE_S

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def lane(self, number: int) -> int:
        """Return the number on the wire, with the direction bit of `number`."""
        direction = number & OTHER_SIDE
        return direction | self.lanes.get(number & ~OTHER_SIDE, number & ~OTHER_SIDE)


class RawSegment(NamedTuple):
    """Segment by its parts. `announced` is the length that the header claims, if it is not the true one."""

    lane: int
    payload: bytes
    announced: int | None = None

    def bytes_for(self, target: NodeTarget) -> bytes:
        return segment(target.lane(self.lane), self.payload, self.announced)


def segment(lane: int, payload: bytes, announced: int | None = None) -> bytes:
    length = len(payload) if announced is None else announced
    return struct.pack(">IHH", 0, lane, length) + payload


def segments(lane: int, payload: bytes, size: int = PAYLOAD_BYTES) -> bytes:
    return b"".join(segment(lane, payload[at : at + size]) for at in range(0, len(payload), size))


def cut(lane: int, payload: bytes, size: int = PAYLOAD_BYTES) -> tuple[RawSegment, ...]:
    return tuple(RawSegment(lane, payload[at : at + size]) for at in range(0, len(payload), size))


def node_data(magic: int, *, initiator_only: bool, sharing: int = 0, query: bool = False) -> bytes:
    return array(uint(magic), boolean(initiator_only), uint(sharing), boolean(query))


def local_data(magic: int, *, query: bool = False) -> bytes:
    return array(uint(magic), boolean(query))


def proposal(*versions: tuple[int, bytes]) -> bytes:
    return array(uint(0), mapping(*((uint(number), data) for number, data in versions)))


class PassedBytes(NamedTuple):
    """Bytes that passed at once, cut to what a record keeps."""

    is_ours: bool
    after_s: float
    data: bytes
    length: int


@dataclass
class Transcript:
    """Record of a connection: the first pieces of each direction, and how many bytes passed."""

    pieces: list[PassedBytes] = field(default_factory=list)
    said_bytes: int = 0
    heard_bytes: int = 0
    _kept: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})

    def add(self, is_ours: bool, after_s: float, data: bytes) -> None:
        if is_ours:
            self.said_bytes += len(data)
        else:
            self.heard_bytes += len(data)
        if self._kept[is_ours] < PIECES_KEPT_MAX:
            self._kept[is_ours] += 1
            self.pieces.append(PassedBytes(is_ours, after_s, data[:PIECE_BYTES_KEPT_MAX], len(data)))


class Attacker:
    """Connection that says whatever it is told to. All that the node says is sorted by lane; `ended` is set when the node
    has ended the connection."""

    def __init__(
        self, target: NodeTarget, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.target = target
        self.began = time.monotonic()
        self.ended = asyncio.Event()
        self.ended_after_s: float | None = None
        self.last_lane = HANDSHAKE
        self.last_item = b""
        self.last_said = b""
        self.transcript = Transcript()
        self.reader = reader
        self._writer = writer
        self._heard: dict[int, bytearray] = defaultdict(bytearray)
        self._unread_bytes = 0
        self._news = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def tcp(cls, target: NodeTarget, *, source: str | None = None) -> Self:
        local = None if source is None else (source, 0)
        async with asyncio.timeout(target.patience_s):
            return cls(target, *await asyncio.open_connection(target.host, target.port, local_addr=local))

    @classmethod
    async def local(cls, target: NodeTarget) -> Self:
        async with asyncio.timeout(target.patience_s):
            return cls(target, *await asyncio.open_unix_connection(str(target.socket)))

    @property
    def name(self) -> str | None:
        """Our address, by which the node's log names us; None on a Unix socket, where all are alike."""
        here = self._writer.get_extra_info("sockname")
        return f"{here[0]}:{here[1]}" if isinstance(here, tuple) else None

    # Handshakes that succeed

    async def shake_hands(
        self, *versions: int, initiator_only: bool = True, sharing: int = 0
    ) -> tuple[int, Any]:
        data = node_data(self.target.magic, initiator_only=initiator_only, sharing=sharing)
        return await self._agree(proposal(*((number, data) for number in versions)))

    async def shake_hands_locally(self) -> tuple[int, Any]:
        return await self._agree(proposal((LOCAL_VERSION, local_data(self.target.magic))))

    async def _agree(self, said: bytes) -> tuple[int, Any]:
        await self.say(HANDSHAKE, said)
        answer = await self.hear(HANDSHAKE | OTHER_SIDE)
        require(
            isinstance(answer, list) and answer[:1] == [1] and len(answer) == 3,
            f"the node answered an honest handshake with {answer!r}",
        )
        return answer[1], answer[2]

    # Speaking

    async def raw(self, data: bytes) -> None:
        """Write `data`. A node that closes at once may do so before everything was written."""
        self.transcript.add(True, time.monotonic() - self.began, data)
        try:
            await self.write(data)
        except (ConnectionError, RuntimeError):
            await self.wait_ended(5.0)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def say(self, lane: int, payload: bytes) -> None:
        self.last_lane, self.last_said = lane, payload
        await self.raw(segments(self.target.lane(lane), payload))

    async def drip(self, data: bytes, every_s: float = 1.0) -> None:
        for byte in data:
            if self.ended.is_set():
                return
            await self.raw(bytes([byte]))
            await asyncio.sleep(every_s)

    def end_of_stream(self) -> None:
        """Say that we have said everything; the node may still answer."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    # Hearing

    async def hear(self, lane: int, within_s: float | None = None) -> Any:
        """Return the node's next item on this lane."""
        lane = self.target.lane(lane)
        async with asyncio.timeout(self.target.patience_s if within_s is None else within_s):
            while True:
                buffer = self._heard[lane]
                began = time.monotonic()
                try:
                    value, end = read(bytes(buffer))
                except Unfinished:
                    if self.ended.is_set():
                        raise NodeClosed(f"nothing more on lane {lane:#06x}") from None
                    require(
                        not self._says_too_much, f"the node said more than {UNREAD_BYTES_MAX:,} bytes unasked"
                    )
                    took_s = time.monotonic() - began
                    self._news.clear()
                    await self._news.wait()
                    # An answer in many segments is not read from its beginning at each of them.
                    await asyncio.sleep(READING_SHARE * took_s)
                    continue
                except AlienBytes as fault:
                    raise UnexpectedAnswer(f"the node's answer cannot be read: {fault}") from None
                self.last_item = bytes(buffer[:end])
                del buffer[:end]
                self._unread_bytes -= end
                return value

    @property
    def _says_too_much(self) -> bool:
        return self._unread_bytes > UNREAD_BYTES_MAX

    async def hear_first(self, *lanes: int) -> tuple[int, Any]:
        """Return the first of `lanes` on which the other side speaks, and its item."""
        async with asyncio.timeout(self.target.patience_s):
            while True:
                for lane in lanes:
                    if self._heard[lane]:
                        return lane, await self.hear(lane)
                if self.ended.is_set():
                    raise NodeClosed("nothing more")
                self._news.clear()
                await self._news.wait()

    async def hear_bytes(self, lane: int) -> bytes:
        """Return the node's next item on this lane as it was written."""
        await self.hear(lane)
        return self.last_item

    def heard_bytes(self, lane: int) -> bytes:
        return bytes(self._heard[self.target.lane(lane)])

    async def wait_ended(self, within_s: float) -> float | None:
        """Return after how many seconds of its life the node ended the connection; None if it did not."""
        try:
            await asyncio.wait_for(self.ended.wait(), within_s)
        except TimeoutError:
            return None
        return self.ended_after_s

    async def leave(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), FLUSHED_WITHIN_S)
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def pause(self) -> None:
        """Take nothing that the node says from the socket, until `resume`."""
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    async def read(self, count: int) -> bytes:
        return await self.reader.readexactly(count)

    async def _listen(self) -> None:
        header = b""
        try:
            while True:
                await self._may_read.wait()
                header = b""
                header = await self.read(8)
                _, lane, length = struct.unpack(">IHH", header)
                payload = await self.read(length)
                self._heard[lane] += payload
                self._unread_bytes += length
                self.transcript.add(False, time.monotonic() - self.began, header + payload)
                self._news.set()
                if self._says_too_much:
                    return
        except (asyncio.IncompleteReadError, OSError) as end:
            self.ended_after_s = time.monotonic() - self.began
            torn = header + (end.partial if isinstance(end, asyncio.IncompleteReadError) else b"")
            if torn:
                self.transcript.add(False, self.ended_after_s, torn)
            self.ended.set()
            self._news.set()
