"""Real nodes and clients of ours against pallas-network, which knows the local protocols only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.interop.local_talks import (
    is_notified,
    serves_notifications,
    serves_submissions,
    submits_and_is_answered,
)
from tests.interop.peer_builds import rust_program
from tests.interop.peer_programs import InteropPool, PeerProgram
from tests.node_processes import NETWORK_MAGIC, NodeProcess, ending, write_pools

pytestmark = pytest.mark.xdist_group("interop-rust")

PROFILE = "dmq-node"


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
    """Its blocking reply announces three elements and has two: our client reads it all the same."""
    asyncio.run(
        serves_notifications(program, "local-server", tmp_path, partial(pool.sign, older=False), PROFILE)
    )


def test_another_network_is_refused(program: Path, node: NodeProcess) -> None:
    async def scenario() -> None:
        log = node.folder / "peer.log"
        async with PeerProgram.started(
            program, "local-client", node.socket, log=log, magic=NETWORK_MAGIC + 1
        ) as peer:
            assert "version" in (await peer.hear("error"))["text"]

    asyncio.run(scenario())
