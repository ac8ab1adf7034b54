"""A network of scripted peers in the node's own process: what they say was encoded beforehand, what they hear is dropped.

The node's bearers, conversations and everything behind them are the real ones. Only the kernel is missing, whose cost
of waking another process differs between machines by more than all the rest of the path.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

from bench.traffic import MESSAGE_BYTES, NETWORK_MAGIC
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.profiles import DMQ_NODE, MiniProtocol, answer_terms
from stagepost.dmq.specs import codec_for
from stagepost.dmq.submission import MessageIdAndSize, ReplyMessageIds, ReplyMessages
from stagepost.ground.net.bearer import Bearer, Trace
from stagepost.ground.net.handshake import HANDSHAKE_NUMBER, answer
from stagepost.ground.net.network import Address, UnixAddress
from stagepost.ground.net.sockets import CLOSE_GRACE_S, CONNECT_TIMEOUT_S, CONNECTIONS_MAX, OnConnection
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.wire.mux import SEGMENT_HEADER_BYTES, Direction, lane_number, split_payload

SUBMISSION = DMQ_NODE.numbers[MiniProtocol.MESSAGE_SUBMISSION]
NOTIFICATION = DMQ_NODE.numbers[MiniProtocol.LOCAL_MESSAGE_NOTIFICATION]
OURS = VersionData(NETWORK_MAGIC, peer_sharing=False)
SUBMISSION_VERSION = 2
REPLY_FRAME_BYTES = 4
"""Of a blocking notification reply, around its messages: head, tag, and both ends of the list."""
REQUEST_IDS_TAG = 1
_HEADER = Struct(">IHH")
"""Time, lane and length: the node's own way of reading it checks more than there is to check here."""


class ScriptedTransport(asyncio.Transport):
    """Hands what the node writes to a script, segment by segment, and what the script says to the node."""

    def __init__(self, bearer: Bearer, script: Script) -> None:
        super().__init__()
        self._bearer = bearer
        self._script = script
        self._loop = asyncio.get_running_loop()
        script.say = self.say

    def write(self, data: bytes | bytearray | memoryview) -> None:
        position, size, heard = 0, len(data), self._script.heard
        while position < size:
            _, lane, length = _HEADER.unpack_from(data, position)
            position += SEGMENT_HEADER_BYTES
            heard(lane, data, position, length)
            position += length

    def say(self, data: bytes) -> None:
        # Never inside of the node's own call: a socket would not answer there either.
        self._loop.call_soon(self._give, data)

    def _give(self, data: bytes) -> None:
        # As much at a time as the node makes room for, as with a socket.
        start = 0
        while start < len(data):
            room = self._bearer.get_buffer(-1)
            piece = data if not start and len(data) <= len(room) else data[start : start + len(room)]
            room[: len(piece)] = piece
            self._bearer.buffer_updated(len(piece))
            start += len(piece)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self._loop.call_soon(self._bearer.connection_lost, None)

    abort = close


class Script:
    """One scripted peer; its transport gives it `say`."""

    say: Callable[[bytes], None]

    def heard(self, lane: int, data: bytes | bytearray | memoryview, position: int, length: int) -> None:
        raise NotImplementedError


class Supplier(Script):
    """Announces `per_reply` messages at a time and hands them over when asked."""

    def __init__(self, messages: Sequence[DmqMessage], per_reply: int) -> None:
        codec = codec_for(DMQ_NODE, MiniProtocol.MESSAGE_SUBMISSION, SUBMISSION_VERSION)
        lane = lane_number(SUBMISSION, Direction.RESPONDER)
        self._lane_heard = lane_number(SUBMISSION, Direction.INITIATOR)
        self._replies: deque[tuple[bytes, bytes]] = deque()
        for start in range(0, len(messages), per_reply):
            batch = tuple(messages[start : start + per_reply])
            ids = tuple(MessageIdAndSize(message.message_id, len(message.raw)) for message in batch)
            self._replies.append(
                (
                    b"".join(split_payload(codec.encode(ReplyMessageIds(ids)), lane, 0)),
                    b"".join(split_payload(codec.encode(ReplyMessages(batch)), lane, 0)),
                )
            )
        self._wanted: bytes = b""
        self._released = 0
        self._is_asked = False
        self._has_agreed = False

    def release(self, replies: int) -> None:
        self._released += replies
        if self._is_asked:
            self._announce()

    def heard(self, lane: int, data: bytes | bytearray | memoryview, position: int, length: int) -> None:
        if not self._has_agreed:
            self._has_agreed = True
            self.say(_agreement(bytes(data[position : position + length])))
        elif lane == self._lane_heard:
            if data[position + 1] == REQUEST_IDS_TAG:
                self._is_asked = True
                if self._released:
                    self._announce()
            else:
                self.say(self._wanted)

    def _announce(self) -> None:
        self._is_asked = False
        self._released -= 1
        ids, self._wanted = self._replies.popleft()
        self.say(ids)


