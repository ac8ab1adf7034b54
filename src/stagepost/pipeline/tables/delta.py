"""Delta tables, committed from Parquet files that are there already: by day, with offsets and account in the commit.

The `deltalake` package writes the log; this module gives it the files of a commit, refuses a commit beside another
writer's, and makes log entries on a local disk durable, which the package leaves to others. Needs no Spark.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stagepost.errors import StorageError
from stagepost.ground.files.small_files import sync_file, sync_folder
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.pipeline.dictionary import about, commented
from stagepost.pipeline.tables.store import TableStore, said

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, WriterProperties

DAY = "day"
"""Name of the column by which every table is divided: the day, in UTC, on which a record arrived."""

LOG_FOLDER = "_delta_log"
CHECKPOINT_END = ".checkpoint.parquet"
LAST_CHECKPOINT_FILE = "_last_checkpoint"
ACCOUNT_KEY = "stagepost"
"""Name under which a commit holds what we say about it."""

TOKEN_KEY, TOKEN_BYTES = "stagepostCommit", 8
"""Name under which a commit holds random digits, made of so many bytes, by which its writer knows it again."""

COMPRESSION = "zstd"
BLOOM_COLUMN = "message_id"
BLOOM_FALSE_SHARE = 1e-6
"""Share of absent ids, at most, for which a row group's filter says that it may hold them: a look-up names thousands of ids,
and one wrong answer for them costs the whole group.
"""

DICTIONARY_BYTES_MAX = 8 * 1024 * 1024
"""Bytes for the distinct values of a column in a row group: enough that each id is written once."""

ROWS_PER_GROUP_MAX = 50_000
"""Rows of a row group, at most: a look-up of one message reads one group, and not the whole file."""

BYTES_PER_ROW_GROUP = 32 * 1024 * 1024
"""Bytes that a task keeps in memory before it writes."""

ONE_ROW_PER_ID = "messages"
ROWS_PER_ID = 4
"""Rows of a message, about and at least, in the tables that hold several: filters that the package writes are made for so many."""

STATISTICS = ("open_since_ms", "timestamp_ms", "first_ms", "last_ms", "epoch")
"""Columns whose least and greatest values stand in the log, so that files without anything due, or of other times, are
passed over.
"""

CHECKPOINT_COMMITS = 100
"""Commits between two checkpoints of a table's log."""

COMMITS_BEFORE_CHECKPOINT = 3
"""Commits before a checkpoint, which forgets dead files, at which these are removed; the package may make several at once."""

DEAD_HOURS = 1
"""Hours for which files that no longer count stay, for readers who still look at an older version. Less than the retention in
the log, which forgets their names at the checkpoint after it.
"""

CONFIGURATION = {
    "delta.checkpointInterval": str(CHECKPOINT_COMMITS),
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 2 hours",
    "delta.enableDeletionVectors": "false",
}

DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)
_LAST_DAY = (date(9999, 12, 31) - _EPOCH).days


Work = Callable[["DeltaTable", dict[str, Any]], object]
"""Function that changes a table by a method of the package, which it gives the arguments of the commit."""


class DataFile(msgspec.Struct, frozen=True):
    """A Parquet file that was written and is not committed yet. `path` goes from the folder of its table on."""

    table: str
    path: str
    day: str
    size: int
    rows: int
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    empty: list[str] = []
    """Columns of `STATISTICS` in which no row has a value."""


class Held(NamedTuple):
    """A file that a version of a table holds."""

    path: str
    day: str
    size: int
    rows: int


class Commit(msgspec.Struct, frozen=True):
    """A change of one table. `transactions` say by name up to which number its writer has come, as the stream and its batch;
    `account` is what the commit says of itself.
    """

    adds: tuple[DataFile, ...] = ()
    removes: tuple[Held, ...] = ()
    transactions: dict[str, int] = {}
    account: dict[str, Any] = {}


