"""A connection between DMQ nodes is byte for byte what it was before links were encrypted: strangers never see encryption."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from random import Random

import pytest

from stagepost.dmq.downloads import Downloads
from stagepost.dmq.endpoints.connection import Connection, initiate, respond
from stagepost.dmq.endpoints.submission_config import is_pulling_side
from stagepost.dmq.node.puller import puller_for
from stagepost.dmq.node.supplier import Supplier
from stagepost.dmq.profiles import PROFILES, MiniProtocol, Profile
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.net.bearer import Bearer
from stagepost.ground.net.conversation import run_conversations
from stagepost.ground.net.network import TcpAddress
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from stagepost.simulation.link import LinkSettings
from stagepost.simulation.network import SimulatedNetwork
from tests.worlds.dmq.pulling_world import NOW_UNIX_S, Node, messages
from tests.worlds.remp.link_path import PathNetwork

OURS = VersionData(42)
EVERY_PROFILE = tuple(PROFILES.values())
ADDRESS = TcpAddress("10.0.0.2", 3_141)
# Initiator's bytes, responder's bytes, with the times of the segments: taken at revision b50ad35, before links were encrypted.
KNOWN = {
    "dmq-node": (
        "c0420ba891754c5a7ec49db522bbc60e69ad0c0d6973b04b2d4f7c302ef6f413",
        "a084a228e616455925d8575e1ede4f010d6a90d810699c801c3eb198654c15bd",
    ),
    "gouroboros": (
        "b724720a0356b3a9c24006436cc331bada005e1c34e65550a8f939ac0a241da9",
        "b513f2bcfdb49426530c750ef634cc5d405e7fa243dc64afe73b9881ce282d3e",
    ),
    "seed": (
        "e9f54aa7c4bce4fb76a8617f091efcbb8a40c7705f69c7cc0cb446020785e59b",
        "dcb71eac300e1543ba8ac80d67526469fa4ef240911ce988eea71192ae0bf94d",
    ),
}


async def use(node: Node, connection: Connection, opened: Profile | None) -> None:
    talks = [
        (profile, talk, Role.SERVER)
        for (profile, protocol), talk in connection.answer_all(EVERY_PROFILE).items()
        if protocol is MiniProtocol.MESSAGE_SUBMISSION
    ]
    if opened is not None:
        talks.append(
            (opened, connection.open(opened, MiniProtocol.MESSAGE_SUBMISSION, Role.CLIENT), Role.CLIENT)
        )
    running = []
    for profile, talk, role in talks:
        if is_pulling_side(profile, connection.agreement.submission_version, role):
            puller = puller_for(
                talk,
                profile,
                peer="the other",
                downloads=Downloads(),
                held=node.mempool,
                intake=node,
                clock=LoopClock(NOW_UNIX_S),
            )
            running.append(puller.run())
        else:
            running.append(Supplier(talk, profile, node.mempool, node.bell).run())
    await run_conversations(connection.bearer, running)


def conversation(profile: Profile) -> list[bytes]:
    """Everything that two nodes say to each other in ten seconds, in each direction."""
    found: list[bytes] = []

    async def main() -> None:
        network = SimulatedNetwork(Random(1), LinkSettings(latency_s=0.01, jitter_s=0.0, cut_chance=0.0))
        left, right = Node(), Node()
        left.hold(messages(3))
        right.hold(messages(5))

        async def serve(bearer: Bearer) -> None:
            await use(right, await respond(bearer, EVERY_PROFILE, ConnectionKind.NODE, OURS), None)

        server = await network.process(ADDRESS.host).serve(ADDRESS, serve)
        path = PathNetwork(network.process("10.0.0.1"))
        bearer = await path.connect(ADDRESS)
        connection = await initiate(bearer, profile, ConnectionKind.NODE, OURS, answers=EVERY_PROFILE)
        using = asyncio.create_task(use(left, connection, profile))
        await asyncio.sleep(10)
        connection.close()
        await using
        await server.close()
        found.extend(path.connections[0].passed)

    run_in_virtual_time(main())
    return found


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_what_nodes_say_to_one_another_is_what_it_was(profile: Profile) -> None:
    said = conversation(profile)

    assert tuple(sha256(stream).hexdigest() for stream in said) == KNOWN[profile.name]
