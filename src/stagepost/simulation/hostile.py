"""Peers that break the rules on purpose: each accepts or dials connections, behaves up to a point, and then does not."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random

from stagepost.dmq import peer_sharing, submission
from stagepost.dmq.endpoints.connection import Connection, initiate, respond
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, PROFILES, MiniProtocol, Profile
from stagepost.errors import StagepostError
from stagepost.ground.net import keep_alive_protocol as keep_alive
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.network import Network, TcpAddress
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.mux import Direction
from stagepost.simulation.hostile_behaviours import Behaviour, Loot, RawTalk, Scene

DIAL_AGAIN_S = 20.0


class HostilePeer:
    """Listens at its address, and dials its victims when asked to. Keeps connections alive, so that it is not replaced."""

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
        """Connect again and again. Version 2 makes the dialling side pull, version 1 makes it supply."""
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
