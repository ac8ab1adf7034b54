"""The guide's files, flags and no other setting start a node; it serves on while its cardano-node comes and goes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from stagepost.client import AsyncClient
from stagepost.dmq.outcome import Accepted, Rejected
from stagepost.errors import ErrorCode
from stagepost.ground.net.network import SocketNetwork
from tests.worlds.dmq import untouched_machine
from tests.worlds.dmq.cardano_node import PretendCardanoNode
from tests.worlds.dmq.node_processes import Pool
from tests.worlds.dmq.operator_machine import DMQ_MAGIC, WITHIN_S, mainnet_ledger, operator_machine


@pytest.mark.parametrize("role", ["relay", "bp"])
def test_the_guides_files_start_a_node_that_takes_messages_by_stake(tmp_path: Path, role: str) -> None:
    first, second, stranger = Pool(), Pool(), Pool()
    node = PretendCardanoNode(mainnet_ledger(first, second))

    async def scene() -> None:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        async with operator_machine(tmp_path, role) as here:
            operator_files = [path for path in tmp_path.rglob("*.json") if "stagepost-data" not in str(path)]
            before.update({path: path.read_bytes() for path in operator_files})
            # Before the cardano-node is there, the node runs and says what it lacks.
            status, body = await here.ready()
            assert status == 503
            assert "no stake yet: cardano-node at" in body
            async with AsyncClient.connect(here.dmq_socket, DMQ_MAGIC, "dmq-node") as client:
                refused = await client.submit(first.message())
            assert isinstance(refused, Rejected)
            assert refused.code is ErrorCode.NOT_READY

            await node.start(SocketNetwork(), here.cardano_socket)
            await here.until(lambda: here.said("stake taken") == 1)
            status, body = await here.ready()
            assert (status, json.loads(body)["ready"]) == (200, True)
            async with AsyncClient.connect(here.dmq_socket, DMQ_MAGIC, "dmq-node") as client:
                assert await client.submit(first.message()) == Accepted()
                unknown = await client.submit(stranger.message())
                assert isinstance(unknown, Rejected)
                assert unknown.code is ErrorCode.POOL_UNKNOWN

            # The cardano-node goes away: dmq-node would exit here.
            await node.stop()
            await here.until(lambda: here.said("cardano-node cannot be asked") == 2)
            async with AsyncClient.connect(here.dmq_socket, DMQ_MAGIC, "dmq-node") as client:
                assert await client.submit(second.message()) == Accepted()
            status, _ = await here.ready()
            assert status == 200

            await node.start(SocketNetwork(), here.cardano_socket)
            await here.until(lambda: here.said("cardano-node answers") >= 1 and node.connections == 2)

            _, metrics = await asyncio.to_thread(here.fetch, here.prometheus, "/metrics")
            assert "\ndmq_node_submissions_accepted 2\n" in metrics
            assert "\ndmq_node_submissions_accepted_counter 2\n" in metrics
            assert "stagepost_dmq_mempool_messages 2.0" in metrics
            assert (await asyncio.to_thread(here.fetch, here.prometheus, "/status"))[0] == 404
            notes = [line["detail"] for line in here.lines if line["event"] == "setting without effect"]
            assert any("PeerSelectionCounters" in note for note in notes)
            assert any("bootstrapPeers" in note for note in notes)
            assert await asyncio.to_thread(here.end) == 0
            await node.stop()
            assert (tmp_path / "stderr").read_text() == ""
            for path, content in before.items():
                assert path.read_bytes() == content, f"{path} was changed"

    asyncio.run(scene())


@pytest.mark.parametrize("role", ["relay", "bp"])
def test_the_guides_files_and_flags_start_a_node_without_any_change(tmp_path: Path, role: str) -> None:
    """Absolute paths, public addresses and ports as the guide has them, in namespaces of their own."""
    why = untouched_machine.missing()
    if why is not None:
        pytest.skip(why)

    found = untouched_machine.run_scene(tmp_path, role, 3_000)

    assert found["outcomes"] == ["accepted"] * 3
    assert found["counted"] == "dmq_node_submissions_accepted 3"


def test_a_node_that_starts_without_its_cardano_node_works_with_the_stake_of_its_last_run(
    tmp_path: Path,
) -> None:
    sender = Pool()
    node = PretendCardanoNode(mainnet_ledger(sender))

    async def scene() -> None:
        async with operator_machine(tmp_path, "relay") as here:
            await node.start(SocketNetwork(), here.cardano_socket)
            await here.until(lambda: here.said("stake taken") == 1)
            await node.stop()
            assert here.process is not None
            here.process.kill()
            here.process.wait(WITHIN_S)
            here.start()
            await here.until(lambda: here.said("node started") == 1 and bool(here.facts))
            assert here.said("kept stake in use") == 1
            async with AsyncClient.connect(here.dmq_socket, DMQ_MAGIC, "dmq-node") as client:
                assert await client.submit(sender.message()) == Accepted()

    asyncio.run(scene())