def _agreement(proposal: bytes) -> bytes:
    codec = codec_for(DMQ_NODE, MiniProtocol.HANDSHAKE)
    terms = answer_terms([DMQ_NODE], ConnectionKind.NODE, OURS)
    reply, agreement = answer(codec.decode(proposal, "Propose"), terms)
    assert agreement is not None
    assert agreement.submission_version == SUBMISSION_VERSION
    return b"".join(split_payload(codec.encode(reply), lane_number(HANDSHAKE_NUMBER, Direction.RESPONDER), 0))


class Audience:
    """How many messages all programs together have still to be shown."""

    def __init__(self) -> None:
        self.missing = 0
        self.all_shown = asyncio.Event()

    def expect(self, count: int) -> None:
        self.missing += count
        self.all_shown.clear()

    def shown(self, count: int) -> None:
        self.missing -= count
        if self.missing <= 0:
            self.all_shown.set()


class Program(Script):
    """Asks for messages, blocking, and counts what it is shown."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._reply_bytes = 0
        self._has_agreed = False
        (self._request,) = split_payload(b"\x82\x00\xf5", lane_number(NOTIFICATION, Direction.INITIATOR), 0)

    def begin(self) -> None:
        terms = DMQ_NODE.proposal_terms(ConnectionKind.CLIENT, OURS)
        proposal = codec_for(DMQ_NODE, MiniProtocol.HANDSHAKE).encode(terms.proposal())
        lane = lane_number(HANDSHAKE_NUMBER, Direction.INITIATOR)
        self.say(b"".join(split_payload(proposal, lane, 0)))

    def heard(self, lane: int, data: bytes | bytearray | memoryview, position: int, length: int) -> None:
        if not self._has_agreed:
            self._has_agreed = True
            self.say(self._request)
            return
        # All messages have one size, so the length tells where a reply ends without reading it.
        self._reply_bytes += length
        count, rest = divmod(self._reply_bytes - REPLY_FRAME_BYTES, MESSAGE_BYTES)
        if rest == 0 and data[position + length - 1] == 0xFF:
            self._reply_bytes = 0
            self.say(self._request)
            self._audience.shown(count)


class ScriptedListener:
    port = None
    connection_count = 0

    def __init__(self, address: str) -> None:
        self.address = address

    async def close(self, grace_s: float = CLOSE_GRACE_S) -> None:
        return


class ScriptedNetwork:
    """The node dials the suppliers, by their number as port; programs come to its local socket."""

    def __init__(self, suppliers: Sequence[Supplier]) -> None:
        self._suppliers = suppliers
        self._serve_program: OnConnection | None = None
        self._served: list[asyncio.Future[None]] = []

    async def connect(
        self, address: Address, *, trace: Trace | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Bearer:
        assert not isinstance(address, UnixAddress)
        bearer = Bearer(peer=str(address), trace=trace)
        bearer.connection_made(ScriptedTransport(bearer, self._suppliers[address.port - 1]))
        return bearer

    async def serve(
        self,
        address: Address,
        on_connection: OnConnection,
        *,
        trace: Trace | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> ScriptedListener:
        if isinstance(address, UnixAddress):
            self._serve_program = on_connection
        return ScriptedListener(str(address))

    def join(self, program: Program) -> None:
        assert self._serve_program is not None
        bearer = Bearer(peer="program")
        bearer.connection_made(ScriptedTransport(bearer, program))
        self._served.append(asyncio.ensure_future(self._serve_program(bearer)))
        program.begin()

    async def close(self) -> None:
        for served in self._served:
            served.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)
