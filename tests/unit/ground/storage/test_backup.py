"""Backups: whole or refused by name, after any fault of the disk, any kill and any change by strangers."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random

import msgspec
import pytest

from stagepost.cli.backup.data_folders import KINDS, back_up, checked_backup, kind_of, restore
from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.errors import ConfigError, StagepostError, StorageError
from stagepost.ground.files.data_folder import UNFINISHED_RESTORE, make_private, restored_note
from stagepost.ground.files.owner_lock import LockConflict, OwnerLock
from stagepost.ground.files.small_files import Files
from stagepost.ground.storage import backup as backups
from stagepost.ground.storage.backup import BackupFile, BackupManifest, BackupRefused, DeclaredStore
from stagepost.ground.storage.group_writer import FileBackend
from stagepost.ground.storage.owned_folder import open_owned
from stagepost.ground.storage.sqlite_file import connect
from stagepost.ground.storage.table_file import layout_of
from stagepost.ground.storage.tables import Draft, Table
from stagepost.topics.log.copying import copy_topics
from stagepost.topics.log.file_topic import create_topic, open_topic
from stagepost.topics.topic import Record, Retention

VECTORS = Path(__file__).parents[3] / "vectors" / "stores" / "0.1"
NOW_MS = 1_800_000_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Data folder of a DMQ node with an outbox and a topic, as an earlier release left it."""
    folder = tmp_path / "data"
    shutil.copytree(VECTORS / "dmq" / "data", folder)
    shutil.copytree(VECTORS / "delivery" / "data" / "outbox", folder / "outbox")
    shutil.copytree(VECTORS / "topics" / "data" / "topics", folder / "topics")
    folder.chmod(0o700)
    return folder


@pytest.fixture
def made(data: Path, tmp_path: Path) -> Path:
    back_up(data, tmp_path / "backup", NOW_MS)
    return tmp_path / "backup"


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def restored_files(backup: Path) -> dict[str, bytes]:
    return {path: content for path, content in contents(backup).items() if path != "manifest.json"}


def test_a_restored_folder_holds_the_rows_and_records_of_the_first(
    data: Path, made: Path, tmp_path: Path
) -> None:
    manifest, note = restore(made, tmp_path / "new", NOW_MS + 5_000)
    assert manifest.kind == "DMQ node"
    assert (note.made_at_ms, note.restored_at_ms) == (NOW_MS, NOW_MS + 5_000)
    assert restored_note(tmp_path / "new") == note
    for store in ("messages.sqlite", "outbox/outbox.sqlite"):
        dumps = []
        for folder in (data, tmp_path / "new"):
            connection = sqlite3.connect(folder / store)
            dumps.append(list(connection.iterdump()))
            connection.close()
        assert dumps[0] == dumps[1]
        assert len(dumps[0]) > 10
    old, new = (open_topic(folder, "stagepost.example").reader() for folder in (data, tmp_path / "new"))
    for partition in range(3):
        assert (old.start_offset(partition), old.end_offset(partition)) == (
            new.start_offset(partition),
            new.end_offset(partition),
        )
        start = old.start_offset(partition)
        assert [list(batch) for batch in old.batches(partition, start)] == [
            list(batch) for batch in new.batches(partition, start)
        ]


def test_backup_and_data_folder_are_private(made: Path, tmp_path: Path) -> None:
    restore(made, tmp_path / "new", NOW_MS)
    for folder in (made, tmp_path / "new"):
        for path in (folder, *folder.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_clock_that_is_behind_does_not_date_the_restore_before_the_backup(
    made: Path, tmp_path: Path
) -> None:
    assert restore(made, tmp_path / "new", NOW_MS - 3_600_000)[1].restored_at_ms == NOW_MS


def test_every_changed_byte_of_the_manifest_is_refused(data: Path, tmp_path: Path) -> None:
    made = tmp_path / "backup"
    back_up(data / "outbox", made, NOW_MS)
    path = made / "manifest.json"
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x15]) + good[place + 1 :])
        with pytest.raises(BackupRefused):
            backups.read_manifest(made)
    for length in (0, 1, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:length])
        with pytest.raises(BackupRefused):
            restore(made, tmp_path / "new", NOW_MS)
    assert not (tmp_path / "new").exists()


