"""The messages of a node as an endless iterator that asks again and again, and reconnects when the node goes
away."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from stagepost.dmq.endpoints.connection import LocalNode, is_away
from stagepost.dmq.endpoints.local_notification import LocalMessageNotificationClient
from stagepost.dmq.endpoints.options import require_positive
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.profiles import MiniProtocol
from stagepost.dmq.seen_messages import IDS_REMEMBERED_MAX, SeenMessages
from stagepost.errors import StagepostError
from stagepost.ground.loop.clock import Clock

log = logging.getLogger(__name__)

OnConnection = Callable[[StagepostError | None], None]
"""Callback with None when the node answers, and with the error when it went away or could not be reached."""


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """Patience of a listener with a node that is away: delays that double, and a limit to them."""

    reconnect_delay_s: float = 0.1
    reconnect_delay_max_s: float = 10.0
    away_max_s: float | None = 600.0  # None: until the node is back
    ids_remembered_max: int = IDS_REMEMBERED_MAX
    idle_timeout_s: float | None = None  # None: the iterator waits for messages as long as it takes

    def __post_init__(self) -> None:
        require_positive(
            reconnect_delay_s=self.reconnect_delay_s,
            reconnect_delay_max_s=self.reconnect_delay_max_s,
            away_max_s=self.away_max_s,
            ids_remembered_max=self.ids_remembered_max,
            idle_timeout_s=self.idle_timeout_s,
        )


class MessageStream(AsyncIterator[DmqMessage]):
    """Iterator of each message once, in the node's order: first all that the node holds, then new ones.

    Nodes begin again from the oldest message on every connection, and some repeat themselves within one: the
    stream leaves out messages that it has returned before. It ends after `idle_timeout_s` without a message,
    and on `aclose`.
    """

    def __init__(
        self, node: LocalNode, limits: ListenLimits, clock: Clock, on_connection: OnConnection | None = None
    ) -> None:
        self._node = node
        self._on_connection = on_connection or (lambda error: None)
        self._limits = limits
        self._clock = clock
        self._seen = SeenMessages(limits.ids_remembered_max)
        self._ready: deque[DmqMessage] = deque()
        # One batch ahead of the reader: a slow reader slows the requests, and memory stays at two batches.
        self._batches: asyncio.Queue[list[DmqMessage] | StagepostError | None] = asyncio.Queue(1)
        self._asking: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> DmqMessage:
        if self._asking is None and not self._is_closed:
            self._asking = asyncio.create_task(self._ask())
        while not self._ready:
            if self._is_closed:
                raise StopAsyncIteration
            await self._take_batch()
        return self._ready.popleft()

    async def _take_batch(self) -> None:
        try:
            async with asyncio.timeout(self._limits.idle_timeout_s):
                batch = await self._batches.get()
        except TimeoutError:
            batch = None
        if isinstance(batch, list):
            self._ready.extend(batch)
            return
        await self.aclose()
        if isinstance(batch, StagepostError):
            raise batch

    async def aclose(self) -> None:
        """End the iteration and wake a reader that waits."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        if self._batches.empty():
            self._batches.put_nowait(None)

    async def __aenter__(self) -> MessageStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # A task of its own asks, so that a reader may stop waiting at any moment and no reply is lost.

    async def _ask(self) -> None:
        try:
            await self._ask_for_ever()
        except StagepostError as error:
            await self._batches.put(error)
        except Exception as bug:
            log.exception("listening failed")
            await self._batches.put(StagepostError(f"listening ended by a bug on this side: {bug!r}"))

    async def _ask_for_ever(self) -> None:
        patience = _Patience(self._limits)
        while True:
            try:
                await self._ask_on_one_connection(patience)
            except StagepostError as error:
                self._on_connection(error)
                if not is_away(error):
                    raise
                await patience.wait(error)

    async def _ask_on_one_connection(self, patience: _Patience) -> None:
        connection, talk = await self._node.open(MiniProtocol.LOCAL_MESSAGE_NOTIFICATION)
        self._on_connection(None)
        connected_at = asyncio.get_running_loop().time()
        client = LocalMessageNotificationClient(talk)
        try:
            while True:
                notification = await client.request_messages_blocking()
                patience.renew()
                now = self._clock.unix_s()
                fresh = [message for message in notification.messages if self._seen.note(message, now)]
                if fresh:
                    await self._batches.put(fresh)
        finally:
            connection.close()
            await connection.bearer.wait_closed()
            # A quiet network sends nothing for hours: a connection that lasted also shows that the node is
            # there.
            if asyncio.get_running_loop().time() - connected_at >= self._limits.reconnect_delay_max_s:
                patience.renew()


class _Patience:
    """Delays that double while the node is away, until it has been away for too long."""

    def __init__(self, limits: ListenLimits) -> None:
        self._limits = limits
        self._lost_at: float | None = None
        self._delay_s = limits.reconnect_delay_s

    def renew(self) -> None:
        self._lost_at = None
        self._delay_s = self._limits.reconnect_delay_s

    async def wait(self, error: StagepostError) -> None:
        now = asyncio.get_running_loop().time()
        self._lost_at = now if self._lost_at is None else self._lost_at
        away_max_s = self._limits.away_max_s
        if away_max_s is not None and now - self._lost_at >= away_max_s:
            raise error
        log.info("node is away", extra={"reason": error.text, "retry_in_s": self._delay_s})
        await asyncio.sleep(self._delay_s)
        self._delay_s = min(2 * self._delay_s, self._limits.reconnect_delay_max_s)
