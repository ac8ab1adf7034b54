"""Two writers of one Delta table on the storage server; writers and server are killed, then the table is compared.

The rows of every batch follow from its number, so the table at the end is known; it is read by a reader that parses the
log itself from the server's folder.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from random import Random
from typing import NamedTuple

from rigs.object_storage import BUCKET, ObjectStorage
from tests.worlds.pipeline.delta_log_reader import read_log, read_rows
from tests.worlds.pipeline.storage_driver_process import (
    KILLED,
    POINTS,
    STREAM,
    TABLE,
    day_of_batch,
    rows_of,
    start_storage_driver,
)

WRITERS = 2
LOOK_EVERY_S = 0.02
SERVER_LIVES_MS = (0, 400)
"""Milliseconds, least and greatest, from a commit that was waited for to the kill of the server."""

BATCHES_PER_DRIVER_KILL = 4
BATCHES_PER_SERVER_KILL = 6
NEVER = "never"


class KillReport(NamedTuple):
    """Counts of a run, and what was wrong in the end."""

    driver_kills: int
    server_kills: int
    batches: int
    points: Counter[str]
    faults: list[str]


def kill_and_compare(
    storage: ObjectStorage, name: str, seed: int, driver_kills: int, server_kills: int
) -> KillReport:
    """Let two writers take a stream into the table `name`, kill as often as said, and compare in the end."""
    choices = Random(seed)
    batches = 2 + BATCHES_PER_DRIVER_KILL * driver_kills + BATCHES_PER_SERVER_KILL * server_kills
    address, log = storage.address(name), storage.folder / BUCKET / name / TABLE / "_delta_log"
    kills, server, points, faults = 0, 0, Counter[str](), list[str]()

    def start() -> tuple[subprocess.Popen[str], str]:
        point = choices.choice(POINTS) if kills < driver_kills else NEVER
        times = choices.choice([1, 1, 2])
        return start_storage_driver(address, storage.options, batches, point, times), point

    running = [start() for _ in range(WRITERS)]
    try:
        while running:
            for one in list(running):
                process, point = one
                if process.poll() is None:
                    continue
                running.remove(one)
                said = process.communicate()[0]
                if process.returncode == KILLED:
                    kills, points = kills + 1, points + Counter([point])
                    running.append(start())
                elif process.returncode != 0:
                    faults.append(f"a writer ended with {process.returncode}: {said[-800:]}")
            due = (server + 1) * batches // (server_kills + 1)
            if server < server_kills and log.exists() and len(list(log.glob("*.json"))) > due:
                time.sleep(choices.randint(*SERVER_LIVES_MS) / 1_000)
                storage.kill()
                storage.start()
                server += 1
            time.sleep(LOOK_EVERY_S)
    finally:
        for process, _ in running:
            process.kill()
            process.communicate()
    return KillReport(kills, server, batches, points, faults + _differences(storage, name, batches))


def _differences(storage: ObjectStorage, name: str, batches: int) -> list[str]:
    """Compare the table with what its batches hold, by rows, days and the last number of the stream."""
    table = storage.folder / BUCKET / name / TABLE
    found = Counter(tuple(row.items()) for row in read_rows(table))
    expected = Counter(
        tuple({**row, "day": day_of_batch(batch)}.items())
        for batch in range(batches)
        for row in rows_of(batch)
    )
    faults = [f"{sum(some.values())} rows {what}" for what, some in _apart(found, expected) if some]
    last = read_log(table).transactions.get(STREAM)
    if last != batches - 1:
        faults.append(f"the last batch in the log is {last}, and not {batches - 1}")
    return faults


def _apart(
    found: Counter[tuple[tuple[str, object], ...]], expected: Counter[tuple[tuple[str, object], ...]]
) -> list[tuple[str, Counter[tuple[tuple[str, object], ...]]]]:
    return [("are missing", expected - found), ("are there that nobody wrote, or twice", found - expected)]
