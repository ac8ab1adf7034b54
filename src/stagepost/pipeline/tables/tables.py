"""The tables of one store as their one writer sees them: files are written first, then committed table by table, and count
once the manifest, which is committed last, names the versions.

Whatever a driver that was killed had committed beyond the manifest is left out again when the next one starts. Only files
that a commit once named are removed, and those that an unpublished commit of ours left, whose names say so. A folder that
holds anything else is refused before anything is written into it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stagepost.errors import StorageError
from stagepost.pipeline.schemas import STORED, arrow_schema, small_table, with_day
from stagepost.pipeline.tables.delta import (
    BYTES_PER_ROW_GROUP,
    DAY,
    Commit,
    DataFile,
    DayFile,
    LakeTable,
    Work,
)
from stagepost.pipeline.tables.manifest import COMMITS, Manifest, read_manifest
from stagepost.pipeline.tables.own_files import DriverLock, remove_torn, remove_unfinished, require_own_place
from stagepost.pipeline.tables.safe_storage import require_safe_commits
from stagepost.pipeline.tables.store import TableStore

GENERATION = "stagepost"
"""Name of the transaction that every commit of ours enters, with the generation of the manifest as its number."""

ROWS_HERE_MAX = 100_000
"""Rows, at most, that are brought to the driver to be written there; more are written by the workers."""

T = TypeVar("T")
Point = Callable[[str], None]
"""Function that is told of the named points of a commit as they are passed, so that tests can end the process there."""


def pass_by(point: str) -> None:
    pass


class Tables:
    """The writer's side of a store. Holds the lock of a local folder from construction to `close`. `now` gives Unix seconds."""

    def __init__(
        self, where: TableStore | Path, *, at_point: Point = pass_by, now: Callable[[], float] = time.time
    ) -> None:
        self.store = where if isinstance(where, TableStore) else TableStore.at(where)
        require_own_place(self.store)
        self._lock = DriverLock(self.store.folder) if self.store.is_local else None
        self.at_point = at_point
        self._now = now
        self._changing = threading.RLock()
        self._tables: dict[str, LakeTable] = {}
        try:
            remove_torn(self.store, COMMITS)
            if (found := read_manifest(self.store)) is None:
                require_safe_commits(self.store)
            self.manifest = found or Manifest()
            # Before any other table: tables without it can then only mean that it was lost.
            self._commits = LakeTable(self.store, COMMITS, pa.schema([("generation", pa.int64())]))
            self._commits.make()
            for name in STORED:
                remove_torn(self.store, name, self.manifest.versions.get(name, -1))
                self._require_version(name)
                self.table(name).make()
            self._go_back()
            remove_unfinished(self.store, self.manifest)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Tables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def mark(self) -> str:
        """Return what the names of files for the next commit begin with."""
        return f"{self.manifest.generation + 1:08d}"

    @property
    def now_ms(self) -> int:
        """Return the time by the clock of this writer, in Unix ms."""
        return int(self._now() * 1_000)

    def table(self, name: str) -> LakeTable:
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = LakeTable(self.store, name, arrow_schema(STORED[name]))
        return found

    def _require_version(self, name: str) -> None:
        """Raise `StorageError` if a table is older than the manifest says: then a part of it was lost."""
        wanted, found = self.manifest.versions.get(name, -1), self.table(name).version
        if found < wanted:
            there = f"ends at version {found}" if found >= 0 else "is not there"
            raise StorageError(
                f"the table {name} in {self.store.address} {there}, and belongs to the others at version {wanted}",
                advice="put the table back from a copy, or make new tables from the topics or the dump with another --out",
            )

    def _go_back(self) -> None:
        """Leave out what is committed beyond the manifest; a table that it does not name is left without rows."""
        for name in STORED:
            self.table(name).go_back(self.manifest.versions.get(name, 0))

    # Changing

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let one thread commit to several tables and publish; what it has committed is left out again if it fails."""
        with self._changing:
            try:
                yield
            except Exception:
                self._go_back()
                raise

    def commit(self, name: str, commit: Commit) -> None:
        if commit.adds or commit.removes:
            self.table(name).commit(msgspec.structs.replace(commit, transactions=self.transactions()))

    def change(self, name: str, work: Work) -> None:
        """Let the package change rows of a table."""
        self.table(name).change(work, self.transactions())

    def delete(self, name: str, condition: str) -> None:
        """Commit the removal of the rows for which a condition of SQL holds."""
        self.change(name, lambda table, how: table.delete(condition, **how))

    def transactions(self, more: Mapping[str, int] | None = None) -> dict[str, int]:
        return {GENERATION: self.manifest.generation + 1, **(more or {})}

    def publish(self, change: Callable[[Manifest], Manifest]) -> None:
        """Commit the manifest: a change of what is published at this moment."""
        with self._changing:
            following = msgspec.structs.replace(
                change(self.manifest),
                generation=self.manifest.generation + 1,
                versions={name: table.version for name, table in self._tables.items() if table.version >= 0},
                written_ms=self.now_ms,
            )
            self.at_point("before manifest")
            transactions = self.transactions(following.stream_batches)
            self._commits.commit(Commit(transactions=transactions, account=msgspec.to_builtins(following)))
            self.manifest = following
            self.at_point("after manifest")
            for table in (*self._tables.values(), self._commits):
                table.clean_log()

    # Writing

    def write(self, frame: DataFrame, name: str, rows: int) -> list[DataFile]:
        """Write rows, which have the column `day` as text, by day into new files of a table; they are not committed yet.

        `rows` says about how many they are: few are written here, many by the workers.
        """
        if rows <= ROWS_HERE_MAX:
            return self.write_rows(self.ran(frame.toArrow), name)
        step = writing(self.store, name, self.mark)
        accounts = self.ran(frame.mapInArrow(step, "account string").collect)
        return [file for row in accounts for file in msgspec.json.decode(row[0], type=list[DataFile])]

    def write_rows(self, rows: pa.Table, name: str) -> list[DataFile]:
        """Write rows that are here already."""
        writer = DayWriter(self.store, name, self.mark)
        writer.take(rows)
        return writer.close()

    def ran(self, action: Callable[[], T]) -> T:
        """Return what Spark gives; its failures in one sentence."""
        try:
            return action()
        except Exception as error:
            raise StorageError(
                f"Spark could not write {self.store.address}: {root_cause(str(error))}",
                advice="the tables are as they were before; is the disk full? -v shows all that Spark says",
            ) from error


class DayWriter:
    """New files of one table, one for each day among the rows that are taken."""

    def __init__(self, store: TableStore, name: str, mark: str) -> None:
        self._store, self._name, self._mark = store, name, mark
        self._schema = arrow_schema(STORED[name])
        self._files: dict[str, DayFile] = {}

    def take(self, rows: pa.Table) -> None:
        """Write rows with the column `day`, as text or as a date."""
        days = pc.cast(rows[DAY], pa.string())
        for day in pc.unique(days).to_pylist():
            some = rows.filter(pc.equal(days, day)).select(self._schema.names).cast(self._schema)
            if day not in self._files:
                self._files[day] = DayFile(
                    self._store, self._name, day, self._schema, True, len(some), self._mark
                )
            self._files[day].write(some)

    def close(self) -> list[DataFile]:
        return [file.close() for file in self._files.values()]


def writing(
    store: TableStore, name: str, mark: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step of Spark's workers that writes rows by day, and returns the files."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = DayWriter(store, name, mark)
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(one.nbytes for one in waiting) >= BYTES_PER_ROW_GROUP:
                writer.take(pa.Table.from_batches(waiting))
                waiting = []
        if waiting:
            writer.take(pa.Table.from_batches(waiting))
        account = msgspec.json.encode(writer.close()).decode()
        yield pa.RecordBatch.from_pydict({"account": [account]})

    return write


def stored_rows(spark: SparkSession, store: TableStore, name: str, paths: Sequence[str]) -> DataFrame:
    """Return the rows of some files of a table, with `day`."""
    schema = with_day(STORED[name])
    if not paths:
        return small_table(spark, [], schema)
    if store.is_local:
        reading = spark.read.schema(schema).option("basePath", store.of(name))
        return reading.parquet(*(store.path(name, path) for path in paths))
    files = small_table(spark, [(path,) for path in paths], "path string")
    return files.repartition(min(len(paths), 64)).mapInArrow(reading_files(store, name, schema), schema)


def reading_files(
    store: TableStore, name: str, schema: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step of Spark's workers that reads files of a table on object storage."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        wanted = arrow_schema(schema)
        place = store.file_system(name)
        for batch in batches:
            for path in batch.column(0).to_pylist():
                with pq.ParquetFile(place.open_input_file(path)) as file:
                    for rows in file.iter_batches():
                        whole = pa.Table.from_batches([rows]).append_column(DAY, day_column(path, len(rows)))
                        yield from whole.select(wanted.names).cast(wanted).to_batches()

    return read


def day_column(path: str, rows: int) -> pa.Array:
    """Return the day of a file for each of its rows: the name of its folder has it."""
    return pa.array([path.split("/", 1)[0].removeprefix(f"{DAY}=")] * rows, pa.string())


def root_cause(text: str) -> str:
    """Return the innermost of the causes that Spark lists, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes[-1:] or lines[:1] or ["no reason given"])[0]
