"""Pulls one peer's messages into the node: performs what the core decides, one action at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from stagepost.dmq.downloads import Downloads
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Outcome
from stagepost.dmq.peer_score import PeerScore
from stagepost.dmq.profiles import Profile
from stagepost.dmq.pulling import HeldKeys, PeerPulling
from stagepost.dmq.pulling_actions import AskIds, FetchMessages, Sleep, Submit
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.dmq.validation import MESSAGE_GAP_S
from stagepost.errors import RemoteProtocolError
from stagepost.identifiers import MessageId
from stagepost.runtime.clock import Clock
from stagepost.runtime.conversation import Conversation
from stagepost.runtime.submission_config import MessageSubmissionConfig
from stagepost.runtime.submission_server import MessageSubmissionServer


class Submitter(Protocol):
    """The way into the mempool."""

    async def submit_many(self, messages: Sequence[DmqMessage], source: str) -> list[Outcome]: ...


class Puller:
    """One peer. Requests for messages and ids overlap with one another and with the judging of what came."""

    def __init__(
        self, server: MessageSubmissionServer, core: PeerPulling, intake: Submitter, clock: Clock
    ) -> None:
        self._server = server
        self._core = core
        self._intake = intake
        self._clock = clock
        self._is_changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._is_finishing = False
        self._has_left = False
        core.on_change = self._is_changed.set

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
        """Say goodbye when nothing is on its way any more. Only where a puller may: not in version 1."""
        self._is_finishing = True
        self._is_changed.set()

    async def run(self) -> None:
        """Until the conversation ends. Raises if the peer is to be cut off, as every other conversation does."""
        try:
            await self._server.start(may_stay_unused=True)
            while not self._server.is_over:
                self._check()
                if not await self._step():
                    await self._server.done()
            await self._server.release()
        finally:
            self._has_left = True
            self._core.leave()
            self._server.close()

    async def _step(self) -> bool:
        """False when it is time to say goodbye."""
        # Whatever changes from here on may change the decision.
        self._is_changed.clear()
        core = self._core
        match core.next_action(self._clock.mono_s()):
            case Submit(messages):
                outcomes = await self._intake.submit_many(messages, core.name)
                core.submitted(messages, outcomes, self._clock.mono_s())
            case FetchMessages(ids):
                answer = await self._server.ask_messages(ids)
                answer.add_done_callback(partial(self._messages_came, ids))
            case AskIds(blocking, acknowledged, requested):
                if blocking and self._is_finishing:
                    return False
                asked = await self._server.ask_message_ids(
                    blocking=blocking, ack=acknowledged, count=requested
                )
                asked.add_done_callback(self._ids_came)
            case Sleep(until):
                await self._sleep(until)
        return True

    async def _sleep(self, until: float | None) -> None:
        """Until something changes. A timer of our own, for `asyncio.timeout` costs several times as much."""
        timer = None
        if until is not None:
            timer = asyncio.get_running_loop().call_at(until, self._is_changed.set)
        try:
            await self._is_changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _ids_came(self, answer: asyncio.Future[tuple[MessageIdAndSize, ...]]) -> None:
        if self._came(answer):
            self._core.ids_arrived(answer.result(), self._clock.mono_s())

    def _messages_came(
        self, ids: tuple[MessageId, ...], answer: asyncio.Future[tuple[DmqMessage, ...]]
    ) -> None:
        if self._came(answer):
            self._core.messages_arrived(ids, answer.result(), self._clock.mono_s())

    def _came(self, answer: asyncio.Future[Any]) -> bool:
        self._is_changed.set()
        error = None if answer.cancelled() else answer.exception()
        self._failure = self._failure or error
        return not (self._has_left or answer.cancelled() or error)

    def _check(self) -> None:
        """What the peer says at the end of a conversation is no failure, so this comes after a look at its state."""
        fault = self._core.fault
        if fault is not None:
            raise RemoteProtocolError(
                f"MessageSubmission: {fault.text}", code=fault.code, message_id=fault.message_id
            )
        if self._failure is not None:
            raise self._failure.with_traceback(None)


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
) -> Puller:
    """The puller of one instance. `downloads` is the node's one table, `held` its mempool.

    Everything is judged by the intake, so the endpoint checks nothing but the protocol.
    """
    config = MessageSubmissionConfig(
        authenticator=None, ttl_validator=None, window=profile.window, unix_s=clock.unix_s
    )
    core = PeerPulling(
        peer,
        downloads,
        held,
        now=clock.mono_s(),
        layouts=profile.message_layouts,
        message_gap_s=message_gap_s,
        score=score,
    )
    return Puller(MessageSubmissionServer(talk, config), core, intake, clock)
