"""Long runs of the pipeline: its driver, or the writer of its topic, is killed again and again; then tables are compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from rigs.results import Result, result
from stagepost.errors import ConfigError
from stagepost.pipeline.spark import cache_folder, find_java_home, refuse_missing_packages, start_session
from stagepost.pipeline.tables.manifest import Manifest, counts, read_manifest
from stagepost.pipeline.tables.reader import Reader
from stagepost.topics.log.file_topic import FileTopic, create_topic
from stagepost.topics.topic import STATUSES
from tests.soak.runs import Run
from tests.worlds.pipeline.pipeline_driver_process import KILLED, POINTS, ROWS_MAX, run_driver
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_spark import SETTINGS
from tests.worlds.pipeline.pipeline_topics import append_all, lines_held, records_of
from tests.worlds.pipeline.pipeline_world import a_dump, sets_bytes, world_sets
from tests.worlds.pipeline.pipeline_writer_kills import follow_killed_writers

DRIVER_KILLS_BY_SCALE = {"commit": 50, "release": 50}
WRITER_KILLS_BY_SCALE = {"commit": 40, "release": 400}
KILLS_PER_FOLDER = 10
MESSAGES = 12
PARTITIONS = 2
TEST = (
    "tests/soak/pipeline_runs.py: kill -9 of the driver at named points, then against a plain recomputation"
)
WRITER_TEST = "tests/soak/pipeline_runs.py: kill -9 of the topic's writer within appends, a stream beside it"
NEVER = "never"


def kill_driver(run: Run) -> Iterator[Result]:
    """P2: nothing lost and nothing twice; P1: what is there afterwards equals a plain recomputation."""
    wanted = run.count(DRIVER_KILLS_BY_SCALE)
    if missing := missing_spark():
        yield from (result(one, TEST, "not run", faults=[missing], seed=run.seed) for one in ("P1", "P2"))
        return
    kills, folders, faults = 0, 0, []
    choices = Random(run.seed)
    while kills < wanted:
        seed = choices.randrange(2**32)
        with TemporaryDirectory() as name:
            done, found = _killed_and_compared(Path(name), seed, min(KILLS_PER_FOLDER, wanted - kills))
        folders, kills = folders + 1, kills + done
        faults += [f"seed {seed}: {text}" for text in found]
        run.say(f"{kills} of {wanted} drivers killed, {len(faults)} faults")
        if found and not done:
            break
    yield result(
        "P2", TEST, f"{kills} kills, {len(faults)} with a loss or a repetition", faults=faults, seed=run.seed
    )
    yield result(
        "P1", TEST, f"{folders} folders compared, {len(faults)} differ", faults=faults, seed=run.seed
    )


def kill_writer(run: Run) -> Iterator[Result]:
    """P1 while the log's writer dies: what it had acknowledged is in the tables once, and nothing that it left half done."""
    wanted = run.count(WRITER_KILLS_BY_SCALE)
    if missing := missing_spark():
        yield result("P1", WRITER_TEST, "not run", faults=[missing], seed=run.seed)
        return
    kills, acknowledged, repeated, faults = 0, 0, 0, []
    choices = Random(run.seed)
    spark = start_session("soak", master="local[2]", settings=SETTINGS, is_short=True)
    try:
        while kills < wanted:
            seed = choices.randrange(2**32)
            with TemporaryDirectory() as name:
                some = min(KILLS_PER_FOLDER, wanted - kills)
                try:
                    found = follow_killed_writers(spark, Path(name), seed, some)
                except AssertionError as error:
                    faults.append(f"seed {seed}: {error}")
                    break
            kills, acknowledged = kills + found.kills, acknowledged + found.acknowledged
            repeated += found.repeated
            faults += [f"seed {seed}: {text}" for text in found.faults]
            run.say(f"{kills} of {wanted} writers killed, {len(faults)} faults")
    finally:
        spark.stop()
    figure = f"{kills} kills of the writer, {acknowledged:,} records acknowledged, {repeated:,} written again"
    yield result("P1", WRITER_TEST, f"{figure}, {len(faults)} faults", faults=faults, seed=run.seed)


def missing_spark() -> str:
    """Not proved here: that is a result as well, and not a pass."""
    try:
        refuse_missing_packages()
        find_java_home(dict(os.environ), cache_folder())
    except ConfigError as error:
        return error.text
    return ""


def _killed_and_compared(folder: Path, seed: int, kills: int) -> tuple[int, list[str]]:
    """How many were killed, and what was wrong in the end. A point that a run does not come to kills nobody.

    The topic grows from run to run, so that each has something to take and comes to its point.
    """
    choices = Random(seed)
    data, sets, out = folder / "data", folder / "sets.json", folder / "tables"
    data.mkdir(mode=0o700)
    topic = create_topic(data, STATUSES, PARTITIONS)
    given = records_of(a_dump(MESSAGES, seed))
    sets.write_bytes(sets_bytes())
    done = 0
    for number in range(kills + 1):
        append_all(topic, given[number :: kills + 1])
        job = "compact" if 0 < number < kills and choices.random() < 0.3 else "follow"
        point = choices.choice(POINTS[job]) if number < kills else NEVER
        ended = run_driver(job, data, sets, out, point, _times(choices, point, topic, out))
        if ended.returncode not in (KILLED, 0) or (point == NEVER and ended.returncode):
            return done, [f"{job} ended with {ended.returncode}: {ended.stderr[-500:]}"]
        done += ended.returncode == KILLED
    lines = lines_held(data)
    expected = recompute(lines, world_sets())
    reader = Reader(out)
    try:
        found = counts(reader.manifest)
        faults = []
        if {row["message_id"]: row for row in reader.table("messages")} != expected.messages:
            faults.append("messages differ from the recomputation")
        told = (found["rows"], found["counted"], found["repeated"])
        if told != (len(lines), expected.counted, expected.repeated):
            faults.append(
                f"{told} rows, counted, repeated; {len(lines), expected.counted, expected.repeated} expected"
            )
        return done, faults
    finally:
        reader.close()


def _times(choices: Random, point: str, topic: FileTopic, out: Path) -> int:
    """At which passage of the point. Every run publishes more than once; it writes more than once if there is more than one batch."""
    reader = topic.reader()
    held = sum(reader.end_offset(partition) for partition in range(PARTITIONS))
    waiting = held - counts(read_manifest(out) or Manifest())["rows"]
    comes_again = point.endswith("manifest") or (point.endswith("write") and waiting > ROWS_MAX)
    return choices.choice([1, 1, 2]) if comes_again else 1
