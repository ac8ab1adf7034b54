"""Local message notification as objects: a client that asks for messages and a server that returns them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stagepost.dmq import local_notification
from stagepost.dmq.endpoints.message_queue import QUEUE_SIZE_MAX, MessageQueue
from stagepost.dmq.endpoints.options import (
    Authenticator,
    TtlValidator,
    first_fault,
    given_limits,
    require_positive,
    tell,
)
from stagepost.dmq.local_notification import MESSAGES_SENT_MAX
from stagepost.dmq.message import FIVE_ONLY, DmqMessage, MessageLayout
from stagepost.dmq.outcome import ACCEPTED, Accepted, Rejected, rejected
from stagepost.dmq.validation import check_expiry, check_proof
from stagepost.errors import ErrorCode, LocalProtocolError
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.conversation import Conversation


@dataclass(frozen=True, slots=True)
class LocalMessageNotificationConfig:
    """Options of the documents. A time-out of None is the profile's own; `math.inf` means no limit.

    The client uses `reply_messages` and the time-outs of the two requests. A server without a node behind it
    uses the queue, the two checks and `message_layouts`, for messages that the program passes to `notify`.
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
    """Result of one request. `has_more` is None after a blocking request, where the node does not say."""

    messages: tuple[DmqMessage, ...]
    has_more: bool | None


class LocalMessageNotificationClient:
    """Client that asks a node for the messages that it has not returned on this connection yet."""

    def __init__(self, talk: Conversation, config: LocalMessageNotificationConfig = _AS_DOCUMENTED) -> None:
        self._talk = talk
        self._config = config
        self._turn = asyncio.Lock()
        talk.set_time_limits(config.time_limits)

    async def request_messages_blocking(self) -> Notification:
        """Wait until there are messages, and return them. The protocol cannot take a request back: a time-out
        ends the conversation."""
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
    """Position of one program in the messages that a node holds: `take` returns each message once."""

    def take(self, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        """Return the next messages, and whether more follow them."""
        ...

    async def wait(self) -> None:
        """Return when `take` may have messages to return."""
        ...


@runtime_checkable
class CallingFeed(MessageFeed, Protocol):
    """Feed that calls its readers, which saves a task for each of them."""

    def is_better_later(self, count_max: int) -> bool:
        """Return whether a call is coming anyway and `take` would return fewer than `count_max` messages
        before it."""
        ...

    def call(self, look: Callable[[], None]) -> None:
        """Call `look` once, soon after `take` may have messages to return."""
        ...

    def forget(self, look: Callable[[], None]) -> None: ...


class LocalMessageNotificationServer:
    """Server that answers one program's requests until `ClientDone`: from a node's `feed`, or from a queue of
    its own."""

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
        self._calling = self._feed if isinstance(self._feed, CallingFeed) else None
        # The request that is not answered yet, and its answer if the program has no room for it.
        self._request: local_notification.RequestMessages | None = None
        self._reply: object | None = None
        self._has_news = False
        self._failure: Exception | None = None
        self._needed: asyncio.Future[None] | None = None
        talk.set_time_limits(config.time_limits)

    async def notify(self, message: DmqMessage) -> Accepted | Rejected:
        """Return this message to the program's next request. Only for a server without a `feed`."""
        queue, config = self._own_queue, self._config
        if message.layout not in config.message_layouts:
            return rejected(
                ErrorCode.CBOR_INVALID, f"a layout of {message.layout.value} elements is not shown"
            )
        fault = await first_fault(message, config.unix_s(), config.ttl_validator, config.authenticator)
        return fault or queue.offer(message) or ACCEPTED

    async def run(self, *, may_stay_unused: bool = True) -> None:
        """Serve until the conversation ends.

        `may_stay_unused` is for one of several instances that a peer may open: no time limit runs before the
        peer begins. The server answers requests in calls, when they or new messages arrive. This task does
        the rest: a program that does not read its answers, a feed that can only be awaited, and the end.
        """
        if may_stay_unused:
            await self._talk.wait_for_start()
        self._talk.on_message(self._look)
        try:
            self._look()
            while not self._talk.is_over:
                await self._until_needed()
                if self._failure is not None:
                    raise self._failure
                if self._reply is not None:
                    await self._talk.send(self._reply)
                    self._reply = self._request = None
                elif self._request is not None:
                    await self._feed.wait()
                self._needed = None
                self._look()
        finally:
            self._talk.on_message(None)
            if self._calling is not None:
                self._calling.forget(self._hear_news)
        await self._talk.release()

    async def _until_needed(self) -> None:
        if self._needed is None:
            self._needed = asyncio.get_running_loop().create_future()
        await self._needed

    def _need_task(self) -> None:
        if self._needed is None:
            self._needed = asyncio.get_running_loop().create_future()
        if not self._needed.done():
            self._needed.set_result(None)

    def _look(self) -> None:
        """Answer as far as possible: the program has sent something, or there are new messages."""
        if self._needed is not None and self._needed.done():
            return  # the task is at it
        try:
            while self._answer_next():
                pass
        except Exception as error:
            self._failure = error
            self._need_task()

    def _hear_news(self) -> None:
        self._has_news = True
        self._look()
        self._has_news = False

    def _answer_next(self) -> bool:
        """Answer the next request; return False if there is none, or its answer has to wait."""
        talk, request = self._talk, self._request
        if request is None:
            if not talk.is_over:
                request = self._request = talk.receive_now()
            if request is None or talk.is_over:
                self._request = None
                if talk.is_over:
                    self._need_task()
                return False
        if (
            request.blocking
            and self._calling is not None
            and not self._has_news
            and self._calling.is_better_later(MESSAGES_SENT_MAX)
        ):
            # Under load, send one reply for many messages instead of one for each few of them.
            self._calling.call(self._hear_news)
            return False
        messages, has_more = self._feed.take(MESSAGES_SENT_MAX)
        reply: local_notification.ReplyMessagesBlocking | local_notification.ReplyMessagesNonBlocking
        if not request.blocking:
            reply = local_notification.ReplyMessagesNonBlocking(messages, has_more)
        elif messages:
            reply = local_notification.ReplyMessagesBlocking(messages)
        else:
            if self._calling is not None:
                self._calling.call(self._hear_news)
            else:
                self._need_task()
            return False
        if not talk.send_now(reply):
            self._reply = reply
            self._need_task()
            return False
        self._request = None
        return True

    @property
    def _own_queue(self) -> MessageQueue:
        if self._queue is None:
            raise LocalProtocolError(
                "this notification server shows a node's feed and takes no messages itself"
            )
        return self._queue
