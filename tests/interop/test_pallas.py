"""Real nodes and clients of ours against pallas-network, which knows the local protocols only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rigs.peer_builds import rust_program
from stagepost.endpoints import (
    ConnectionKind,
    LocalMessageNotificationClient,
    MiniProtocol,
    Role,
    VersionData,
    connect_unix,
    initiate,
    profile_named,
)
from tests.interop.local_talks import (
    is_notified,
    serves_notifications,
    serves_submissions,
    submits_and_is_answered,
)
from tests.interop.peer_programs import InteropPool, PeerProgram
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, NodeProcess, ending, write_pools

pytestmark = pytest.mark.xdist_group("interop-rust")

PROFILE = "dmq-node"
THREE_ANNOUNCED = bytes.fromhex("83029f")  # an array of three: tag 2, and a list of unknown length
LIST_END = b"\xff"


@pytest.fixture
def program() -> Path:
    return rust_program("pallas")


@pytest.fixture
def pool() -> InteropPool:
    return InteropPool()


@pytest.fixture
def node(tmp_path: Path, pool: InteropPool) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "node", write_pools(tmp_path / "pools.json", [pool]), PROFILE)
    with ending([node]):
        node.start()
        yield node


def test_its_client_submits_to_our_node_and_reads_every_answer(
    program: Path, pool: InteropPool, node: NodeProcess
) -> None:
    asyncio.run(submits_and_is_answered(program, node, partial(pool.sign, older=False)))


def test_its_client_is_told_of_messages_by_our_node(
    program: Path, pool: InteropPool, node: NodeProcess
) -> None:
    asyncio.run(is_notified(program, node, partial(pool.sign, older=False), PROFILE))


def test_its_server_answers_submissions_of_our_client(
    program: Path, pool: InteropPool, tmp_path: Path
) -> None:
    asyncio.run(
        serves_submissions(program, "local-server", tmp_path, partial(pool.sign, older=False), PROFILE)
    )


def test_its_server_tells_our_client_of_messages(program: Path, pool: InteropPool, tmp_path: Path) -> None:
    asyncio.run(
        serves_notifications(program, "local-server", tmp_path, partial(pool.sign, older=False), PROFILE)
    )


def test_its_blocking_reply_announces_an_element_too_many_and_is_read(
    program: Path, pool: InteropPool, tmp_path: Path
) -> None:
    first, second = (pool.sign(older=False) for _ in range(2))
    received = bytearray()

    def keep(sent: bool, segment: bytes) -> None:
        if not sent:
            received.extend(segment)

    async def scenario() -> None:
        socket = tmp_path / "peer.socket"
        async with PeerProgram.started(program, "local-server", socket, log=tmp_path / "peer.log") as peer:
            await peer.hear("listening")
            await peer.do("add", first.raw.hex())
            bearer = await connect_unix(socket, trace=keep)
            profile = profile_named(PROFILE)
            connection = await initiate(bearer, profile, ConnectionKind.CLIENT, VersionData(NETWORK_MAGIC))
            client = LocalMessageNotificationClient(
                connection.open(profile, MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, Role.CLIENT)
            )
            assert (await client.request_messages_blocking()).messages == (first,)
            assert THREE_ANNOUNCED + first.raw + LIST_END in received
            # The missing element is not looked for in what follows.
            await peer.do("add", second.raw.hex())
            assert (await client.request_messages_blocking()).messages == (second,)
            assert (await client.request_messages_non_blocking()).messages == ()
            connection.close()
            await bearer.wait_closed()

    asyncio.run(scenario())


def test_another_network_is_refused(program: Path, node: NodeProcess) -> None:
    async def scenario() -> None:
        log = node.folder / "peer.log"
        async with PeerProgram.started(
            program, "local-client", node.socket, log=log, magic=NETWORK_MAGIC + 1
        ) as peer:
            assert "version" in (await peer.hear("error"))["text"]

    asyncio.run(scenario())
