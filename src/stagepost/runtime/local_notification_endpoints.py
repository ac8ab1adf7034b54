"""Local message notification as objects: a client that asks for messages and a server that shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from stagepost.dmq import local_notification
from stagepost.dmq.local_notification import MESSAGES_SENT_MAX
from stagepost.dmq.message import FIVE_ONLY, DmqMessage, MessageLayout
from stagepost.dmq.outcome import ACCEPTED, Accepted, Rejected, rejected
from stagepost.dmq.proof import check_proof
from stagepost.dmq.validation import check_expiry
from stagepost.errors import ErrorCode, LocalProtocolError
from stagepost.runtime.clock import SystemClock
from stagepost.runtime.conversation import Conversation
from stagepost.runtime.endpoint_options import (
    Authenticator,
    TtlValidator,
    first_fault,
    given_limits,
    require_positive,
    tell,
)
from stagepost.runtime.message_queue import QUEUE_SIZE_MAX, MessageQueue


@dataclass(frozen=True, slots=True)
class LocalMessageNotificationConfig:
    """The documents' options. A time-out of None is the profile's own; `math.inf` is none at all.

    The client uses `reply_messages` and the time-outs of the two requests. A server without a node behind it uses
    the queue, the two checks and `message_layouts`, for messages that it is given with `notify`.
    """

    reply_messages: Callable[[tuple[DmqMessage, ...], bool | None], object] | None = None
    max_queue_size: int = QUEUE_SIZE_MAX
    blocking_request_timeout_s: float | None = None  # no limit in any profile
    non_blocking_request_timeout_s: float | None = None  # 10 s in profile `seed`
    idle_timeout_s: float | None = None  # 300 s in profile `seed`
    authenticator: Authenticator | None = check_proof
    ttl_validator: TtlValidator | None = check_expiry
    message_layouts: frozenset[MessageLayout] = FIVE_ONLY  # only clients of profile `seed` read the older one
    unix_s: Callable[[], float] = SystemClock().unix_s

    def __post_init__(self) -> None:
        require_positive(
            max_queue_size=self.max_queue_size,
            blocking_request_timeout_s=self.blocking_request_timeout_s,
            non_blocking_request_timeout_s=self.non_blocking_request_timeout_s,
            idle_timeout_s=self.idle_timeout_s,
        )

    @property
    def time_limits(self) -> dict[str, float | None]:
        return given_limits(
            {
                "BusyBlocking": self.blocking_request_timeout_s,
                "BusyNonBlocking": self.non_blocking_request_timeout_s,
                "Idle": self.idle_timeout_s,
            }
        )


_AS_DOCUMENTED = LocalMessageNotificationConfig()


@dataclass(frozen=True, slots=True)
class Notification:
    """What one request brought. `has_more` is None where the node does not say: after a blocking request."""

    messages: tuple[DmqMessage, ...]
    has_more: bool | None


class LocalMessageNotificationClient:
    """Asks a node for the messages that it has not shown on this connection yet."""

    def __init__(self, talk: Conversation, config: LocalMessageNotificationConfig = _AS_DOCUMENTED) -> None:
        self._talk = talk
        self._config = config
        self._turn = asyncio.Lock()
        talk.set_time_limits(config.time_limits)

    async def request_messages_blocking(self) -> Notification:
        """Waits until there are messages. The protocol knows no taking back: a time-out ends the conversation."""
        async with self._turn:
            await self._talk.send(local_notification.RequestMessages(blocking=True))
            reply = await self._talk.receive(local_notification.ReplyMessagesBlocking)
        return await self._told(Notification(reply.messages, None))

    async def request_messages_non_blocking(self) -> Notification:
        async with self._turn:
            await self._talk.send(local_notification.RequestMessages(blocking=False))
            reply = await self._talk.receive(local_notification.ReplyMessagesNonBlocking)
        return await self._told(Notification(reply.messages, reply.has_more))

    async def done(self) -> None:
        async with self._turn:
            await self._talk.send(local_notification.ClientDone())

    async def _told(self, notification: Notification) -> Notification:
        await tell(self._config.reply_messages, notification.messages, notification.has_more)
        return notification


class MessageFeed(Protocol):
    """One program's place in the messages that a node holds: what it takes is not given again."""

    def take(self, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        """The next messages, and whether there are more behind them."""
        ...

    async def wait(self) -> None:
        """Return when `take` may have something to give."""
        ...


class LocalMessageNotificationServer:
    """Answers one program's requests until it says that it is done: from a node's `feed`, or a queue of its own."""

    def __init__(
        self,
        talk: Conversation,
        config: LocalMessageNotificationConfig = _AS_DOCUMENTED,
        *,
        feed: MessageFeed | None = None,
    ) -> None:
        self._talk = talk
        self._config = config
        self._queue = MessageQueue(config.max_queue_size, config.unix_s) if feed is None else None
        self._feed: MessageFeed = self._own_queue if feed is None else feed
        talk.set_time_limits(config.time_limits)

    async def notify(self, message: DmqMessage) -> Accepted | Rejected:
        """Show this message to the program, next time that it asks. Only without a `feed`."""
        queue, config = self._own_queue, self._config
        if message.layout not in config.message_layouts:
            return rejected(
                ErrorCode.CBOR_INVALID, f"a layout of {message.layout.value} elements is not shown"
            )
        fault = await first_fault(message, config.unix_s(), config.ttl_validator, config.authenticator)
        return fault or queue.offer(message) or ACCEPTED

    async def run(self, *, may_stay_unused: bool = True) -> None:
        """`may_stay_unused` is for one of several instances that a peer may open: it costs nobody any time."""
        if may_stay_unused:
            await self._talk.wait_for_start()
        while not self._talk.is_over:
            match await self._talk.receive_any():
                case local_notification.RequestMessages(blocking=True):
                    await self._reply_blocking()
                case local_notification.RequestMessages(blocking=False):
                    messages, has_more = self._feed.take(MESSAGES_SENT_MAX)
                    await self._talk.send(local_notification.ReplyMessagesNonBlocking(messages, has_more))
                case _:
                    await self._talk.release()

    async def _reply_blocking(self) -> None:
        messages, _ = self._feed.take(MESSAGES_SENT_MAX)
        while not messages:
            await self._feed.wait()
            messages, _ = self._feed.take(MESSAGES_SENT_MAX)
        await self._talk.send(local_notification.ReplyMessagesBlocking(messages))

    @property
    def _own_queue(self) -> MessageQueue:
        if self._queue is None:
            raise LocalProtocolError(
                "this notification server shows a node's feed and takes no messages itself"
            )
        return self._queue
