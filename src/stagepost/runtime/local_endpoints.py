"""The two local protocols as objects: a client that asks and a server that answers, over one conversation each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from stagepost.dmq import local_notification, local_submission
from stagepost.dmq.local_notification import MESSAGES_SENT_MAX
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.message_field import MalformedMessage
from stagepost.dmq.outcome import ACCEPTED, Accepted, Outcome, Rejected, from_wire, rejected, to_wire
from stagepost.runtime.conversation import Conversation

Submit = Callable[[DmqMessage], Awaitable[Outcome]]


class LocalMessageSubmissionClient:
    """Hands messages to a node, one at a time."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    async def submit_message(self, message: DmqMessage) -> Accepted | Rejected:
        await self._talk.send(local_submission.SubmitMessage(message))
        match await self._talk.receive_any():
            case local_submission.RejectMessage(reason):
                return from_wire(reason)
            case _:
                return ACCEPTED

    async def done(self) -> None:
        await self._talk.send(local_submission.Done())


class LocalMessageSubmissionServer:
    """Answers one program's submissions until it says that it is done."""

    def __init__(self, talk: Conversation, submit: Submit) -> None:
        self._talk = talk
        self._submit = submit

    async def run(self) -> None:
        await self._talk.wait_for_start()
        while not self._talk.is_over:
            match await self._talk.receive_any():
                case local_submission.SubmitMessage(message):
                    await self._answer(message)
                case _:
                    await self._talk.release()

    async def _answer(self, message: DmqMessage | MalformedMessage) -> None:
        if isinstance(message, MalformedMessage):
            outcome: Outcome = rejected(message.code, message.text)
        else:
            outcome = await self._submit(message)
        if isinstance(outcome, Rejected):
            await self._talk.send(local_submission.RejectMessage(to_wire(outcome)))
        else:
            await self._talk.send(local_submission.AcceptMessage())


@dataclass(frozen=True, slots=True)
class Notification:
    """What one request brought. `has_more` is None where the node does not say: after a blocking request."""

    messages: tuple[DmqMessage, ...]
    has_more: bool | None


class LocalMessageNotificationClient:
    """Asks a node for the messages that it has not shown on this connection yet."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    async def request_messages_blocking(self) -> Notification:
        await self._talk.send(local_notification.RequestMessages(blocking=True))
        reply = await self._talk.receive(local_notification.ReplyMessagesBlocking)
        return Notification(reply.messages, None)

    async def request_messages_non_blocking(self) -> Notification:
        await self._talk.send(local_notification.RequestMessages(blocking=False))
        reply = await self._talk.receive(local_notification.ReplyMessagesNonBlocking)
        return Notification(reply.messages, reply.has_more)

    async def done(self) -> None:
        await self._talk.send(local_notification.ClientDone())


class MessageFeed(Protocol):
    """One program's place in the messages that a node holds: what it takes is not given again."""

    def take(self, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        """The next messages, and whether there are more behind them."""
        ...

    async def wait(self) -> None:
        """Return when `take` has something to give."""
        ...


class LocalMessageNotificationServer:
    """Answers one program's requests until it says that it is done."""

    def __init__(self, talk: Conversation, feed: MessageFeed) -> None:
        self._talk = talk
        self._feed = feed

    async def run(self) -> None:
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
