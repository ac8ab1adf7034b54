"""A tables folder as its one writer sees it: files go into a fresh folder, and count once the manifest names them."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from stagepost.errors import StorageError
from stagepost.pipeline.driver_lock import DriverLock
from stagepost.pipeline.manifest import (
    Dropped,
    Manifest,
    read_manifest,
    sync_file,
    sync_folder,
    write_manifest,
)
from stagepost.pipeline.small_tables import small_table

DATA_FOLDER = "data"
GRACE_MS = 60_000
"""How long files that were replaced stay for readers who still know the manifest before."""

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
        self.folder = folder
        self.lock = DriverLock(folder)
        try:
            self.manifest = read_manifest(folder) or Manifest()
        except BaseException:
            self.lock.release()
            raise
        self.at_point = at_point
        self._now = now
        self._publishing = threading.Lock()
        self._works = 0
        self.remove_unpublished()

    def close(self) -> None:
        self.lock.release()

    # Writing

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A folder for the files of one commit. No two attempts share one: what a driver that was killed had begun may
        still be written for a moment after its end, and must not get between the files of its successor.

        While anybody works nothing is removed: not what is being written, and not what is being read.
        """
        with self._publishing:
            self._works += 1
        try:
            yield self.folder / DATA_FOLDER / f"{self.manifest.generation + 1:08d}-{secrets.token_hex(4)}"
        finally:
            with self._publishing:
                self._works -= 1
                if not self._works:
                    self.remove_unpublished()

    def write(
        self, frame: DataFrame, folder: Path, name: str, options: Mapping[str, str] | None = None
    ) -> list[str]:
        """The files of one table of this commit, durable."""
        place = folder / name
        writer = frame.write.mode("overwrite").options(**(options or {}))
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
            if not self._works:
                self.remove_unpublished()

    def _publish(self, manifest: Manifest) -> None:
        now_ms = int(self._now() * 1_000)
        named = set(manifest.published())
        gone = [name for name in dict.fromkeys(self.manifest.published()) if name not in named]
        kept = [dropped for dropped in self.manifest.dropped if now_ms - dropped.dropped_ms < GRACE_MS]
        still = {name for dropped in kept for name in dropped.files}
        over = {name for dropped in self.manifest.dropped if dropped not in kept for name in dropped.files}
        fresh = [name for name in gone if name not in still and name not in over]
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

    def remove_unpublished(self) -> None:
        """What the manifest does not name: a failed attempt's files, or those whose grace is over."""
        named = set(self.manifest.published())
        data = self.folder / DATA_FOLDER
        for folder in sorted(data.glob("*")) if data.exists() else ():
            for file in folder.rglob("*"):
                if file.is_file() and str(file.relative_to(self.folder)) not in named:
                    file.unlink(missing_ok=True)
            for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                _remove_if_empty(inner)
            _remove_if_empty(folder)

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


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # something published is in it
