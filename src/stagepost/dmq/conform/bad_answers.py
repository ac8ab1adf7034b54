"""A hostile peer that waits to be dialled: the node speaks first, and gets an answer that it should not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from stagepost.dmq.conform.attacker import (
    HANDSHAKE,
    KEEP_ALIVE,
    OTHER_SIDE,
    SUBMISSION,
    Attacker,
    NodeClosed,
    NodeTarget,
    Transcript,
    UnexpectedAnswer,
    node_data,
    segment,
    segments,
)
from stagepost.dmq.conform.cbor_bytes import array, endless, head, mapping, octets, text, uint

ANSWER = HANDSHAKE | OTHER_SIDE


@dataclass(frozen=True)
class BadAnswer:
    """`answer` is sent once the node has proposed; `later` once it has spoken on its own lane, the first of the two."""

    name: str
    rule: str
    answer: Callable[[int], bytes]
    code: str
    place: str = "handshake"
    within_s: float = 2.0
    later: tuple[int, bytes] | None = None


def _says(item: bytes) -> Callable[[int], bytes]:
    return lambda magic: segments(ANSWER, item)


def _accepts(version: int, magic_offset: int = 0, behind: bytes = b"") -> Callable[[int], bytes]:
    def answer(magic: int) -> bytes:
        data = node_data(magic + magic_offset, initiator_only=False)
        return segments(ANSWER, array(uint(1), uint(version), data) + behind)

    return answer


def _accepts_then(lane: int, item: bytes) -> Callable[[int], bytes]:
    return lambda magic: _accepts(2)(magic) + segment(lane, item)


# fmt: off
BAD_ANSWERS = (
    BadAnswer("accepts a version that was not proposed", "client.version", _accepts(9), "HANDSHAKE_NO_VERSION"),
    BadAnswer("accepts on another network", "client.network", _accepts(2, 1), "HANDSHAKE_WRONG_NETWORK"),
    BadAnswer("accepts with data of no shape", "client.shape", _says(array(uint(1), uint(2), uint(0))), "CBOR_INVALID"),
    BadAnswer("accepts with bytes behind", "client.strict", _accepts(2, behind=b"\x00"), "CBOR_INVALID"),
    BadAnswer("refuses every version", "client.refused", _says(array(uint(2), array(uint(0), array(uint(77))))), "HANDSHAKE_NO_VERSION"),
    BadAnswer("refuses with a reason", "client.refused", _says(array(uint(2), array(uint(2), uint(2), text("no")))), "HANDSHAKE_WRONG_NETWORK"),
    BadAnswer("refuses in bytes that are no text", "client.shape", _says(array(uint(2), array(uint(2), uint(2), b"\x62\xff\xfe"))), "CBOR_INVALID"),
    BadAnswer("refuses with an essay", "client.strict", _says(array(uint(2), array(uint(2), uint(2), text("n" * 5_000)))), "CBOR_INVALID"),
    BadAnswer("answers a query that nobody made", "client.state", _says(array(uint(3), mapping((uint(2), uint(0))))), "PROTOCOL_STATE"),
    BadAnswer("answers with an unknown word", "client.shape", _says(array(uint(8))), "CBOR_INVALID"),
    BadAnswer("answers without end", "client.early", _says(array(uint(1), uint(2), head(2, 1 << 40))), "CBOR_LIMIT"),
    BadAnswer("answers with a segment too large", "client.early", lambda magic: segment(ANSWER, b"", announced=60_000), "MUX_TOO_LARGE", "connection"),
    BadAnswer("answers on its own initiative", "client.state", lambda magic: segments(HANDSHAKE, array(uint(1))), "MUX_UNKNOWN_PROTOCOL", "connection"),
    BadAnswer("answers garbage", "client.shape", lambda magic: b"HTTP/1.1 400 Bad Request\r\n\r\n", "MUX_UNKNOWN_PROTOCOL", "connection"),
    BadAnswer("never answers", "client.time", lambda magic: b"", "PROTOCOL_TIMEOUT", within_s=10.0),
    BadAnswer("accepts, then offers more than was asked for", "client.state", _accepts(2), "PROTOCOL_WINDOW", "message-submission", later=(SUBMISSION, array(uint(2), endless(*(array(octets(bytes([n]) * 32), uint(900)) for n in range(200)))))),
    BadAnswer("accepts, then answers no question of keep-alive", "client.state", _accepts(2), "PROTOCOL_STATE", "keep-alive", later=(KEEP_ALIVE, array(uint(0), uint(1)))),
    BadAnswer("accepts, then answers before it was asked", "client.state", _accepts_then(SUBMISSION | OTHER_SIDE, array(uint(3))), "MUX_UNKNOWN_PROTOCOL", "connection"),
    BadAnswer("accepts, then opens what was not agreed", "client.state", _accepts_then(13, array(uint(0), uint(1))), "MUX_UNKNOWN_PROTOCOL", "connection"),
)
# fmt: on


class BadPeer:
    """Answers the first connection badly; later ones as well."""

    def __init__(self, bad: BadAnswer, magic: int, host: str = "127.0.0.1") -> None:
        self.bad = bad
        self.port = 0
        self.closed_after_s: float | None = None
        self.was_dialled, self.was_closed = asyncio.Event(), asyncio.Event()
        self.transcript: Transcript | None = None
        """Record of the first connection; None before it."""
        self.not_reached = ""
        """Reason why the answer could not be given; "" if it was."""
        self._magic = magic
        self._host = host
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, self._host, port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for one in self._open:
            one.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        peer = Attacker(NodeTarget(self.port, None, self._magic), reader, writer)
        if self.transcript is None:
            self.transcript = peer.transcript
        try:
            await self._answer(peer)
        except (NodeClosed, UnexpectedAnswer, TimeoutError, OSError) as obstacle:
            self.not_reached = self.not_reached or f"the node did not get to the answer: {obstacle!r}"
            self.was_dialled.set()
            self.was_closed.set()
        except asyncio.CancelledError:
            pass  # the kit stops; the server would take it for a fault, and say so
        finally:
            await peer.leave()
            self._open.discard(task)

    async def _answer(self, peer: Attacker) -> None:
        await peer.hear(HANDSHAKE)
        await peer.raw(self.bad.answer(self._magic))
        if self.bad.later is not None:
            lane, item = self.bad.later
            await peer.hear(lane)
            await peer.say(lane | OTHER_SIDE, item)
        began = time.monotonic()
        self.was_dialled.set()
        if await peer.wait_ended(self.bad.within_s + 20.0) is not None:
            self.closed_after_s = time.monotonic() - began
            self.was_closed.set()
