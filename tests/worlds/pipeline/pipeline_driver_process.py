"""A driver in a process of its own that ends itself, without any farewell, at a named point.

    python -m tests.worlds.pipeline.pipeline_driver_process JOB DATA SETS OUT POINT TIMES

follows the topics of DATA once, or compacts, and is killed when it passes POINT for the TIMES-th time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

POINTS = {
    "follow": (
        "before write",
        "after write",
        "after messages",
        "before manifest",
        "after manifest",
    ),
    "compact": ("during compaction", "before manifest", "after manifest"),
}
"""Of each job, in their order. `after messages` comes once, when a run that takes what is there is at its end."""

ROWS_MAX = 100
KILLED = -signal.SIGKILL


def main(job: str, data: str, sets: str, out: str, point: str, times: str) -> None:
    from stagepost.pipeline.jobs import compact
    from stagepost.pipeline.spark import start_session
    from stagepost.pipeline.stream import StreamOptions, follow
    from tests.worlds.pipeline.pipeline_spark import SETTINGS

    passed: Counter[str] = Counter()

    def at_point(name: str) -> None:
        passed[name] += 1
        if name == point and passed[name] == int(times):
            os.kill(os.getpid(), signal.SIGKILL)

    spark = start_session("driver", master="local[2]", settings=SETTINGS, is_short=True)
    options = StreamOptions(Path(data), Path(sets), Path(out), is_once=True, rows_max=ROWS_MAX)
    if job == "follow":
        follow(spark, options, at_point=at_point)
    else:
        compact(spark, Path(out), at_point=at_point)
    spark.stop()


def run_driver(
    job: str, data: Path, sets: Path, out: Path, point: str, times: int
) -> subprocess.CompletedProcess[str]:
    """In a process of its own; the caller looks at how it ended."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.worlds.pipeline.pipeline_driver_process",
            job,
            data,
            sets,
            out,
            point,
            str(times),
        ],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
