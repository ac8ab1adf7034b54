"""Programs beside the nodes: they submit, listen and list over the local socket, and record what they see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

from stagepost.dmq.endpoints.connection import Connection, initiate
from stagepost.dmq.endpoints.local_notification import LocalMessageNotificationClient
from stagepost.dmq.endpoints.local_submission import LocalMessageSubmissionClient
from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.outcome import Accepted
from stagepost.dmq.profiles import DMQ_NODE, MiniProtocol, Profile
from stagepost.errors import StagepostError, TransportError
from stagepost.ground.net.network import Network, UnixAddress
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from stagepost.simulation.history import (
    History,
    ListenerConnection,
    Listing,
    NotifiedMessage,
    SubmissionAnswer,
)

ANSWER_WITHIN_S = 30.0
RECONNECT_S = 0.5


@dataclass
class ProgramSeat:
    """Node as a program on the same machine knows it: `life` and `clock_offset_s` come from the world."""

    node: str
    address: UnixAddress
    network: Network
    network_magic: int
    history: History
    life: int = 0
    clock_offset_s: float = 0.0

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def node_unix_s(self) -> float:
        return self.history.start_unix_s + self.now_s() + self.clock_offset_s

    @asynccontextmanager
    async def connection(self, profile: Profile) -> AsyncIterator[Connection]:
        bearer = await self.network.connect(self.address)
        try:
            yield await initiate(bearer, profile, ConnectionKind.CLIENT, VersionData(self.network_magic))
        finally:
            bearer.abort(TransportError("the program went away"))
            await bearer.wait_closed()


async def submit(seat: ProgramSeat, message: DmqMessage, profile: Profile = DMQ_NODE) -> SubmissionAnswer:
    """Submit one message on a connection of its own. No answer is recorded too: nobody knows the outcome
    then."""
    life, accepted, reason = seat.life, None, ""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S), seat.connection(profile) as connection:
            client = LocalMessageSubmissionClient(
                connection.open(profile, MiniProtocol.LOCAL_MESSAGE_SUBMISSION, Role.CLIENT)
            )
            outcome = await client.submit_message(message)
            accepted = isinstance(outcome, Accepted)
            reason = "" if isinstance(outcome, Accepted) else outcome.text or outcome.reason.value
    except (StagepostError, TimeoutError) as error:
        reason = str(error)
    answer = SubmissionAnswer(
        seat.node, life, seat.now_s(), seat.node_unix_s(), message.raw, accepted, reason
    )
    seat.history.answers.append(answer)
    return answer


async def list_messages(seat: ProgramSeat, why: str, profile: Profile) -> Listing:
    """Return all messages that the node sends to a program that it does not know."""
    life, raws = seat.life, []
    async with asyncio.timeout(ANSWER_WITHIN_S), seat.connection(profile) as connection:
        client = _notification(connection, profile)
        has_more: bool | None = True
        while has_more:
            notification = await client.request_messages_non_blocking()
            raws += [message.raw for message in notification.messages]
            has_more = notification.has_more
    return Listing(seat.node, life, seat.now_s(), seat.node_unix_s(), tuple(raws), why)


async def listen_for_ever(seat: ProgramSeat, profile: Profile, random: Random) -> None:
    """Receive everything, on one connection after another, each with a place of its own in the node's
    messages."""
    number = 0
    while True:
        number += 1
        # The node may end its life while this connection stands: messages on it belong to the earlier life.
        try:
            async with seat.connection(profile) as connection:
                cursor = ListenerConnection(
                    seat.node,
                    seat.life,
                    len(seat.history.cursors),
                    seat.now_s(),
                    sees_old_layout=MessageLayout.FOUR in profile.message_layouts,
                )
                seat.history.cursors.append(cursor)
                try:
                    await _listen(seat, cursor, _notification(connection, profile), random)
                finally:
                    cursor.closed_at_s = seat.now_s()
        except StagepostError:
            await asyncio.sleep(RECONNECT_S)


async def _listen(
    seat: ProgramSeat, cursor: ListenerConnection, client: LocalMessageNotificationClient, random: Random
) -> None:
    while True:
        if random.random() < 0.7:
            notification = await client.request_messages_blocking()
        else:
            notification = await client.request_messages_non_blocking()
            if not notification.messages:
                await asyncio.sleep(random.random())
        now_s, unix_s = seat.now_s(), seat.node_unix_s()
        cursor.heard += [NotifiedMessage(now_s, unix_s, message.raw) for message in notification.messages]


def _notification(connection: Connection, profile: Profile) -> LocalMessageNotificationClient:
    return LocalMessageNotificationClient(
        connection.open(profile, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, Role.CLIENT)
    )
