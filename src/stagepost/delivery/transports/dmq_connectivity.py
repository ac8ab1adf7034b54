"""The connectivity of a transport: whether the node answers, takes submissions, and has peers of its own.

The number of peers with which a node on this machine exchanges messages comes from its status page, which `node.json`
names. The local protocols say nothing about peers, so a node of another make cannot be asked; a program then knows
only whether the node itself is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from stagepost.errors import StagepostError
from stagepost.ground.files.running_nodes import node_beside
from stagepost.ground.identifiers import LOOPBACK_HOST
from stagepost.ground.telemetry.status import DmqNodePage
from stagepost.ground.wire.foreign_json import decode_foreign

ANSWER_TIMEOUT_S = 2.0
ANSWER_BYTES_MAX = 4 * 1024 * 1024
HOT = "hot"
"""State of a peer that exchanges messages; a peer that is only connected would carry nothing."""

_REQUEST = f"GET /status HTTP/1.1\r\nHost: {LOOPBACK_HOST}\r\nConnection: close\r\n\r\n".encode()


class NodePeers:
    """The status page of a node. The note in its `data_folder` counts only if it names the same socket."""

    def __init__(self, socket_path: Path, data_folder: Path | None = None) -> None:
        self._socket_path = socket_path
        self._data_folder = data_folder
        self._port: int | None = None

    async def count(self) -> int | None:
        """Return the number of peers; None if the node cannot be asked, or does not answer."""
        # A restarted node may serve at another port, so the port of a silent node is read again.
        port = self._port or self._look_up()
        if port is None:
            return None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                content = await _fetch(port)
            self._port = port
            status = decode_foreign(content, DmqNodePage)
        except (OSError, ValueError, TimeoutError, msgspec.MsgspecError):
            self._port = None
            return None
        return sum(peer.state == HOT for peer in status.peers)

    def _look_up(self) -> int | None:
        note = node_beside(self._socket_path, self._data_folder)
        return None if note is None else note.metrics_port


async def _fetch(port: int) -> bytes:
    """Return the body of the answer; raise `ValueError` for an answer without one."""
    reader, writer = await asyncio.open_connection(LOOPBACK_HOST, port, limit=ANSWER_BYTES_MAX)
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


PEERS_POLL_S = 1.0
"""Seconds between two looks while there are peers: a node without peers keeps its messages, so there is no hurry."""
PEERS_POLL_WITHOUT_S = 0.1
"""Seconds between two looks while there is no peer: queued messages wait for the first."""

log = logging.getLogger(__name__)


class DmqConnectivity:
    """The number of peers to go by, 0 whenever in doubt. `on_change` is called after every change.

    A node of another make tells nothing of its peers: it counts as one peer while it answers.
    """

    def __init__(
        self,
        node_peers: NodePeers,
        check: Callable[[], Awaitable[None]],
        on_change: Callable[[int], None],
        *,
        poll_s: float = PEERS_POLL_S,
        poll_without_s: float = PEERS_POLL_WITHOUT_S,
    ) -> None:
        self.has_looked = asyncio.Event()
        self.fault: StagepostError | None = None
        self._node_peers = node_peers
        self._check = check
        self._on_change = on_change
        self._poll_s = poll_s
        self._poll_without_s = poll_without_s
        self._is_listening = False
        self._is_submitting = True
        self._found: int | None = None  # None while the number is unknown
        self._is_counted = False
        self._told = 0
        self._era = 0  # a look that began before the node went away says nothing about the time after
        self._look_now = asyncio.Event()

    @property
    def peers(self) -> int:
        if not (self._is_listening and self._is_submitting):
            return 0
        return self._found or 0

    @property
    def is_node_there(self) -> bool:
        return self._is_listening and self._is_submitting

    @property
    def counted_peers(self) -> int | None:
        """Return the number of peers that the node reports; None if it reports none."""
        return self.peers if self._is_counted and self._is_listening else None

    def note_listening(self, error: StagepostError | None) -> None:
        """Note that the connection for incoming messages was made, or why it was lost."""
        if error is None and self._is_listening:
            return  # the connection was renewed on purpose; the node was there all the time
        self.fault = error
        self._era += 1
        self._is_listening = error is None
        self._found = None
        self._is_counted = False
        self._look_now.set()
        if error is not None:
            self.has_looked.set()
        self._tell()

    def note_unreachable(self) -> None:
        """Note that a submission found no node. The node is asked before it is trusted again."""
        self._is_submitting = False
        self._look_now.set()
        self._tell()

    async def run(self) -> None:
        while True:
            self._look_now.clear()
            await self._look()
            delay_s = self._poll_s if self.peers else self._poll_without_s
            try:
                async with asyncio.timeout(delay_s):
                    await self._look_now.wait()
            except TimeoutError:
                pass

    def stop(self) -> None:
        self._is_listening = False
        self._tell()

    async def _look(self) -> None:
        if not self._is_listening:
            return
        era = self._era
        if not self._is_submitting:
            self._is_submitting = await self._is_reached()
        found = await self._node_peers.count()
        if era != self._era:
            return
        if found is not None:
            self._found = found
            self._is_counted = True
        elif self._found is None:
            # The node never answered on this connection: it is of another make, or has no status page.
            self._found = 1
        self.has_looked.set()
        self._tell()

    async def _is_reached(self) -> bool:
        try:
            await self._check()
        except StagepostError as error:
            log.info("node is not reached", extra={"reason": error.text})
            return False
        return True

    def _tell(self) -> None:
        if self.peers != self._told:
            self._told = self.peers
            self._on_change(self._told)
