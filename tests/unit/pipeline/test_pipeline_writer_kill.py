"""A stream beside a writer that is killed within its appends: what was acknowledged is in the tables, once, and nothing torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_writer_kills import follow_killed_writers
from tests.worlds.pipeline.pipeline_writer_process import POINTS

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them


def test_a_stream_takes_what_killed_writers_acknowledged_once_and_nothing_that_they_left_half_done(
    tmp_path: Path, run_seed: int
) -> None:
    ended = follow_killed_writers(small_spark(), tmp_path, run_seed, len(POINTS))

    assert ended.faults == []
    assert ended.repeated > 0, "a block that was whole before its writer ended was written again by the next"
