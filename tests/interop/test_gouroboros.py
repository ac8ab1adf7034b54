"""Real nodes and clients of ours against gouroboros: a current version, and the one that the documents describe."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from rigs.peer_builds import go_program
from stagepost.client import AsyncClient
from stagepost.dmq.message import BODY_BYTES_MAX
from stagepost.dmq.outcome import Accepted
from stagepost.errors import HandshakeRefused, TransportError
from tests.interop.local_talks import (
    MESSAGES_MANY,
    MakeMessage,
    is_notified,
    serves_notifications,
    serves_submissions,
    submits_and_is_answered,
)
from tests.interop.peer_programs import InteropPool, PeerProgram
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, NodeProcess, ending, heard, write_pools

pytestmark = pytest.mark.xdist_group("interop-go")

ARRIVES_WITHIN_S = 60.0


@dataclass
class Setting:
    """One version of the library, and messages in the layout that it knows."""

    program: Path
    profile: str
    folder: Path
    pools_file: Path
    pool: InteropPool

    @property
    def make(self) -> MakeMessage:
        return partial(self.pool.sign, older=self.profile == "seed")

    def node(self, peers: tuple[tuple[int, str], ...] = ()) -> NodeProcess:
        node = NodeProcess(self.folder / "node", self.pools_file, self.profile, peers)
        node.start()
        return node

    @property
    def log(self) -> Path:
        return self.folder / "peer.log"


def a_setting(version: str, folder: Path) -> Setting:
    pool = InteropPool()
    profile = {"current": "gouroboros", "seed": "seed"}[version]
    program = go_program(f"gouroboros_{version}")
    return Setting(program, profile, folder, write_pools(folder / "pools.json", [pool]), pool)


@pytest.fixture(params=["current", "seed"])
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Setting:
    return a_setting(request.param, tmp_path)


@pytest.fixture
def node(setting: Setting) -> Iterator[NodeProcess]:
    node = setting.node()
    with ending([node]):
        yield node


def test_its_client_submits_to_our_node_and_reads_every_answer(setting: Setting, node: NodeProcess) -> None:
    asyncio.run(submits_and_is_answered(setting.program, node, setting.make))


def test_its_client_is_told_of_messages_by_our_node(setting: Setting, node: NodeProcess) -> None:
    asyncio.run(is_notified(setting.program, node, setting.make, setting.profile))


def test_its_server_answers_submissions_of_our_client(setting: Setting) -> None:
    asyncio.run(
        serves_submissions(setting.program, "local-server", setting.folder, setting.make, setting.profile)
    )


def test_its_server_tells_our_client_of_messages(setting: Setting) -> None:
    asyncio.run(
        serves_notifications(setting.program, "local-server", setting.folder, setting.make, setting.profile)
    )


def test_our_node_pulls_from_its_client(setting: Setting, node: NodeProcess) -> None:
    messages = [setting.make(body_bytes=BODY_BYTES_MAX) for _ in range(MESSAGES_MANY)]

    async def scenario() -> None:
        place = f"127.0.0.1:{node.port}"
        async with PeerProgram.started(setting.program, "supply", place, log=setting.log) as peer:
            await peer.do("begin")
            await peer.hear("connected")
            wanted: set[bytes] = set()
            for batch in messages[:1], messages[1:]:
                for message in batch:
                    await peer.do("add", message.raw.hex())
                    wanted.add(message.message_id)
                told = await heard(node, wanted, ARRIVES_WITHIN_S, setting.profile)
                assert sorted(told) == sorted(wanted)

    asyncio.run(scenario())


def test_its_server_pulls_from_our_node(setting: Setting) -> None:
    messages = [setting.make(body_bytes=BODY_BYTES_MAX) for _ in range(MESSAGES_MANY)]
    nodes: list[NodeProcess] = []

    async def scenario() -> None:
        async with PeerProgram.started(setting.program, "pull", log=setting.log) as peer:
            port = (await peer.hear("listening"))["port"]
            nodes.append(setting.node(((port, setting.profile),)))
            await peer.hear("connected")
            async with nodes[0].client() as client:
                for message in messages:
                    assert await client.submit(message) == Accepted()
            received = await peer.hear_messages(len(messages))
            assert received == [message.raw for message in messages]
            announced = {
                bytes.fromhex(key): size
                for said in peer.said
                if said["event"] == "ids"
                for key, size in said["sizes"].items()
            }
            assert announced == {message.message_id: len(message.raw) for message in messages}

    with ending(nodes):
        asyncio.run(scenario())


def test_one_connection_carries_messages_both_ways(setting: Setting, node: NodeProcess) -> None:
    theirs, ours = ([setting.make() for _ in range(20)] for _ in range(2))

    async def scenario() -> None:
        place = f"127.0.0.1:{node.port}"
        async with PeerProgram.started(setting.program, "supply-and-pull", place, log=setting.log) as peer:
            await peer.do("begin")
            await peer.hear("connected")
            for message in theirs:
                await peer.do("add", message.raw.hex())
            async with node.client() as client:
                for message in ours:
                    assert await client.submit(message) == Accepted()
            wanted = {bytes(message.message_id) for message in theirs + ours}
            told = await heard(node, wanted, ARRIVES_WITHIN_S, setting.profile)
            assert sorted(told) == sorted(wanted)
            received: set[bytes] = set()
            while not received >= {message.raw for message in ours}:
                received.update(await peer.hear_messages(1))

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_quiet_connection_outlives_its_servers_patience_of_30_s_or_is_made_anew(tmp_path: Path) -> None:
    """The documents' version gets our empty reply before. The current one gets none and hangs up; we dial again."""
    nodes: list[NodeProcess] = []

    async def connected(version: str, peers: AsyncExitStack) -> tuple[Setting, NodeProcess, PeerProgram]:
        (tmp_path / version).mkdir()
        setting = a_setting(version, tmp_path / version)
        peer = await peers.enter_async_context(PeerProgram.started(setting.program, "pull", log=setting.log))
        node = setting.node((((await peer.hear("listening"))["port"], setting.profile),))
        nodes.append(node)
        await peer.hear("connected")
        return setting, node, peer

    async def gets_a_message(setting: Setting, node: NodeProcess, peer: PeerProgram) -> None:
        message = setting.make()
        async with node.client() as client:
            assert await client.submit(message) == Accepted()
        assert await peer.hear_messages(1) == [message.raw]

    async def scenario() -> None:
        async with AsyncExitStack() as peers:
            current, seed = await connected("current", peers), await connected("seed", peers)
            assert (await seed[2].hear("ids"))["count"] == 0
            assert "timeout waiting" in (await current[2].hear("ended"))["text"]
            await current[2].hear("connected")
            await gets_a_message(*current)
            await gets_a_message(*seed)
            assert [said["event"] for said in seed[2].said].count("connected") == 1

    with ending(nodes):
        asyncio.run(scenario())


