"""A stream that follows a topic while its writer is killed, again and again, and what must then be in the tables."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from stagepost.pipeline.tables.manifest import Manifest, counts, read_manifest
from stagepost.pipeline.tables.reader import Reader
from stagepost.topics.log.file_topic import create_topic, open_topic
from stagepost.topics.topic import STATUSES, Record
from tests.worlds.ground.waiting import wait_until
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_topics import lines_held, records_of
from tests.worlds.pipeline.pipeline_world import a_dump, sets_bytes, world_sets
from tests.worlds.pipeline.pipeline_writer_process import (
    NEVER,
    POINTS,
    RECORDS_MAX,
    Told,
    read_told,
    run_writer,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
TIMES_MAX = 4
"""A writer lives for so many passages of its point at most."""

ROWS_MAX = 150
EVERY_S = 0.1
KILLED = -9


class Killed(NamedTuple):
    """What came of it. `repeated` are records that were written before a kill, not acknowledged, and written again."""

    kills: int
    acknowledged: int
    repeated: int
    faults: list[str]


def records_needed(kills: int) -> int:
    """So that no writer comes to the end before its point: each append of a life has at most so many."""
    return (kills + 1) * TIMES_MAX * RECORDS_MAX


def follow_killed_writers(spark: SparkSession, folder: Path, seed: int, kills: int) -> Killed:
    """Between a kill and the next start the stream reads to the end, over whatever the writer left half done."""
    from stagepost.pipeline.stream import StreamOptions, follow

    chance = Random(seed)
    data, given, told = folder / "data", folder / "given.jsonl", folder / "told"
    sets, out = folder / "sets.json", folder / "tables"
    lines: list[bytes] = []
    while len(records_of(lines)) < records_needed(kills):
        lines += a_dump(kills, chance.randrange(2**32))
    given.write_bytes(b"".join(line + b"\n" for line in lines if b"\n" not in line))
    sets.write_bytes(sets_bytes())
    data.mkdir(mode=0o700)
    create_topic(data, STATUSES, PARTITIONS)
    points = [(POINTS[(seed + life) % len(POINTS)], chance.randint(1, TIMES_MAX)) for life in range(kills)]
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(
            follow, spark, StreamOptions(data, sets, out, every_s=EVERY_S, rows_max=ROWS_MAX)
        )
        try:
            for point, times in (*points, (NEVER, 1)):
                ended = run_writer(data, given, told, point, times)
                wanted = 0 if point == NEVER else KILLED
                assert ended.returncode == wanted, (point, times, ended.returncode, ended.stderr[-2_000:])
                wait_until(lambda: _has_all(following, data, out))
        finally:
            wait_until(lambda: _is_stopped(spark, following))
        manifest = following.result()
    return _compared(folder, records_of(given.read_bytes().splitlines()), read_told(told), manifest, kills)


def _has_all(following: Future[Manifest], data: Path, out: Path) -> bool:
    """Whether the tables have what is durable in the topic."""
    if following.done():
        raise AssertionError("the stream ended by itself") from following.exception()
    reader = open_topic(data, STATUSES).reader()
    ends = sum(reader.end_offset(partition) for partition in range(PARTITIONS))
    return bool(counts(read_manifest(out) or Manifest())["rows"] == ends)


def _is_stopped(spark: SparkSession, following: Future[Manifest]) -> bool:
    for query in spark.streams.active:
        query.stop()
    return following.done()


def _compared(folder: Path, given: list[Record], told: list[Told], manifest: Manifest, kills: int) -> Killed:
    """Against what the writers were given and told, and against a recomputation of the topic."""
    faults = []
    lines = lines_held(folder / "data")
    assert manifest.reports is not None
    expected = recompute(lines, world_sets(), as_of_ms=manifest.reports.as_of_ms)
    reader = Reader(folder / "tables")
    try:
        rows = reader.sql('SELECT "partition", "offset", value FROM records')
        found = {(row["partition"], row["offset"]): row["value"] for row in rows}
        if len(found) != len(rows):
            faults.append(f"{len(rows) - len(found)} records stand twice in the tables")
        if [one.number for one in told] != list(range(len(given))):
            faults.append("the writers did not come to the end")
        lost = sum(found.get((one.partition, one.offset)) != given[one.number].value for one in told)
        if lost:
            faults.append(f"{lost} acknowledged records are missing, or are others")
        if torn := set(found.values()) - {record.value for record in given}:
            faults.append(f"{len(torn)} values were read that nobody wrote")
        if {row["message_id"]: row for row in reader.table("messages")} != expected.messages:
            faults.append("messages differ from the recomputation")
        if Counter(row["message_id"] for row in reader.table("receipts")) != Counter(
            {name: row["receipts"] for name, row in expected.messages.items()}
        ):
            faults.append("a receipt is missing, or stands twice")
    finally:
        reader.close()
    account = counts(manifest)
    said = account["rows"], account["counted"], account["repeated"]
    wanted = len(lines), expected.counted, expected.repeated
    if said != wanted:
        faults.append(f"{said} rows, counted, repeated; {wanted} expected")
    return Killed(kills, len(told), len(rows) - len(given), faults)
