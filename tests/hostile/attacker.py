"""One hostile connection on a real socket: bytes out as they are given, segments in, and how the node ended it."""

from __future__ import annotations

import asyncio
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from tests.hostile.cbor_bytes import Unfinished, array, boolean, mapping, read, uint

HANDSHAKE = 0
SUBMISSION, KEEP_ALIVE, PEER_SHARING, LOCAL_SUBMISSION, NOTIFICATION = 11, 12, 13, 14, 15
SEED_SUBMISSION, SEED_KEEP_ALIVE, SEED_LOCAL_SUBMISSION, SEED_NOTIFICATION = 17, 8, 18, 19
LOCAL_VERSION = 4_097
OTHER_SIDE = 0x8000
"""Direction bit: the speaker did not open this instance."""

PAYLOAD_BYTES = 12_288


class Readable(Protocol):
    async def readexactly(self, count: int) -> bytes: ...


class NodeClosed(Exception):
    """The node ended the connection while the attacker still wanted to hear something."""


@dataclass(frozen=True)
class Target:
    """Where a node can be reached."""

    port: int
    socket: Path | None
    magic: int


def segment(lane: int, payload: bytes, announced: int | None = None) -> bytes:
    """`announced` is the length that the header claims, if it is not the true one."""
    length = len(payload) if announced is None else announced
    return struct.pack(">IHH", 0, lane, length) + payload


def segments(lane: int, payload: bytes, size: int = PAYLOAD_BYTES) -> bytes:
    return b"".join(segment(lane, payload[at : at + size]) for at in range(0, len(payload), size))


def node_data(magic: int, *, initiator_only: bool, sharing: int = 0, query: bool = False) -> bytes:
    return array(uint(magic), boolean(initiator_only), uint(sharing), boolean(query))


def local_data(magic: int, *, query: bool = False) -> bytes:
    return array(uint(magic), boolean(query))


def proposal(*versions: tuple[int, bytes]) -> bytes:
    return array(uint(0), mapping(*((uint(number), data) for number, data in versions)))


class Attacker:
    """Everything that the node says is sorted by lane; `ended` is set when it has ended the connection."""

    def __init__(self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.target = target
        self.began = time.monotonic()
        self.ended = asyncio.Event()
        self.ended_after_s: float | None = None
        self.last_lane = HANDSHAKE
        self._reader = reader
        self._writer = writer
        self._heard: dict[int, bytearray] = defaultdict(bytearray)
        self._news = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self.said, self.heard = sha256(), sha256()  # all bytes until `encrypt`
        self._seal: Callable[[bytes], bytes] = lambda data: data
        self._listening = asyncio.create_task(self._listen(reader))

    @classmethod
    async def tcp(cls, target: Target, *, source: str | None = None) -> Attacker:
        local = None if source is None else (source, 0)
        return cls(target, *await asyncio.open_connection("127.0.0.1", target.port, local_addr=local))

    @classmethod
    async def local(cls, target: Target) -> Attacker:
        return cls(target, *await asyncio.open_unix_connection(str(target.socket)))

    @property
    def name(self) -> str | None:
        """How the node's log names us; None on a Unix socket, where all are alike."""
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
        kind, version, data = await self.hear(HANDSHAKE | OTHER_SIDE)
        assert kind == 1, f"the node refused an honest handshake: {version!r}"
        return version, data

    # Speaking

    async def raw(self, data: bytes) -> None:
        """A node that closes at once may do so before everything was written: that is its right."""
        try:
            self.said.update(data)
            self._writer.write(self._seal(data))
            await self._writer.drain()
        except (ConnectionError, RuntimeError):
            await self.wait_ended(5.0)

    async def say(self, lane: int, payload: bytes) -> None:
        self.last_lane = lane
        await self.raw(segments(lane, payload))

    async def drip(self, data: bytes, every_s: float = 1.0) -> None:
        for byte in data:
            if self.ended.is_set():
                return
            await self.raw(bytes([byte]))
            await asyncio.sleep(every_s)

    def end_of_stream(self) -> None:
        """We have said everything; the node may still answer."""
        if self._writer.can_write_eof():
            self._writer.write_eof()

    # Hearing

    async def hear(self, lane: int, within_s: float = 30.0) -> Any:
        """The node's next item on this lane."""
        async with asyncio.timeout(within_s):
            while True:
                buffer = self._heard[lane]
                try:
                    value, end = read(bytes(buffer))
                except Unfinished:
                    if self.ended.is_set():
                        raise NodeClosed(f"nothing more on lane {lane:#06x}") from None
                    self._news.clear()
                    await self._news.wait()
                    continue
                del buffer[:end]
                return value

    def heard_bytes(self, lane: int) -> bytes:
        return bytes(self._heard[lane])

    async def wait_ended(self, within_s: float) -> float | None:
        """After how many seconds of its life the connection was ended by the node; None if it was not."""
        try:
            await asyncio.wait_for(self.ended.wait(), within_s)
        except TimeoutError:
            return None
        return self.ended_after_s

    async def encrypt(
        self, seal: Callable[[bytes], bytes], opened: Callable[[asyncio.StreamReader], Readable]
    ) -> None:
        """From now on what we say is sealed, and what the node says is opened first. The node says nothing meanwhile."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._seal = seal
        self._listening = asyncio.create_task(self._listen(opened(self._reader)))

    async def leave(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    def pause(self) -> None:
        """From now on nothing that the node says is taken from the socket, until `resume`."""
        self._may_read.clear()

    def resume(self) -> None:
        self._may_read.set()

    async def _listen(self, reader: Readable) -> None:
        try:
            while True:
                await self._may_read.wait()
                header = await reader.readexactly(8)
                _, lane, length = struct.unpack(">IHH", header)
                payload = await reader.readexactly(length)
                self._heard[lane] += payload
                self.heard.update(header + payload)
                self._news.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.ended_after_s = time.monotonic() - self.began
            self.ended.set()
            self._news.set()
