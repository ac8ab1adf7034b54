"""A first look at the workers: do they have the package, the same Python, and the same folders as the driver?

A small job runs before the real one, so that a fault of the cluster is reported in one sentence, within a
stated time, before anything is written. Spark alone would wait for workers for ever.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagepost.errors import ConfigError, StagepostError, StorageError, TransportError
from stagepost.pipeline.tables.own_files import WORKER_MARK_PREFIX
from stagepost.pipeline.tables.tables import root_cause

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_PER_CORE = 2
"""Tasks for each core: more tasks than cores, so that every present worker is likely to get one."""


class Folders(NamedTuple):
    """Folders of the driver: those that workers must be able to read, and the one that they write into."""

    read: tuple[Path, ...]
    written: Path | None


class Seen(NamedTuple):
    """The report of one task. `faults` are paths with what the worker's system said of them."""

    host: str
    package: str
    faults: tuple[tuple[str, str], ...]
    marks: tuple[str, ...]


def probe(spark: SparkSession, master: str, folders: Folders, wait_s: float) -> list[Seen]:
    """Return the reports of the workers; raise one clear error for the first thing that is not as it must be."""
    mark = _leave_mark(folders.written)
    try:
        seen = _ask(spark, master, folders, mark, wait_s)
        refuse_faults(seen, mark)
        return seen
    finally:
        if mark is not None:
            for left in mark.parent.glob(f"{mark.name}*"):
                left.unlink(missing_ok=True)


def refuse_faults(seen: Sequence[Seen], mark: Path | None) -> None:
    """Raise `StorageError` for the first folder that a worker cannot use, or that is another one there."""
    for one in seen:
        for path, reason in one.faults:
            is_written = mark is not None and path == str(mark.parent)
            raise StorageError(
                f"the worker on {one.host} cannot {'write into' if is_written else 'read'} {path}: {reason}",
                advice="driver and workers must see "
                + ("--out" if is_written else "the input")
                + " under the same path, with rights for both",
                found=path,
            )
        for name in one.marks:
            if mark is not None and not mark.with_name(name).exists():
                raise StorageError(
                    f"what the worker on {one.host} writes into {mark.parent} is not there for the driver",
                    advice="--out must be a folder that driver and workers share, not one of the same name on each",
                    found=str(mark.parent),
                )


def look(read: Sequence[str], mark: str | None, task: int) -> Seen:
    """Report from a worker, in the Python that will run the steps, with the packages that came along."""
    import msgspec
    import nacl.bindings
    import pyarrow

    import stagepost

    del msgspec, nacl, pyarrow  # that they can be imported is what was to be seen
    faults = [(path, _fault(path)) for path in read]
    marks = []
    if mark is not None:
        folder, name = os.path.split(mark)
        try:
            if not os.path.exists(mark):
                raise FileNotFoundError(2, "the driver's file is not in it")
            with open(os.path.join(folder, f"{name}-{task}"), "wb"):
                marks.append(f"{name}-{task}")
        except OSError as error:
            faults.append((folder, (error.strerror or str(error)).lower()))
    return Seen(
        socket.gethostname(),
        stagepost.__version__,
        tuple((path, fault) for path, fault in faults if fault),
        tuple(marks),
    )


def _fault(path: str) -> str:
    try:
        if os.path.isdir(path):
            os.listdir(path)
        else:
            with open(path, "rb"):
                pass
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


def _leave_mark(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    mark = folder.absolute() / f"{WORKER_MARK_PREFIX}{secrets.token_hex(8)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch(mode=0o644)
    except OSError as error:
        raise StorageError(
            f"cannot write tables into {folder}: {error.strerror}", advice="see --out"
        ) from error
    return mark


def _ask(spark: SparkSession, master: str, folders: Folders, mark: Path | None, wait_s: float) -> list[Seen]:
    context = spark.sparkContext
    read, marked = [str(path.absolute()) for path in folders.read], None if mark is None else str(mark)
    found: list[Seen] = []
    failed: list[BaseException] = []

    def look_at_all(tasks: Iterator[int]) -> Iterator[tuple[Any, ...]]:
        return (tuple(look(read, marked, task)) for task in tasks)

    def run() -> None:
        try:
            count = TASKS_PER_CORE * max(1, int(context.defaultParallelism))
            rows = context.parallelize(range(count), count).mapPartitions(look_at_all).collect()
            found.extend(Seen(*row) for row in rows)
        except BaseException as error:  # handed to the thread that waits
            failed.append(error)

    asking = threading.Thread(target=run, name="first look at the workers", daemon=True)
    asking.start()
    asking.join(wait_s)
    if asking.is_alive():
        context.cancelAllJobs()
        raise TransportError(
            f"no worker of {master} finished a first task within {wait_s:g} s",
            advice="see the master's page: is a worker alive, with a free core and the memory of "
            "spark.executor.memory? --wait SECONDS waits longer",
        )
    if failed:
        raise explained(str(failed[0]), master) from failed[0]
    return found


def explained(text: str, master: str) -> StagepostError:
    """Return one sentence about the cluster for Spark's report on a first job that failed."""
    if "PYTHON_VERSION_MISMATCH" in text:
        line = next(one for one in text.splitlines() if "PYTHON_VERSION_MISMATCH" in one)
        said = line.partition("PYTHON_VERSION_MISMATCH]")[2].strip() or line.strip()
        return ConfigError(
            f"the Python of the workers is not that of the driver: {said}",
            advice="name a Python of the driver's version with --worker-python",
        )
    if "Cannot run program" in text:
        program = text.partition('Cannot run program "')[2].partition('"')[0]
        return ConfigError(
            f"the workers of {master} have no program {program}",
            advice="name a Python that is on every worker with --worker-python",
            found=program,
        )
    if "ModuleNotFoundError" in text or "ImportError" in text:
        line = next(one for one in text.splitlines() if "ModuleNotFoundError" in one or "ImportError" in one)
        return ConfigError(
            f"the workers of {master} cannot load the package: {line.strip()}",
            advice="make the archive again with `stagepost pipeline pack`, on a machine like the workers",
        )
    return TransportError(
        f"the workers of {master} could not run a first task: {root_cause(text)}",
        advice="-v shows all that Spark says; the worker's own words are in its folder work/",
    )
