"""How many peers a node on this machine exchanges messages with: asked of its status page, which `node.json` names.

The local protocols say nothing about peers, so a node of another make cannot be asked; its program then knows only
whether the node itself is there.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from stagepost.ground.files.data_folder import NODE_FILE
from stagepost.ground.wire.foreign_json import decode_foreign

HOST = "127.0.0.1"
ANSWER_TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
NODE_FILE_BYTES_MAX = 65_536
HOT = "hot"
"""Connected, and messages are exchanged; one that is only connected would not carry anything."""

_REQUEST = f"GET /status HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()


class _Note(msgspec.Struct, frozen=True):
    local_socket: str
    metrics_port: int | None = None


class _Peer(msgspec.Struct, frozen=True):
    state: str = ""


class _Status(msgspec.Struct, frozen=True):
    peers: tuple[_Peer, ...] = ()


class NodePeers:
    """`data_folder` is the node's; its note counts only if it speaks of the same socket."""

    def __init__(self, socket_path: Path, data_folder: Path | None = None) -> None:
        self._socket_path = socket_path
        self._note_path = (data_folder or socket_path.parent) / NODE_FILE
        self._port: int | None = None

    async def count(self) -> int | None:
        """None if the node cannot be asked, or does not answer."""
        # A restarted node may serve at another port, so a silent one is looked up again.
        port = self._port or self._look_up()
        if port is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                content = await _fetch(port)
            self._port = port
            status = decode_foreign(content, _Status)
        except (OSError, ValueError, TimeoutError, msgspec.MsgspecError):
            self._port = None
            return None
        return sum(peer.state == HOT for peer in status.peers)

    def _look_up(self) -> int | None:
        try:
            with self._note_path.open("rb") as file:
                note = decode_foreign(file.read(NODE_FILE_BYTES_MAX), _Note)
        except (OSError, msgspec.MsgspecError):
            return None
        is_ours = os.path.realpath(note.local_socket) == os.path.realpath(self._socket_path)
        return note.metrics_port if is_ours else None


async def _fetch(port: int) -> bytes:
    """The body of the answer; `ValueError` for one that is none."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=ANSWER_BYTES_MAX)
    try:
        writer.write(_REQUEST)
        answer = bytearray()
        while part := await reader.read(ANSWER_BYTES_MAX + 1 - len(answer)):
            answer += part
            if len(answer) > ANSWER_BYTES_MAX:
                raise ValueError("the answer is too long")
    finally:
        writer.transport.abort()
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        raise ValueError("the node gave no status")
    return body
