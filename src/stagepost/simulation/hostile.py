"""Peers that break the rules of message submission on purpose, on either side of it: each accepts or dials
connections, behaves up to a point, and then does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from stagepost.dmq import peer_sharing, submission
from stagepost.dmq.endpoints.connection import Connection, initiate, respond
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.peer_sharing import PeerAddress
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, PROFILES, MiniProtocol, Profile
from stagepost.dmq.specs import codec_for
from stagepost.dmq.submission import MessageIdAndSize
from stagepost.errors import StagepostError, TransportError
from stagepost.ground.identifiers import MessageId
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import Network, TcpAddress
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.framing import Framer, ItemLimits
from stagepost.ground.wire.mux import Direction

INGRESS_BYTES_MAX = 4_000_000
FOR_EVER_S = 1e9


@dataclass
class Loot:
    """Knowledge of hostile peers: they learn of honest messages before anybody announces them."""

    messages: list[DmqMessage] = field(default_factory=list)
    flawed: list[DmqMessage] = field(default_factory=list)
    accomplices: list[PeerAddress] = field(default_factory=list)


class RawTalk:
    """Mini-protocol without a referee: any message can be sent at any time."""

    def __init__(
        self, connection: Connection, profile: Profile, protocol: MiniProtocol, direction: Direction
    ) -> None:
        self._channel = connection.bearer.channel(profile.numbers[protocol], direction, INGRESS_BYTES_MAX)
        self._codec = codec_for(profile, protocol, connection.agreement.submission_version)
        self._framer = Framer()

    async def hear(self, state: str) -> Any:
        while True:
            item = self._framer.next_item(ItemLimits(INGRESS_BYTES_MAX))
            if item is not None:
                return self._codec.decode(item, state)
            piece = await self._channel.read()
            if not piece:
                raise TransportError("the node closed the connection")
            self._framer.feed(piece)

    async def say(self, message: object) -> None:
        await self._channel.write(self._codec.encode(message))

    async def say_bytes(self, data: bytes) -> None:
        await self._channel.write(data)

    def encoded(self, message: object) -> bytes:
        return self._codec.encode(message)


@dataclass
class Scene:
    """Connection of a hostile peer."""

    talk: RawTalk
    connection: Connection
    loot: Loot
    random: Random

    def ids(self, count: int, size: int | None = None) -> tuple[MessageIdAndSize, ...]:
        """Return `count` ids: the newest honest ids first, then invented ones."""
        honest = [
            MessageIdAndSize(message.message_id, len(message.raw) if size is None else size)
            for message in reversed(self.loot.messages[-count:])
        ]
        invented = [
            MessageIdAndSize(MessageId(self.random.randbytes(32)), size or 1_000)
            for _ in range(count - len(honest))
        ]
        return (*honest, *invented)

    def messages(self, ids: tuple[MessageId, ...]) -> tuple[DmqMessage, ...]:
        return tuple(message for message in self.loot.messages if message.message_id in ids)


Behaviour = Callable[[Scene], Awaitable[None]]


# As the side that supplies


async def _supply(
    scene: Scene,
    announce: Callable[[submission.RequestMessageIds], tuple[MessageIdAndSize, ...]],
    serve: Callable[[submission.RequestMessages], Awaitable[None]],
) -> None:
    """Run an honest supplier's loop; the caller decides its replies."""
    while True:
        match await scene.talk.hear("Idle"):
            case submission.RequestMessageIds() as request:
                await scene.talk.say(submission.ReplyMessageIds(announce(request)))
            case submission.RequestMessages() as request:
                await serve(request)
            case _:
                return


def _up_to_requested(scene: Scene) -> Callable[[submission.RequestMessageIds], tuple[MessageIdAndSize, ...]]:
    return lambda request: scene.ids(max(1, min(request.requested, 5)))


async def announces_and_never_has(scene: Scene) -> None:
    async def serve(_: submission.RequestMessages) -> None:
        await scene.talk.say(submission.ReplyMessages(()))

    await _supply(scene, _up_to_requested(scene), serve)


async def announces_and_never_answers(scene: Scene) -> None:
    async def serve(_: submission.RequestMessages) -> None:
        await asyncio.sleep(FOR_EVER_S)

    await _supply(scene, _up_to_requested(scene), serve)


async def answers_just_in_time_with_nothing(scene: Scene) -> None:
    async def serve(_: submission.RequestMessages) -> None:
        await asyncio.sleep(9.0)
        await scene.talk.say(submission.ReplyMessages(()))

    await _supply(scene, _up_to_requested(scene), serve)


async def announces_false_sizes(scene: Scene) -> None:
    async def serve(request: submission.RequestMessages) -> None:
        await scene.talk.say(submission.ReplyMessages(scene.messages(request.ids)))

    await _supply(scene, lambda request: scene.ids(max(1, min(request.requested, 5)), size=91), serve)


