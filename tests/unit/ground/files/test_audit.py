"""The audit file: one line for each action, before the action, within bounds, and no action without its line."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from stagepost.errors import StorageError
from stagepost.ground.files import audit
from stagepost.ground.files.audit import AUDIT_FILE, EARLIER_FILE, record_action


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_says_who_when_and_what(tmp_path: Path) -> None:
    record_action(tmp_path / "data", "queue flush", through="cli", who="user 7", now=1_750_000_000)
    record_action(
        tmp_path / "data", "x\n" * 1_000, through="api", who="token from 127.0.0.1", now=1_750_000_001
    )

    first, second = lines(tmp_path / "data" / AUDIT_FILE)

    wanted = {"at": "2025-06-15T15:06:40Z", "who": "user 7", "through": "cli", "what": "queue flush"}
    assert first == wanted
    assert len(second["what"]) == audit.FIELD_CHARACTERS_MAX
    assert (tmp_path / "data" / AUDIT_FILE).stat().st_mode & 0o777 == 0o600


def test_the_file_is_bounded_and_the_earlier_one_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "AUDIT_BYTES_MAX", 300)
    for number in range(20):
        record_action(tmp_path, f"action {number}", through="cli", who="user 7")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) <= 2
    assert max(sizes) < 500
    kept = [
        one["what"]
        for name in (EARLIER_FILE, AUDIT_FILE)
        if (tmp_path / name).exists()
        for one in lines(tmp_path / name)
    ]
    assert kept[-1] == "action 19"
    assert kept == [f"action {number}" for number in range(20 - len(kept), 20)]


def test_a_line_that_cannot_be_written_refuses_the_action(tmp_path: Path) -> None:
    (tmp_path / AUDIT_FILE).mkdir()
    with pytest.raises(StorageError, match="the action was not begun"):
        record_action(tmp_path, "queue flush", through="cli", who="user 7")


FULL = """
import resource, sys
from pathlib import Path
from stagepost.errors import StorageError
from stagepost.ground.files.audit import AUDIT_FILE, record_action
folder = Path(sys.argv[1])
record_action(folder, "first", through="cli", who="user 7")
size = (folder / AUDIT_FILE).stat().st_size
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for room in (0, 1, 10, size - 10):
    held = (folder / AUDIT_FILE).stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (held + room, hard))
    try:
        record_action(folder, "lost", through="cli", who="user 7")
        print("begun without its line")
    except StorageError:
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    record_action(folder, "next", through="cli", who="user 7")
"""


def test_a_disk_that_takes_the_beginning_of_a_line_refuses_the_action_and_spoils_no_later_line(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    whole = []
    for line in (tmp_path / AUDIT_FILE).read_text().splitlines():
        with suppress(json.JSONDecodeError):
            whole.append(json.loads(line)["what"])
    assert whole == ["first", *["next"] * 4]