def test_changed_bytes_of_files_are_refused_by_name(made: Path, tmp_path: Path, run_seed: int) -> None:
    print(f"seed {run_seed}")
    random = Random(run_seed)
    for file in (path for path in made.rglob("*") if path.is_file() and path.name != "manifest.json"):
        good = file.read_bytes()
        name = file.relative_to(made).as_posix()
        places = range(len(good)) if len(good) < 70 else random.sample(range(len(good)), 12)
        changes: list[bytes] = [
            good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :] for place in places
        ]
        for changed in (*changes, good[:-1], good + b"\0", b""):
            file.write_bytes(changed)
            with pytest.raises(BackupRefused, match=f"{name} is damaged"):
                restore(made, tmp_path / "new", NOW_MS)
        file.unlink()
        with pytest.raises(BackupRefused, match=f"{name} is missing"):
            restore(made, tmp_path / "new", NOW_MS)
        file.write_bytes(good)
    assert not (tmp_path / "new").exists()
    restore(made, tmp_path / "new", NOW_MS)


def _rewrite(backup: Path, change: Callable[[BackupManifest], BackupManifest]) -> None:
    """Write a manifest with a fitting hash, as somebody who wants to deceive would."""
    manifest = backups.read_manifest(backup)
    (backup / "manifest.json").write_bytes(change(manifest).encode())


def _named(backup: Path, path: str, content: bytes = b"{}") -> None:
    def change(manifest: BackupManifest) -> BackupManifest:
        file = BackupFile(path, len(content), sha256(content).hexdigest())
        return msgspec.structs.replace(manifest, files=(*manifest.files, file))

    _rewrite(backup, change)


@pytest.mark.parametrize(
    "path",
    [
        "../outside.json",
        "/tmp/outside.json",
        "topics/../../outside",
        "",
        ".",
        "..",
        "topics//x",
        "a/./b",
        "stake.json/",
        "x\0y",
        "x\ny",
        "~/x",
        "topics/" + "x" * 300,
        "node.lock",
        "restored.json",
        "restore-unfinished",
        "chain/chain.sqlite",
        "messages.sqlite-wal",
        "keys/a/b",
        "topics/a/000/../../../stake.json",
    ],
)
def test_paths_that_lead_elsewhere_are_refused(made: Path, tmp_path: Path, path: str) -> None:
    _named(made, path)
    with pytest.raises(BackupRefused):
        restore(made, tmp_path / "deep" / "new", NOW_MS)
    assert not (tmp_path / "deep").exists()


def test_links_and_strange_files_are_refused(made: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes((made / "messages.sqlite").read_bytes())
    (made / "messages.sqlite").unlink()
    (made / "messages.sqlite").symlink_to(secret)
    with pytest.raises(BackupRefused, match="is a link"):
        restore(made, tmp_path / "new", NOW_MS)
    (made / "messages.sqlite").unlink()
    (made / "messages.sqlite").write_bytes(secret.read_bytes())
    (made / "outbox").rename(tmp_path / "elsewhere")
    (made / "outbox").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BackupRefused, match="is a link"):
        restore(made, tmp_path / "new", NOW_MS)
    (made / "outbox").unlink()
    (tmp_path / "elsewhere").rename(made / "outbox")
    os.mkfifo(made / "pipe")
    with pytest.raises(BackupRefused, match="not a regular file"):
        restore(made, tmp_path / "new", NOW_MS)
    (made / "pipe").unlink()
    (made / "notes.txt").write_text("mine")
    with pytest.raises(BackupRefused, match=r"does not name: notes\.txt"):
        restore(made, tmp_path / "new", NOW_MS)
    (made / "notes.txt").unlink()
    restore(made, tmp_path / "new", NOW_MS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda one: msgspec.structs.replace(one, version=2),
            "of version 2, and this release knows version 1",
        ),
        (lambda one: msgspec.structs.replace(one, format="tar"), "is of 'tar'"),
        (lambda one: msgspec.structs.replace(one, kind="toaster"), "does not know"),
        (lambda one: msgspec.structs.replace(one, kind="validator"), "is not a file of a validator"),
        (lambda one: msgspec.structs.replace(one, files=(*one.files, one.files[0])), "names a file twice"),
    ],
)
def test_other_manifests_are_refused(
    made: Path, tmp_path: Path, change: Callable[[BackupManifest], BackupManifest], reason: str
) -> None:
    _rewrite(made, change)
    with pytest.raises(BackupRefused, match=reason):
        restore(made, tmp_path / "new", NOW_MS)
    assert not (tmp_path / "new").exists()


