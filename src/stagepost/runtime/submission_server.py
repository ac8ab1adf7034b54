"""The pulling side of message submission: asks for ids and messages, and checks what comes.

Server and client are the documents' words for pulling and supplying side. Which of them opened the instance differs
between the versions; the conversation that an endpoint is given knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from stagepost.dmq.announcements import Announcements, Violation
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.relay_blame import DISCONNECTING_CODES
from stagepost.dmq.submission import (
    Done,
    Init,
    MessageIdAndSize,
    ReplyMessageIds,
    ReplyMessages,
    ReplyNoMessageIds,
    RequestMessageIds,
    RequestMessages,
)
from stagepost.errors import LocalProtocolError, RemoteProtocolError, TransportError
from stagepost.identifiers import MessageId
from stagepost.runtime.conversation import Conversation
from stagepost.runtime.endpoint_options import first_fault, tell
from stagepost.runtime.submission_config import MessageSubmissionConfig, begins_with_init, broken_rule

_AS_DOCUMENTED = MessageSubmissionConfig()

Ids = tuple[MessageIdAndSize, ...]
Messages = tuple[DmqMessage, ...]


class MessageSubmissionServer:
    """Pulls. Calls that come together are on their way together; their replies come in order.

    A blocking request cannot be overtaken, so it waits for the replies before it, and later calls wait for its own.
    """

    def __init__(self, talk: Conversation, config: MessageSubmissionConfig = _AS_DOCUMENTED) -> None:
        self._talk = talk
        self._config = config
        self._window = Announcements(config.window_for(talk))
        self._sending = asyncio.Lock()
        self._awaited: deque[asyncio.Future[Any]] = deque()
        self._all_answered = asyncio.Event()
        self._all_answered.set()
        self._is_blocked = False
        self._is_started = not begins_with_init(talk)
        self._reading: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        config.apply_time_limits(talk)

    @property
    def is_over(self) -> bool:
        return self._talk.is_over

    async def start(self, *, may_stay_unused: bool = False) -> None:
        """Wait until the supplier is ready; the first request does so, too.

        `may_stay_unused` is for one of several instances that a peer may open: it costs nobody any time.
        """
        if not self._is_started:
            if may_stay_unused:
                await self._talk.wait_for_start()
            await self._talk.receive(Init)
            self._is_started = True

    async def request_message_ids_blocking(self, ack: int, count: int) -> Ids:
        """Waits until there are ids. Empty if the supplier gave the word back without news, as some do."""
        return await (await self.ask_message_ids(blocking=True, ack=ack, count=count))

    async def request_message_ids_non_blocking(self, ack: int, count: int) -> Ids:
        return await (await self.ask_message_ids(blocking=False, ack=ack, count=count))

    async def request_messages(self, ids: Sequence[MessageId]) -> Messages:
        """Those of the requested messages that came and passed the checks."""
        return await (await self.ask_messages(ids))

    async def ask_message_ids(self, *, blocking: bool, ack: int, count: int) -> asyncio.Future[Ids]:
        """As the requests above, but returns when the request is on its way."""
        return await self._ask(RequestMessageIds(blocking, ack, count))

    async def ask_messages(self, ids: Sequence[MessageId]) -> asyncio.Future[Messages]:
        return await self._ask(RequestMessages(tuple(ids)))

    async def done(self) -> None:
        """Say goodbye, where the puller may: in version 2 and in the documents."""
        async with self._sending:
            await self._all_answered.wait()
            self._check_usable()
            await self._talk.send(Done())
        await self._talk.release()

    async def release(self) -> None:
        """The conversation is over: give its channel back, so that the peer can begin another."""
        await self._talk.release()

    def close(self) -> None:
        """Stop reading; whoever still waits is told. The connection is the caller's to close."""
        self._fail(TransportError("MessageSubmission: closed on this side"))
        if self._reading is not None:
            self._reading.cancel()

    async def _ask(self, request: RequestMessageIds | RequestMessages) -> asyncio.Future[Any]:
        blocking = isinstance(request, RequestMessageIds) and request.blocking
        async with self._sending:
            await self.start()
            if blocking or self._is_blocked:
                await self._all_answered.wait()
            self._check_usable()
            violation = self._check_request(request)
            if violation is not None:
                raise broken_rule(LocalProtocolError, violation)
            try:
                await self._talk.send(request)
            except BaseException as error:
                # Whether it was said is not known any more, so nothing that follows would be understood.
                self._fail(error if isinstance(error, Exception) else TransportError("a request was cut off"))
                raise
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(_take_note)
            self._awaited.append(answer)
            self._all_answered.clear()
            self._is_blocked = blocking
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_replies())
            return answer

    def _check_request(self, request: RequestMessageIds | RequestMessages) -> Violation | None:
        if isinstance(request, RequestMessages):
            return self._window.request_messages(request.ids)
        return self._window.request_ids(
            blocking=request.blocking, acknowledged=request.acknowledged, requested=request.requested
        )

    async def _read_replies(self) -> None:
        try:
            while self._awaited:
                result = await self._reply(await self._talk.receive_any())
                answer = self._awaited.popleft()
                if not answer.done():
                    answer.set_result(result)
                if not self._awaited:
                    self._all_answered.set()
        except Exception as error:
            self._fail(error)
        finally:
            self._reading = None

    async def _reply(self, reply: object) -> object:
        match reply:
            case ReplyMessageIds(ids):
                self._require(self._window.reply_ids(ids))
                await tell(self._config.reply_message_ids, ids)
                return ids
            case ReplyNoMessageIds():
                self._window.reply_no_ids()
                return ()
            case ReplyMessages(messages):
                sizes = [MessageIdAndSize(message.message_id, len(message.raw)) for message in messages]
                self._require(self._window.reply_messages(sizes))
                accepted = await self._checked(messages)
                await tell(self._config.reply_messages, accepted)
                return accepted
            case _:
                raise TransportError("MessageSubmission: the supplier has ended the conversation")

    async def _checked(self, messages: Messages) -> Messages:
        config = self._config
        if config.authenticator is None and config.ttl_validator is None:
            return messages
        accepted: list[DmqMessage] = []
        for message in messages:
            fault = await first_fault(message, config.unix_s(), config.ttl_validator, config.authenticator)
            if fault is None:
                accepted.append(message)
                continue
            await tell(config.reject_message, message, fault)
            if fault.code in DISCONNECTING_CODES:
                raise RemoteProtocolError(
                    f"MessageSubmission: {fault.text}", code=fault.code, message_id=message.message_id
                )
        return tuple(accepted)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        while self._awaited:
            answer = self._awaited.popleft()
            if not answer.done():
                answer.set_exception(error)
        self._all_answered.set()

    @staticmethod
    def _require(violation: Violation | None) -> None:
        if violation is not None:
            raise broken_rule(RemoteProtocolError, violation)


def _take_note(answer: asyncio.Future[Any]) -> None:
    """A caller that went away is not there to hear of a failure; the next call tells of it."""
    if not answer.cancelled():
        answer.exception()
