"""A stream that is told to stop finishes the batch in hand, takes no other, and leaves the rest to the next one."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rigs.receipt_lines import EPOCH_MS
from stagepost.cli.main import run
from stagepost.pipeline.sources.dumps import survey
from stagepost.pipeline.stream import StreamOptions
from stagepost.pipeline.tables.delta import DAY_MS, held_files, open_table
from stagepost.pipeline.tables.manifest import RECORDS, Batch, OfDump, counts
from stagepost.pipeline.tables.reader import REPORTS, Reader
from stagepost.pipeline.tables.store import TableStore
from stagepost.topics.log.file_topic import open_topic
from stagepost.topics.topic import STATUSES
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_topics import a_topic, append_all, records_of
from tests.worlds.pipeline.pipeline_world import a_dump, sets_bytes, world_sets

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stagepost.pipeline.stream import Following

CODE_BYTES_MIN = 200 * 2**20


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return small_spark()


@pytest.fixture
def following(spark: SparkSession, tmp_path: Path) -> Iterator[Following]:
    """A stream into empty tables, to which no batch has come."""
    from stagepost.pipeline.stream import Following
    from stagepost.pipeline.tables.tables import Tables

    (tmp_path / "sets.json").write_bytes(sets_bytes())
    options = StreamOptions(tmp_path / "data", tmp_path / "sets.json", tmp_path / "tables")
    tables = Tables(options.out)
    yield Following(spark, tables, options, tmp_path / "checkpoint", lambda text: None)
    tables.close()


def test_the_batch_in_hand_is_finished_and_the_rest_is_the_next_runs(
    spark: SparkSession, tmp_path: Path, run_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagepost.pipeline import stream
    from stagepost.pipeline.sources.checkpoint_fit import STREAM
    from stagepost.pipeline.stream import follow

    monkeypatch.setattr(stream, "LAST_BATCH_WITHIN_S", 300.0)  # the first batch of a JVM on a busy machine
    assert threading.current_thread() is threading.main_thread(), "or the signal would end the tests"
    lines = a_topic(tmp_path / "data", a_dump(6, run_seed)).read_bytes().splitlines()
    (tmp_path / "sets.json").write_bytes(sets_bytes())
    options = StreamOptions(
        tmp_path / "data", tmp_path / "sets.json", tmp_path / "tables", rows_max=len(lines) // 3
    )
    told: list[str] = []

    def at_point(name: str) -> None:
        if name == "before write" and not told:
            told.append(name)
            os.kill(os.getpid(), signal.SIGTERM)

    stopped = follow(spark, options, at_point=at_point)

    assert told, "nobody told it to stop"
    assert stopped.stream_batches == {STREAM: 0}
    assert 0 < counts(stopped)["rows"] < len(lines)

    resumed = follow(spark, options._replace(is_once=True))

    assert counts(resumed)["rows"] == len(lines)
    reader = Reader(tmp_path / "tables")
    try:
        found = {row["message_id"]: row for row in reader.table("messages")}
    finally:
        reader.close()
    assert found == recompute(lines, world_sets()).messages

    more = records_of(a_dump(6, run_seed)[:10])
    append_all(open_topic(tmp_path / "data", STATUSES), more)
    told.clear()
    again = follow(spark, options, at_point=at_point)

    assert told, "Spark goes on in the checkpoint of a run that took what was there"
    assert again.stream_batches[STREAM] == resumed.stream_batches[STREAM] + 1
    assert counts(again)["rows"] == len(lines) + len(more)
    assert counts(again)["counted"] == counts(resumed)["counted"]


def test_a_batch_that_comes_after_the_end_is_not_taken(spark: SparkSession, following: Following) -> None:
    from stagepost.pipeline.stream import StreamIsOver

    following.end()

    with pytest.raises(StreamIsOver):
        following.take(spark.range(0), 0)

    assert following._tables.manifest.total == Batch()


def test_tables_that_are_given_up_between_two_of_them_leave_nothing_behind(
    spark: SparkSession, tmp_path: Path, run_seed: int
) -> None:
    from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
    from stagepost.pipeline.tables.tables import Tables

    dump = tmp_path / "dump.jsonl"
    dump.write_bytes(b"".join(line + b"\n" for line in a_dump(2, run_seed)))
    tables = Tables(tmp_path / "tables")
    try:
        driver = Driver(spark, tables, sets_bytes())
        found = survey(dump)
        driver.take_dump(found, Evaluation(what=Evaluated.MESSAGES), OfDump(found.digest))
        before = tables.manifest
        jvm = spark._jsc
        assert jvm is not None
        kept_by_others = set(jvm.getPersistentRDDs())
        pieces = 0

        def told() -> None:
            nonlocal pieces
            pieces += 1
            if pieces == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            driver.report(Evaluation(), told)

        assert tables.manifest == before
        for name in REPORTS:
            assert list((tmp_path / "tables" / name).glob("day=*/*")) == []
        assert set(jvm.getPersistentRDDs()) <= kept_by_others, "what was kept in memory for several tables"

        driver.report(Evaluation())

        assert tables.manifest.reports is not None
        assert tables.manifest.reports.are_all_made
        assert tables.table("validators").held()
        assert tables.manifest.changed_days == {}
    finally:
        tables.close()


def test_upkeep_waits_for_the_batch_in_hand_and_for_the_next_one(following: Following) -> None:
    following._let_batches_pass()  # returns: none is in hand
    assert following._batches == 0

    def batches() -> None:
        with following._turn:
            begun.set()
            passing.wait()
        following._batches += 1
        following._batches += 1

    begun, passing = threading.Event(), threading.Event()
    taking = threading.Thread(target=batches)
    taking.start()
    begun.wait()
    threading.Timer(0.05, passing.set).start()
    following._let_batches_pass()
    assert following._batches == 2
    taking.join()

    with following._turn:
        following.is_told.set()
        following._let_batches_pass()  # returns: nobody waits for batches who is told to stop


def test_the_jvm_has_room_for_what_it_compiles(spark: SparkSession) -> None:
    """By default it has 48 MiB with one compiler; when they are full, it compiles nothing any more."""
    jvm = spark._jvm
    assert jvm is not None
    pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    code = [pool.getUsage().getMax() for pool in pools if str(pool.getName()).startswith("Code")]

    assert sum(code) >= CODE_BYTES_MIN


def test_a_running_stream_drops_days_when_a_new_day_begins(
    spark: SparkSession, tmp_path: Path, run_seed: int
) -> None:
    from stagepost.pipeline.stream import follow

    early = a_dump(3, run_seed, bad=0.0, repeats=0.0)
    more = a_dump(6, run_seed, bad=0.0, repeats=0.0)
    late = [later_by(line, 3 * DAY_MS) for line in more if line not in early and b'"key"' in line]
    a_topic(tmp_path / "data", early)
    (tmp_path / "sets.json").write_bytes(sets_bytes())
    options = StreamOptions(
        tmp_path / "data", tmp_path / "sets.json", tmp_path / "tables", keep_ms=2 * DAY_MS, every_s=0.05
    )
    now_s = [EPOCH_MS / 1_000 + 120]
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if text.startswith("batch 0"):
            now_s[0] += 3 * DAY_MS / 1_000
            append_all(open_topic(tmp_path / "data", STATUSES), records_of(late))
        elif text.startswith("batch 1") and any("no longer kept" in one for one in said):
            os.kill(os.getpid(), signal.SIGTERM)

    manifest = follow(spark, options, say=say, now=lambda: now_s[0])

    held = {row.day for row in held_files(open_table(TableStore.at(tmp_path / "tables"), RECORDS))}
    assert manifest.removed_rows == len(records_of(early)), said
    assert held == {"2023-11-17"}
    reader = Reader(tmp_path / "tables")
    try:
        found = {row["message_id"]: row for row in reader.table("messages")}
    finally:
        reader.close()
    as_of_ms = int(now_s[0] * 1_000)
    assert found == recompute(late, world_sets(), as_of_ms=as_of_ms).messages
    assert run(["pipeline", "check", "--tables", str(tmp_path / "tables")]) == 0


def test_a_stream_drops_days_also_while_no_record_comes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_seed: int
) -> None:
    from stagepost.pipeline import stream
    from stagepost.pipeline.driver import Evaluation
    from stagepost.pipeline.stream import Following
    from stagepost.pipeline.tables.tables import Tables

    lines = a_dump(3, run_seed, bad=0.0, repeats=0.0)
    (tmp_path / "sets.json").write_bytes(sets_bytes())
    (tmp_path / "dump.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    now_s = [EPOCH_MS / 1_000 + 120]
    options = StreamOptions(tmp_path / "data", tmp_path / "sets.json", tmp_path / "idle", keep_ms=DAY_MS)
    tables = Tables(options.out, now=lambda: now_s[0])
    try:
        following = Following(spark, tables, options, tmp_path, lambda text: None, now=lambda: now_s[0])
        dump = survey(tmp_path / "dump.jsonl")
        following._driver.take_dump(dump, Evaluation(int(now_s[0] * 1_000)), OfDump(dump.digest))
        monkeypatch.setattr(stream, "IDLE_REFRESH_S", 0.0)
        following.upkeep()
        assert tables.manifest.removed_rows == 0

        now_s[0] += 2 * DAY_MS / 1_000  # the day after the next
        following.upkeep()

        assert tables.manifest.removed_rows == len(lines)
        assert tables.table(RECORDS).held() == []
        assert tables.manifest.written_ms == int(now_s[0] * 1_000)
    finally:
        tables.close()


def later_by(line: bytes, more_ms: int) -> bytes:
    """Return a line that arrived later; what it says stays."""
    record = json.loads(line)
    return json.dumps({**record, "timestamp_ms": record.get("timestamp_ms", EPOCH_MS) + more_ms}).encode()
