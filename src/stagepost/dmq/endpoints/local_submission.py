"""Local message submission as objects: a client that submits messages and a server that judges them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stagepost.dmq import local_submission
from stagepost.dmq.endpoints.message_queue import QUEUE_SIZE_MAX, MessageQueue
from stagepost.dmq.endpoints.options import (
    Authenticator,
    TtlValidator,
    first_fault,
    given_limits,
    require_positive,
    settled,
    tell,
)
from stagepost.dmq.local_submission import REASON_TEXT_BYTES_MAX
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.message_field import MalformedMessage
from stagepost.dmq.outcome import ACCEPTED, Accepted, Outcome, Reason, Rejected, from_wire, rejected, to_wire
from stagepost.dmq.validation import check_expiry, check_proof
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.conversation import Conversation

SubmitMessage = Callable[[DmqMessage], Outcome | Awaitable[Outcome | None] | None]
"""Callback that decides on a message whose proof and dates are in order; None accepts it."""

DECISION_SHARE = 0.9
"""Share of the Busy state's time that a handler may take: the answer has to reach the client before that time is over."""

HANDLER_FAILED = "the message could not be handled"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LocalMessageSubmissionConfig:
    """Options of the documents. A time-out of None is the profile's own; `math.inf` means no limit.

    The server uses `submit_message`, the two checks and the queue; the client uses `accept_message` and
    `reject_message`. Callbacks may be plain functions or coroutine functions.
    """

    submit_message: SubmitMessage | None = None  # None: what is accepted waits for `next_message`
    accept_message: Callable[[DmqMessage], object] | None = None
    reject_message: Callable[[DmqMessage, Rejected], object] | None = None
    authenticator: Authenticator | None = check_proof  # None: `submit_message` sees to it
    ttl_validator: TtlValidator | None = check_expiry  # None: `submit_message` sees to it
    timeout_s: float | None = None  # Busy: 30 s in profile `seed`
    idle_timeout_s: float | None = None  # Idle: 300 s in profile `seed`
    max_queue_size: int = QUEUE_SIZE_MAX
    unix_s: Callable[[], float] = SystemClock().unix_s

    def __post_init__(self) -> None:
        require_positive(
            timeout_s=self.timeout_s, idle_timeout_s=self.idle_timeout_s, max_queue_size=self.max_queue_size
        )

    @property
    def time_limits(self) -> dict[str, float | None]:
        return given_limits({"Busy": self.timeout_s, "Idle": self.idle_timeout_s})


_AS_DOCUMENTED = LocalMessageSubmissionConfig()


class LocalMessageSubmissionClient:
    """Client that submits messages to a node, one at a time; concurrent calls wait for one another."""

    def __init__(self, talk: Conversation, config: LocalMessageSubmissionConfig = _AS_DOCUMENTED) -> None:
        self._talk = talk
        self._config = config
        self._turn = asyncio.Lock()
        talk.set_time_limits(config.time_limits)

    async def submit_message(self, message: DmqMessage) -> Accepted | Rejected:
        async with self._turn:
            await self._talk.send(local_submission.SubmitMessage(message))
            reply = await self._talk.receive_any()
        if isinstance(reply, local_submission.RejectMessage):
            outcome = from_wire(reply.reason)
            await tell(self._config.reject_message, message, outcome)
            return outcome
        await tell(self._config.accept_message, message)
        return ACCEPTED

    async def done(self) -> None:
        async with self._turn:
            await self._talk.send(local_submission.Done())


class LocalMessageSubmissionServer:
    """Server that answers one program's submissions until `Done`."""

    def __init__(self, talk: Conversation, config: LocalMessageSubmissionConfig = _AS_DOCUMENTED) -> None:
        self._talk = talk
        self._config = config
        self._queue = MessageQueue(config.max_queue_size, config.unix_s)
        talk.set_time_limits(config.time_limits)

    async def run(self, *, may_stay_unused: bool = True) -> None:
        """Serve until the conversation ends.

        `may_stay_unused` is for one of several instances that a peer may open: no time limit runs before the
        peer begins.
        """
        if may_stay_unused:
            await self._talk.wait_for_start()
        while not self._talk.is_over:
            match await self._talk.receive_any():
                case local_submission.SubmitMessage(message):
                    await self._answer(message)
                case _:
                    await self._talk.release()

    async def next_message(self) -> DmqMessage:
        """Wait for the oldest accepted message that nobody has taken yet. Only for a server without
        `submit_message`."""
        while True:
            await self._queue.wait()
            taken, _ = self._queue.take(1)
            if taken:
                return taken[0]

    async def _answer(self, message: DmqMessage | MalformedMessage) -> None:
        if isinstance(message, MalformedMessage):
            outcome: Outcome = rejected(message.code, message.text)
        else:
            outcome = await self._decide(message)
        if isinstance(outcome, Rejected):
            await self._talk.send(local_submission.RejectMessage(to_wire(_clipped(outcome))))
        else:
            await self._talk.send(local_submission.AcceptMessage())

    async def _decide(self, message: DmqMessage) -> Outcome:
        """Return the handler's decision, or a rejection if the handler fails or takes too long: the program
        always gets an answer."""
        limit_s = self._talk.state.timeout_s
        patience = asyncio.timeout(None if limit_s is None else limit_s * DECISION_SHARE)
        try:
            async with patience:
                return await self._judge(message)
        except Exception as error:
            if isinstance(error, TimeoutError) and patience.expired():
                log.error("no decision in time", extra={"message_id": message.message_id.hex()})
                return Rejected(
                    Reason.OTHER, "there was no decision in time; the message may be accepted later"
                )
            log.exception("handler failed", extra={"message_id": message.message_id.hex()})
            return Rejected(Reason.OTHER, HANDLER_FAILED)

    async def _judge(self, message: DmqMessage) -> Outcome:
        config = self._config
        fault = await first_fault(message, config.unix_s(), config.ttl_validator, config.authenticator)
        if fault is not None:
            return fault
        if config.submit_message is None:
            return self._queue.offer(message) or ACCEPTED
        outcome = await settled(config.submit_message(message))
        if outcome is not None and not isinstance(outcome, Accepted | Rejected):
            raise TypeError(
                f"submit_message returned {type(outcome).__name__}, not Accepted, Rejected or None"
            )
        return outcome or ACCEPTED


def _clipped(outcome: Rejected) -> Rejected:
    """Return the outcome with its text cut to the limit that the peer reads; a longer text would end the
    connection."""
    raw = outcome.text.encode()
    if len(raw) <= REASON_TEXT_BYTES_MAX:
        return outcome
    text = raw[:REASON_TEXT_BYTES_MAX].decode(errors="ignore")
    return Rejected(outcome.reason, text, outcome.code, outcome.retry_after_s)
