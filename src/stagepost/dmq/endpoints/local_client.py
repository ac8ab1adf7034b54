"""A program's side of one DMQ node on this machine: submit messages to its local socket, and listen for new ones."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace

from stagepost.dmq.endpoints.connection import Connection, LocalNode, is_away
from stagepost.dmq.endpoints.local_submission import (
    LocalMessageSubmissionClient,
    LocalMessageSubmissionConfig,
)
from stagepost.dmq.endpoints.message_stream import ListenLimits, MessageStream, OnConnection
from stagepost.dmq.endpoints.options import require_positive
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Accepted, Reason, Rejected
from stagepost.dmq.profiles import MiniProtocol
from stagepost.errors import (
    LocalProtocolError,
    ProtocolTimeout,
    StagepostError,
    TransportError,
)
from stagepost.ground.loop.clock import Clock
from stagepost.ground.net.sockets import CONNECT_TIMEOUT_S

SUBMIT_TIMEOUT_S = 30.0
SUBMISSION_KEPT_OPEN_S = 60.0
WAIT_TIMEOUT_S = 300.0
"""Seconds, a little more than the lifetime of a message."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of every wait of a client. `submission_kept_open_s` stays below the documents' 300 s of silence."""

    connect_timeout_s: float = CONNECT_TIMEOUT_S
    submit_timeout_s: float = SUBMIT_TIMEOUT_S
    submission_kept_open_s: float = SUBMISSION_KEPT_OPEN_S
    wait_timeout_s: float = WAIT_TIMEOUT_S
    listen: ListenLimits = field(default_factory=ListenLimits)

    def __post_init__(self) -> None:
        require_positive(
            connect_timeout_s=self.connect_timeout_s,
            submit_timeout_s=self.submit_timeout_s,
            submission_kept_open_s=self.submission_kept_open_s,
            wait_timeout_s=self.wait_timeout_s,
        )


@dataclass(slots=True)
class _Submission:
    """Connection on which messages are submitted, kept open for the next message for a while."""

    connection: Connection
    client: LocalMessageSubmissionClient
    closing: asyncio.TimerHandle | None = None


class LocalClient:
    """Client of one node. Any number of tasks may submit and listen at the same time."""

    def __init__(self, node: LocalNode, limits: ClientLimits, clock: Clock) -> None:
        self.node = node
        self._limits = limits
        self._clock = clock
        self._turn = asyncio.Lock()
        self._submission: _Submission | None = None
        self._streams: set[MessageStream] = set()
        self._is_closed = False

    async def submit(self, message: DmqMessage, *, timeout_s: float | None = None) -> Accepted | Rejected:
        """Submit the message and return the node's answer; raise `ProtocolTimeout` without an answer within
        `timeout_s`."""
        limit_s = self._limits.submit_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s), self._turn:
                return await self._submit(message)
        except TimeoutError:
            text = f"the node at {self.node.socket_path} did not answer a submission within {limit_s:g} s"
            raise ProtocolTimeout(
                text, advice="the node may have accepted the message", message_id=message.message_id
            ) from None

    def listen(
        self, *, idle_timeout_s: float | None = None, on_connection: OnConnection | None = None
    ) -> MessageStream:
        """Return a stream of every message that the node holds and receives, each once.

        The stream ends after `idle_timeout_s` without a message. It calls `on_connection` whenever the node
        comes or goes meanwhile.
        """
        self._require_open()
        limits = self._limits.listen
        if idle_timeout_s is not None:
            limits = replace(limits, idle_timeout_s=idle_timeout_s)
        stream = MessageStream(self.node, limits, self._clock, on_connection)
        self._streams = {open_one for open_one in self._streams if not open_one.is_closed} | {stream}
        return stream

    async def close(self) -> None:
        """End every listening iterator and the submission to the node."""
        self._is_closed = True
        for stream in self._streams:
            await stream.aclose()
        async with self._turn:
            await self._end_submission()

    async def check(self) -> None:
        """Shake hands once. Nothing stays open: nodes close a connection on which nothing begins."""
        connection = await self.node.connect()
        connection.close()
        await connection.bearer.wait_closed()

    async def _submit(self, message: DmqMessage) -> Accepted | Rejected:
        self._require_open()
        if self._submission is not None and self._submission.connection.bearer.is_over:
            self._drop_submission()
        was_kept = self._submission is not None
        try:
            return await self._submit_once(message)
        except StagepostError as error:
            # A connection that was kept may end under us, by the node's restart for instance.
            if not was_kept or not is_away(error):
                raise
        outcome = await self._submit_once(message)
        # The node may have taken the message before the connection ended: then it holds our message already.
        is_ours = isinstance(outcome, Rejected) and outcome.reason is Reason.ALREADY_RECEIVED
        return ACCEPTED if is_ours else outcome

    async def _submit_once(self, message: DmqMessage) -> Accepted | Rejected:
        submission = self._submission or await self._open_submission()
        # Keep the connection only once the answer is there: a conversation that was left in the middle cannot
        # be used again.
        self._submission = None
        if submission.closing is not None:
            submission.closing.cancel()
        try:
            outcome = await submission.client.submit_message(message)
        except BaseException:
            submission.connection.abort(TransportError("a submission was cancelled"))
            raise
        loop = asyncio.get_running_loop()
        submission.closing = loop.call_later(self._limits.submission_kept_open_s, self._drop_submission)
        self._submission = submission
        return outcome

    async def _open_submission(self) -> _Submission:
        connection, talk = await self.node.open(MiniProtocol.LOCAL_MESSAGE_SUBMISSION)
        # `submit` counts the time of the whole call, connecting included.
        config = LocalMessageSubmissionConfig(timeout_s=math.inf)
        return _Submission(connection, LocalMessageSubmissionClient(talk, config))

    def _drop_submission(self) -> None:
        submission, self._submission = self._submission, None
        if submission is not None:
            if submission.closing is not None:
                submission.closing.cancel()
            submission.connection.close()

    async def _end_submission(self) -> None:
        submission, self._submission = self._submission, None
        if submission is None:
            return
        if submission.closing is not None:
            submission.closing.cancel()
        try:
            await submission.client.done()
        except StagepostError as error:
            if not is_away(error):
                raise
        submission.connection.close()
        await submission.connection.bearer.wait_closed()

    def _require_open(self) -> None:
        if self._is_closed:
            raise LocalProtocolError("this client was closed", advice="connect again")
