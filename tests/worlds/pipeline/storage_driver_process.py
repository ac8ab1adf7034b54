"""A writer of one Delta table, in a process of its own, that may be killed at any moment, or kills itself at a named point.

    python -m tests.worlds.pipeline.storage_driver_process ADDRESS OPTIONS BATCHES POINT TIMES

takes the batches of a stream whose rows follow from their number, each by one file and one commit, from the one after
the last that the log holds. A storage that is away is asked again; a commit that another writer was quicker with is
looked at again in the log. POINT is `never`, or where the process kills itself when it comes there for the TIMES-th time.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from stagepost.errors import StorageError
from stagepost.pipeline.tables.delta import Commit, DayFile, LakeTable
from stagepost.pipeline.tables.store import TableStore

TABLE = "receipts"
STREAM = "stream"
ROWS = 50
DAYS = ("2026-01-30", "2026-01-31", "2026-02-01")
POINTS = ("before file", "within file", "after file", "after commit")
KILLED = -signal.SIGKILL
PATIENCE_S = 240.0
ASK_AGAIN_S = 0.2
SCHEMA = pa.schema([("message_id", pa.string()), ("batch", pa.int64()), ("place", pa.int64())])


def rows_of(batch: int) -> list[dict[str, Any]]:
    """Return the rows of a batch, the same every time."""
    return [
        {
            "message_id": hashlib.sha256(f"{batch}.{place}".encode()).hexdigest(),
            "batch": batch,
            "place": place,
        }
        for place in range(ROWS)
    ]


def day_of_batch(batch: int) -> str:
    return DAYS[batch % len(DAYS)]


class KillPoint:
    """Place at which this process ends itself without a farewell."""

    def __init__(self, name: str, times: int) -> None:
        self._name, self._times = name, times
        self._passed: Counter[str] = Counter()

    def pass_by(self, name: str) -> None:
        self._passed[name] += 1
        if name == self._name and self._passed[name] == self._times:
            os.kill(os.getpid(), signal.SIGKILL)


def main(address: str, options: str, batches: str, point: str, times: str) -> None:
    store = TableStore.at(address, json.loads(options))
    kill = KillPoint(point, int(times))
    began = time.monotonic()
    while True:
        try:
            if take_next(LakeTable(store, TABLE, SCHEMA), int(batches), kill):
                return
            began = time.monotonic()
        except (StorageError, DeltaError, OSError) as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            if time.monotonic() - began > PATIENCE_S:
                raise
            time.sleep(ASK_AGAIN_S)


def take_next(table: LakeTable, batches: int, kill: KillPoint) -> bool:
    """Take the batch after the last one that the log holds; return whether there is none left."""
    last = None if table.table is None else table.table.transaction_version(STREAM)
    batch = 0 if last is None else last + 1
    if batch >= batches:
        return True
    kill.pass_by("before file")
    file = DayFile(table.store, TABLE, day_of_batch(batch), SCHEMA)
    rows = rows_of(batch)
    file.write(pa.Table.from_pylist(rows[: ROWS // 2], SCHEMA))
    kill.pass_by("within file")
    file.write(pa.Table.from_pylist(rows[ROWS // 2 :], SCHEMA))
    data = file.close()
    kill.pass_by("after file")
    table.commit(Commit((data,), transactions={STREAM: batch}))
    kill.pass_by("after commit")
    return False


def start_storage_driver(
    address: str, options: dict[str, str], batches: int, point: str, times: int
) -> subprocess.Popen[str]:
    """Start the process; the caller waits for its end."""
    name = "tests.worlds.pipeline.storage_driver_process"
    return subprocess.Popen(
        [sys.executable, "-m", name, address, json.dumps(options), str(batches), point, str(times)],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
