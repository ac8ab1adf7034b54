"""Long runs of the pipeline's driver: killed at every named point of a commit, again and again, then compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from stagepost.errors import ConfigError
from stagepost.pipeline.reader import Reader
from stagepost.pipeline.session import cache_folder, refuse_missing_packages
from stagepost.pipeline.summary import counts
from tests.pipeline_driver_process import KILLED, POINTS, run_driver
from tests.pipeline_oracle import recompute
from tests.pipeline_topics import a_topic
from tests.pipeline_world import a_dump, sets_bytes, world_sets
from tests.soak.results import Result, result
from tests.soak.runs import Run

DRIVER_KILLS_BY_SCALE = {"commit": 50, "release": 50}
KILLS_PER_FOLDER = 5
TEST = (
    "tests/soak/pipeline_runs.py: kill -9 of the driver at named points, then against a plain recomputation"
)
NEVER = "never"


def kill_driver(run: Run) -> Iterator[Result]:
    """P2: nothing lost and nothing twice; P1: what is there afterwards equals a plain recomputation."""
    wanted = run.count(DRIVER_KILLS_BY_SCALE)
    try:
        refuse_missing_packages()
        from stagepost.pipeline.java_home import find_java_home

        find_java_home(_environment(), cache_folder())
    except ConfigError as error:
        # Not proved here: that is a result as well, and not a pass.
        for promise in ("P1", "P2"):
            yield result(promise, TEST, "not run", faults=[error.text], seed=run.seed)
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


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


def _killed_and_compared(folder: Path, seed: int, kills: int) -> tuple[int, list[str]]:
    """How many were killed, and what was wrong in the end. A point that a run does not come to kills nobody."""
    choices = Random(seed)
    lines = a_topic(folder / "data", a_dump(12, seed)).read_bytes().splitlines()
    sets, out = folder / "sets.json", folder / "tables"
    sets.write_bytes(sets_bytes())
    done = 0
    for number in range(kills):
        job = "compact" if number and choices.random() < 0.3 else "follow"
        ended = run_driver(
            job, folder / "data", sets, out, choices.choice(POINTS[job]), choices.choice([1, 1, 2])
        )
        if ended.returncode not in (KILLED, 0):
            return done, [f"{job} ended with {ended.returncode}: {ended.stderr[-500:]}"]
        done += ended.returncode == KILLED
    ended = run_driver("follow", folder / "data", sets, out, NEVER, 1)
    if ended.returncode:
        return done, [f"the last run ended with {ended.returncode}: {ended.stderr[-500:]}"]
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