def day_of(time_ms: int | None) -> str | None:
    """Return the day of a time in Unix ms, as `2026-01-31`; None for a time that the calendar does not have."""
    if time_ms is None or not 0 <= time_ms // DAY_MS <= _LAST_DAY:
        return None
    return (_EPOCH + timedelta(days=time_ms // DAY_MS)).isoformat()


def day_begin_ms(day: str) -> int:
    """Return the first moment of a day, in Unix ms."""
    return (date.fromisoformat(day) - _EPOCH).days * DAY_MS


class DayFile:
    """Writer of one new Parquet file of a table and a day, under a name that no other file has.

    `repeating` are the columns in which the same few values come again and again. A column `message_id` gets a bloom
    filter, so that a look-up of ids passes over files without them.
    """

    def __init__(
        self,
        store: TableStore,
        table: str,
        day: str,
        schema: pa.Schema,
        repeating: Sequence[str] | bool = True,
        rows_expected: int = 100_000,
        mark: str = "0",
    ) -> None:
        """`mark` is what the name begins with: the generation of the commit that the file is written for."""
        import pyarrow.parquet as pq

        self._store, self._table, self._day = store, table, day
        self._path = f"{DAY}={day}/{mark}-{secrets.token_hex(8)}.parquet"
        self._rows = 0
        self._names = schema.names
        self._least: dict[str, int] = {}
        self._greatest: dict[str, int] = {}
        with self._refused():
            if store.is_local:
                os.makedirs(os.path.dirname(self._address), exist_ok=True)
            self._sink = store.file_system(table).open_output_stream(self._path)
        filtered = BLOOM_COLUMN in schema.names
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression=COMPRESSION,
            use_dictionary=repeating,
            dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
            store_schema=False,
            write_page_checksum=True,
            bloom_filter_options=(
                {
                    BLOOM_COLUMN: {
                        "ndv": min(max(1, rows_expected), ROWS_PER_GROUP_MAX),
                        "fpp": BLOOM_FALSE_SHARE,
                    }
                }
                if filtered
                else None
            ),
        )

    @property
    def _address(self) -> str:
        return self._store.path(self._table, self._path)

    def _refused(self) -> AbstractContextManager[None]:
        return refused_as_storage_error(self._address)

    def write(self, table: pa.Table) -> None:
        """Write row groups, each with filters of its own."""
        import pyarrow.compute as pc

        with self._refused():
            self._writer.write_table(table, row_group_size=ROWS_PER_GROUP_MAX)
        self._rows += len(table)
        for name in STATISTICS:
            if name in table.column_names:
                found = pc.min_max(table[name]).as_py()
                if found["min"] is not None:
                    self._least[name] = min(found["min"], self._least.get(name, found["min"]))
                    self._greatest[name] = max(found["max"], self._greatest.get(name, found["max"]))

    def close(self) -> DataFile:
        """Finish the file, durably on a local disk, and return what a commit needs of it."""
        with self._refused():
            self._writer.close()
            size = int(self._sink.tell())
            self._sink.close()
            if self._store.is_local:
                sync_file(self._address)
                sync_folder(os.path.dirname(self._address))
        empty = [name for name in STATISTICS if name in self._names and name not in self._least]
        return DataFile(
            self._table, self._path, self._day, size, self._rows, self._least, self._greatest, empty
        )


class LakeTable:
    """Delta table of a store, at the version that this process has seen or made last. A single writer uses it."""

    def __init__(self, store: TableStore, name: str, schema: pa.Schema) -> None:
        """`schema` has every column of the files; the column `day` is added as the last one."""
        self.store, self.name, self.schema = store, name, schema
        self.table: DeltaTable | None = open_table(store, name)
        self._listed: tuple[int, list[Held]] = (-1, [])
        self._cleaned = 0
        self._removed: set[str] = set()

    @property
    def version(self) -> int:
        """Return the version; -1 before the table is made."""
        return -1 if self.table is None else int(self.table.version())

    def make(self) -> None:
        """Make the table, without rows, if it is not there yet.

        `StorageError` if another writer committed between the making and this process's first look: the package returns the
        newest version, so a caller that found no table would write again what that writer has written.
        """
        if self.table is not None:
            return
        import pyarrow as pa
        from deltalake import DeltaTable, Schema

        whole = self.schema.append(pa.field(DAY, pa.date32()))
        with refused_as_storage_error(self.store.of(self.name)):
            made = DeltaTable.create(
                self.store.of(self.name),
                schema=Schema.from_arrow(commented(self.name, whole)),
                partition_by=[DAY],
                name=self.name,
                description=about(self.name),
                configuration=CONFIGURATION,
                storage_options=self.store.options or None,
            )
        if made.version() != 0:
            raise self._written_meanwhile()
        self.table = made
        self.sync()

    def commit(self, commit: Commit) -> int:
        """Commit files that are there, and leave out files that are to go. Return the new version.

        `StorageError` if another writer has committed since this process looked; the table is then as that writer left it.
        """
        from deltalake.transaction import AddAction, RemoveAction

        self._prepare()
        now_ms = int(time.time() * 1_000)
        actions: list[Any] = [
            AddAction(one.path, one.size, {DAY: one.day}, now_ms, True, _statistics(one))
            for one in commit.adds
        ]
        actions += [RemoveAction(one.path, True, now_ms, one.size, {DAY: one.day}) for one in commit.removes]

        def write(table: DeltaTable, how: dict[str, Any]) -> None:
            table.create_write_transaction(actions, "append", table.schema(), partition_by=[DAY], **how)

        self._change(write, commit.transactions, commit.account)
        return self.version

    def change(self, work: Work, transactions: Mapping[str, int]) -> None:
        """Let the package change the table by `work`, durably; `StorageError` as for a commit."""
        form = {"writer_properties": writer_properties(self.name)}
        self._prepare()
        self._change(lambda table, how: work(table, {**how, **form}), transactions)

    def _change(
        self, work: Work, transactions: Mapping[str, int], account: Mapping[str, Any] | None = None
    ) -> None:
        from deltalake.exceptions import CommitFailedError

        table, before, token = self.require(), self.version, secrets.token_hex(TOKEN_BYTES)
        refusal: CommitFailedError | None = None
        with refused_as_storage_error(self.store.of(self.name)):
            try:
                work(table, of_commit(transactions, account, token))
            except CommitFailedError as error:
                refusal = error
            table.update_incremental()
            made = range(before + 1, self.version + 1)
            # Where an answer of the storage was lost, the package takes this very commit for another writer's, and compaction
            # commits again; beside another writer's commit, compaction goes on.
            is_ours = all(one.get(TOKEN_KEY) == token for one in table.history(len(made))) if made else True
            if refusal is not None and not (made and is_ours):
                raise refusal
        if not is_ours:
            raise self._written_meanwhile()
        for version in made:
            self.sync(version)

    def _prepare(self) -> None:
        """Make the table if it is not there yet, and remove dead files before a checkpoint forgets their names."""
        self.make()
        if (self.version + 1) % CHECKPOINT_COMMITS >= CHECKPOINT_COMMITS - COMMITS_BEFORE_CHECKPOINT:
            self.remove_dead()

    def require(self) -> DeltaTable:
        if self.table is None:
            raise StorageError(
                f"there is no table {self.name} in {self.store.address}",
                advice="make it with `stagepost pipeline backfill` or `run`",
            )
        return self.table

    def held(self, days: Iterable[str] | None = None) -> list[Held]:
        """Return the files of this version, of some days or of all. A version is listed once: the list grows with what is kept."""
        if self._listed[0] != self.version:
            self._listed = self.version, held_files(self.table)
        wanted = None if days is None else set(days)
        return [one for one in self._listed[1] if wanted is None or one.day in wanted]

    def least(self, column: str) -> list[tuple[str, int | None]]:
        """Return the day of each file and the least value of a column among `STATISTICS` there; None where it has none."""
        return (
            [] if self.table is None else [(one.day, low) for one, low, _ in held_ranges(self.table, column)]
        )

    def go_back(self, version: int) -> None:
        """Leave out everything that was committed after a version: it belongs to a batch that was never published."""
        if self.version > version >= 0:
            self._change(lambda table, how: table.restore(version, **how), {})

    def remove_dead(self, hours: int = DEAD_HOURS) -> None:
        """Remove the files that the log once named and that no version of the last hours holds. Nothing else is ever removed.

        This version must be the published one, or one after it.
        """
        if self.table is None:
            return
        with refused_as_storage_error(self.store.of(self.name)):
            dead = set(self.table.vacuum(hours, dry_run=True, enforce_retention_duration=False))
            for path in sorted(dead - self._removed):
                with suppress(FileNotFoundError):
                    self.store.file_system(self.name).delete_file(path)
        self._removed = dead

    def clean_log(self) -> None:
        """Remove entries of the log that are older than `delta.logRetentionDuration` and lie before its checkpoint.

        To be called when the manifest names this version. The package would do so at the commit that makes a checkpoint: then the
        version that the manifest still names would be gone if the driver ended before it was published.
        """
        checkpoint = (self.version + 1) // CHECKPOINT_COMMITS
        if self.table is not None and checkpoint > self._cleaned:
            with refused_as_storage_error(self.store.of(self.name)):
                self.table.cleanup_metadata()
            self._cleaned = checkpoint

    def sync(self, version: int | None = None) -> None:
        """Make a log entry, the last if none is named, and its files durable on a local disk; object storage is so already."""
        if not self.store.is_local:
            return
        log = self.store.folder / self.name / LOG_FOLDER
        entry = log / f"{self.version if version is None else version:020d}.json"
        folders = set()
        for path in _added(entry.read_bytes()):
            file = self.store.folder / self.name / path
            if file.exists():
                sync_file(file)
                folders.add(file.parent)
        for folder in (*folders, self.store.folder / self.name, self.store.folder):
            sync_folder(folder)
        for file in (entry, *log.glob(f"{entry.stem}{CHECKPOINT_END}")):
            sync_file(file)
        sync_folder(log)

    def _written_meanwhile(self) -> StorageError:
        return StorageError(
            f"another process has written the table {self.name} in {self.store.address} meanwhile",
            advice="one driver writes these tables at a time: stop the other, then run this one again",
        )


def open_table(store: TableStore, name: str, version: int | None = None) -> DeltaTable | None:
    """Return a table at a version, or at its last one; None where there is none."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    if store.is_local and not (store.folder / name / LOG_FOLDER).is_dir():
        return None
    try:
        return DeltaTable(store.of(name), version=version, storage_options=store.options or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise StorageError(
            f"the table {name} in {store.address} cannot be read: {said(error)}",
            advice="is the storage in reach? an entry of the log that a power cut left half-written goes when the next driver "
            "starts; else put the table back from a copy, or make the tables anew",
        ) from error


def held_files(table: DeltaTable | None, days: Iterable[str] | None = None) -> list[Held]:
    if table is None:
        return []
    wanted = None if days is None else set(days)
    return sorted(one for one in _held(_actions(table)) if wanted is None or one.day in wanted)


def held_ranges(
    table: DeltaTable, least: str, greatest: str | None = None
) -> list[tuple[Held, int | None, int | None]]:
    """Return the files of a version with the least value of one column and the greatest of another, or of the same; None where the
    log has none.
    """
    actions = _actions(table)
    names = (f"min.{least}", f"max.{greatest or least}")
    bounds = (
        actions[name].to_pylist() if name in actions.column_names else [None] * len(actions) for name in names
    )
    return sorted(zip(_held(actions), *bounds, strict=True), key=lambda entry: entry[0])


def _actions(table: DeltaTable) -> pa.Table:
    import pyarrow as pa

    return pa.table(table.get_add_actions(flatten=True))


def _held(actions: pa.Table) -> Iterator[Held]:
    names = ("path", f"partition.{DAY}", "size_bytes", "num_records")
    rows = zip(*(actions[name].to_pylist() for name in names), strict=True)
    return (Held(path, str(day), size, rows or 0) for path, day, size, rows in rows)


def of_commit(
    transactions: Mapping[str, int], account: Mapping[str, Any] | None, token: str
) -> dict[str, Any]:
    """Return the arguments of a commit that is refused if anybody has committed in between, and that removes no log entry."""
    from deltalake import CommitProperties, PostCommitHookProperties, Transaction

    return {
        "commit_properties": CommitProperties(
            custom_metadata={**({ACCOUNT_KEY: dict(account)} if account else {}), TOKEN_KEY: token},
            max_commit_retries=0,
            app_transactions=[Transaction(name, number) for name, number in transactions.items()],
        ),
        "post_commithook_properties": PostCommitHookProperties(cleanup_expired_logs=False),
    }


def writer_properties(table: str) -> WriterProperties:
    """Return the form of files that the package writes for a table: as those of `DayFile`."""
    from deltalake import BloomFilterProperties, ColumnProperties, WriterProperties

    ids = ROWS_PER_GROUP_MAX if table == ONE_ROW_PER_ID else ROWS_PER_GROUP_MAX // ROWS_PER_ID
    bloom = BloomFilterProperties(True, BLOOM_FALSE_SHARE, ids)
    return WriterProperties(
        compression="ZSTD",
        max_row_group_size=ROWS_PER_GROUP_MAX,
        column_properties={BLOOM_COLUMN: ColumnProperties(bloom_filter_properties=bloom)},
    )


@contextmanager
def refused_as_storage_error(address: str) -> Iterator[None]:
    """Raise failures of the package, and of the files beside it, as an error of ours with the table's address and what to do."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise StorageError(
            f"a commit to {address} was refused: {said(error)}",
            advice="another driver writes these tables, or an answer of the storage was lost: stop the other, if there is one, then "
            "run this one again",
        ) from error
    except (DeltaError, OSError) as error:
        raise StorageError(
            f"cannot write {address}: {said(error)}",
            advice="the tables are as they were before; is the disk full, or the storage out of reach?",
        ) from error


def _statistics(file: DataFile) -> str:
    found: dict[str, Any] = {"numRecords": file.rows}
    if file.least:
        found |= {"minValues": file.least, "maxValues": file.greatest}
    return msgspec.json.encode({**found, "nullCount": dict.fromkeys(file.empty, file.rows)}).decode()


class _Action(msgspec.Struct):
    add: dict[str, Any] | None = None


def _added(entry: bytes) -> list[str]:
    lines = (decode_foreign(line, _Action) for line in entry.splitlines() if line.strip())
    return [str(line.add["path"]) for line in lines if line.add is not None]
