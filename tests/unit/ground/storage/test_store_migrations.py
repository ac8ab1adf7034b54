"""Files of an earlier version: migrated when a store is opened, whole or not at all, whenever the process is killed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.chain.node import store as chain_store
from stagepost.delivery.stores import inbox_rules, outbox_rules
from stagepost.delivery.stores.reading import read_outbox
from stagepost.dmq.node import stored_messages
from stagepost.errors import StorageError
from stagepost.ground.storage import sqlite_file
from stagepost.ground.storage.damage import open_whole
from stagepost.ground.storage.layout import (
    APPLICATION_ID,
    NUMBERED,
    Migration,
    StoreLayout,
    StoreRefused,
    check_layout,
    migrate,
    refuse_unmigrated,
)
from stagepost.ground.storage.sqlite_file import Connect, SqliteFile, beside
from stagepost.ground.storage.table_file import COUNTS, Notes, TableFile, layout_of
from stagepost.ground.storage.tables import AnyTable
from stagepost.validator import session_store
from tests.worlds.ground.damaged_files import ROOT, change_row, content_of_folder, files_in

STORES = ROOT / "tests" / "vectors" / "stores" / "0.1"
ENDINGS = ("", "-wal")

Content = dict[str, list[tuple[object, ...]]]


@dataclass(frozen=True)
class Former:
    """A file of release 0.1. `tables` and `notes` are those of its store; `table` has rows."""

    path: Path
    table: str
    tables: tuple[AnyTable, ...]
    notes: Notes = COUNTS

    @property
    def layout(self) -> StoreLayout:
        return layout_of(self.tables, self.notes)

    def copied_to(self, folder: Path) -> Path:
        folder.mkdir(mode=0o700)
        for ending in ENDINGS:
            if beside(self.path, ending).exists():
                shutil.copyfile(beside(self.path, ending), beside(folder / self.path.name, ending))
        return folder / self.path.name

    def open(self, path: Path, connect: Connect = sqlite_file.connect) -> list[str]:
        """Open the file as its store does, close it, and return the damage."""
        file = TableFile(path, self.tables, "store", notes=self.notes, connect=connect)
        file.close()
        return file.damage


def former(path: str, table: str, tables: tuple[AnyTable, ...], notes: Notes = COUNTS) -> Former:
    return Former(STORES / path, table, tables, notes)


FORMER = {
    "messages": former("dmq/data/messages.sqlite", "messages", stored_messages.TABLES, stored_messages.NOTES),
    "messages, killed": former(
        "dmq-killed/data/messages.sqlite", "messages", stored_messages.TABLES, stored_messages.NOTES
    ),
    "outbox": former("delivery/data/outbox/outbox.sqlite", "records", outbox_rules.TABLES),
    "inbox": former("delivery/data/inbox/inbox.sqlite", "inbox", inbox_rules.TABLES),
    "sessions": former(
        "devnet/data/validator-1/sessions/sessions.sqlite", "statements", session_store.TABLES
    ),
    "validator chain": former("devnet/data/validator-1/chain/chain.sqlite", "records", chain_store.TABLES),
    "full node chain": former("devnet/data/chain/chain.sqlite", "blocks", chain_store.TABLES),
}


@pytest.fixture(params=list(FORMER.values()), ids=list(FORMER))
def store(request: pytest.FixtureRequest) -> Former:
    found: Former = request.param
    return found


def numbers_of(path: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(path)) as connection:
        return (
            connection.execute("PRAGMA application_id").fetchone()[0],
            connection.execute("PRAGMA user_version").fetchone()[0],
        )


def content_of(path: Path) -> Content:
    with closing(sqlite3.connect(path)) as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}


class Photographer:
    """Connections that copy the files before and after each statement: as a kill at that moment leaves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken: list[Path] = []

    def connect(self, path: str) -> sqlite3.Connection:
        photographer = self

        class Watched(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                photographer.take(Path(path))
                try:
                    return super().execute(*arguments)
                finally:
                    photographer.take(Path(path))

        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Watched)

    def take(self, path: Path) -> None:
        taken = self.folder / f"{len(self.taken)}"
        taken.mkdir(parents=True, mode=0o700)
        for ending in ENDINGS:
            if beside(path, ending).exists():
                shutil.copyfile(beside(path, ending), beside(taken / path.name, ending))
        self.taken.append(taken / path.name)


