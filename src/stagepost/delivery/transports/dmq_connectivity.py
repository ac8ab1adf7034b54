"""Whether there is anybody to send to: the node answers, takes submissions, and has peers of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from stagepost.delivery.transports.node_peers import NodePeers
from stagepost.errors import StagepostError

PEERS_POLL_S = 1.0
"""How soon lost peers are noticed: a node that has lost them keeps what it took, so there is no hurry."""
PEERS_POLL_WITHOUT_S = 0.1
"""While there is none: queued messages wait for the first."""

log = logging.getLogger(__name__)


class DmqConnectivity:
    """`peers` is the number to go by, and 0 whenever in doubt. `on_change` is told after every change of it.

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
        self._found: int | None = None  # None while nothing is known
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
        """What the node itself tells; None if it does not."""
        return self.peers if self._is_counted and self._is_listening else None

    def note_listening(self, error: StagepostError | None) -> None:
        """The connection on which the node tells of messages was made, or why it was lost."""
        if error is None and self._is_listening:
            return  # made anew on purpose; the node was there all the time
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
        """A submission found nobody there. The node is asked before it is trusted again."""
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
            # Never asked with success on this connection: somebody else's node, or one without a status page.
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
