"""The node's local side: programs submit messages and listen for those that the node holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from stagepost.dmq.endpoints.connection import Connection, respond
from stagepost.dmq.endpoints.local_notification import LocalMessageNotificationServer
from stagepost.dmq.endpoints.local_submission import (
    LocalMessageSubmissionConfig,
    LocalMessageSubmissionServer,
)
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.node.blame import Blame, OnViolation, shake_hands
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.mempool_feed import MempoolFeed
from stagepost.dmq.outcome import Outcome
from stagepost.dmq.profiles import MiniProtocol, Profile, start_within_s
from stagepost.errors import ConfigError
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation, run_conversations
from stagepost.ground.net.version_data import ConnectionKind, VersionData

LOCAL_SOURCE = "local"


@dataclass(frozen=True)
class LocalService:
    """Service for any number of programs. `allowed_user_ids` applies where the transport knows the user of a
    program."""

    intake: Intake
    profiles: Sequence[Profile]
    ours: VersionData
    make_feed: Callable[[Profile], MempoolFeed]
    allowed_user_ids: frozenset[int]
    on_violation: OnViolation = lambda _protocol, _code: None

    async def serve(self, bearer: Bearer) -> None:
        if sent_away(bearer, self.allowed_user_ids):
            return
        connection = await shake_hands(
            lambda on_fault: respond(
                bearer, self.profiles, ConnectionKind.CLIENT, self.ours, on_fault=on_fault
            ),
            self.on_violation,
        )
        if connection.agreement.query:
            # The program asked for nothing but this answer; it leaves, or is gone with the connection.
            connection.close()
            return
        blame = Blame(bearer, self.on_violation)
        try:
            answers = self._answers(connection, blame)
            await run_conversations(bearer, [*answers, self._require_start(connection)])
        finally:
            blame.settle()

    def _answers(self, connection: Connection, blame: Blame) -> list[Coroutine[None, None, None]]:
        # The intake judges every message anyway, with its knowledge of pools and of the network's rules.
        submission = LocalMessageSubmissionConfig(
            submit_message=self._submit, authenticator=None, ttl_validator=None
        )

        def serve(
            profile: Profile, protocol: MiniProtocol, talk: Conversation
        ) -> Coroutine[None, None, None]:
            if protocol is MiniProtocol.LOCAL_MESSAGE_SUBMISSION:
                return LocalMessageSubmissionServer(talk, submission).run()
            return self._notify(profile, talk)

        return [
            blame.watch(protocol, connection.answer(profile, protocol, partial(serve, profile, protocol)))
            for profile, protocol in connection.answered(self.profiles)
        ]

    async def _notify(self, profile: Profile, talk: Conversation) -> None:
        feed = self.make_feed(profile)
        try:
            await LocalMessageNotificationServer(talk, feed=feed).run()
        finally:
            feed.close()

    async def _require_start(self, connection: Connection) -> None:
        await connection.peer_started(start_within_s(self.profiles, ConnectionKind.CLIENT))

    async def _submit(self, message: DmqMessage) -> Outcome:
        return await self.intake.submit(message, LOCAL_SOURCE)


def owner_and_root() -> frozenset[int]:
    return frozenset({0, os.getuid()})


def sent_away(bearer: Bearer, allowed_user_ids: frozenset[int]) -> bool:
    """Abort the connection of a program whose user may not use this socket; return whether that happened."""
    user_id = bearer.peer_user_id
    if user_id is None or user_id in allowed_user_ids:
        return False
    bearer.abort(
        ConfigError(
            f"a program of user {user_id} connected to the local socket",
            advice="only the user that runs the node, and root, may use it",
            found=user_id,
        )
    )
    return True