async def serves_forgeries(scene: Scene) -> None:
    """Announce honest ids and serve other bytes: the body exchanged or the signature broken."""
    offered: list[DmqMessage] = []

    def announce(request: submission.RequestMessageIds) -> tuple[MessageIdAndSize, ...]:
        offered.extend(scene.loot.flawed[: request.requested])
        return tuple(MessageIdAndSize(_id_in(one.raw), len(one.raw)) for one in offered) or scene.ids(1)

    async def serve(request: submission.RequestMessages) -> None:
        wanted = tuple(one for one in offered if _id_in(one.raw) in request.ids)
        await scene.talk.say(submission.ReplyMessages(wanted))

    await _supply(scene, announce, serve)


async def replays_everything(scene: Scene) -> None:
    """Announce the same honest messages again and again, and serve them: allowed, and useless."""

    async def serve(request: submission.RequestMessages) -> None:
        await scene.talk.say(submission.ReplyMessages(scene.messages(request.ids)))

    await _supply(scene, lambda request: scene.ids(max(1, min(request.requested, 33))), serve)


async def is_honest_for_a_while(scene: Scene) -> None:
    """Earn a good score, and turn bad when trusted."""
    turns_bad_at_s = asyncio.get_running_loop().time() + scene.random.uniform(5, 30)

    async def serve(request: submission.RequestMessages) -> None:
        if asyncio.get_running_loop().time() > turns_bad_at_s:
            await asyncio.sleep(9.0)
            await scene.talk.say(submission.ReplyMessages(()))
        else:
            await scene.talk.say(submission.ReplyMessages(scene.messages(request.ids)))

    await _supply(scene, lambda request: scene.ids(max(1, min(request.requested, 10))), serve)


async def floods_with_ids(scene: Scene) -> None:
    async def serve(_: submission.RequestMessages) -> None:
        await scene.talk.say(submission.ReplyMessages(()))

    await _supply(scene, lambda _: scene.ids(400), serve)


async def fills_the_window_with_inventions(scene: Scene) -> None:
    """Announce as many ids as allowed, none of which exists: the window is full and nothing can ever be
    downloaded."""

    async def serve(_: submission.RequestMessages) -> None:
        await asyncio.sleep(0.5)
        await scene.talk.say(submission.ReplyMessages(()))

    def announce(request: submission.RequestMessageIds) -> tuple[MessageIdAndSize, ...]:
        return tuple(
            MessageIdAndSize(MessageId(scene.random.randbytes(32)), 1_000) for _ in range(request.requested)
        )

    await _supply(scene, announce, serve)


async def serves_what_nobody_wanted(scene: Scene) -> None:
    async def serve(_: submission.RequestMessages) -> None:
        await scene.talk.say(submission.ReplyMessages(tuple(scene.loot.messages[:2])))

    await _supply(scene, lambda request: scene.ids(1) if request.requested else (), serve)


async def talks_garbage(scene: Scene) -> None:
    await scene.talk.hear("Idle")
    await scene.talk.say_bytes(scene.random.randbytes(scene.random.randrange(1, 3_000)))
    await asyncio.sleep(FOR_EVER_S)


async def drips(scene: Scene) -> None:
    """Send a proper answer, one byte every second."""
    await scene.talk.hear("Idle")
    for byte in scene.talk.encoded(submission.ReplyMessageIds(scene.ids(30))):
        await scene.talk.say_bytes(bytes([byte]))
        await asyncio.sleep(1)


async def is_silent(scene: Scene) -> None:
    await asyncio.sleep(FOR_EVER_S)


async def leaves_at_once(scene: Scene) -> None:
    scene.connection.close()


async def answers_more_often_than_asked(scene: Scene) -> None:
    await scene.talk.hear("Idle")
    for _ in range(5):
        await scene.talk.say(submission.ReplyMessageIds(scene.ids(1)))
    await asyncio.sleep(FOR_EVER_S)


async def opens_unknown_protocols(scene: Scene) -> None:
    channel = scene.connection.bearer.channel(999, Direction.INITIATOR, 1_000)
    await channel.write(b"\x80")
    await asyncio.sleep(FOR_EVER_S)


SUPPLIERS: Mapping[str, Behaviour] = {
    behaviour.__name__: behaviour
    for behaviour in (
        announces_and_never_has,
        announces_and_never_answers,
        answers_just_in_time_with_nothing,
        announces_false_sizes,
        serves_forgeries,
        replays_everything,
        is_honest_for_a_while,
        floods_with_ids,
        fills_the_window_with_inventions,
        serves_what_nobody_wanted,
        talks_garbage,
        drips,
        is_silent,
        leaves_at_once,
        answers_more_often_than_asked,
        opens_unknown_protocols,
    )
}


# As the side that pulls


