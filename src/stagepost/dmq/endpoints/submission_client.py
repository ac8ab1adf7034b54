"""The supplying side of message submission: it answers a puller's requests until one side ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stagepost.dmq.announcements import Announcements, Violation
from stagepost.dmq.endpoints.options import settled
from stagepost.dmq.endpoints.submission_config import MessageSubmissionConfig, begins_with_init, broken_rule
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Accepted, Rejected
from stagepost.dmq.submission import (
    Done,
    Flavour,
    Init,
    MessageIdAndSize,
    ReplyMessageIds,
    ReplyMessages,
    ReplyNoMessageIds,
    RequestMessageIds,
    RequestMessages,
)
from stagepost.dmq.supplying import OfferedMessages
from stagepost.errors import LocalProtocolError, RemoteProtocolError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.net.conversation import Conversation

_AS_DOCUMENTED = MessageSubmissionConfig()


class MessageSubmissionClient:
    """Supplier of messages, from the config's callbacks or from messages passed to `offer`.

    Without news the client answers a blocking request after `no_news_reply_s`, if the instance has a message
    for that: version 2 has one in the flavour of running nodes, and the documents' empty list is for peers
    that accept it. Otherwise the request stays unanswered until there is news: version 1 sets no limit, and
    neither does the text that the other flavour of version 2 follows, where an empty list would be a
    violation.
    """

    def __init__(self, talk: Conversation, config: MessageSubmissionConfig = _AS_DOCUMENTED) -> None:
        self._talk = talk
        self._config = config
        self._rules = config.window_for(talk)
        self._window = Announcements(self._rules)
        self._patience_s = config.patience_s(talk)
        self._offered = OfferedMessages(config.max_queue_size)
        self._opens = begins_with_init(talk)
        self._news = asyncio.Event()
        self._is_ending = asyncio.Event()
        config.apply_time_limits(talk)

    def offer(self, message: DmqMessage) -> Accepted | Rejected:
        """Supply this message when the peer asks. Only for a client without callbacks."""
        if self._config.request_message_ids is not None:
            raise LocalProtocolError("this supplier asks its callbacks and takes no messages itself")
        outcome = self._offered.offer(message, self._config.unix_s())
        self.notify()
        return outcome

    def notify(self) -> None:
        """Call `request_message_ids` again if the peer waits for an answer, since there is news."""
        self._news.set()

    def end(self) -> None:
        """Send `Done` as soon as a supplier may: in answer to the next request, or to the one that waits."""
        self._is_ending.set()

    async def run(self, *, may_stay_unused: bool = True) -> None:
        """Supply until the conversation ends.

        `may_stay_unused` is for one of several instances that a peer may open: no time limit runs before the
        peer begins.
        """
        if self._opens:
            await self._talk.send(Init())
        elif may_stay_unused:
            await self._talk.wait_for_start()
        while not self._talk.is_over:
            match await self._talk.receive_any():
                case RequestMessageIds() as request:
                    await self._supply_ids(request)
                case RequestMessages(ids):
                    await self._supply_messages(ids)
                case _:
                    pass
        await self._talk.release()

    async def _supply_ids(self, request: RequestMessageIds) -> None:
        violation = self._window.request_ids(
            blocking=request.blocking, acknowledged=request.acknowledged, requested=request.requested
        )
        self._blame_peer(violation)
        if self._may_end(request):
            await self._talk.send(Done())
            return
        if request.blocking:
            ids = await self._news_for(request)
        else:
            ids = await self._ids(False, request.acknowledged, request.requested)
        if ids is None:
            await self._talk.send(Done())
        elif request.blocking and not ids and self._has_word_for_nothing:
            self._window.reply_no_ids()
            await self._talk.send(ReplyNoMessageIds())
        else:
            self._blame_us(self._window.reply_ids(ids))
            await self._talk.send(ReplyMessageIds(tuple(ids)))

    async def _news_for(self, request: RequestMessageIds) -> Sequence[MessageIdAndSize] | None:
        """Return ids to announce, or None to end instead.

        The result is empty only if the wait was too long and the instance has a message for that.
        """
        patience_s = self._patience_s if self._can_say_nothing else None
        asking = asyncio.ensure_future(self._news_awaited(request))
        ending = asyncio.ensure_future(self._is_ending.wait())
        try:
            await asyncio.wait(
                {asking, ending} if self._opens else {asking},
                timeout=patience_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            ending.cancel()
            asking.cancel()
        # A callback that has taken ids already may finish, so that those ids are not lost.
        await asyncio.wait({asking})
        if not asking.cancelled():
            return asking.result()
        return None if self._opens and self._is_ending.is_set() else ()

    async def _news_awaited(self, request: RequestMessageIds) -> Sequence[MessageIdAndSize]:
        acknowledged = request.acknowledged
        while True:
            self._news.clear()
            ids = await self._ids(True, acknowledged, request.requested)
            if ids:
                return ids
            acknowledged = 0  # it has been told
            await self._news.wait()

    async def _ids(self, blocking: bool, acknowledged: int, requested: int) -> Sequence[MessageIdAndSize]:
        callback = self._config.request_message_ids
        if callback is not None:
            return await settled(callback(blocking, acknowledged, requested))
        self._offered.acknowledge(acknowledged)
        return self._offered.next_ids(requested, self._config.unix_s())

    async def _supply_messages(self, ids: tuple[MessageId, ...]) -> None:
        self._blame_peer(self._window.request_messages(ids))
        callback = self._config.request_messages
        if callback is not None:
            messages = tuple(await settled(callback(ids)))
        else:
            messages = self._offered.messages(ids, self._config.unix_s())
        sizes = [MessageIdAndSize(message.message_id, len(message.raw)) for message in messages]
        self._blame_us(self._window.reply_messages(sizes))
        await self._talk.send(ReplyMessages(messages))

    def _may_end(self, request: RequestMessageIds) -> bool:
        # In the documents a supplier may end from both states that await ids, elsewhere from the blocking one.
        may = self._opens and (request.blocking or self._follows_documents)
        return may and self._is_ending.is_set()

    @property
    def _follows_documents(self) -> bool:
        return self._talk.state.id is not None

    @property
    def _has_word_for_nothing(self) -> bool:
        return not self._opens and self._talk.dialect == Flavour.HASKELL.value

    @property
    def _can_say_nothing(self) -> bool:
        return self._has_word_for_nothing or self._rules.blocking_reply_may_be_empty

    @staticmethod
    def _blame_peer(violation: Violation | None) -> None:
        if violation is not None:
            raise broken_rule(RemoteProtocolError, violation)

    @staticmethod
    def _blame_us(violation: Violation | None) -> None:
        if violation is not None:
            raise broken_rule(LocalProtocolError, violation)
