"""The smallest whole exchange: one program submits a message over a Unix socket, another is told of it.

Real sockets, real handshakes and real signatures, but no mempool and no other nodes: the node proper is another
assembly of the same parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Outcome, rejected
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile
from stagepost.dmq.proof import check_proof
from stagepost.dmq.version_data import NETWORK_MAGICS, ConnectionKind, VersionData
from stagepost.errors import ErrorCode
from stagepost.runtime.bearer import Bearer
from stagepost.runtime.connection import Connection, initiate, respond
from stagepost.runtime.local_endpoints import (
    LocalMessageNotificationClient,
    LocalMessageNotificationServer,
    LocalMessageSubmissionClient,
    LocalMessageSubmissionConfig,
    LocalMessageSubmissionServer,
)
from stagepost.runtime.sockets import connect_unix, serve_unix
from stagepost.runtime.supervision import run_conversations
from stagepost.statemachine.spec import Role

NETWORK = VersionData(NETWORK_MAGICS["mithril-devnet"])
MESSAGES_HELD_MAX = 100


@dataclass
class HeldMessages:
    """Accepted messages in arrival order, and a bell for those who wait."""

    messages: list[DmqMessage] = field(default_factory=list)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def submit(self, message: DmqMessage) -> Outcome:
        if any(held.key == message.key for held in self.messages):
            return rejected(ErrorCode.MSG_DUPLICATE, "this message is held already")
        if len(self.messages) >= MESSAGES_HELD_MAX:
            return rejected(ErrorCode.QUEUE_FULL, f"{MESSAGES_HELD_MAX} messages are held")
        fault = check_proof(message)
        if fault is not None:
            return fault
        async with self.arrived:
            self.messages.append(message)
            self.arrived.notify_all()
        return ACCEPTED


@dataclass
class Feed:
    """A place in the held messages, one for each program."""

    held: HeldMessages
    seen: int = 0

    def take(self, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        batch = tuple(self.held.messages[self.seen : self.seen + count_max])
        self.seen += len(batch)
        return batch, self.seen < len(self.held.messages)

    async def wait(self) -> None:
        async with self.held.arrived:
            await self.held.arrived.wait_for(lambda: self.seen < len(self.held.messages))


@dataclass(frozen=True)
class Exchange:
    """What came of it: the node's answers, what the listener was told, and every byte of both connections."""

    accepted: Outcome
    repeated: Outcome
    received: DmqMessage
    submitter_capture: bytes
    listener_capture: bytes


async def run_exchange(message: DmqMessage, profile: Profile, socket_path: Path) -> Exchange:
    held = HeldMessages()

    async def serve(bearer: Bearer) -> None:
        connection = await respond(bearer, tuple(PROFILES.values()), ConnectionKind.CLIENT, NETWORK)
        await _serve_client(connection, held)

    captures: tuple[list[bytes], list[bytes]] = ([], [])
    server = await serve_unix(socket_path, serve)
    try:
        submitter = await _connect(socket_path, profile, captures[0])
        listener = await _connect(socket_path, profile, captures[1])
        notification = LocalMessageNotificationClient(
            listener.open(profile, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, Role.CLIENT)
        )
        submission = LocalMessageSubmissionClient(
            submitter.open(profile, MiniProtocol.LOCAL_MESSAGE_SUBMISSION, Role.CLIENT)
        )
        # The listener waits before there is anything to hear, as a program would.
        waiting = asyncio.create_task(notification.request_messages_blocking())
        accepted = await submission.submit_message(message)
        received = (await waiting).messages[0]
        repeated = await submission.submit_message(message)
        await submission.done()
        await notification.done()
        for connection in (submitter, listener):
            connection.close()
            await connection.bearer.wait_closed()
    finally:
        await server.close()
    return Exchange(accepted, repeated, received, b"".join(captures[0]), b"".join(captures[1]))


async def _connect(socket_path: Path, profile: Profile, capture: list[bytes]) -> Connection:
    bearer = await connect_unix(socket_path, trace=lambda _sent, segment: capture.append(segment))
    return await initiate(bearer, profile, ConnectionKind.CLIENT, NETWORK)


async def _serve_client(connection: Connection, held: HeldMessages) -> None:
    """Answer both local protocols, in whichever profile the program opens them, until it goes away."""
    submission = LocalMessageSubmissionConfig(
        submit_message=held.submit, authenticator=None, ttl_validator=None
    )
    answers: list[Coroutine[None, None, None]] = []
    for (_, protocol), talk in connection.answer_all(tuple(PROFILES.values())).items():
        if protocol is MiniProtocol.LOCAL_MESSAGE_SUBMISSION:
            answers.append(LocalMessageSubmissionServer(talk, submission).run())
        else:
            answers.append(LocalMessageNotificationServer(talk, feed=Feed(held)).run())
    await run_conversations(connection.bearer, answers)