def pictures(path: Path, act: Callable[[Connect], object]) -> Iterator[Path]:
    """Yield the files of every moment of `act`; there is one of the earlier version and one of the later."""
    photographer = Photographer(path.parent.parent / "pictures")
    before = numbers_of(path)
    act(photographer.connect)
    assert len(photographer.taken) > 10
    found = {
        numbers_of(shutil.copytree(one.parent, one.parent.with_suffix(".look")) / one.name)
        for one in photographer.taken
    }
    assert found == {before, numbers_of(path)}
    yield from photographer.taken


# The first migration, of every store of release 0.1


def test_a_file_of_release_0_1_gets_its_numbers_and_keeps_its_rows(store: Former, tmp_path: Path) -> None:
    before = content_of(store.copied_to(tmp_path / "before"))
    path = store.copied_to(tmp_path / "store")
    assert before[store.table]
    assert check_layout(path, store.layout, "store") == (0, None)

    assert store.open(path) == []

    assert numbers_of(path) == (APPLICATION_ID, 1)
    assert content_of(path) == before
    assert check_layout(path, store.layout, "store") == (1, None)
    # Nothing is left to do: the next start writes no byte of the file itself.
    migrated = path.read_bytes()
    assert store.open(path) == []
    assert path.read_bytes() == migrated


def test_a_new_file_has_its_numbers_from_its_first_moment(store: Former, tmp_path: Path) -> None:
    path = tmp_path / store.path.name
    assert store.open(path) == []
    assert numbers_of(path) == (APPLICATION_ID, 1)


def test_a_kill_at_any_step_of_an_opening_leaves_a_file_that_opens_whole(
    store: Former, tmp_path: Path
) -> None:
    before = content_of(store.copied_to(tmp_path / "before"))
    path = store.copied_to(tmp_path / "store")

    for picture in pictures(path, lambda connect: store.open(path, connect)):
        assert store.open(picture) == []
        assert numbers_of(picture) == (APPLICATION_ID, 1)
        assert content_of(picture) == before


KILLED_AT_A_STEP = """
import os, signal, sqlite3, sys
from pathlib import Path
from stagepost.dmq.node.stored_messages import SqliteStore

left = int(sys.argv[2])

class Doomed(sqlite3.Connection):
    def execute(self, *arguments):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(*arguments)

SqliteStore(Path(sys.argv[1]), connect=lambda path: sqlite3.connect(
    path, isolation_level=None, check_same_thread=False, factory=Doomed))
"""


@pytest.mark.slow
def test_a_killed_process_loses_nothing_of_a_store_that_it_migrates(tmp_path: Path) -> None:
    killed = FORMER["messages, killed"]
    before = content_of(killed.copied_to(tmp_path / "before"))
    step, code, versions = 0, -signal.SIGKILL, []
    while code == -signal.SIGKILL:
        step += 1
        path = killed.copied_to(tmp_path / f"{step}")
        command = [sys.executable, "-c", KILLED_AT_A_STEP, str(path), str(step)]
        code = subprocess.run(command, env=dict(os.environ), timeout=60, check=False).returncode
        versions.append(check_layout(path, killed.layout, "store").version)
        assert killed.open(path) == []
        assert numbers_of(path) == (APPLICATION_ID, 1)
        assert content_of(path) == before
    assert code == 0
    # The versions of the files that kills left: the earlier one up to the commit, the current one after it.
    assert versions == sorted(versions)
    assert {0, 1} == set(versions)


