"""Both directions of one real connection: each node pulls from the other and supplies it, in every profile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

import pytest

from stagepost.dmq.downloads import Downloads
from stagepost.dmq.endpoints.connection import Connection, initiate, respond
from stagepost.dmq.endpoints.submission_config import is_pulling_side
from stagepost.dmq.node.puller import puller_for
from stagepost.dmq.node.supplier import Supplier
from stagepost.dmq.profiles import DMQ_NODE, GOUROBOROS, PROFILES, SEED, MiniProtocol, Profile
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import Conversation, run_conversations
from stagepost.ground.net.sockets import connect_unix, serve_unix
from stagepost.ground.net.version_data import NETWORK_MAGICS, ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from tests.worlds.dmq.pulling_world import NOW_UNIX_S, Node, legacy, messages

OURS = VersionData(NETWORK_MAGICS["mithril-devnet"])
EVERY_PROFILE = tuple(PROFILES.values())


def instance(
    node: Node, connection: Connection, talk: Conversation, profile: Profile, role: Role
) -> Coroutine[None, None, None]:
    if not is_pulling_side(profile, connection.agreement.submission_version, role):
        return Supplier(talk, profile, node.mempool, node.bell).run()
    puller = puller_for(
        talk,
        profile,
        peer="the other",
        downloads=Downloads(),
        held=node.mempool,
        intake=node,
        clock=LoopClock(NOW_UNIX_S),
    )
    return puller.run()


async def use(node: Node, connection: Connection, opened: Profile | None) -> None:
    """Answer whatever the peer opens; open an instance of our own where we know the peer's profile."""
    running = [
        instance(node, connection, talk, profile, Role.SERVER)
        for (profile, protocol), talk in connection.answer_all(EVERY_PROFILE).items()
        if protocol is MiniProtocol.MESSAGE_SUBMISSION
    ]
    if opened is not None:
        talk = connection.open(opened, MiniProtocol.MESSAGE_SUBMISSION, Role.CLIENT)
        running.append(instance(node, connection, talk, opened, Role.CLIENT))
    await run_conversations(connection.bearer, running)


@pytest.mark.parametrize("profile", [DMQ_NODE, GOUROBOROS, SEED], ids=lambda profile: profile.name)
def test_two_nodes_on_one_connection_come_to_hold_the_same(profile: Profile, tmp_path: Path) -> None:
    async def main() -> None:
        left, right = Node(), Node()
        left.hold(messages(80))
        right.hold(messages(80, first=60))
        left.hold([legacy(b"l" * 32)])
        connections: list[Connection] = []

        async def serve(bearer: Bearer) -> None:
            connection = await respond(bearer, EVERY_PROFILE, ConnectionKind.NODE, OURS)
            connections.append(connection)
            await use(right, connection, profile)

        server = await serve_unix(tmp_path / "node" / "socket", serve)
        bearer = await connect_unix(tmp_path / "node" / "socket")
        connection = await initiate(bearer, profile, ConnectionKind.NODE, OURS, answers=EVERY_PROFILE)
        used = asyncio.create_task(use(left, connection, profile))
        everything = {message.message_id for message in messages(140)}
        if profile is SEED:
            everything.add(legacy(b"l" * 32).message_id)
        async with asyncio.timeout(60):
            while not everything <= left.ids() or not everything <= right.ids():
                await asyncio.sleep(0.1)
        await asyncio.sleep(60)

        assert right.ids() == everything
        assert not connection.bearer.is_over
        assert connections[0].bearer.reason is None
        connection.close()
        await used
        await server.close()

    run_in_virtual_time(main())
