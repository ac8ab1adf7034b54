"""A driver that is killed loses nothing and counts nothing twice: its successor goes on from what was published."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from stagepost.pipeline.tables.manifest import Manifest, counts, read_manifest
from stagepost.pipeline.tables.reader import Reader
from tests.worlds.pipeline.pipeline_driver_process import KILLED, ROWS_MAX, run_driver
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_topics import a_topic
from tests.worlds.pipeline.pipeline_world import a_dump, sets_bytes, world_sets
from tests.worlds.pipeline.written_tables import require_named_files

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

# Inside the sink before its batch counts; between the manifest and Spark's own commit; while days are compacted.
KILLS = (("follow", "after write", 1), ("follow", "after manifest", 2), ("compact", "during compaction", 1))


def taken_over(out: Path) -> Manifest:
    """What a successor finds."""
    manifest = read_manifest(out)
    assert manifest is not None
    return manifest


def test_after_every_kill_the_next_driver_goes_on_and_the_tables_are_the_same(
    tmp_path: Path, run_seed: int
) -> None:
    spark = small_spark()
    from stagepost.pipeline.stream import StreamOptions, follow

    dump = next(lot for messages in count(8) if len(lot := a_dump(messages, run_seed)) > 2 * ROWS_MAX)
    lines = a_topic(tmp_path / "data", dump).read_bytes().splitlines()
    sets, out = tmp_path / "sets.json", tmp_path / "tables"
    sets.write_bytes(sets_bytes())

    taken = []
    for job, point, times in KILLS:
        if job == "compact":
            # The second commit may have been one of time alone, and one batch leaves nothing to compact.
            follow(spark, StreamOptions(tmp_path / "data", sets, out, is_once=True, rows_max=ROWS_MAX))
        ended = run_driver(job, tmp_path / "data", sets, out, point, times)
        assert ended.returncode == KILLED, (point, ended.stderr[-2_000:])
        taken.append(taken_over(out).total.rows)
    manifest = follow(spark, StreamOptions(tmp_path / "data", sets, out, is_once=True, rows_max=ROWS_MAX))

    assert taken[0] == 0
    assert 0 < taken[1] <= taken[2]
    expected = recompute(lines, world_sets())
    found = counts(manifest)
    assert (found["rows"], found["counted"], found["repeated"]) == (
        len(lines),
        expected.counted,
        expected.repeated,
    )
    reader = Reader(out)
    assert {row["message_id"]: row for row in reader.table("messages")} == expected.messages
    assert len(reader.table("receipts")) == expected.counted
    reader.close()
    require_named_files(out, manifest)
