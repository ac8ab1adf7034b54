"""The pulling side of message submission: it asks for ids and messages, and checks them.

Server and client are the documents' words for pulling and supplying side. Which of them opened the instance
differs between the versions; the conversation that an endpoint gets knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stagepost.dmq.announcements import Announcements
from stagepost.dmq.endpoints.options import first_fault, tell
from stagepost.dmq.endpoints.submission_config import MessageSubmissionConfig, begins_with_init, broken_rule
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.peer_standing import DISCONNECTING_CODES
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
from stagepost.ground.identifiers import MessageId
from stagepost.ground.net.conversation import Conversation

_AS_DOCUMENTED = MessageSubmissionConfig()

Ids = tuple[MessageIdAndSize, ...]
Messages = tuple[DmqMessage, ...]
OnFailure = Callable[[Exception], None]


class MessageSubmissionServer:
    """Puller. Concurrent calls are sent together; their replies come in order.

    A blocking request cannot be overtaken, so it waits for the replies before it, and later calls wait for
    its own. The server reads, checks and passes on a reply in the call that brings its bytes. The awaitable
    requests are built on `ask_message_ids_now` and `ask_messages_now`, which ask without waiting and answer
    by a call.
    """

    def __init__(self, talk: Conversation, config: MessageSubmissionConfig = _AS_DOCUMENTED) -> None:
        self._talk = talk
        self._config = config
        self._consults_on_messages = config.checks_messages or config.reply_messages is not None
        self._window = Announcements(config.window_for(talk))
        self._sending = asyncio.Lock()
        self._awaited: deque[tuple[Callable[[Any], None], OnFailure]] = deque()
        self._all_answered: asyncio.Future[None] | None = None
        self._is_blocked = False
        self._is_started = not begins_with_init(talk)
        self._is_listening = False
        self._consulting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        config.apply_time_limits(talk)

    @property
    def is_over(self) -> bool:
        return self._talk.is_over

    async def start(self, *, may_stay_unused: bool = False) -> None:
        """Wait until the supplier is ready; the first request does so, too.

        `may_stay_unused` is for one of several instances that a peer may open: no time limit runs before the
        peer begins.
        """
        if not self._is_started:
            if may_stay_unused:
                await self._talk.wait_for_start()
            await self._talk.receive(Init)
            self._is_started = True

    async def request_message_ids_blocking(self, ack: int, count: int) -> Ids:
        """Wait until there are ids, and return them; empty if the supplier answered without news, as some do."""
        return await (await self.ask_message_ids(blocking=True, ack=ack, count=count))

    async def request_message_ids_non_blocking(self, ack: int, count: int) -> Ids:
        return await (await self.ask_message_ids(blocking=False, ack=ack, count=count))

    async def request_messages(self, ids: Sequence[MessageId]) -> Messages:
        """Return those of the requested messages that came and passed the checks."""
        return await (await self.ask_messages(ids))

    async def ask_message_ids(self, *, blocking: bool, ack: int, count: int) -> asyncio.Future[Ids]:
        """Do what the requests above do, but return when the request is sent."""
        return await self._ask(RequestMessageIds(blocking, ack, count))

    async def ask_messages(self, ids: Sequence[MessageId]) -> asyncio.Future[Messages]:
        return await self._ask(RequestMessages(tuple(ids)))

    def ask_message_ids_now(
        self, blocking: bool, ack: int, count: int, came: Callable[[Ids], None], failed: OnFailure
    ) -> bool:
        """Do what `ask_message_ids` does without waiting; return False and send nothing where that would
        wait.

        The server calls one of `came` and `failed`, later and once. Neither may raise.
        """
        return self._ask_now(RequestMessageIds(blocking, ack, count), blocking, came, failed)

    def ask_messages_now(
        self, ids: tuple[MessageId, ...], came: Callable[[Messages], None], failed: OnFailure
    ) -> bool:
        return self._ask_now(RequestMessages(ids), False, came, failed)

    async def done(self) -> None:
        """Send `Done`, where the puller may: in version 2 and in the documents."""
        async with self._sending:
            await self._wait_for_answers()
            self._check_usable()
            await self._talk.send(Done())
        await self._talk.release()

    async def release(self) -> None:
        """Give the channel of the ended conversation back, so that the peer can begin another."""
        await self._talk.release()

    def close(self) -> None:
        """Stop reading and fail all waiting calls. The caller closes the connection."""
        self._fail(TransportError("MessageSubmission: closed on this side"))
        if self._consulting is not None:
            self._consulting.cancel()

    # Asking

    async def _ask(self, request: RequestMessageIds | RequestMessages) -> asyncio.Future[Any]:
        blocking = isinstance(request, RequestMessageIds) and request.blocking
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_take_note)
        async with self._sending:
            await self.start()
            if blocking or self._is_blocked:
                await self._wait_for_answers()
            self._check_request(request)
            try:
                await self._talk.send(request)
            except BaseException as error:
                # Nobody knows any more whether the request was sent, so the peer would not understand
                # anything that follows.
                self._fail(
                    error if isinstance(error, Exception) else TransportError("a request was cancelled")
                )
                raise
            self._await_reply(blocking, _result_of(answer), _failure_of(answer))
            return answer

    def _ask_now(
        self,
        request: RequestMessageIds | RequestMessages,
        blocking: bool,
        came: Callable[[Any], None],
        failed: OnFailure,
    ) -> bool:
        if self._awaited and (blocking or self._is_blocked):
            return False
        if not self._is_started or self._sending.locked() or not self._talk.has_room:
            return False
        self._check_request(request)
        try:
            self._talk.say(request)
        except Exception as error:
            self._fail(error)
            raise
        self._await_reply(blocking, came, failed)
        return True

    def _check_request(self, request: RequestMessageIds | RequestMessages) -> None:
        if self._failure is not None:
            self._check_usable()
        if isinstance(request, RequestMessages):
            violation = self._window.request_messages(request.ids)
        else:
            violation = self._window.request_ids(
                blocking=request.blocking, acknowledged=request.acknowledged, requested=request.requested
            )
        if violation is not None:
            raise broken_rule(LocalProtocolError, violation)

    def _await_reply(self, blocking: bool, came: Callable[[Any], None], failed: OnFailure) -> None:
        self._awaited.append((came, failed))
        self._is_blocked = blocking
        if not self._is_listening:
            self._talk.on_message(self._listen)
            if self._talk.has_unread:
                # The reply came before its request, so the channel will not announce it again.
                asyncio.get_running_loop().call_soon(self._listen)

    async def _wait_for_answers(self) -> None:
        """Wait until all requests are answered. The caller holds the lock, so at most one waits here."""
        if self._awaited:
            self._all_answered = asyncio.get_running_loop().create_future()
            try:
                await self._all_answered
            finally:
                self._all_answered = None

    # Replies

    def _listen(self) -> None:
        talk = self._talk
        self._is_listening = True
        try:
            while self._awaited and self._consulting is None:
                reply = talk.receive_now()
                if reply is None:
                    break
                self._hear(reply)
                if not talk.has_unread:
                    break
        except Exception as error:
            self._fail(error)
        finally:
            self._is_listening = False

    def _hear(self, reply: object) -> None:
        config = self._config
        if isinstance(reply, ReplyMessages):
            messages = reply.messages
            violation = self._window.reply_whole_messages(messages)
            if violation is not None:
                raise broken_rule(RemoteProtocolError, violation)
            if self._consults_on_messages:
                self._consult(self._hear_checked(messages))
            else:
                self._answer(messages)
        elif isinstance(reply, ReplyMessageIds):
            violation = self._window.reply_ids(reply.ids)
            if violation is not None:
                raise broken_rule(RemoteProtocolError, violation)
            if config.reply_message_ids is not None:
                self._consult(self._hear_told(reply.ids))
            else:
                self._answer(reply.ids)
        elif isinstance(reply, ReplyNoMessageIds):
            self._window.reply_no_ids()
            self._answer(())
        else:
            raise TransportError("MessageSubmission: the supplier has ended the conversation")

    def _answer(self, result: object) -> None:
        came, _ = self._awaited.popleft()
        if self._all_answered is not None:
            self._tell_all_answered()
        came(result)

    def _consult(self, hearing: Coroutine[None, None, object]) -> None:
        """Start the config's callbacks, which may take their time; later replies wait for them."""
        self._consulting = asyncio.create_task(self._consulted(hearing))

    async def _consulted(self, hearing: Coroutine[None, None, object]) -> None:
        try:
            result = await hearing
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._consulting = None
        if self._awaited:  # nobody has closed it meanwhile
            self._answer(result)
            self._listen()

    async def _hear_told(self, ids: Ids) -> Ids:
        await tell(self._config.reply_message_ids, ids)
        return ids

    async def _hear_checked(self, messages: Messages) -> Messages:
        accepted = await self._checked(messages)
        await tell(self._config.reply_messages, accepted)
        return accepted

    async def _checked(self, messages: Messages) -> Messages:
        config = self._config
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

    # Ending

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._talk.on_message(None)
        awaited, self._awaited = self._awaited, deque()
        self._tell_all_answered()
        for _, failed in awaited:
            failed(error)

    def _tell_all_answered(self) -> None:
        waiting = self._all_answered
        if waiting is not None and not self._awaited and not waiting.done():
            waiting.set_result(None)


def _result_of(answer: asyncio.Future[Any]) -> Callable[[Any], None]:
    return lambda result: None if answer.done() else answer.set_result(result)


def _failure_of(answer: asyncio.Future[Any]) -> OnFailure:
    return lambda error: None if answer.done() else answer.set_exception(error)


def _take_note(answer: asyncio.Future[Any]) -> None:
    """Mark the exception as seen: a caller that went away cannot see a failure, and the next call raises it."""
    if not answer.cancelled():
        answer.exception()
