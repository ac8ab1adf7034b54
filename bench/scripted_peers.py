"""Everybody around the node that is measured, in a process of their own: nodes that supply messages, and programs.

The node dials the suppliers and pulls from them. The programs ask for messages, blocking, and drop what they get.
Orders come as lines on the standard input, answers go to the standard output:

    supply N        announce N more messages; answered by "shown" when every program has been shown all of them
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.traffic import MESSAGE_BYTES, NETWORK_MAGIC, read_messages
from stagepost.dmq.endpoints.connection import respond
from stagepost.dmq.endpoints.submission_client import MessageSubmissionClient
from stagepost.dmq.endpoints.submission_config import MessageSubmissionConfig
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.profiles import DMQ_NODE, MiniProtocol
from stagepost.dmq.specs import codec_for
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.bell import Bell
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import run_conversations
from stagepost.ground.net.handshake import HANDSHAKE_NUMBER
from stagepost.ground.net.keep_alive import KeepAliveServer
from stagepost.ground.net.sockets import serve_tcp
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.mux import (
    SEGMENT_HEADER_BYTES,
    Direction,
    decode_header,
    lane_number,
    split_payload,
)

OURS = VersionData(NETWORK_MAGIC, peer_sharing=False)
REPLY_FRAME_BYTES = 4
"""Of a blocking reply, around its messages: head, tag, and both ends of the list."""


class Supplies:
    """What is still to be announced, shared by all suppliers: each message is announced by one of them."""

    def __init__(self, messages: Sequence[DmqMessage], per_reply: int) -> None:
        self._messages = messages
        self._by_id = {message.message_id: message for message in messages}
        self._per_reply = per_reply
        self._announced = 0
        self._bell = Bell()
        self.released = 0

    def release(self, count: int) -> None:
        self.released = min(self.released + count, len(self._messages))
        self._bell.ring()

    async def next_ids(self, blocking: bool, acknowledged: int, requested: int) -> Sequence[MessageIdAndSize]:
        while blocking and self._announced == self.released:
            await self._bell.wait()
        start = self._announced
        self._announced = min(start + requested, start + self._per_reply, self.released)
        return [
            MessageIdAndSize(message.message_id, len(message.raw))
            for message in self._messages[start : self._announced]
        ]

    def find(self, ids: Sequence[MessageId]) -> list[DmqMessage]:
        return [self._by_id[message_id] for message_id in ids]


async def supply(supplies: Supplies, bearer: Bearer) -> None:
    connection = await respond(bearer, [DMQ_NODE], ConnectionKind.NODE, OURS)
    submission = connection.open(DMQ_NODE, MiniProtocol.MESSAGE_SUBMISSION, Role.SERVER)
    keep_alive = connection.open(DMQ_NODE, MiniProtocol.KEEP_ALIVE, Role.SERVER)
    config = MessageSubmissionConfig(
        request_message_ids=supplies.next_ids, request_messages=supplies.find, window=DMQ_NODE.window
    )
    await run_conversations(
        bearer, [MessageSubmissionClient(submission, config).run(), KeepAliveServer(keep_alive).run()]
    )


class Program(asyncio.Protocol):
    """A local program that does nothing with what it is shown but count it."""

    def __init__(self, on_shown: Callable[[], None]) -> None:
        self.shown = 0
        self._on_shown = on_shown
        self._unread = bytearray()
        self._reply_bytes = 0
        self._has_agreed = False
        self._transport: asyncio.Transport
        number = DMQ_NODE.numbers[MiniProtocol.LOCAL_MESSAGE_NOTIFICATION]
        (self._request,) = split_payload(b"\x82\x00\xf5", lane_number(number, Direction.INITIATOR), 0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        terms = DMQ_NODE.proposal_terms(ConnectionKind.CLIENT, VersionData(NETWORK_MAGIC))
        proposal = codec_for(DMQ_NODE, MiniProtocol.HANDSHAKE).encode(terms.proposal())
        lane = lane_number(HANDSHAKE_NUMBER, Direction.INITIATOR)
        transport.write(b"".join(split_payload(proposal, lane, 0)))

    def data_received(self, data: bytes) -> None:
        unread = self._unread
        unread += data
        while len(unread) >= SEGMENT_HEADER_BYTES:
            end = SEGMENT_HEADER_BYTES + decode_header(unread).length
            if len(unread) < end:
                return
            self._segment_came(end - SEGMENT_HEADER_BYTES, unread[end - 1])
            del unread[:end]

    def _segment_came(self, length: int, last_byte: int) -> None:
        if not self._has_agreed:
            self._has_agreed = True
            self._transport.write(self._request)
            return
        # All messages have one size, so the length tells where a reply ends without reading it.
        self._reply_bytes += length
        count, rest = divmod(self._reply_bytes - REPLY_FRAME_BYTES, MESSAGE_BYTES)
        if rest == 0 and last_byte == 0xFF:
            self.shown += count
            self._reply_bytes = 0
            self._transport.write(self._request)
            self._on_shown()


class Audience:
    """All programs together."""

    def __init__(self, supplies: Supplies) -> None:
        self._supplies = supplies
        self._programs: list[Program] = []
        self._is_reported = True

    async def join(self, socket_path: str, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            _, program = await loop.create_unix_connection(lambda: Program(self._look), socket_path)
            self._programs.append(program)

    def expect_more(self) -> None:
        self._is_reported = False
        self._look()

    def _look(self) -> None:
        released = self._supplies.released
        if not self._is_reported and all(program.shown >= released for program in self._programs):
            self._is_reported = True
            _say("shown")


def _say(line: str) -> None:
    os.write(sys.stdout.fileno(), line.encode() + b"\n")


async def run(options: argparse.Namespace) -> None:
    supplies = Supplies(list(read_messages(options.messages)), options.per_reply)
    audience = Audience(supplies)
    servers = [
        await serve_tcp("127.0.0.1", 0, lambda bearer: supply(supplies, bearer))
        for _ in range(options.suppliers)
    ]
    _say(" ".join(str(server.port) for server in servers))
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    socket_path = (await orders.readline()).decode().strip()
    await audience.join(socket_path, options.programs)
    _say("joined")
    while order := await orders.readline():
        supplies.release(int(order.split()[1]))
        audience.expect_more()
    os._exit(0)  # nothing here is worth an orderly end


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=Path, required=True)
    parser.add_argument("--per-reply", type=int, required=True)
    parser.add_argument("--suppliers", type=int, default=1)
    parser.add_argument("--programs", type=int, default=10)
    parser.add_argument("--processor", type=int)
    options = parser.parse_args()
    if options.processor is not None:
        os.sched_setaffinity(0, {options.processor})
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
