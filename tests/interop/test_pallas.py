"""Real nodes and clients of ours against pallas-network, which knows the local protocols and plays a cardano-node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from rigs.peer_builds import rust_program
from stagepost.devnet.cardano_node import PretendLedger, pretend_cardano_node
from stagepost.dmq.node.cardano_source import CardanoSource
from stagepost.dmq.node.config import CardanoAccess
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
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import SystemClock
from stagepost.ground.net.network import SocketNetwork
from tests.interop.local_talks import (
    is_notified,
    serves_notifications,
    serves_submissions,
    submits_and_is_answered,
)
from tests.interop.pallas_node import pallas_node
from tests.interop.peer_programs import InteropPool, PeerProgram
from tests.worlds.dmq import untouched_machine
from tests.worlds.dmq.cardano_answers import LedgerState, generated_pools
from tests.worlds.dmq.cardano_node import PretendCardanoNode
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


@pytest.mark.parametrize("count", [0, 1, 24, 3000])
@pytest.mark.parametrize("era", [6, 7])
def test_its_node_is_asked_for_stake_and_understood(
    program: Path, tmp_path: Path, count: int, era: int
) -> None:
    """A server of local state queries that nobody here wrote; its answers are bytes that we give to it."""
    pools = generated_pools(count)
    begins_s = int(time.time()) // 86_400 * 86_400 - 86_400
    ledger = LedgerState(era=era, epoch_s=10**6, system_start_unix_s=begins_s).with_pools(pools)
    socket = tmp_path / "node.socket"
    access = CardanoAccess(socket, ledger.magic)

    async def scene() -> None:
        source = CardanoSource(access, SocketNetwork(), SystemClock(), tmp_path)
        async with pallas_node(program, ledger, socket, tmp_path / "log") as peer:
            running = asyncio.create_task(source.watch())
            try:
                assert "32791" in (await peer.hear("connected"))["version"]
                await peer.hear("released")
                async with asyncio.timeout(60):
                    while not source.is_ready:
                        await asyncio.sleep(0.01)
                asked = [said["query"] for said in peer.said if said["event"] == "asked"]
                assert asked[:4] == ["8101", "820082028101", f"8200820082{era:02x}8101", "820082028100"]
                assert source.pool_count == count
                assert all(source.stake(PoolId(pool)) == stakes[1] for pool, stakes in pools.items())
                assert source.not_ready_reason is None
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        assert source.is_ready

    asyncio.run(scene())


@pytest.mark.parametrize("count", [0, 1, 23, 24, 3000])
@pytest.mark.parametrize("era", [6, 7])
def test_its_client_reads_every_answer_of_our_double(
    program: Path, tmp_path: Path, count: int, era: int
) -> None:
    pools = generated_pools(count)
    ledger = LedgerState(era=era, epoch=600, epoch_s=432_000).with_pools(pools)
    node = PretendCardanoNode(ledger)
    socket = tmp_path / "node.socket"

    async def scene() -> None:
        await node.start(SocketNetwork(), socket)
        async with PeerProgram.started(
            program, "state-client", socket, log=tmp_path / "log", magic=ledger.magic
        ) as peer:
            await peer.hear("connected")
            for command in ("round", "again"):
                await peer.do(command)
                said = await peer.hear("read")
                assert (said["era"], said["epoch"], said["magic"]) == (era, 600, ledger.magic)
                assert (said["slots_per_kes_period"], said["max_kes_evolutions"]) == (100, 62)
                assert (said["start"], said["history"]) == (
                    ledger.system_start().hex(),
                    ledger.history().hex(),
                )
                assert said["pools"] == {pool.hex(): list(stakes) for pool, stakes in pools.items()}
                sums = [sum(stakes[column] for stakes in pools.values()) for column in range(3)]
                assert said["totals"] == [max(1, one) for one in sums]
            await peer.do("done")
            await peer.hear("said-goodbye")
        await node.stop()

    asyncio.run(scene())


def test_its_client_reads_the_demonstrations_cardano_node(program: Path, tmp_path: Path) -> None:
    stakes = {PoolId(pool): one[0] + 1 for pool, one in generated_pools(30).items()}
    ledger = PretendLedger(stakes, int(time.time()) // 86_400 * 86_400)
    socket = tmp_path / "node.socket"

    async def scene() -> None:
        async with (
            pretend_cardano_node(ledger, socket),
            PeerProgram.started(
                program, "state-client", socket, log=tmp_path / "log", magic=ledger.magic
            ) as peer,
        ):
            await peer.hear("connected")
            await peer.do("round")
            said = await peer.hear("read")
            assert said["pools"] == {pool.hex(): [stake] * 3 for pool, stake in stakes.items()}
            assert (said["magic"], said["slots_per_kes_period"]) == (ledger.magic, 129_600)

    asyncio.run(scene())


def test_its_client_is_refused_by_our_double_of_another_network(program: Path, tmp_path: Path) -> None:
    node = PretendCardanoNode(LedgerState())
    socket = tmp_path / "node.socket"

    async def scene() -> None:
        await node.start(SocketNetwork(), socket)
        log = tmp_path / "log"
        async with PeerProgram.started(program, "state-client", socket, log=log, magic=41) as peer:
            assert "version" in (await peer.hear("error"))["text"]
        await node.stop()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("role", "count"), [("relay", 0), ("relay", 1), ("relay", 24), ("relay", 3000), ("bp", 3000)]
)
def test_the_guides_files_start_our_node_beside_its_node(
    program: Path, tmp_path: Path, role: str, count: int
) -> None:
    """Files, service line, paths, addresses and ports are the guide's; its node restarts in between."""
    why = untouched_machine.missing()
    if why is not None:
        pytest.skip(why)

    found = untouched_machine.run_scene(tmp_path, role, count, "tests.interop.pallas_node", str(program))

    accepted = min(count, 3)
    assert found["outcomes"] == ["accepted"] * accepted + ["POOL_UNKNOWN"] * (3 - accepted)
    assert found["counted"] == f"dmq_node_submissions_accepted {accepted}"