@pytest.mark.parametrize("statement", ["PRAGMA application_id", "COMMIT"])
def test_a_disk_that_fails_leaves_the_earlier_version(store: Former, tmp_path: Path, statement: str) -> None:
    before = content_of(store.copied_to(tmp_path / "before"))
    path = store.copied_to(tmp_path / "store")

    class Failing(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            if arguments[0].startswith(f"{statement} =" if "id" in statement else statement):
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR
                raise error
            return super().execute(*arguments)

    with pytest.raises(StorageError, match="disk I/O error"):
        store.open(
            path,
            lambda name: sqlite3.connect(
                name, isolation_level=None, check_same_thread=False, factory=Failing
            ),
        )

    assert check_layout(path, store.layout, "store") == (0, None)
    assert store.open(path) == []
    assert content_of(path) == before


def test_a_reader_reads_an_earlier_version_and_changes_nothing(tmp_path: Path) -> None:
    path = FORMER["outbox"].copied_to(tmp_path / "outbox")
    before = content_of_folder(path.parent)

    content = read_outbox(path.parent)

    assert content.records
    assert not content.damage
    assert content_of_folder(path.parent) == before


def test_a_damaged_file_of_release_0_1_is_salvaged_into_the_current_version(tmp_path: Path) -> None:
    """A page of the file of the outbox: none of the other stores of the release has more than a few rows."""
    outbox = FORMER["outbox"]
    path = outbox.copied_to(tmp_path / "store")
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'set_aside'"
        (page,) = connection.execute(query).fetchone()
    before = content_of(path)
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : (page - 1) * size + 64] = b"\xff" * 64
    path.write_bytes(content)

    (sentence,) = outbox.open(path)

    assert f"is kept as {path.name}.damaged-1" in sentence
    assert beside(path, ".damaged-1").read_bytes() == content
    assert numbers_of(path) == (APPLICATION_ID, 1)
    after = content_of(path)
    assert {name: rows for name, rows in after.items() if name not in _GROWN} == {
        name: rows for name, rows in before.items() if name not in _GROWN
    }
    for name in _GROWN:
        assert len(after[name]) == len(before[name])
        for old, new in zip(before[name], after[name], strict=True):
            assert new[0] == old[0]
            kept, written = old[1], new[1]
            assert isinstance(kept, bytes)
            assert isinstance(written, bytes)
            assert _without_additions(msgspec.msgpack.decode(written)) == msgspec.msgpack.decode(kept)


_GROWN = ("head", "records", "dead_letters")
"""Tables of the outbox whose rows have grown. A salvage writes them as this release does: records with an empty stamp and trace,
the head with no size of the queue."""


def _without_additions(value: list[Any]) -> list[Any]:
    """Return the record, the dead letter around a record, or the head, without what later releases added at its end."""
    if isinstance(value[0], list):
        return [_without_additions(value[0]), *value[1:]]
    if isinstance(value[0], bytes):
        assert value[-1] == 0
        return value[:-1]
    assert value[-2:] == [0, ""]
    return value[:-2]


# A second migration, which no release has


def later_layout(store: Former) -> StoreLayout:
    """Return the layout of a later release: a column and a table more."""
    layout = store.layout
    declared = layout.tables[store.table]
    column = ", later TEXT NOT NULL DEFAULT 'unknown')"
    tables = dict(layout.tables) | {
        store.table: declared.replace("checksum BLOB NOT NULL)", "checksum BLOB NOT NULL" + column),
        "later": "CREATE TABLE later (number INTEGER)",
    }

    def fill(file: SqliteFile) -> None:
        ((count,),) = list(file.rows(f"SELECT count(*) FROM {store.table}"))
        file.run("INSERT INTO later VALUES (?)", [(count,)])

    step = Migration(
        1,
        2,
        (
            f"ALTER TABLE {store.table} ADD COLUMN later TEXT NOT NULL DEFAULT 'unknown'",
            "CREATE TABLE later (number INTEGER)",
        ),
        fill,
        former={store.table: declared, "later": None},
    )
    return StoreLayout(tables, (NUMBERED, step))


