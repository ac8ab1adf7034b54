"""A driver on a cluster in a process of its own, under which the machines are taken away one by one.

    python -m tests.worlds.pipeline.cluster_driver_process MASTER ARCHIVE WORKER_PYTHON DATA SETS SHARED EXECUTORS_OF KILLED_WORKER ROWS OUT

says what a first look at the workers says of things that are wrong, with SHARED as the folder that all write into, and then
follows the topics of DATA into the tables at OUT; the environment says how its storage is reached. In the middle of its first batch an executor of the worker EXECUTORS_OF is killed, in the middle of
the second the worker KILLED_WORKER, and in the third, between writing and publishing, the driver itself. Every kill is of the
kind that leaves no time for a farewell.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rigs.spark_cluster import SETTINGS, SparkCluster, executors_of
from stagepost.errors import StagepostError

if TYPE_CHECKING:
    from stagepost.pipeline.tables.store import TableStore

LOOK_EVERY_S = 0.02
HAPPENS_WITHIN_S = 300.0
BATCHES = 4


def rows_per_batch(rows: int) -> int:
    """So that there are more batches than kills."""
    return -(-rows // BATCHES)


def main(
    master: str,
    archive: str,
    python: str,
    data: str,
    sets: str,
    shared: str,
    first: str,
    second: str,
    rows: str,
    out: str,
) -> None:
    from stagepost.pipeline.cluster.cluster import Cluster, start_on_cluster
    from stagepost.pipeline.cluster.probe import Folders
    from stagepost.pipeline.stream import StreamOptions, follow
    from stagepost.pipeline.tables.store import TableStore, storage_options

    folders = Folders((Path(data),), Path(shared))
    spark = start_on_cluster(Cluster(master, Path(archive), python, SETTINGS, HAPPENS_WITHIN_S), folders)
    tracker = spark.sparkContext._jsc.sc().statusTracker()
    wait_until(lambda: len(tracker.getExecutorInfos()) == 3, "both executors are there, and the driver")
    workers = [one for worker in (first, second) for one in executors_of(int(worker))]
    for what, text in refusals(spark, master, folders, workers):
        print(f"{what}: {text}", flush=True)
    passed: Counter[str] = Counter()

    def at_point(name: str) -> None:
        passed[name] += 1
        match name, passed[name]:
            case "before write", 1:
                (executor,) = executors_of(int(first))
                in_mid_job(tracker, executor, lambda: os.kill(executor, signal.SIGKILL))
            case "before write", 2:
                (executor,) = executors_of(int(second))

                def kill() -> None:
                    os.kill(int(second), signal.SIGKILL)
                    os.kill(executor, signal.SIGCONT)

                in_mid_job(tracker, executor, kill)
            case "after write", 3:
                os.kill(os.getpid(), signal.SIGKILL)

    store = TableStore.at(out, storage_options(os.environ))
    options = StreamOptions(Path(data), Path(sets), store, is_once=True, rows_max=int(rows))
    follow(spark, options, at_point=at_point)


def refusals(spark: Any, master: str, folders: Any, executors: list[int]) -> Iterator[tuple[str, str]]:
    """Each thing is made wrong for real, looked at, and put right again."""
    from stagepost.pipeline.cluster.probe import probe

    context = spark.sparkContext
    right = context.pythonVer, context.pythonExec

    def said(folders: Any = folders, wait_s: float = HAPPENS_WITHIN_S) -> str:
        try:
            probe(spark, master, folders, wait_s)
        except StagepostError as error:
            return f"{error.code} {error.text}"
        return "nothing"

    # Every process has a working folder of its own under this name: the driver's is not the workers'.
    yield "another folder", said(folders._replace(written=Path("/proc/self/cwd/only-here")))
    Path("only-here").rmdir()
    yield "an input that is not there", said(folders._replace(read=(Path("/proc/self/cwd/tests"),)))
    context.pythonVer = "2.7"
    yield "another version", said()
    context.pythonVer, context.pythonExec = right[0], "no-such-python"
    yield "no Python", said()
    context.pythonVer, context.pythonExec = right
    for executor in executors:
        os.kill(executor, signal.SIGSTOP)
    yield "no worker", said(wait_s=0.5)
    for executor in executors:
        os.kill(executor, signal.SIGCONT)
    yield "all in order", said()


def in_mid_job(tracker: Any, executor: int, kill: Callable[[], None]) -> None:
    """Holds an executor, so that the task that it is given next stays unfinished, and kills when it has one."""
    os.kill(executor, signal.SIGSTOP)

    def watch() -> None:
        wait_until(lambda: _is_all_that_is_left(tracker), "only the task of the held executor is left")
        print(f"killed in mid-job: {executor}", flush=True)
        kill()

    threading.Thread(target=watch, daemon=True).start()


def _is_all_that_is_left(tracker: Any) -> bool:
    for stage in tracker.getActiveStageIds():
        info = tracker.getStageInfo(stage)
        if info.isDefined():
            found = info.get()
            if found.numActiveTasks() == 1 and found.numCompletedTasks() == found.numTasks() - 1:
                return True
    return False


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not is_true():
        if time.monotonic() - began > HAPPENS_WITHIN_S:
            print(f"waited in vain until {what}", flush=True)
            os._exit(1)
        time.sleep(LOOK_EVERY_S)


def run_driver(
    cluster: SparkCluster, archive: Path, data: Path, sets: Path, shared: Path, rows: int, out: TableStore
) -> subprocess.CompletedProcess[str]:
    """In a process of its own; the caller looks at how it ended."""
    first, second = (str(worker.pid) for worker in cluster.workers)
    arguments = [cluster.master, archive, cluster.worker_python, data, sets, shared]
    arguments += [first, second, str(rows), out.address]
    return subprocess.run(
        [sys.executable, "-m", "tests.worlds.pipeline.cluster_driver_process", *map(str, arguments)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **cluster.environment, **out.options},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
