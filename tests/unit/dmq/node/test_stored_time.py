"""Way back from a clock that was ahead, on the file of a node's store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from stagepost.cli.main import run
from stagepost.dmq.mempool import MempoolEntry
from stagepost.dmq.node.stored_messages import SqliteStore
from stagepost.dmq.node.stored_time import stored_time
from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.audit import AUDIT_FILE
from stagepost.ground.files.data_folder import MESSAGES_FILE, DataFolder, restored_note
from tests.worlds.dmq.pool_signers import NOW, Signer

DAY_S = 86_400


def a_store(data: Path, *received_ms: int) -> None:
    """Make the store of a node that held one message for each time."""
    data.mkdir(mode=0o700, exist_ok=True)

    async def main() -> None:
        store = SqliteStore(data / MESSAGES_FILE)
        store.load()
        await store.put(
            [
                MempoolEntry(place, Signer(place).sign(1, expires_at=at // 1_000 + 60), at, "local")
                for place, at in enumerate(received_ms, start=1)
            ]
        )
        await store.close()

    asyncio.run(main())


def test_it_says_how_far_the_stored_time_is_ahead_and_changes_nothing(tmp_path: Path) -> None:
    a_store(tmp_path / "node", NOW * 1_000, (NOW + DAY_S) * 1_000)
    for _ in range(2):
        found = asyncio.run(stored_time(tmp_path / "node", NOW))
        assert (found.ahead_s, found.messages, found.later) == (DAY_S, 2, 1)
    assert restored_note(tmp_path / "node") is None


def test_recovery_sets_the_time_keeps_every_message_and_leaves_the_note_of_a_restore(tmp_path: Path) -> None:
    data = tmp_path / "node"
    a_store(data, NOW * 1_000, (NOW + DAY_S) * 1_000)
    found = asyncio.run(stored_time(data, NOW + 5, recover=True))
    assert found.ahead_s == DAY_S - 5
    after = asyncio.run(stored_time(data, NOW + 5))
    assert (after.ahead_s, after.messages, after.later) == (0.0, 2, 0)
    note = restored_note(data)
    assert note is not None
    assert (note.restored_at_ms, note.accepts_replays) == ((NOW + 5) * 1_000, False)


def test_a_folder_without_a_store_and_a_running_node_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no messages of a DMQ node"):
        asyncio.run(stored_time(tmp_path, NOW))
    a_store(tmp_path / "node", NOW * 1_000)
    folder = DataFolder(tmp_path / "node")
    folder.open()
    with pytest.raises(StorageError):
        asyncio.run(stored_time(tmp_path / "node", NOW, recover=True))
    folder.close()


def test_a_recovery_is_recorded_before_it_begins_and_a_look_is_not(tmp_path: Path) -> None:
    data = tmp_path / "node"
    a_store(data, int((time.time() + DAY_S) * 1_000))
    assert run(["node", "clock", "--data", str(data)]) == 0
    assert not (data / AUDIT_FILE).exists()
    (data / AUDIT_FILE).mkdir()
    assert run(["node", "clock", "--data", str(data), "--recover"]) == 3
    assert restored_note(data) is None
    (data / AUDIT_FILE).rmdir()
    assert run(["node", "clock", "--data", str(data), "--recover"]) == 0
    assert "node clock --recover" in (data / AUDIT_FILE).read_text()
    assert restored_note(data) is not None