async def acknowledges_too_much(scene: Scene) -> None:
    await scene.talk.say(submission.RequestMessageIds(True, 60_000, 1))
    await asyncio.sleep(FOR_EVER_S)


async def asks_for_nothing(scene: Scene) -> None:
    await scene.talk.say(submission.RequestMessageIds(False, 0, 0))
    await asyncio.sleep(FOR_EVER_S)


async def asks_for_what_was_not_announced(scene: Scene) -> None:
    wanted = tuple(identity.message_id for identity in scene.ids(3))
    await scene.talk.say(submission.RequestMessages(wanted))
    await asyncio.sleep(FOR_EVER_S)


async def asks_and_never_reads_on(scene: Scene) -> None:
    await scene.talk.say(submission.RequestMessageIds(True, 0, 33))
    await asyncio.sleep(FOR_EVER_S)


PULLERS: Mapping[str, Behaviour] = {
    behaviour.__name__: behaviour
    for behaviour in (
        acknowledges_too_much,
        asks_for_nothing,
        asks_for_what_was_not_announced,
        asks_and_never_reads_on,
    )
}


def _id_in(raw: bytes) -> MessageId:
    """Return the id that a message claims, whether true or not."""
    return MessageId(raw[3:35])


DIAL_AGAIN_S = 20.0


class HostilePeer:
    """Hostile peer that listens at its address, and dials its victims on request. It keeps connections alive,
    so that it is not replaced."""

    def __init__(
        self, network: Network, address: TcpAddress, behaviour: Behaviour, loot: Loot, random: Random
    ) -> None:
        self.address = address
        self.connections = 0
        self._network = network
        self._behaviour = behaviour
        self._loot = loot
        self._random = random
        self._tasks: list[asyncio.Task[None]] = []

    async def listen(self, network_magic: int) -> None:
        async def serve(bearer: Bearer) -> None:
            ours = VersionData(network_magic, peer_sharing=True)
            connection = await respond(bearer, tuple(PROFILES.values()), ConnectionKind.NODE, ours)
            await self._play(connection, DMQ_NODE, Role.SERVER)

        await self._network.serve(self.address, serve)

    def dial(self, victim: TcpAddress, network_magic: int, *, as_puller: bool) -> None:
        """Connect again and again. In version 2 the dialling side pulls, in version 1 it supplies."""
        profile = DMQ_NODE if as_puller else GOUROBOROS
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._dial(victim, network_magic, profile)))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _dial(self, victim: TcpAddress, network_magic: int, profile: Profile) -> None:
        while True:
            try:
                bearer = await self._network.connect(victim)
                ours = VersionData(network_magic, peer_sharing=True)
                connection = await initiate(
                    bearer, profile, ConnectionKind.NODE, ours, answers=tuple(PROFILES.values())
                )
                await self._play(connection, profile, Role.CLIENT)
            except StagepostError:
                pass
            await asyncio.sleep(DIAL_AGAIN_S * self._random.random())

    async def _play(self, connection: Connection, profile: Profile, role: Role) -> None:
        self.connections += 1
        direction = Direction.INITIATOR if role is Role.CLIENT else Direction.RESPONDER
        talk = RawTalk(connection, profile, MiniProtocol.MESSAGE_SUBMISSION, direction)
        parts: list[Coroutine[None, None, None]] = [
            self._act(Scene(talk, connection, self._loot, self._random), role)
        ]
        if role is Role.SERVER:
            parts += [self._keep_alive(connection), self._share_accomplices(connection)]
        tasks = [asyncio.ensure_future(_quietly(connection, part)) for part in parts]
        try:
            await connection.bearer.wait_closed()
        finally:
            for task in tasks:
                task.cancel()

    async def _act(self, scene: Scene, role: Role) -> None:
        if role is Role.CLIENT and scene.connection.agreement.submission_version == 1:
            await scene.talk.say(submission.Init())
        await self._behaviour(scene)

    async def _keep_alive(self, connection: Connection) -> None:
        talk = RawTalk(connection, DMQ_NODE, MiniProtocol.KEEP_ALIVE, Direction.RESPONDER)
        while isinstance(ping := await talk.hear("Client"), keep_alive.KeepAlive):
            await talk.say(keep_alive.KeepAliveResponse(ping.cookie))

    async def _share_accomplices(self, connection: Connection) -> None:
        talk = RawTalk(connection, DMQ_NODE, MiniProtocol.PEER_SHARING, Direction.RESPONDER)
        while isinstance(request := await talk.hear("Idle"), peer_sharing.ShareRequest):
            count = min(request.amount, len(self._loot.accomplices))
            await talk.say(peer_sharing.SharePeers(tuple(self._random.sample(self._loot.accomplices, count))))


async def _quietly(connection: Connection, part: Coroutine[None, None, None]) -> None:
    try:
        await part
    except StagepostError as error:
        connection.abort(error)
