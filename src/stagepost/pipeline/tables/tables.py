"""A tables folder as its one writer sees it: files go into a fresh folder, and count once the manifest names them.

Only files that the journal (`own_files`) or the manifest once named are removed, and a name is forgotten after its file is
gone, never before. A folder that holds anything else is refused before anything is written into it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stagepost.errors import StorageError
from stagepost.pipeline.steps.columns import small_table
from stagepost.pipeline.tables.driver_lock import DriverLock
from stagepost.pipeline.tables.manifest import (
    Dropped,
    Manifest,
    read_manifest,
    sync_file,
    sync_folder,
    write_manifest,
)
from stagepost.pipeline.tables.own_files import (
    DATA_FOLDER,
    read_journal,
    remove_empty_folders,
    require_own_folder,
    unfinished_files,
    write_journal,
)

GRACE_MS = 60_000
"""How long files that were replaced stay for readers who still know the manifest before."""

JOURNAL_KEPT_MS = 600_000
"""Milliseconds for which the journal keeps a folder's name: a task whose driver is gone may still write there for a while."""

T = TypeVar("T")
Point = Callable[[str], None]
"""Told of the named points of a commit as they are passed, so that tests can end the process there."""


def pass_by(point: str) -> None:
    pass


class Tables:
    """Holds the lock from construction to `close`."""

    def __init__(
        self, folder: Path, *, at_point: Point = pass_by, now: Callable[[], float] = time.time
    ) -> None:
        require_own_folder(folder)
        self.folder = folder
        self.lock = DriverLock(folder)
        try:
            self.manifest = read_manifest(folder) or Manifest()
            self._begun = read_journal(folder)
        except BaseException:
            self.lock.release()
            raise
        self.at_point = at_point
        self._now = now
        self._publishing = threading.Lock()
        self._working: set[str] = set()
        self._remove_unneeded()

    def close(self) -> None:
        self.lock.release()

    # Writing

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A folder for the files of one commit. No two attempts share one: what a driver that was killed had begun may
        still be written for a moment after its end, and must not get between the files of its successor. The journal has
        the folder's name before this returns.

        While anybody works nothing is removed: not what is being written, and not what is being read.
        """
        with self._publishing:
            name = f"{self.manifest.generation + 1:08d}-{secrets.token_hex(4)}"
            if not self.manifest.generation:
                # Before the first file: data without a manifest can then only mean that the manifest was lost.
                write_manifest(self.folder, self.manifest)
            begun = {**self._journal_kept(), name: self._now_ms()}
            write_journal(self.folder, begun)
            self._begun = begun
            self._working.add(name)
        try:
            yield self.folder / DATA_FOLDER / name
        finally:
            with self._publishing:
                self._working.discard(name)
                if not self._working:
                    self._remove_unneeded()

    def write(
        self, frame: DataFrame, folder: Path, name: str, options: Mapping[str, str] | None = None
    ) -> list[str]:
        """The files of one table of this commit, durable."""
        place = folder / name
        writer = frame.write.mode("error").options(**(options or {}))
        self.ran(lambda: writer.parquet(str(place.absolute())), place)
        files = sorted(place.glob("*.parquet"))
        for file in files:
            sync_file(file)
        self.sync(folder, name)
        return [str(file.relative_to(self.folder)) for file in files]

    def ran(self, action: Callable[[], T], place: Path) -> T:
        """What Spark gives back; its failures in one sentence."""
        try:
            return action()
        except Exception as error:
            raise StorageError(
                f"Spark could not write {place}: {root_cause(str(error))}",
                advice="the tables are as they were before; is the disk full? -v shows all that Spark says",
            ) from error

    def sync(self, folder: Path, *names: str) -> None:
        """Makes the entries of files in a commit's folders durable; the files are already."""
        for changed in (*(folder / name for name in names), folder):
            if changed.exists():
                sync_folder(changed)

    def publish(self, change: Callable[[Manifest], Manifest]) -> None:
        """The commit itself: a change of what is published at this moment. Files of the manifest before that are not in
        the following one are dropped after a while.
        """
        with self._publishing:
            self._publish(change(self.manifest))
            if not self._working:
                self._remove_unneeded()

    def _publish(self, manifest: Manifest) -> None:
        now_ms = self._now_ms()
        live = set(manifest.live())
        fresh = [name for name in dict.fromkeys(self.manifest.live()) if name not in live]
        kept = [one for one in self.manifest.dropped if not self._is_over(one) or self._is_there(one)]
        dropped = [*kept, Dropped(fresh, now_ms)] if fresh else kept
        generation = self.manifest.generation + 1
        following = msgspec.structs.replace(manifest, generation=generation, dropped=dropped)
        data = self.folder / DATA_FOLDER
        if data.exists():
            try:
                sync_folder(data)
            except OSError as error:
                raise StorageError(
                    f"{data} cannot be made durable: {error.strerror}",
                    advice="the tables are as they were before; check the disk and who owns the folder",
                ) from error
        self.at_point("before manifest")
        write_manifest(self.folder, following)
        self.manifest = following
        self.at_point("after manifest")

    def _remove_unneeded(self) -> None:
        """Remove files whose grace is over, and those in journaled folders that were never published.

        A file that cannot be removed now keeps its name in the manifest or the journal, and is tried again.
        """
        places = set()
        for dropped in filter(self._is_over, self.manifest.dropped):
            for name in dropped.files:
                with suppress(OSError):
                    (self.folder / name).unlink()
                places.add((self.folder / name).parents[1])
        named = set(self.manifest.published())
        for work in self._begun:
            with suppress(OSError):
                for file in list(unfinished_files(self.folder, work, named)):
                    file.unlink(missing_ok=True)
            places.add(self.folder / DATA_FOLDER / work)
        for place in places:
            remove_empty_folders(place)

    def _journal_kept(self) -> dict[str, int]:
        """Return the journal without old folders in which nothing unfinished is left."""
        oldest_ms = self._now_ms() - JOURNAL_KEPT_MS
        named = set(self.manifest.published())
        return {
            work: begun_ms
            for work, begun_ms in self._begun.items()
            if begun_ms > oldest_ms or work in self._working or not self._is_clean(work, named)
        }

    def _is_clean(self, work: str, named: set[str]) -> bool:
        try:
            return not any(unfinished_files(self.folder, work, named))
        except OSError:
            return False

    def _is_over(self, dropped: Dropped) -> bool:
        return self._now_ms() - dropped.dropped_ms >= GRACE_MS

    def _is_there(self, dropped: Dropped) -> bool:
        return any((self.folder / name).exists() for name in dropped.files)

    def _now_ms(self) -> int:
        return int(self._now() * 1_000)

    # Reading

    def read(self, spark: SparkSession, kind: str, schema: StructType) -> DataFrame:
        """`records` or `state` of every published batch."""
        return read_files(spark, self.folder, self.manifest.files(kind), schema)


def read_files(spark: SparkSession, folder: Path, files: list[str], schema: StructType) -> DataFrame:
    if not files:
        return small_table(spark, [], schema)
    return spark.read.schema(schema).parquet(*(str((folder / name).absolute()) for name in files))


def root_cause(text: str) -> str:
    """The innermost of the causes that Spark lists, else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes[-1:] or lines[:1] or ["no reason given"])[0]
