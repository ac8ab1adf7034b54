"""The whole way on a small Spark: dumps and topics into tables, against a plain recomputation."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from rigs.receipt_lines import EPOCH_MS, line_of, signed
from rigs.remp_world import FULL_NODE
from stagepost.cli.main import run
from stagepost.errors import StorageError
from stagepost.pipeline.sources.dumps import survey
from stagepost.pipeline.tables.delta import held_files, open_table
from stagepost.pipeline.tables.manifest import MESSAGES as MESSAGES_TABLE
from stagepost.pipeline.tables.manifest import RECORDS, Manifest, counts
from stagepost.pipeline.tables.reader import REPORTS, TABLES, Reader
from stagepost.pipeline.tables.store import TableStore
from stagepost.remp.receipts.message_status import MessageStatus, New, SentToValidators, Timeout
from stagepost.remp.receipts.receipt_fields import TIMESTAMP_MAX
from stagepost.topics.log.file_topic import open_topic
from stagepost.topics.topic import STATUSES
from tests.worlds.pipeline.pipeline_oracle import Recomputed, recompute
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_topics import a_topic, append_all, records_of
from tests.worlds.pipeline.pipeline_world import FAULTS, a_dump, sets_bytes, world_sets

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 12
DAY_MS = 86_400_000
DAY = "2023-11-14"
"""Day of most records of a dump."""


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return small_spark()


@pytest.fixture(scope="module")
def dump(run_seed: int) -> list[bytes]:
    return a_dump(MESSAGES, run_seed)


@pytest.fixture(scope="module")
def oracle(dump: list[bytes]) -> Recomputed:
    return recompute(dump, world_sets())


@pytest.fixture(scope="module")
def tables(spark: SparkSession, dump: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the whole dump in one backfill, with every report."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "sets.json").write_bytes(sets_bytes())
    written(folder / "dump.jsonl", dump)
    arguments = ["--input", str(folder / "dump.jsonl"), "--validator-sets", str(folder / "sets.json")]
    assert (
        run(["pipeline", "backfill", *arguments, "--out", str(folder / "tables"), "--master", "local[2]"])
        == 0
    )
    return folder / "tables"


def written(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def taken(
    spark: SparkSession, folder: Path, parts: list[list[bytes]], *, sets: bytes | None = None
) -> Manifest:
    """Backfilled one part after another, each evaluated by itself; only `messages` is."""
    from stagepost.pipeline.driver import Evaluated, Evaluation
    from stagepost.pipeline.jobs import backfill

    dumps = [survey(written(folder / f"{number}.jsonl", part), 50_000) for number, part in enumerate(parts)]
    evaluation = Evaluation(what=Evaluated.MESSAGES)
    for dump in dumps:
        manifest = backfill(spark, [dump], sets or sets_bytes(), folder / "tables", evaluation)
    return manifest


def messages_of(folder: Path) -> dict[str, Any]:
    reader = Reader(folder)
    try:
        return {row["message_id"]: row for row in reader.table("messages")}
    finally:
        reader.close()


def rows_of(folder: Path, table: str) -> list[str]:
    reader = Reader(folder)
    try:
        return sorted(map(str, reader.table(table)))
    finally:
        reader.close()


def test_the_tables_of_a_backfill_are_what_plain_recomputation_gives(
    tables: Path, oracle: Recomputed
) -> None:
    assert messages_of(tables) == oracle.messages
    assert len({row["verdict"] for row in oracle.messages.values()}) > 1


def test_every_input_row_is_counted_repeated_or_quarantined_with_its_reason(
    tables: Path, dump: list[bytes], oracle: Recomputed
) -> None:
    reader = Reader(tables)
    found = counts(reader.manifest)
    quarantine = Counter(
        (row["reason"], row["offset"], row["message_id"]) for row in reader.table("quarantine")
    )

    assert found["rows"] == len(dump)
    assert (found["counted"], found["repeated"]) == (oracle.counted, oracle.repeated)
    assert quarantine == oracle.quarantine
    assert {reason for reason, *_ in quarantine} == {reason for reason, _ in FAULTS.values()}
    raws = {row["raw"] for row in reader.table("quarantine")}
    assert b"" in raws
    assert b"[1]" in raws
    reader.close()


def test_receipts_are_there_once_each(tables: Path, oracle: Recomputed) -> None:
    assert len(rows_of(tables, "receipts")) == oracle.counted


def test_every_table_has_the_columns_that_it_promises(spark: SparkSession, tables: Path) -> None:
    from stagepost.pipeline.schemas import TABLES as SCHEMAS

    reader = Reader(tables)
    for name in TABLES:
        columns = [row[0] for row in reader.connection.execute(f"DESCRIBE {name}").fetchall()]
        assert columns == [*SCHEMAS[name].fieldNames(), *(["day"] if name in REPORTS else [])], name
    reader.close()


def test_validators_are_held_to_account(tables: Path, oracle: Recomputed) -> None:
    reader = Reader(tables)
    validators = reader.table("validators")
    assert len({(row["day"], row["session_id"], row["validator"]) for row in validators}) == len(validators)
    sums: dict[tuple[str, int], Counter[str]] = {}
    for row in validators:
        numbers = {name: row[name] for name in ("silent", "messages", "open_new", "bad_signatures")}
        sums.setdefault((row["session_id"], row["validator"]), Counter()).update(numbers)
    for (session_id, index), found in sums.items():
        decided = [one for one in oracle.messages.values() if one["session_id"] == session_id]
        assert found["silent"] == sum(index in one["silent"] for one in decided)
        assert found["messages"] == sum(index not in one["silent"] for one in decided)
        assert found["open_new"] == sum(index in one["queued_at"] for one in decided)
    forged = [
        json.loads(row["raw"]) for row in reader.table("quarantine") if row["reason"] == "RECEIPT_SIGNATURE"
    ]
    members = {row["source_id"] for row in validators}
    distinct = {json.dumps(value) for value in forged if value["source_id"] in members}
    assert sum(row["bad_signatures"] for row in validators) == len(distinct)
    assert {row["kind"] for row in reader.table("complaints")} <= {"contradiction", "unanswered"}
    assert len({row["alert_id"] for row in reader.table("alerts")}) == len(reader.table("alerts"))
    reader.close()


def test_the_workers_of_a_cluster_make_the_same_tables_as_the_driver(
    spark: SparkSession, tables: Path, dump: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stagepost.pipeline.driver import Evaluation
    from stagepost.pipeline.jobs import backfill
    from stagepost.pipeline.steps import sql_engines

    monkeypatch.setattr(sql_engines, "ROWS_HERE_MAX", 0)
    monkeypatch.setattr(sql_engines, "is_embedded", lambda master: False)
    views = {one.name for one in spark.catalog.listTables()}
    backfill(
        spark,
        [survey(written(tmp_path / "dump.jsonl", dump))],
        sets_bytes(),
        tmp_path / "tables",
        Evaluation(),
    )

    for name in ("messages", *REPORTS):
        assert rows_of(tmp_path / "tables", name) == rows_of(tables, name), name
    assert all(rows_of(tables, name) for name in ("validators", "stage_latency", "rejections"))
    assert rows_of(tables, "alerts")
    assert {one.name for one in spark.catalog.listTables()} == views, "views are left behind"


def test_check_finds_the_tables_right_and_a_changed_row_wrong(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import duckdb

    assert run(["pipeline", "check", "--tables", str(tables)]) == 0
    copy = tmp_path / "copy"
    shutil.copytree(tables, copy)
    (held,) = held_files(open_table(TableStore.at(copy), MESSAGES_TABLE))
    name = Path(MESSAGES_TABLE, held.path)
    wrong = "'likely_rejected' AS verdict, 5::BIGINT AS receipts"
    changed = f"SELECT * REPLACE ({wrong}) FROM read_parquet('{copy / name}', hive_partitioning = false)"
    duckdb.connect().execute(f"COPY ({changed}) TO '{tmp_path / 'changed.parquet'}' (FORMAT parquet)")
    shutil.copy(tmp_path / "changed.parquet", copy / name)
    capsys.readouterr()

    assert run(["pipeline", "check", "--tables", str(copy)]) == 1
    assert "verdict: the table has likely_rejected, recomputed" in capsys.readouterr().out


def test_check_names_a_file_in_which_one_bit_is_another(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow.parquet as pq

    copy = tmp_path / "copy"
    shutil.copytree(tables, copy)
    held = held_files(open_table(TableStore.at(copy), "receipts"))[0]
    path = copy / "receipts" / held.path
    column = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[column.dictionary_page_offset + column.total_compressed_size // 2] ^= 1
    path.write_bytes(content)

    assert run(["pipeline", "check", "--tables", str(copy)]) == 3
    said = capsys.readouterr().err
    assert f"of the table receipts and the day {held.day}, is damaged" in said
    assert f"pipeline import --from {copy}" in said


def test_a_table_is_exported_as_one_file_of_each_kind(
    tables: Path, tmp_path: Path, oracle: Recomputed
) -> None:
    import csv

    import duckdb

    for suffix in ("parquet", "csv", "jsonl"):
        out = tmp_path / f"messages.{suffix}"
        assert run(["pipeline", "export", "messages", "--tables", str(tables), "--out", str(out)]) == 0
    expected = oracle.messages

    lines = [json.loads(line) for line in (tmp_path / "messages.jsonl").read_text().splitlines()]
    assert {row["message_id"]: row for row in lines} == expected
    with (tmp_path / "messages.csv").open(newline="") as file:
        rows = {row["message_id"]: row for row in csv.DictReader(file)}
    assert {key: json.loads(row["silent"]) for key, row in rows.items()} == {
        k: r["silent"] for k, r in expected.items()
    }
    query = f"SELECT count(*) FROM read_parquet('{tmp_path / 'messages.parquet'}')"
    assert duckdb.connect().execute(query).fetchall() == [(len(expected),)]
    assert run(["pipeline", "export", "nothing", "--tables", str(tables), "--out", str(out)]) == 2
    assert run(["pipeline", "export", "messages", "--tables", str(tables), "--out", "x.xls"]) == 2


def test_messages_and_receipts_are_exported_by_filter(
    tables: Path, tmp_path: Path, oracle: Recomputed, capsys: pytest.CaptureFixture[str]
) -> None:
    def exported(*arguments: str) -> list[dict[str, Any]]:
        out = tmp_path / "found.jsonl"
        assert run(["export", *arguments, "--tables", str(tables), "--out", str(out)]) == 0
        return [json.loads(line) for line in out.read_text().splitlines()]

    verdict = next(iter(oracle.messages.values()))["verdict"]
    wanted = {key: row for key, row in oracle.messages.items() if row["verdict"] == verdict}
    assert {row["message_id"]: row for row in exported("--outcome", verdict)} == wanted
    assert len(exported("receipts")) == oracle.counted
    member = next(
        row for row in Reader(tables).table("validators") if row["validator"] == 0 and row["messages"]
    )
    spoken = exported("receipts", "--validator", "V1")
    assert member["source_id"] in {row["source_id"] for row in spoken}
    by_key = exported("receipts", "--validator", member["source_id"][:16])
    assert {row["source_id"] for row in by_key} == {member["source_id"]}
    assert exported("--topic", "nothing", "--pool", "ab" * 28) == []
    assert run(["export", "--tables", str(tables), "--out", "-", "--to", "parquet"]) == 2
    assert run(["export", "--tables", str(tables), "--out", "x", "--outcome", "lost"]) == 2
    assert "'lost' is not a known outcome" in capsys.readouterr().err


def test_the_page_is_complete_in_itself(tables: Path, tmp_path: Path) -> None:
    assert run(["pipeline", "report", "--tables", str(tables), "--out", str(tmp_path / "page.html")]) == 0

    text = (tmp_path / "page.html").read_text()
    assert "finalized" in text
    assert "<svg" in text
    assert not any(word in text for word in ("http:", "https:", "<script", "src="))


def test_order_repetition_and_splitting_into_batches_change_nothing(
    spark: SparkSession, dump: list[bytes], oracle: Recomputed, tmp_path: Path, run_seed: int
) -> None:
    choices = Random(run_seed)
    lines = dump + choices.sample(dump, len(dump) // 4)
    choices.shuffle(lines)
    places = sorted(choices.sample(range(len(lines)), 2))
    parts = [lines[: places[0]], lines[places[0] : places[1]], lines[places[1] :]]

    manifest = taken(spark, tmp_path, parts)

    again = recompute(lines, world_sets())
    found = messages_of(tmp_path / "tables")
    assert found == again.messages == oracle.messages
    assert counts(manifest)["counted"] == oracle.counted
    assert counts(manifest)["repeated"] == again.repeated

    # A dump that is in already changes nothing, and neither does compaction.
    before = rows_of(tmp_path / "tables", "quarantine")
    assert counts(taken(spark, tmp_path, parts[:1])) == counts(manifest)
    from stagepost.pipeline.jobs import compact

    compacted, removed = compact(spark, tmp_path / "tables")
    assert removed == 0
    store = TableStore.at(tmp_path / "tables")
    held = [(name, one.day) for name in compacted.versions for one in held_files(open_table(store, name))]
    assert (MESSAGES_TABLE, DAY) in held
    assert len(set(held)) == len(held), "one file of each table and day"
    assert counts(compacted) == counts(manifest)
    assert messages_of(tmp_path / "tables") == found
    assert rows_of(tmp_path / "tables", "quarantine") == before


def test_after_a_change_of_the_sets_the_tables_are_what_a_backfill_of_everything_gives(
    spark: SparkSession, dump: list[bytes], tmp_path: Path
) -> None:
    whole = world_sets()
    some = {**whole, "sessions": whole["sessions"][1:3]}
    taken(spark, tmp_path, [dump[::2]], sets=sets_bytes(some))
    early = recompute(dump[::2], some)
    assert messages_of(tmp_path / "tables") == early.messages

    narrowed = {**whole, "sessions": [{**one, "to_ms": EPOCH_MS + 45_000} for one in whole["sessions"]]}
    manifest = taken(spark, tmp_path, [dump[::2], dump[1::2]], sets=sets_bytes(narrowed))

    expected = recompute(dump[::2] + dump[1::2], narrowed)
    assert messages_of(tmp_path / "tables") == expected.messages
    assert counts(manifest)["reasons"] == Counter(reason for reason, *_ in expected.quarantine.elements())
    assert early.quarantine.keys() != expected.quarantine.keys()


def moved(line: bytes, days: int) -> bytes:
    """Return a line that arrived so many days later; one that is no record stays as it is."""
    try:
        record = json.loads(line)
        return json.dumps({**record, "timestamp_ms": record["timestamp_ms"] + days * DAY_MS}).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return line


@pytest.mark.parametrize("content", [None, b"{}"])
def test_sets_are_changed_also_where_the_copy_of_the_former_is_lost_or_another(
    spark: SparkSession, dump: list[bytes], tmp_path: Path, content: bytes | None
) -> None:
    parts = [dump[: len(dump) // 2], dump[len(dump) // 2 :]]
    whole = world_sets()
    taken(spark, tmp_path, parts[:1], sets=sets_bytes({**whole, "sessions": whole["sessions"][1:3]}))
    (path,) = (tmp_path / "tables" / "sets").iterdir()
    path.unlink() if content is None else path.write_bytes(content)

    taken(spark, tmp_path, parts)

    assert messages_of(tmp_path / "tables") == recompute(dump, world_sets()).messages


def test_days_are_forgotten_with_all_that_came_of_their_messages(
    spark: SparkSession, dump: list[bytes], tmp_path: Path
) -> None:
    from stagepost.pipeline.driver import Driver, Evaluation
    from stagepost.pipeline.jobs import compact
    from stagepost.pipeline.tables.tables import Tables
    from stagepost.pipeline.upkeep import Upkeep

    named = {key: number for number, key in enumerate(sorted(recompute(dump, world_sets()).messages))}
    lines = []
    for number, line in enumerate(dump):
        # A third of the messages on the first day, a third on the third, and a third on both.
        place = next((place for key, place in named.items() if key.encode() in line), 0)
        lines.append(moved(line, 2 * (place % 3 == 1 or (place % 3 == 2 and number % 2))))
    before = counts(taken(spark, tmp_path, [lines]))
    whole = messages_of(tmp_path / "tables")
    oracle = recompute(lines, world_sets())
    assert whole == oracle.messages

    with Tables(tmp_path / "tables", now=lambda: EPOCH_MS / 1_000) as early:
        upkeep = Upkeep(Driver(spark, early, None))
        removed = upkeep.compact(Evaluation.same(early.manifest.reports), keep_ms=DAY_MS)
    assert removed == 0, "arrivals in the future make no day old"
    assert messages_of(tmp_path / "tables") == whole
    manifest, removed = compact(spark, tmp_path / "tables", keep_ms=DAY_MS)

    found = messages_of(tmp_path / "tables")
    assert 0 < removed < before["rows"]
    assert counts(manifest)["rows"] + removed == before["rows"]
    assert found
    # Bad records of a message may have come on days that went.
    assert all({**whole[key], "receipts_bad": row["receipts_bad"]} == row for key, row in found.items())
    assert not any(named[key] % 3 == 0 for key in found)
    gone = [key for key in whole.keys() - found.keys() if named[key] % 3 == 2]
    assert gone, "a message goes with its first day"
    assert not any(key in row for key in gone for row in rows_of(tmp_path / "tables", "receipts"))
    assert manifest.total.natural_as_of_ms == oracle.as_of_ms
    assert len(rows_of(tmp_path / "tables", "receipts")) == counts(manifest)["counted"]
    assert run(["pipeline", "check", "--tables", str(tmp_path / "tables")]) == 0


# Topics, by stream


def test_a_stream_gives_what_a_backfill_gives_and_its_replay_changes_nothing(
    spark: SparkSession, dump: list[bytes], tmp_path: Path
) -> None:
    from stagepost.pipeline.sources.checkpoint_fit import STREAM
    from stagepost.pipeline.stream import StreamOptions, follow
    from stagepost.pipeline.tables.own_files import CHECKPOINT_FOLDER

    lines = a_topic(tmp_path / "data", dump).read_bytes().splitlines()
    (tmp_path / "sets.json").write_bytes(sets_bytes())
    out = tmp_path / "tables"
    options = StreamOptions(
        tmp_path / "data", tmp_path / "sets.json", out, is_once=True, rows_max=len(lines) // 2
    )

    manifest = follow(spark, options)

    expected = recompute(lines, world_sets())
    assert manifest.stream_batches[STREAM] > 0
    assert messages_of(out) == expected.messages
    assert Counter((row["reason"], row["message_id"]) for row in Reader(out).table("quarantine")) == Counter(
        (reason, message_id) for reason, _, message_id in expected.quarantine.elements()
    )

    # As if the driver had ended between the manifest and Spark's own commit.
    commits = sorted((out / CHECKPOINT_FOLDER / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    again = follow(spark, options)
    assert counts(again) == counts(manifest)
    assert messages_of(out) == expected.messages

    # As if the checkpoint were lost: the last commit says how far the stream has read.
    shutil.rmtree(out / CHECKPOINT_FOLDER)
    append_all(open_topic(tmp_path / "data", STATUSES), records_of(dump[:20]))
    said: list[str] = []
    resumed = follow(spark, options, say=said.append)
    assert "the checkpoint was lost: the stream goes on from the last commit" in said
    assert resumed.stream_batches[STREAM] > again.stream_batches[STREAM]
    assert counts(resumed)["rows"] == len(lines) + len(records_of(dump[:20]))
    assert counts(resumed)["counted"] == expected.counted


def test_the_topics_are_a_source_for_any_spark_query(
    spark: SparkSession, dump: list[bytes], tmp_path: Path
) -> None:
    from stagepost.pipeline.sources.topic_source import FORMAT, register

    lines = a_topic(tmp_path / "data", dump, partitions=1).read_bytes().splitlines()
    register(spark)

    rows = (
        spark.read.format(FORMAT).load(str(tmp_path / "data")).select("offset", "key", "arrived_ms").collect()
    )

    given = [json.loads(line) for line in lines]
    assert sorted(map(tuple, rows)) == [(one["offset"], one["key"], one["timestamp_ms"]) for one in given]


def test_two_drivers_on_one_folder_the_second_is_refused(
    spark: SparkSession, dump: list[bytes], tmp_path: Path
) -> None:
    from stagepost.pipeline.tables.tables import Tables

    first = Tables(tmp_path / "tables")
    try:
        with pytest.raises(StorageError, match="are being written by process"):
            taken(spark, tmp_path, [dump[:5]])
    finally:
        first.close()


def test_a_batch_that_cannot_be_written_leaves_the_tables_as_they_were(
    spark: SparkSession, dump: list[bytes], tmp_path: Path
) -> None:
    from stagepost.pipeline.jobs import backfill
    from stagepost.pipeline.tables.manifest import read_manifest

    before = taken(spark, tmp_path, [dump[:20]])
    data = tmp_path / "tables" / RECORDS

    def at_point(name: str) -> None:
        if name == "before write":
            data.rename(tmp_path / "kept")
            data.write_text("a file where a folder has to be")

    late = survey(written(tmp_path / "late.jsonl", dump[20:40]))
    with pytest.raises(StorageError, match="Spark could not write"):
        backfill(spark, [late], sets_bytes(), tmp_path / "tables", at_point=at_point)

    data.unlink()
    (tmp_path / "kept").rename(data)
    assert read_manifest(tmp_path / "tables") == before
    assert counts(taken(spark, tmp_path, [dump[:20], dump[20:40]]))["rows"] == 40


def test_times_at_the_end_of_all_numbers_stop_nothing(spark: SparkSession, tmp_path: Path) -> None:
    from stagepost.pipeline.jobs import backfill

    said: list[tuple[int, MessageStatus]] = [(FULL_NODE, SentToValidators(4, 4))]
    said += [(one, Timeout()) for one in range(4)]
    lines = [line_of(signed(1, who, status, TIMESTAMP_MAX)) for who, status in said]
    lines += [line_of(signed(2, 0, New(), 0)), line_of(signed(2, 0, Timeout(), TIMESTAMP_MAX))]
    raw = [json.dumps(line).encode() for line in lines]

    backfill(spark, [survey(written(tmp_path / "dump.jsonl", raw))], sets_bytes(), tmp_path / "tables")

    assert messages_of(tmp_path / "tables") == recompute(raw, world_sets()).messages
    assert "expired" in {row["verdict"] for row in messages_of(tmp_path / "tables").values()}