def test_a_store_of_a_later_release_is_refused_before_anything_is_written(made: Path, tmp_path: Path) -> None:
    path = made / "messages.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.commit()
    connection.close()
    content = path.read_bytes()

    def change(manifest: BackupManifest) -> BackupManifest:
        files = tuple(
            BackupFile(file.path, len(content), sha256(content).hexdigest())
            if file.path == path.name
            else file
            for file in manifest.files
        )
        return msgspec.structs.replace(manifest, files=files)

    _rewrite(made, change)
    with pytest.raises(BackupRefused, match="it is of version 99"):
        restore(made, tmp_path / "new", NOW_MS)
    assert not (tmp_path / "new").exists()


def test_a_folder_that_is_not_empty_is_refused_and_stays(made: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir(mode=0o700)
    (new / "node.lock").write_text("1\n")
    with pytest.raises(BackupRefused, match=r"it is not empty, it holds node\.lock"):
        restore(made, new, NOW_MS)
    assert contents(new) == {"node.lock": b"1\n"}
    (new / "node.lock").unlink()
    new.chmod(0o777)
    with pytest.raises(ConfigError, match="mode 0777"):
        restore(made, new, NOW_MS)
    new.chmod(0o700)
    restore(made, new, NOW_MS)


def test_nothing_is_overwritten_by_a_backup(data: Path, made: Path, tmp_path: Path) -> None:
    before = contents(made)
    with pytest.raises(ConfigError, match="exists already"):
        back_up(data, made, NOW_MS)
    assert contents(made) == before
    with pytest.raises(ConfigError, match="inside of"):
        back_up(data, data / "backup", NOW_MS)
    with pytest.raises(ConfigError, match="not the data folder"):
        kind_of(tmp_path)


class Killed(BaseException):
    """Stand-in for a kill: nothing that catches errors catches it."""


class FailingFiles(Files):
    """Calls of the disk of which number `at` fails: with an error, or as the end of the process."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at = at
        self.calls = 0
        self._error = error

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self._error

    def open(self, path: Path, *, is_new: bool = False) -> int:
        self._count()
        return super().open(path, is_new=is_new)

    def write(self, file: int, content: bytes | memoryview, position: int) -> int:
        self._count()
        return super().write(file, content, position)

    def sync(self, file: int) -> None:
        self._count()
        super().sync(file)

    def remove(self, path: Path) -> None:
        self._count()
        super().remove(path)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def sync_folder(self, path: Path) -> None:
        self._count()
        super().sync_folder(path)


def test_a_restore_that_is_killed_at_any_call_is_refused_and_goes_on(data: Path, tmp_path: Path) -> None:
    made = tmp_path / "backup"
    shutil.rmtree(data / "topics")
    back_up(data, made, NOW_MS)
    manifest = checked_backup(made)
    wanted = restored_files(made)
    at, kills = 1, 0
    while True:
        new = tmp_path / f"new-{at}"
        files = FailingFiles(at, Killed())
        with suppress(Killed):
            backups.restore_files(made, manifest, new, NOW_MS, files)
        if files.calls < at:
            break
        kills += 1
        if (new / UNFINISHED_RESTORE).exists():
            with pytest.raises(StorageError, match="has not finished"):
                make_private(new, "data folder", advice="")
        else:
            # Nothing is there, or everything.
            found = {path for path in contents(new) if not path.startswith(".") and path != "restore.lock"}
            assert found in (set(), {*wanted, "restored.json"}), at
        if "restored.json" not in contents(new) or (new / UNFINISHED_RESTORE).exists():
            backups.restore_files(made, manifest, new, NOW_MS)
        assert {path: one for path, one in contents(new).items() if path != "restored.json"} == wanted
        make_private(new, "data folder", advice="")
        shutil.rmtree(new)
        at += 1
    assert kills > 20


def test_a_backup_that_is_killed_at_any_call_leaves_nothing_that_is_taken_for_one(
    made: Path, tmp_path: Path
) -> None:
    sources = {path: one for path, one in restored_files(made).items() if not path.endswith(".segment")}
    at, kills = 1, 0
    while True:
        out = tmp_path / f"out-{at}"
        files = FailingFiles(at, Killed())
        writer = backups.BackupWriter(out, files)
        try:
            for path in sorted(sources):
                writer.add_file(made / path, path)
            writer.finish(release="x", kind="DMQ node", made_at_ms=NOW_MS)
        except Killed:
            kills += 1
        writer._lock.release()
        if files.calls < at:
            break
        if out.exists():
            checked_backup(out)
        else:
            unfinished = out.with_name(out.name + ".unfinished")
            if (unfinished / "manifest.json").exists():
                checked = backups.read_manifest(unfinished)
                assert len(checked.files) == len(sources)
            else:
                with pytest.raises(BackupRefused, match="was not finished"):
                    checked_backup(unfinished)
            again = backups.BackupWriter(out)
            again.add_file(made / "messages.sqlite", "messages.sqlite")
            again.finish(release="x", kind="DMQ node", made_at_ms=NOW_MS)
            again.close()
            assert len(checked_backup(out).files) == 1
            assert not unfinished.exists()
        at += 1
    assert kills > 20


def test_a_full_disk_leaves_no_backup_and_a_restore_that_goes_on(made: Path, tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    writer = backups.BackupWriter(tmp_path / "out", FailingFiles(3, full))
    with pytest.raises(StorageError, match="no space left"):
        writer.add_file(made / "messages.sqlite", "messages.sqlite")
    writer.close()
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.unfinished").exists()
    manifest = checked_backup(made)
    with pytest.raises(StorageError, match="no space left"):
        backups.restore_files(made, manifest, tmp_path / "new", NOW_MS, FailingFiles(20, full))
    with pytest.raises(StorageError, match="has not finished"):
        make_private(tmp_path / "new", "data folder", advice="")
    restore(made, tmp_path / "new", NOW_MS)
    make_private(tmp_path / "new", "data folder", advice="")


def test_an_unfinished_restore_takes_only_its_own_backup(made: Path, data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "other", NOW_MS + 1)
    with suppress(Killed):
        backups.restore_files(
            made, checked_backup(made), tmp_path / "new", NOW_MS, FailingFiles(30, Killed())
        )
    with pytest.raises(BackupRefused, match="another backup did not finish"):
        restore(tmp_path / "other", tmp_path / "new", NOW_MS)
    (tmp_path / "new" / "mine.txt").write_text("mine")
    with pytest.raises(BackupRefused, match=r"mine\.txt appeared"):
        restore(made, tmp_path / "new", NOW_MS)
    (tmp_path / "new" / "mine.txt").unlink()
    lock = OwnerLock(tmp_path / "new" / "restore.lock")
    with pytest.raises(LockConflict):
        restore(made, tmp_path / "new", NOW_MS)
    lock.release()
    restore(made, tmp_path / "new", NOW_MS)


def test_a_note_that_cannot_be_read_keeps_the_node_from_starting(tmp_path: Path) -> None:
    assert restored_note(tmp_path) is None
    for content in ("", "{", json.dumps({"kind": "validator"}), "[" * 3_000):
        (tmp_path / "restored.json").write_text(content)
        with pytest.raises(StorageError, match="cannot be read"):
            restored_note(tmp_path)


def test_damage_is_not_backed_up(data: Path, tmp_path: Path) -> None:
    path = data / "messages.sqlite"
    good = path.read_bytes()
    # The end of the file is inside of a row: SQLite does not notice, the row's checksum does. Its beginning is no row.
    for place, reason in ((-100, "a row of messages"), (4_097, "")):
        content = bytearray(good)
        content[place] ^= 0xFF
        path.write_bytes(content)
        with pytest.raises(StagepostError, match=rf"messages\.sqlite.*{reason}"):
            back_up(data, tmp_path / "out", NOW_MS)
    path.write_bytes(good)
    segment = max((data / "topics").rglob("*.segment"), key=lambda one: one.stat().st_size)
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    with pytest.raises(StagepostError, match="segment"):
        back_up(data, tmp_path / "out", NOW_MS)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_committed_rows_behind_damage_in_a_log_are_not_dropped_in_silence(tmp_path: Path) -> None:
    shutil.copytree(VECTORS / "dmq-killed" / "data", tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "good", NOW_MS)
    log = tmp_path / "data" / "messages.sqlite-wal"
    content = bytearray(log.read_bytes())
    content[len(content) // 3] ^= 1
    log.write_bytes(content)
    with pytest.raises(StorageError, match="is damaged, and a backup of it would be"):
        back_up(tmp_path / "data", tmp_path / "out", NOW_MS)


NUMBERS: Table[int, int] = Table("numbers", int, int)


def test_a_store_is_copied_as_it_is_at_one_moment_while_it_is_written(tmp_path: Path) -> None:
    """Every transaction puts two rows that belong together: no copy has one of them alone."""
    file, lock = open_owned(tmp_path / "data", "numbers.sqlite", (NUMBERS,), "store", connect)
    backend = FileBackend(file, "numbers", lock.release)
    declared = DeclaredStore("numbers.sqlite", (NUMBERS,), layout_of((NUMBERS,)), "store")
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            draft = Draft(file.held)
            draft.put(NUMBERS, 2 * number, number)
            draft.put(NUMBERS, 2 * number + 1, number)
            file.commit(draft, is_synced=False)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    counts = []
    try:
        for copy in range(6):
            target = tmp_path / f"copy-{copy}.sqlite"
            backups.copy_store(tmp_path / "data" / "numbers.sqlite", target, declared)
            connection = sqlite3.connect(target)
            (count,) = connection.execute("SELECT count(*) FROM numbers").fetchone()
            connection.close()
            counts.append(count)
            assert not target.with_name(target.name + "-wal").exists()
    finally:
        is_over.set()
        writer.join()
        asyncio.run(backend.close())
    assert all(count % 2 == 0 for count in counts)
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_a_topic_is_copied_up_to_a_mark_while_it_grows_and_loses_its_oldest_records(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    topic = create_topic(data, "stagepost.example", 2)
    writer = topic.writer(retention=Retention(bytes_max=40_000), segment_bytes=8_000)
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            done = threading.Event()
            records = [Record(b"%d" % key, b"x" * 400) for key in range(number, number + 8)]
            writer.append_soon(records, lambda outcome, done=done: done.set())  # type: ignore[misc]
            done.wait(30)
            number += 8

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for copy in range(15):
            backup = backups.BackupWriter(tmp_path / f"copy-{copy}")
            marks = copy_topics(data, backup)
            backup.finish(release="x", kind="DMQ node", made_at_ms=NOW_MS, topics=marks)
            backup.close()
            reader = open_topic(tmp_path / f"copy-{copy}", "stagepost.example").reader()
            for mark in marks:
                assert reader.start_offset(mark.partition) == mark.start_offset
                assert reader.end_offset(mark.partition) == mark.end_offset
                batches = reader.batches(mark.partition, mark.start_offset)
                assert sum(map(len, batches)) == mark.end_offset - mark.start_offset
    finally:
        is_over.set()
        thread.join()
        writer.close_now()


def test_keys_are_left_out_unless_they_are_asked_for(data: Path, tmp_path: Path) -> None:
    make_keys(data / "pool", start_kes_period=0, issue_number=0)
    manifest = back_up(data, tmp_path / "without", NOW_MS)
    assert not list((tmp_path / "without").rglob("*.skey"))
    assert {"pool/cold.skey", "pool/kes.skey"} <= set(manifest.left_out)
    key = data / "pool" / "kes.skey"
    manifest = back_up(data, tmp_path / "with", NOW_MS, (key,))
    assert manifest.keys == ("keys/kes.skey",)
    restore(tmp_path / "with", tmp_path / "new", NOW_MS)
    restored = tmp_path / "new" / "keys" / "kes.skey"
    assert restored.read_bytes() == key.read_bytes()
    assert restored.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(StagepostError, match=r"kes\.skey"):
        back_up(data, tmp_path / "loose", NOW_MS, (key,))
    assert not (tmp_path / "loose").exists()


def test_every_kind_declares_its_own_stores_and_no_kind_locks_or_notes() -> None:
    for kind in KINDS:
        assert kind.declares(kind.known_by)
        assert all(store.tables for store in kind.stores), (
            "a store without tables is copied without a look at its rows"
        )
        for path in ("node.lock", "restored.json", "chain/owner.lock", "index.sqlite", "web-token.json"):
            assert not kind.declares(path)