def later_content(store: Former, before: Mapping[str, list[tuple[object, ...]]]) -> Content:
    rows = [(*row, "unknown") for row in before[store.table]]
    return dict(before) | {store.table: rows, "later": [(len(rows),)]}


def open_later(path: Path, layout: StoreLayout, connect: Connect = sqlite_file.connect) -> list[str]:
    """Open a file as a store of a later release would."""

    def read() -> None:
        SqliteFile(path, connect).close()

    def unexpected(*reason: str) -> str:
        raise AssertionError(f"neither made anew nor salvaged: {reason}")

    _, damage = open_whole(path, "store", layout, connect, unexpected, read, unexpected)  # type: ignore[arg-type]
    return damage


@pytest.mark.parametrize("first", [0, 1], ids=["from 0.1", "from version 1"])
def test_a_second_migration_leads_every_earlier_version_to_the_third(
    store: Former, tmp_path: Path, first: int
) -> None:
    before = content_of(store.copied_to(tmp_path / "before"))
    path = store.copied_to(tmp_path / "store")
    if first:
        store.open(path)
    layout = later_layout(store)

    for picture in pictures(path, lambda connect: open_later(path, layout, connect)):
        assert open_later(picture, layout) == []
        assert numbers_of(picture) == (APPLICATION_ID, 2)
        assert content_of(picture) == later_content(store, before)

    assert content_of(path) == later_content(store, before)
    # Going back is refused by name, and costs nothing.
    left = files_in(path.parent)
    for _ in range(2):
        with pytest.raises(StoreRefused, match="it is of version 2, and this release knows version 1"):
            store.open(path)
        assert files_in(path.parent) == left


def test_a_migration_that_makes_other_tables_than_declared_changes_nothing(
    store: Former, tmp_path: Path
) -> None:
    path = store.copied_to(tmp_path / "store")
    before = content_of(store.copied_to(tmp_path / "before"))
    layout = later_layout(store)
    numbered, step = layout.migrations
    faulty = replace(layout, migrations=(numbered, replace(step, statements=step.statements[1:])))

    with pytest.raises(
        StorageError, match=f"table {store.table} lacks the column later; nothing was changed"
    ):
        migrate(path, faulty, "store", sqlite_file.connect)

    assert check_layout(path, store.layout, "store") == (0, None)
    assert content_of(path) == before


def test_former_tables_are_neither_read_nor_salvaged_without_a_migration(
    store: Former, tmp_path: Path
) -> None:
    path = store.copied_to(tmp_path / "store")
    store.open(path)
    layout = later_layout(store)
    with pytest.raises(StoreRefused, match="it is of version 1, not 2") as refused:
        refuse_unmigrated(1, path, layout, "store")
    assert "start the program that owns the store once" in refused.value.advice
    refuse_unmigrated(2, path, layout, "store")

    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'set_aside'"
        (page,) = connection.execute(query).fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : (page - 1) * size + 64] = b"\xff" * 64
    path.write_bytes(content)
    left = files_in(path.parent)
    with pytest.raises(StoreRefused, match=r"it is of version 1, not 2, and damaged \(") as refused:
        open_later(path, layout)
    assert "it salvages the rows that can be read" in refused.value.advice
    assert files_in(path.parent) == left


def test_a_file_with_a_changed_table_is_refused_in_every_version(store: Former, tmp_path: Path) -> None:
    path = store.copied_to(tmp_path / "store")
    change_row(path, f"ALTER TABLE {store.table} ADD COLUMN later TEXT NOT NULL DEFAULT 'unknown'")
    left = files_in(path.parent)
    acts: list[Callable[[], object]] = [
        lambda: store.open(path),
        lambda: open_later(path, later_layout(store)),
    ]
    for act in acts:
        with pytest.raises(StoreRefused, match=f"table {store.table} has the unknown column later"):
            act()
        assert files_in(path.parent) == left
