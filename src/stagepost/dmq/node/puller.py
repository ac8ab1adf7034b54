"""The puller brings one peer's messages into the node: it performs the actions of the core, one at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from stagepost.dmq.downloads import Downloads
from stagepost.dmq.endpoints.submission_config import MessageSubmissionConfig
from stagepost.dmq.endpoints.submission_server import MessageSubmissionServer
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Outcome
from stagepost.dmq.peer_standing import PeerScore
from stagepost.dmq.profiles import Profile
from stagepost.dmq.pulling import Action, AskIds, FetchMessages, HeldKeys, PullCore, Sleep, Submit
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.dmq.validation import MESSAGE_GAP_S
from stagepost.errors import RemoteProtocolError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.conversation import Conversation


class Submitter(Protocol):
    """Way into the mempool."""

    def offer(
        self,
        messages: Sequence[DmqMessage],
        source: str,
        settled: Callable[[list[Outcome]], None],
        *,
        gives_up: bool = False,
    ) -> None:
        """Judge messages and call `settled` once, now or later, with the outcome of each; `gives_up` stops at
        the first forgery."""
        ...


class Puller:
    """Puller for one peer. Requests for messages and ids overlap with one another and with the judging of
    arrived messages.

    The puller decides in the very call that brings a reply, a judgement or a change; it only waits for the
    end of the conversation. The core's time is the loop's, like that of every monotonic clock.
    """

    def __init__(self, server: MessageSubmissionServer, core: PullCore, intake: Submitter) -> None:
        self._server = server
        self._core = core
        self._intake = intake
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[Exception | None] = self._loop.create_future()
        self._failure: BaseException | None = None
        self._is_running = False
        self._is_deciding = False
        self._is_judging = False
        self._is_change_noted = False
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._is_finishing = False
        core.on_change = self._note_change

    @property
    def score(self) -> PeerScore:
        return self._core.score

    @property
    def unacknowledged(self) -> int:
        return self._core.unacknowledged

    @property
    def bytes_in_flight(self) -> int:
        return self._core.bytes_in_flight

    def finish(self) -> None:
        """Send `Done` when no reply is due any more. Only where a puller may: not in version 1."""
        self._is_finishing = True
        self._note_change()

    async def run(self) -> None:
        """Pull until the conversation ends. Raise, as every conversation does, if the peer is to be cut off."""
        try:
            await self._server.start(may_stay_unused=True)
            self._is_running = True
            self._go_on(self._loop.time())
            error = await self._end
            if error is not None:
                raise error
            if not self._server.is_over:
                await self._server.done()
            await self._server.release()
        finally:
            self._is_running = False
            self._core.leave()
            self._server.close()
            if self._timer is not None:
                self._timer.cancel()
            if self._asking is not None:
                self._asking.cancel()

    def _note_change(self) -> None:
        """Look again after an act of another peer, but not inside of its call."""
        if not self._is_change_noted:
            self._is_change_noted = True
            self._loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._is_change_noted = False
        self._go_on(self._loop.time())

    def _go_on(self, now: float) -> None:
        """Decide and act until there is something to wait for. All of it happens at one moment."""
        if self._is_deciding or self._is_judging or self._asking is not None or not self._is_running:
            return  # the end of that activity calls `_go_on` again
        self._is_deciding = True
        try:
            while not self._end.done():
                if self._failure is not None or self._core.fault is not None:
                    self._stop()
                    break
                if not self._act(self._core.next_action(now)):
                    break
        except Exception as error:
            self._end_with(error)
        finally:
            self._is_deciding = False

    def _act(self, action: Action) -> bool:
        """Perform `action`; return whether the next action can be decided now."""
        if isinstance(action, Sleep):
            if action.until is not None:
                self._sleep(action.until)
            return False
        if isinstance(action, Submit):
            self._is_judging = True
            judged = partial(self._judged, action.messages)
            # One forgery ends the connection, so other peers have to supply the messages beside it.
            self._intake.offer(action.messages, self._core.name, judged, gives_up=True)
            return not self._is_judging
        if isinstance(action, AskIds):
            if action.blocking and self._is_finishing:
                self._end_with(None)
                return False
            is_asked = self._server.ask_message_ids_now(
                action.blocking, action.acknowledged, action.requested, self._ids_came, self._failed
            )
        else:
            is_asked = self._server.ask_messages_now(
                action.ids, partial(self._messages_came, action.ids), self._failed
            )
        if not is_asked:
            self._asking = self._loop.create_task(self._ask_patiently(action))
        return is_asked

    async def _ask_patiently(self, action: AskIds | FetchMessages) -> None:
        """Wait until the slow peer takes our request."""
        try:
            if isinstance(action, AskIds):
                asked = await self._server.ask_message_ids(
                    blocking=action.blocking, ack=action.acknowledged, count=action.requested
                )
                asked.add_done_callback(partial(_hand_on, self._ids_came, self._failed))
            else:
                fetched = await self._server.ask_messages(action.ids)
                came = partial(self._messages_came, action.ids)
                fetched.add_done_callback(partial(_hand_on, came, self._failed))
        except Exception as error:
            self._failure = self._failure or error
        self._asking = None
        self._go_on(self._loop.time())

    def _sleep(self, until: float) -> None:
        """Set the timer. It may fire too early: then there is nothing to do, and it is set anew."""
        if until < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = until
            self._timer = self._loop.call_at(until, self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._go_on(self._loop.time())

    # Results of the actions. The caller is not to blame for a fault in here, so it ends this puller alone.

    def _judged(self, messages: tuple[DmqMessage, ...], outcomes: list[Outcome]) -> None:
        self._is_judging = False
        if self._is_running:
            now = self._loop.time()
            try:
                self._core.submitted(messages, outcomes, now)
            except Exception as bug:
                self._end_with(bug)
            self._go_on(now)

    def _ids_came(self, ids: tuple[MessageIdAndSize, ...]) -> None:
        if self._is_running:
            now = self._loop.time()
            try:
                self._core.ids_arrived(ids, now)
            except Exception as bug:
                self._end_with(bug)
            self._go_on(now)

    def _messages_came(self, ids: tuple[MessageId, ...], messages: tuple[DmqMessage, ...]) -> None:
        if self._is_running:
            now = self._loop.time()
            try:
                self._core.messages_arrived(ids, messages, now)
            except Exception as bug:
                self._end_with(bug)
            self._go_on(now)

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._go_on(self._loop.time())

    def _stop(self) -> None:
        """End the conversation. An error after the peer has ended it is not a failure."""
        if self._server.is_over:
            self._end_with(None)
            return
        fault = self._core.fault
        if fault is not None:
            raise RemoteProtocolError(
                f"MessageSubmission: {fault.text}", code=fault.code, message_id=fault.message_id
            )
        assert self._failure is not None
        raise self._failure.with_traceback(None)

    def _end_with(self, error: Exception | None) -> None:
        if not self._end.done():
            self._end.set_result(error)


def _hand_on(
    came: Callable[[Any], None], failed: Callable[[BaseException], None], answer: asyncio.Future[Any]
) -> None:
    error = None if answer.cancelled() else answer.exception()
    if error is not None:
        failed(error)
    elif not answer.cancelled():
        came(answer.result())


def puller_for(
    talk: Conversation,
    profile: Profile,
    *,
    peer: str,
    downloads: Downloads,
    held: HeldKeys,
    intake: Submitter,
    clock: Clock,
    message_gap_s: float = MESSAGE_GAP_S,
    score: PeerScore | None = None,
    host: str | None = None,
) -> Puller:
    """Return the puller of one instance. `downloads` is the node's one table, `held` its mempool.

    The intake judges every message, so the endpoint checks nothing but the protocol.
    """
    config = MessageSubmissionConfig(
        authenticator=None, ttl_validator=None, window=profile.window, unix_s=clock.unix_s
    )
    core = PullCore(
        peer,
        downloads,
        held,
        now=clock.mono_s(),
        layouts=profile.message_layouts,
        message_gap_s=message_gap_s,
        score=score,
        host=host,
    )
    return Puller(MessageSubmissionServer(talk, config), core, intake)
