"""A node in miniature for tests of its clients: real sockets and protocols, messages in a list, faults on order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stagepost.dmq.endpoints.connection import respond
from stagepost.dmq.endpoints.local_notification import LocalMessageNotificationServer
from stagepost.dmq.endpoints.local_submission import (
    LocalMessageSubmissionConfig,
    LocalMessageSubmissionServer,
)
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import ACCEPTED, Outcome, rejected
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile
from stagepost.dmq.validation import check_proof
from stagepost.errors import ErrorCode, TransportError
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import run_conversations
from stagepost.ground.net.sockets import Server, serve_unix
from stagepost.ground.net.version_data import NETWORK_MAGICS, ConnectionKind, VersionData

MAGIC = NETWORK_MAGICS["mithril-devnet"]


@dataclass
class SmallNode:
    """Keeps its messages over `stop` and `start`, as a durable node does."""

    socket_path: Path
    magic: int = MAGIC
    profiles: Sequence[Profile] = tuple(PROFILES.values())
    repeats: bool = False  # shows all but the first message of a batch again, as some nodes do
    refusal: Outcome | None = None
    answer_after_s: float = 0.0
    messages: list[DmqMessage] = field(default_factory=list)
    connections: int = 0
    submissions: int = 0

    def __post_init__(self) -> None:
        self._arrived = asyncio.Condition()
        self._server: Server | None = None
        self._bearers: list[Bearer] = []

    async def start(self) -> SmallNode:
        self._server = await serve_unix(self.socket_path, self._serve)
        return self

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.close()

    def cut_off(self) -> None:
        """End every connection in the middle of whatever is being said."""
        for bearer in self._bearers:
            bearer.abort(TransportError("cut off"))

    async def crash(self) -> None:
        self.cut_off()
        await self.stop()

    async def __aenter__(self) -> SmallNode:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def hold(self, *messages: DmqMessage) -> None:
        async with self._arrived:
            self.messages.extend(messages)
            self._arrived.notify_all()

    async def submit(self, message: DmqMessage) -> Outcome:
        self.submissions += 1
        await asyncio.sleep(self.answer_after_s)
        if self.refusal is not None:
            return self.refusal
        if any(held.key == message.key for held in self.messages):
            return rejected(ErrorCode.MSG_DUPLICATE, "held already")
        fault = check_proof(message)
        if fault is not None:
            return fault
        await self.hold(message)
        return ACCEPTED

    async def _serve(self, bearer: Bearer) -> None:
        self.connections += 1
        self._bearers.append(bearer)
        connection = await respond(bearer, self.profiles, ConnectionKind.CLIENT, VersionData(self.magic))
        config = LocalMessageSubmissionConfig(
            submit_message=self.submit, authenticator=None, ttl_validator=None
        )
        answers: list[Coroutine[None, None, None]] = []
        for (_, protocol), talk in connection.answer_all(self.profiles).items():
            if protocol is MiniProtocol.LOCAL_MESSAGE_SUBMISSION:
                answers.append(LocalMessageSubmissionServer(talk, config).run())
            else:
                answers.append(LocalMessageNotificationServer(talk, feed=_Feed(self)).run())
        await run_conversations(bearer, answers)

    @property
    def arrived(self) -> asyncio.Condition:
        return self._arrived


@dataclass
class _Feed:
    node: SmallNode
    cursor: int = 0

    def take(self, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        batch = tuple(self.node.messages[self.cursor : self.cursor + count_max])
        is_repeating = self.node.repeats and len(batch) > 1
        self.cursor += 1 if is_repeating else len(batch)
        return batch, self.cursor < len(self.node.messages)

    async def wait(self) -> None:
        async with self.node.arrived:
            await self.node.arrived.wait_for(lambda: self.cursor < len(self.node.messages))
