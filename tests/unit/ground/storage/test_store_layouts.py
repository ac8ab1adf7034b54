"""Every store on disk, before a file that it did not write: refused by name, untouched, and never begun anew instead."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from struct import Struct

import pytest

from stagepost.chain.agreement.effects import Record
from stagepost.chain.node import store as chain_store
from stagepost.chain.node.store import RECORDS as CHAIN_RECORDS
from stagepost.chain.node.store import open_chain_store
from stagepost.delivery.stores import inbox_rules as inbox_book
from stagepost.delivery.stores import outbox_rules as outbox_book
from stagepost.delivery.stores.inbox_stores import INBOX_FILE, SqliteInbox
from stagepost.delivery.stores.outbox_stores import OUTBOX_FILE, SqliteOutbox
from stagepost.dmq.mempool import MempoolEntry
from stagepost.dmq.node.stored_messages import SqliteStore
from stagepost.ground.files.small_files import sync_folder
from stagepost.ground.storage import damage as sqlite_damage
from stagepost.ground.storage.layout import APPLICATION_ID, StoreRefused
from stagepost.ground.storage.sqlite_file import beside
from stagepost.ground.storage.tables import AnyTable
from stagepost.validator import session_store
from stagepost.validator import session_store as session_rows
from stagepost.validator.session_store import open_session_store
from tests.worlds.chain.chain_world import a_genesis
from tests.worlds.delivery.outbox_records import a_record, seen
from tests.worlds.dmq.pool_signers import NOW, Signer
from tests.worlds.ground.damaged_files import change_row, files_in

ROWS = 60
LATER_TEXT = "ALTER TABLE {table} ADD COLUMN later TEXT"

Content = dict[str, list[tuple[object, ...]]]
Change = Callable[[Path, str], None]


async def message_store(folder: Path, rows: int) -> tuple[str, ...]:
    store = SqliteStore(folder / "messages.sqlite")
    damage = store.load().damage
    if rows:
        signer = Signer(0)
        entries = [
            MempoolEntry(place, signer.sign(place), NOW * 1_000, "local") for place in range(1, rows + 1)
        ]
        await store.put(entries)
        store.forget(entries[:1], NOW)
    await store.close()
    return damage


async def outbox(folder: Path, rows: int) -> tuple[str, ...]:
    store = SqliteOutbox(folder)
    damage = store.load().damage
    for number in range(1, rows + 1):
        await store.insert(a_record(number, payload=bytes(600)))
    await store.close()
    return damage


async def inbox(folder: Path, rows: int) -> tuple[str, ...]:
    store = SqliteInbox(folder)
    damage = store.load().damage
    for number in range(rows * 3):
        await store.put(seen(number))
    await store.close()
    return damage


async def sessions(folder: Path, rows: int) -> tuple[str, ...]:
    store = open_session_store(folder)
    if rows:
        store.begin(b"1" * 32, 10)
    for number in range(rows):
        await _written(partial(store.put_block, b"1" * 32, b"block %d" % number * 50))
    await store.close()
    return store.damage


async def chain(folder: Path, rows: int, *, keeps_all: bool = False) -> tuple[str, ...]:
    store = open_chain_store(folder, a_genesis(), keeps_all=keeps_all)
    store.begin()
    if rows:
        records = [Record(slot, b"slot %d" % slot * 50) for slot in range(1, rows + 1)]
        await _written(partial(store.put_records, b"1" * 32, records))
    await store.close()
    return store.damage


async def _written(act: Callable[[Callable[[], None]], object]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    act(lambda: done.set_result(None))
    await done


@dataclass(frozen=True)
class Kind:
    """A store. `act` opens it, writes so many rows, closes it, and tells the damage; `table` is where those rows are."""

    act: Callable[[Path, int], Awaitable[tuple[str, ...]]]
    file: str
    table: str
    rows: AnyTable | None = None

    def run(self, folder: Path, rows: int = 0) -> tuple[str, ...]:
        async def main() -> tuple[str, ...]:
            return await self.act(folder, rows)

        return asyncio.run(main())

    def filled(self, folder: Path) -> Path:
        folder.mkdir(mode=0o700, exist_ok=True)
        assert self.run(folder, ROWS) == ()
        return folder / self.file


KINDS = {
    "messages": Kind(message_store, "messages.sqlite", "messages"),
    "outbox": Kind(outbox, OUTBOX_FILE, "records", outbox_book.RECORDS),
    "inbox": Kind(inbox, INBOX_FILE, "inbox", inbox_book.RECORDS),
    "sessions": Kind(sessions, session_store.STORE_FILE, "blocks", session_rows.BLOCKS),
    "validator chain": Kind(chain, chain_store.STORE_FILE, "records", CHAIN_RECORDS),
    "full node chain": Kind(partial(chain, keeps_all=True), chain_store.STORE_FILE, "records", CHAIN_RECORDS),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def content_of(path: Path) -> Content:
    with closing(sqlite3.connect(path)) as connection:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}


def refused_untouched(kind: Kind, folder: Path, found: str) -> None:
    """Twice: what a refused start leaves must not mislead the next one."""
    before = files_in(folder)
    for _ in range(2):
        with pytest.raises(StoreRefused, match=found) as refused:
            kind.run(folder)
        assert str(folder / kind.file) in refused.value.text
        assert refused.value.advice
        assert files_in(folder) == before


def statement(text: str) -> Change:
    return lambda path, table: change_row(path, text.format(table=table))


def declared(old: str, new: str) -> Change:
    def change(path: Path, table: str) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(
                "UPDATE sqlite_master SET sql = replace(sql, ?, ?) WHERE name = ?", (old, new, table)
            )

    return change


def killed_after(text: str) -> Change:
    """The change is in the log alone, as a process leaves it that is killed."""

    def change(path: Path, table: str) -> None:
        copies = path.parent.parent / "copies"
        copies.mkdir()
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute(text.format(table=table))
            for ending in ("", "-wal"):
                shutil.copyfile(beside(path, ending), copies / f"file{ending}")
        for ending in ("", "-wal"):
            shutil.copyfile(copies / f"file{ending}", beside(path, ending))

    return change


def written(content: bytes) -> Change:
    def change(path: Path, table: str) -> None:
        path.write_bytes(content)

    return change


def directory(path: Path, table: str) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine").write_bytes(b"notes")


def other_program(path: Path, table: str) -> None:
    path.unlink()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE visits (url TEXT, seen INTEGER)")
        connection.execute("INSERT INTO visits VALUES ('https://example.org', 7)")


def other_program_killed(path: Path, table: str) -> None:
    other_program(path, table)
    change_row(path, "PRAGMA journal_mode = WAL")
    killed_after("INSERT INTO visits VALUES ('https://example.net', 8)")(path, table)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param(statement(LATER_TEXT), "table {table} has the unknown column later", id="a column more"),
        pytest.param(
            killed_after(LATER_TEXT), "table {table} has the unknown column later", id="a column more in the log"
        ),
        pytest.param(
            statement("ALTER TABLE {table} DROP COLUMN checksum"),
            "table {table} lacks the column checksum",
            id="a column less",
        ),
        pytest.param(
            declared("checksum BLOB NOT NULL", "checksum TEXT NOT NULL"),
            "column checksum of table {table} is TEXT NOT NULL, not BLOB NOT NULL",
            id="another type",
        ),
        pytest.param(
            statement("ALTER TABLE {table} RENAME TO older"),
            "lacks the table {table}; it holds the table older, which this release does not know",
            id="another name",
        ),
        pytest.param(
            statement("CREATE TABLE later (number INTEGER)"), "it holds the table later", id="a table more"
        ),
        pytest.param(statement("DROP TABLE set_aside"), "it lacks the table set_aside", id="a table less"),
        pytest.param(
            statement("PRAGMA user_version = 3"),
            "it is of version 3, and this release knows version ",
            id="a later version",
        ),
        pytest.param(
            killed_after("PRAGMA user_version = 3"),
            "it is of version 3, and this release knows version ",
            id="a later version in the log",
        ),
        pytest.param(
            statement("PRAGMA user_version = -1"), "it is of version -1", id="a version below the first"
        ),
        pytest.param(
            statement("PRAGMA application_id = 77"),
            f"its application_id is 77, not {APPLICATION_ID}",
            id="application_id",
        ),
        pytest.param(
            statement("PRAGMA user_version = 0"),
            f"its application_id is {APPLICATION_ID}, not 0",
            id="the id without a version",
        ),
        pytest.param(written(b"these are my notes" * 500), "it is not a SQLite database", id="no SQLite"),
        pytest.param(written(b""), "it is empty", id="an empty file"),
        pytest.param(directory, "a directory lies there", id="a directory"),
        pytest.param(other_program, "it holds the table visits, as another program's", id="another program"),
        pytest.param(
            other_program_killed, "it holds the table visits, as another program's", id="another program's log"
        ),
    ],
)  # fmt: skip
def test_another_layout_is_refused_by_name_and_stays_as_it_is(
    kind: Kind, tmp_path: Path, change: Change, found: str
) -> None:
    path = kind.filled(tmp_path / "store")
    whole = tmp_path / "whole.sqlite"
    shutil.copyfile(path, whole)
    before = content_of(path)
    change(path, kind.table)

    refused_untouched(kind, path.parent, found.format(table=kind.table))

    # A copy that this release wrote is all that is needed to go on.
    for one in (path, beside(path, "-wal")):
        shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
    shutil.copyfile(whole, path)
    assert kind.run(path.parent) == ()
    assert content_of(path) == before


def test_a_column_that_goes_again_leaves_everything_there(kind: Kind, tmp_path: Path) -> None:
    path = kind.filled(tmp_path / "store")
    before = content_of(path)
    change_row(path, LATER_TEXT.format(table=kind.table))
    refused_untouched(kind, path.parent, "unknown column later")
    change_row(path, f"ALTER TABLE {kind.table} DROP COLUMN later")

    assert kind.run(path.parent) == ()
    assert content_of(path) == before


def test_a_whole_row_that_cannot_be_decoded_is_refused_and_not_set_aside(kind: Kind, tmp_path: Path) -> None:
    """The checksum fits: no disk did that, another release did."""
    path = kind.filled(tmp_path / "store")
    table = kind.rows
    if table is None:
        place, layout, source, raw = 7, 99, b"local", b"a message of later"
        head = Struct(">QBQI").pack(place, layout, NOW * 1_000, len(source))
        checksum = blake2b(head + source + raw, digest_size=8).digest()
        text = "UPDATE messages SET layout = ?, raw = ?, checksum = ? WHERE place = ?"
        change_row(path, text, layout, raw, checksum, place)
        found = "message 7 has the unknown layout 99"
    else:
        with closing(sqlite3.connect(path)) as connection:
            (key,) = connection.execute(f"SELECT key FROM {table.name} LIMIT 1").fetchone()
        _, content, checksum = table.write(key, {"a shape": "of later"})
        text = f"UPDATE {table.name} SET content = ?, checksum = ? WHERE key = ?"
        change_row(path, text, content, checksum, key)
        found = f"of {table.name} is whole, but cannot be decoded"

    refused_untouched(kind, path.parent, found)


# What an earlier start left


def test_a_store_that_lies_aside_is_not_passed_over(kind: Kind, tmp_path: Path) -> None:
    """As a start leaves it that renamed the file and then died."""
    path = kind.filled(tmp_path / "store")
    before = content_of(path)
    path.rename(beside(path, ".damaged-1"))

    refused_untouched(kind, path.parent, f"{path.name}.damaged-1 lies in its folder")

    beside(path, ".damaged-1").rename(path)
    assert kind.run(path.parent) == ()
    assert content_of(path) == before


def test_a_log_without_its_file_is_not_passed_over(kind: Kind, tmp_path: Path) -> None:
    path = kind.filled(tmp_path / "store")
    path.unlink()
    beside(path, "-wal").write_bytes(b"log")

    refused_untouched(kind, path.parent, f"{path.name}-wal lies in its folder")


def test_an_empty_store_begins_where_nothing_lies(kind: Kind, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    assert kind.run(folder) == ()
    assert content_of(folder / kind.file)[kind.table] == []


# Damage in a known layout


def pages_of(path: Path, table: str) -> tuple[int, list[int], int]:
    """The root of a table, the pages that hold its rows, and how many bytes a page has."""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (root,) = connection.execute(query, (table,)).fetchone()
    content = path.read_bytes()
    begin = (root - 1) * size
    count = int.from_bytes(content[begin + 3 : begin + 5], "big")
    assert content[begin] in (2, 5), "the table has more than one page"
    cells = [
        int.from_bytes(content[begin + at : begin + at + 2], "big") for at in range(12, 12 + 2 * count, 2)
    ]
    return root, [int.from_bytes(content[begin + at : begin + at + 4], "big") for at in cells], size


def destroy(path: Path, page: int, size: int) -> None:
    content = bytearray(path.read_bytes())
    content[(page - 1) * size : (page - 1) * size + 64] = b"\xff" * 64
    path.write_bytes(content)


@pytest.mark.parametrize("has_log", [False, True], ids=["closed", "killed"])
def test_a_damaged_page_costs_its_rows_and_the_file_is_kept_byte_by_byte(
    kind: Kind, tmp_path: Path, has_log: bool
) -> None:
    path = kind.filled(tmp_path / "store")
    before = content_of(path)[kind.table]
    _, leaves, size = pages_of(path, kind.table)
    if has_log:
        killed_after("INSERT INTO set_aside VALUES ('elsewhere', 'for now', x'00')")(path, kind.table)
    destroy(path, leaves[len(leaves) // 2], size)
    damaged = {
        f"{path.name}.damaged-1{ending}": beside(path, ending).read_bytes()
        for ending in ("", *["-wal"] * has_log)
    }

    (sentence, *_) = kind.run(path.parent)

    rows = content_of(path)[kind.table]
    assert 0 < len(rows) < len(before)
    assert set(rows) < set(before)
    assert f"is kept as {path.name}.damaged-1" in sentence
    assert f"{len(rows)} of {len(before)} " in sentence
    kept = {name: content for name, content in files_in(path.parent).items() if ".damaged" in name}
    assert kept == damaged
    assert kind.run(path.parent) == ()


def test_a_table_of_which_no_row_can_be_read_is_refused_and_stays_as_it_is(
    kind: Kind, tmp_path: Path
) -> None:
    path = kind.filled(tmp_path / "store")
    root, _, size = pages_of(path, kind.table)
    destroy(path, root, size)

    refused_untouched(kind, path.parent, f"no row of {kind.table} can be read")


class Killed(BaseException):
    """The process is gone."""


def test_a_kill_at_any_step_of_a_salvage_costs_nothing_that_could_be_read(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = kind.filled(tmp_path / "original")
    _, leaves, size = pages_of(original, kind.table)
    destroy(original, leaves[len(leaves) // 2], size)
    damaged = original.read_bytes()
    kind.run(original.parent)
    salvaged = content_of(original)
    step, is_killed = 0, True
    while is_killed:
        step += 1
        steps_left = step
        folder = tmp_path / f"{step}"
        folder.mkdir(mode=0o700)
        (folder / kind.file).write_bytes(damaged)

        def counted(path: Path) -> None:
            nonlocal steps_left
            sync_folder(path)
            steps_left -= 1
            if not steps_left:
                raise Killed

        monkeypatch.setattr(sqlite_damage, "sync_folder", counted)
        try:
            kind.run(folder)
            is_killed = False
        except Killed:
            monkeypatch.setattr(sqlite_damage, "sync_folder", sync_folder)
            # Only a kill after the very last step may leave nothing to say.
            assert kind.run(folder) or step == 4
        assert content_of(folder / kind.file) == salvaged
        assert beside(folder / kind.file, ".damaged-1").read_bytes() == damaged
    assert step == 5
