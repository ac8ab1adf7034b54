"""Real nodes as processes on loopback: what is submitted at one is told at the others, also after kills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from stagepost.dmq.endpoints.connection import initiate
from stagepost.dmq.node.peer_link import PeerSharingClient
from stagepost.dmq.outcome import Accepted, Reason, Rejected
from stagepost.dmq.peer_sharing import PeerAddress
from stagepost.dmq.profiles import DMQ_NODE, MiniProtocol
from stagepost.dmq.profiles import PROFILES as WIRE_PROFILES
from stagepost.ground.net.sockets import connect_tcp
from stagepost.ground.net.version_data import ConnectionKind, VersionData
from stagepost.ground.statemachine.spec import Role
from tests.worlds.dmq.node_processes import (
    NETWORK_MAGIC,
    NodeProcess,
    Pool,
    command,
    ending,
    heard,
    write_pools,
)

PROFILES = ("dmq-node", "gouroboros", "seed")
ARRIVES_WITHIN_S = 120.0
KILL_CYCLES = 10


def a_pool(tmp_path: Path) -> tuple[Pool, Path]:
    pool = Pool()
    return pool, write_pools(tmp_path / "pools.json", [pool])


def started(folder: Path, pools_file: Path, profile: str, peers: Sequence[NodeProcess] = ()) -> NodeProcess:
    node = NodeProcess(folder, pools_file, profile, [(peer.port, peer.profile) for peer in peers])
    node.start()
    return node


async def check_told_everywhere(nodes: Sequence[NodeProcess], pool: Pool) -> None:
    """One message in at each node; each must come out at all of them, once."""
    wanted: set[bytes] = set()
    for node in nodes:
        message = pool.message()
        async with node.client() as client:
            assert await client.submit(message) == Accepted()
        wanted.add(message.message_id)
    for told in await asyncio.gather(*(heard(node, wanted, ARRIVES_WITHIN_S) for node in nodes)):
        assert sorted(told) == sorted(wanted)


@pytest.mark.parametrize("profile", PROFILES)
def test_two_nodes_tell_each_other(profile: str, tmp_path: Path) -> None:
    pool, pools_file = a_pool(tmp_path)
    nodes: list[NodeProcess] = []
    with ending(nodes):
        nodes.append(started(tmp_path / "a", pools_file, profile))
        nodes.append(started(tmp_path / "b", pools_file, profile, nodes[:1]))

        asyncio.run(check_told_everywhere(nodes, pool))


def test_five_nodes_in_a_line_with_mixed_profiles_tell_each_other(tmp_path: Path) -> None:
    pool, pools_file = a_pool(tmp_path)
    nodes: list[NodeProcess] = []
    with ending(nodes):
        for number, profile in enumerate(("dmq-node", "seed", "gouroboros", "seed", "dmq-node")):
            # Each dials the one before in its own profile: a node answers all of them on one socket.
            node = NodeProcess(
                tmp_path / f"node-{number}", pools_file, profile, [(nodes[-1].port, profile)] if nodes else ()
            )
            nodes.append(node)
            node.start()

        asyncio.run(check_told_everywhere(nodes, pool))


async def peers_told_by(node: NodeProcess) -> tuple[PeerAddress, ...]:
    """Connect as a peer, ask for peers twice, and return the answer; a node that throws the asker out is an error."""
    bearer = await connect_tcp("127.0.0.1", node.port)
    try:
        ours = VersionData(NETWORK_MAGIC, peer_sharing=True)
        answers = tuple(WIRE_PROFILES.values())
        connection = await initiate(bearer, DMQ_NODE, ConnectionKind.NODE, ours, answers=answers)
        assert connection.agreement.peer_sharing
        client = PeerSharingClient(connection.open(DMQ_NODE, MiniProtocol.PEER_SHARING, Role.CLIENT))
        async with asyncio.timeout(ARRIVES_WITHIN_S):
            first = await client.request_peers(10)
            assert await client.request_peers(10) == first
        return first
    finally:
        bearer.close()
        await bearer.wait_closed()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_root_named_by_host_name_is_told_by_the_address_of_its_connection(
    is_there: bool, tmp_path: Path
) -> None:
    """A root that nobody reaches is told to nobody, and whoever asks stays connected in both cases."""
    _, pools_file = a_pool(tmp_path)
    nodes: list[NodeProcess] = []

    async def scenario(hub: NodeProcess, wanted: tuple[PeerAddress, ...]) -> None:
        async with asyncio.timeout(ARRIVES_WITHIN_S):
            while await peers_told_by(hub) != wanted:
                await asyncio.sleep(0.1)

    with ending(nodes):
        root = started(tmp_path / "root", pools_file, "dmq-node")
        nodes.append(root)
        if not is_there:
            assert root.terminate() == 0
        hub = NodeProcess(tmp_path / "hub", pools_file, "dmq-node", [(root.port, "dmq-node")])
        hub.peers_host, hub.advertise = "localhost", True
        nodes.append(hub)
        hub.start()

        asyncio.run(scenario(hub, (PeerAddress("127.0.0.1", root.port),) if is_there else ()))

        assert "ValueError" not in hub.log
        assert hub.terminate() == 0


def test_killed_node_catches_up_after_its_restart(tmp_path: Path) -> None:
    pool, pools_file = a_pool(tmp_path)
    nodes: list[NodeProcess] = []

    async def scenario() -> None:
        first, second = nodes
        before = pool.message()
        async with second.client() as client:
            assert await client.submit(before) == Accepted()
        second.kill()
        missed = pool.message()
        async with first.client() as client:
            assert await client.submit(missed) == Accepted()
        second.start()
        wanted: set[bytes] = {before.message_id, missed.message_id}
        told = await heard(second, wanted, ARRIVES_WITHIN_S)
        assert sorted(told) == sorted(wanted)
        async with second.client() as client:
            replayed = await client.submit(before)
        assert isinstance(replayed, Rejected)
        assert replayed.reason is Reason.ALREADY_RECEIVED

    with ending(nodes):
        nodes.append(started(tmp_path / "a", pools_file, "dmq-node"))
        nodes.append(started(tmp_path / "b", pools_file, "dmq-node", nodes[:1]))
        asyncio.run(scenario())


def test_no_accepted_message_is_lost_or_repeated_when_the_node_is_killed_under_load(tmp_path: Path) -> None:
    """Each cycle submits from several programs until the kill comes; every yes must hold afterwards."""
    pool, pools_file = a_pool(tmp_path)
    node = NodeProcess(tmp_path / "a", pools_file)
    accepted: dict[bytes, bytes] = {}

    async def load(kill_after: int) -> None:
        async def program() -> None:
            try:
                async with node.client() as client:
                    while True:
                        message = pool.message()
                        if await client.submit(message) == Accepted():
                            accepted[message.message_id] = message.raw
            except Exception:
                return  # the node is gone, as planned

        programs = [asyncio.create_task(program()) for _ in range(4)]
        goal = len(accepted) + kill_after
        while len(accepted) < goal:
            await asyncio.sleep(0.001)
        node.kill()
        for task in programs:
            task.cancel()
        await asyncio.gather(*programs, return_exceptions=True)

    with ending([node]):
        for cycle in range(KILL_CYCLES):
            node.start()
            asyncio.run(load(kill_after=3 + 7 * cycle))
        node.start()
        told = asyncio.run(heard(node, set(accepted), ARRIVES_WITHIN_S))

        assert len(told) == len(set(told)), "a program was told twice"
        assert set(accepted) <= set(told), "an accepted message is gone"
        replays = asyncio.run(_submit_raw(node, list(accepted.values())[:50]))
        assert {replay.reason for replay in replays} == {Reason.ALREADY_RECEIVED}
        assert node.terminate() == 0


async def _submit_raw(node: NodeProcess, raws: list[bytes]) -> list[Rejected]:
    from stagepost.dmq.message import DmqMessage

    outcomes = []
    async with node.client() as client:
        for raw in raws:
            outcome = await client.submit(DmqMessage.decode(raw))
            assert isinstance(outcome, Rejected)
            outcomes.append(outcome)
    return outcomes


def test_node_ends_in_order_and_leaves_nothing_behind(tmp_path: Path) -> None:
    _, pools_file = a_pool(tmp_path)
    node = NodeProcess(tmp_path / "a", pools_file)
    with ending([node]):
        node.start()

        assert node.terminate() == 0
        assert not node.socket.exists()
        assert not (node.folder / "node.json").exists()


def test_commands_tell_about_a_running_node(tmp_path: Path) -> None:
    pool_folder = tmp_path / "pool"
    assert command("keys", "new", str(pool_folder), folder=tmp_path).returncode == 0
    shown = command("keys", "show", str(pool_folder / "cold.vkey"), "--json", folder=tmp_path)
    pool_text = json.loads(shown.stdout)["pool_id"]
    pools_file = tmp_path / "pools.json"
    pools = {"max_kes_evolutions": 62, "slots_per_kes_period": 129_600}
    pools_file.write_text(json.dumps({**pools, "pools": [{"pool_id": pool_text, "stake": 1}]}))
    node = NodeProcess(tmp_path / "a", pools_file)
    with ending([node]):
        node.start()
        data = ("--data", str(node.folder))

        sent = command("send", "hello", "--keys", str(pool_folder), *data, folder=tmp_path)
        assert sent.returncode == 0, sent.stderr
        listened = command("listen", *data, "--count", "1", "--json", folder=tmp_path)
        assert listened.returncode == 0, listened.stderr
        message_id = json.loads(listened.stdout.splitlines()[0])["message_id"]
        listing = command("queue", "ls", *data, "--json", folder=tmp_path)
        assert json.loads(listing.stdout.splitlines()[0])["message_id"] == message_id
        assert command("peers", *data, folder=tmp_path).returncode == 0
        health = command("check", *data, folder=tmp_path)
        assert health.returncode == 1, "a node without peers is heard by nobody: a warning"
        node.terminate()
        assert command("check", *data, folder=tmp_path).returncode in (2, 3)
