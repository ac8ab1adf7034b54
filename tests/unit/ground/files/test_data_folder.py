"""A node's data folder: private, of one process at a time, with a note on where the node is."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.data_folder import (
    LOCK_FILE,
    NODE_FILE,
    OWNER_BYTES_MAX,
    OWNER_FILE,
    DataFolder,
    own_folder,
    require_owner,
)


def test_a_new_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "data"
    folder = DataFolder(path)
    folder.open()
    folder.describe({"pid": 7})

    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in path.iterdir())
    assert json.loads((path / NODE_FILE).read_text()) == {"pid": 7}
    folder.close()


def test_the_note_goes_with_the_node_and_the_lock_file_stays(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.open()
    folder.describe({})
    folder.describe({"again": True})
    folder.close()
    folder.close()

    assert [file.name for file in folder.path.iterdir()] == [LOCK_FILE]


def test_a_note_left_by_a_killed_node_is_removed_at_once(tmp_path: Path) -> None:
    (tmp_path / NODE_FILE).write_text('{"pid": 1}')
    folder = DataFolder(tmp_path)
    folder.open()

    assert not (tmp_path / NODE_FILE).exists()
    folder.close()


def test_a_second_node_is_refused_and_told_who_has_the_folder(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path), DataFolder(tmp_path)
    first.open()
    first.describe({"pid": 1})

    with pytest.raises(StorageError, match=str(os.getpid())):
        second.open()
    second.close()

    assert (tmp_path / NODE_FILE).exists(), "the note is the first node's"
    first.close()
    second.open()
    second.close()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(mode)

    with pytest.raises(ConfigError, match="other users could change") as caught:
        DataFolder(path).open()
    assert "chmod 700" in caught.value.advice


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("")

    with pytest.raises(ConfigError, match="cannot be used"):
        DataFolder(path).open()


def test_a_folder_belongs_to_the_member_whose_node_began_in_it(tmp_path: Path) -> None:
    first, other = bytes(32), bytes([1]) * 32
    assert not require_owner(tmp_path, other), "nobody has begun in it"
    own_folder(tmp_path, first)
    own_folder(tmp_path, first)
    assert require_owner(tmp_path, first)
    for claim in (require_owner, own_folder):
        with pytest.raises(
            ConfigError, match=f"is that of the member with key {first.hex()}, not {other.hex()}"
        ):
            claim(tmp_path, other)
    note = (tmp_path / OWNER_FILE).read_bytes()
    (tmp_path / OWNER_FILE).write_bytes(note.ljust(OWNER_BYTES_MAX))
    assert require_owner(tmp_path, first)
    for damaged in (
        note.ljust(OWNER_BYTES_MAX - 1) + b"}}",
        b"",
        b"{",
        note.replace(b'"version":1', b'"version":2'),
    ):
        (tmp_path / OWNER_FILE).write_bytes(damaged)
        with pytest.raises(StorageError, match=r"owner\.json cannot be read"):
            require_owner(tmp_path, first)


def test_a_folder_on_a_disk_that_refuses_is_not_owned(tmp_path: Path) -> None:
    (tmp_path / f".{OWNER_FILE}.new").mkdir()
    with pytest.raises(StorageError, match=r"owner\.json cannot be written"):
        own_folder(tmp_path, bytes(32))