def test_another_network_is_refused_in_words(setting: Setting, node: NodeProcess) -> None:
    async def scenario() -> None:
        async with PeerProgram.started(
            setting.program, "local-client", node.socket, log=setting.log, magic=NETWORK_MAGIC + 1
        ) as peer:
            error = await peer.hear("error")
            assert "HANDSHAKE_WRONG_NETWORK" in error["text"]

    asyncio.run(scenario())


# What the library gets wrong, or cannot do. docs/interop.md says so; a new version that does better shows here.


def test_its_own_handshake_knows_no_version_that_our_client_proposes(tmp_path: Path) -> None:
    """The documents' library has Cardano's versions only, and mostly hangs up before its refusal is written.

    It runs over a handshake of its user's own, as in the tests above.
    """
    program = go_program("gouroboros_seed")

    async def scenario() -> None:
        socket = tmp_path / "peer.socket"
        async with PeerProgram.started(
            program, "local-server-own-handshake", socket, log=tmp_path / "peer.log"
        ) as peer:
            await peer.hear("listening")
            with pytest.raises((HandshakeRefused, TransportError)):
                async with AsyncClient.connect(socket, NETWORK_MAGIC, "seed"):
                    pass
            assert "version mismatch" in (await peer.hear("not-connected"))["text"]

    asyncio.run(scenario())


def test_its_authenticator_refuses_certificates_that_are_signed_as_on_chain(setting: Setting) -> None:
    async def scenario() -> None:
        async with PeerProgram.started(setting.program, "verify", log=setting.log) as peer:
            await peer.do("message", setting.make().raw.hex())
            verdict = await peer.hear("verdict")
            assert "cold signature verification failed" in verdict["text"]

    asyncio.run(scenario())


def test_its_client_forgets_ids_that_were_not_acknowledged(setting: Setting, node: NodeProcess) -> None:
    """A reply to a second request replaces the first's ids. It then takes a right request for a wrong one."""
    messages = [setting.make(body_bytes=BODY_BYTES_MAX) for _ in range(MESSAGES_MANY)]

    async def scenario() -> None:
        place = f"127.0.0.1:{node.port}"
        async with PeerProgram.started(setting.program, "supply-eagerly", place, log=setting.log) as peer:
            for message in messages:
                await peer.do("add", message.raw.hex())
            await peer.do("begin")
            ended = await peer.hear("ended")
            assert ended["text"] == "cannot accept non-blocking request when no pending IDs"
        # It comes back, announces everything again, and nothing is lost.
        async with PeerProgram.started(setting.program, "supply", place, log=setting.log) as peer:
            for message in messages:
                await peer.do("add", message.raw.hex())
            await peer.do("begin")
            wanted = {bytes(message.message_id) for message in messages}
            told = await heard(node, wanted, ARRIVES_WITHIN_S, setting.profile)
            assert sorted(told) == sorted(wanted)

    asyncio.run(scenario())


def test_the_documents_library_cannot_read_the_newer_layout(tmp_path: Path) -> None:
    """It is told of both by our node, since the documents name none: a message of 5 elements ends its connection."""
    pool = InteropPool()
    node = NodeProcess(tmp_path / "node", write_pools(tmp_path / "pools.json", [pool]), "seed")

    async def scenario() -> None:
        program = go_program("gouroboros_seed")
        async with (
            node.client() as client,
            PeerProgram.started(program, "local-client", node.socket, log=tmp_path / "peer.log") as peer,
        ):
            await peer.hear("connected")
            assert await client.submit(pool.sign(older=False)) == Accepted()
            await peer.do("ask")
            assert "decode error" in (await peer.hear("ended"))["text"]

    with ending([node]):
        node.start()
        asyncio.run(scenario())
