"""A real node before a store that a later release altered: it refuses, touches nothing, and forgets no message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Accepted, Outcome, Reason, Rejected
from stagepost.ground.storage.sqlite_file import beside
from tests.worlds.dmq.node_processes import NodeProcess, Pool, ending, write_pools
from tests.worlds.ground.damaged_files import change_row, files_in

MESSAGES = 20
UNREACHABLE = 3
MESSAGES_FILE = "messages.sqlite"


async def submitted(node: NodeProcess, messages: Sequence[DmqMessage]) -> list[Outcome]:
    async with node.client() as client:
        return [await client.submit(message) for message in messages]


def store_files(node: NodeProcess) -> dict[str, bytes | None]:
    return {
        name: content for name, content in files_in(node.folder).items() if name.startswith(MESSAGES_FILE)
    }


def refused(node: NodeProcess) -> str:
    """What a start says that ends by itself."""
    before = node.log
    with pytest.raises(AssertionError, match="the node ended"):
        node.start()
    assert node.process is not None
    assert node.process.returncode == UNREACHABLE
    said = node.log.removeprefix(before)
    assert "Traceback" not in said
    return said


def test_a_store_with_a_column_more_is_refused_and_no_replay_is_accepted_afterwards(tmp_path: Path) -> None:
    pool = Pool()
    node = NodeProcess(tmp_path / "node", write_pools(tmp_path / "pools.json", [pool]))
    messages = [pool.message() for _ in range(MESSAGES)]
    path = node.folder / MESSAGES_FILE
    with ending([node]):
        node.start()
        assert asyncio.run(submitted(node, messages)) == [Accepted()] * MESSAGES
        assert node.terminate() == 0
        change_row(path, "ALTER TABLE messages ADD COLUMN priority INTEGER")
        altered = store_files(node)

        for _ in range(2):
            said = refused(node)
            assert f"the message store {path}: table messages has the unknown column priority" in said
            assert "start the release of Stagepost that wrote the file" in said
            assert "STORAGE_UNAVAILABLE" in said
            assert store_files(node) == altered

        change_row(path, "ALTER TABLE messages DROP COLUMN priority")
        node.start()
        replays = asyncio.run(submitted(node, messages))
        assert node.terminate() == 0
    reasons = [replay.reason for replay in replays if isinstance(replay, Rejected)]
    assert reasons == [Reason.ALREADY_RECEIVED] * MESSAGES


def test_a_store_that_an_earlier_start_left_aside_is_not_passed_over(tmp_path: Path) -> None:
    pool = Pool()
    node = NodeProcess(tmp_path / "node", write_pools(tmp_path / "pools.json", [pool]))
    messages = [pool.message() for _ in range(MESSAGES)]
    path = node.folder / MESSAGES_FILE
    with ending([node]):
        node.start()
        assert asyncio.run(submitted(node, messages)) == [Accepted()] * MESSAGES
        node.kill()
        for end in ("", "-wal"):
            beside(path, end).rename(beside(path, f".damaged-1{end}"))
        aside = store_files(node)

        said = refused(node)
        assert f"{path.name}.damaged-1, {path.name}.damaged-1-wal lies in its folder" in said
        assert f"rename the remaining file back to {path.name}" in said
        assert store_files(node) == aside

        for end in ("", "-wal"):
            beside(path, f".damaged-1{end}").rename(beside(path, end))
        node.start()
        replays = asyncio.run(submitted(node, messages))
        assert node.terminate() == 0
    reasons = [replay.reason for replay in replays if isinstance(replay, Rejected)]
    assert reasons == [Reason.ALREADY_RECEIVED] * MESSAGES
