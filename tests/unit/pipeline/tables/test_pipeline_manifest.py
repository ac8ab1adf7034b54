"""What is published, who may write, and how a stream is divided: all without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagepost.cli.main import run
from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.sources.topic_ranges import Offsets, at_most, ranges, tasks
from stagepost.pipeline.tables.manifest import (
    COMMITS,
    COMMITS_LOOKED_AT_MAX,
    FORMER_MANIFEST_FILE,
    SCHEMA_VERSION,
    Batch,
    Manifest,
    OfDump,
    OfStream,
    counts,
    joined,
    keep_sets,
    kept_sets,
    read_manifest,
)
from stagepost.pipeline.tables.own_files import DriverLock
from stagepost.pipeline.tables.store import TableStore
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import sets_bytes
from tests.worlds.pipeline.written_tables import write_lake


def commit_account(folder: Path, account: dict[str, Any]) -> None:
    """Commit to `commits` what a manifest stands in, whatever it says; an empty one is not written."""
    need_packages()
    import pyarrow as pa

    from stagepost.pipeline.tables.delta import Commit, LakeTable

    table = LakeTable(TableStore.at(folder), COMMITS, pa.schema([("generation", pa.int64())]))
    table.make()
    table.commit(Commit(account=account))


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest(taken=["ab"], total=Batch(rows=2), offsets={"topics": '{"a": 1}'}, removed_rows=3)

    published = write_lake(tmp_path, {}, manifest)

    assert read_manifest(tmp_path) == published
    assert (published.taken, published.total, published.offsets) == (["ab"], Batch(rows=2), manifest.offsets)
    assert (published.generation, published.removed_rows) == (1, 3)
    assert write_lake(tmp_path, {}, manifest).generation == 2


def test_commits_without_a_manifest_are_passed_over_and_only_so_many(tmp_path: Path) -> None:
    """The package may add commits of its own."""
    published = write_lake(tmp_path, {}, Manifest(taken=["ab"]))
    for _ in range(COMMITS_LOOKED_AT_MAX - 1):
        commit_account(tmp_path, {})
    assert read_manifest(tmp_path) == published

    commit_account(tmp_path, {})
    with pytest.raises(StorageError, match=f"none of the last {COMMITS_LOOKED_AT_MAX} commits"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("content", [None, b"{}", b""])
def test_a_copy_of_the_sets_that_is_lost_or_another_is_named(tmp_path: Path, content: bytes | None) -> None:
    store = TableStore.at(tmp_path)
    digest = keep_sets(store, sets_bytes())
    manifest = Manifest(sets_digest=digest)
    assert kept_sets(store, manifest) == sets_bytes()

    path = tmp_path / "sets" / f"{digest}.json"
    path.unlink() if content is None else path.write_bytes(content)

    with pytest.raises(StorageError, match=f"{digest}.json") as refused:
        kept_sets(store, manifest)
    assert "--validator-sets" in str(refused.value.advice)


def test_without_a_manifest_there_are_no_tables(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_tables_of_another_schema_version_are_refused_with_both_numbers(tmp_path: Path, version: int) -> None:
    commit_account(tmp_path, {"schema_version": version})

    with pytest.raises(
        ConfigError, match=f"have schema version {version}, this program reads {SCHEMA_VERSION}"
    ) as refused:
        read_manifest(tmp_path)

    assert ("newer release" if version > SCHEMA_VERSION else "pipeline import") in refused.value.advice


@pytest.mark.parametrize("account", [{"x": 1}, {"schema_version": SCHEMA_VERSION, "taken": 5}])
def test_a_damaged_manifest_is_named(tmp_path: Path, account: dict[str, Any]) -> None:
    commit_account(tmp_path, account)

    with pytest.raises(StorageError, match=f"{COMMITS} is not a valid manifest"):
        read_manifest(tmp_path)


def test_tables_of_the_former_format_are_refused_with_the_command_that_takes_them_over(
    tmp_path: Path,
) -> None:
    (tmp_path / FORMER_MANIFEST_FILE).write_text("{}")

    with pytest.raises(ConfigError, match="tables of a former release") as refused:
        read_manifest(tmp_path)

    assert "stagepost pipeline import" in refused.value.advice


def test_the_moment_of_a_backfill_is_the_greatest_arrival_else_the_full_nodes_greatest_time() -> None:
    arrived, told = Batch(greatest_arrival_ms=5), Batch(greatest_full_node_ms=9)

    assert joined([told, arrived]).natural_as_of_ms == 5
    assert told.natural_as_of_ms == 9
    assert Batch().natural_as_of_ms is None


def test_a_second_driver_is_refused_and_told_who_holds_the_tables(tmp_path: Path) -> None:
    held = DriverLock(tmp_path)
    try:
        with pytest.raises(StorageError, match=f"are being written by process {os.getpid()} on "):
            DriverLock(tmp_path)
    finally:
        held.release()

    DriverLock(tmp_path).release()


def test_a_driver_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from stagepost.pipeline.tables.own_files import DriverLock\n"
        "lock = DriverLock(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, tmp_path], check=False)

    assert ended.returncode == -9
    DriverLock(tmp_path).release()


def test_a_dump_is_taken_once_by_its_content_and_a_stream_by_its_number() -> None:
    manifest = OfStream("topics", 4).enter(OfDump("ab").enter(Manifest()))

    assert OfDump("ab").is_taken(manifest)
    assert not OfDump("cd").is_taken(manifest)
    assert [OfStream("topics", number).is_taken(manifest) for number in (3, 4, 5)] == [True, True, False]
    assert not OfStream("others", 0).is_taken(manifest)


def test_every_row_is_counted_repeated_or_quarantined() -> None:
    batches = [Batch(rows=10, passing=7, quarantined={"RECEIPT_KIND": 3}), Batch(rows=5, passing=5)]
    found = counts(Manifest(total=joined(batches)))

    assert found["rows"] == found["counted"] + found["repeated"] + found["quarantined"] == 15


offsets = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.sampled_from(["0", "1", "10"]), st.integers(0, 50)),
    max_size=2,
)


@given(start=offsets, grown=offsets, rows_max=st.integers(1, 120))
def test_batches_of_bounded_size_reach_the_end_and_hold_every_record_once(
    start: Offsets, grown: Offsets, rows_max: int
) -> None:
    end = {
        topic: {one: start.get(topic, {}).get(one, 0) + more for one, more in parts.items()}
        for topic, parts in grown.items()
    }
    whole = {(one.topic, one.partition, n) for one in ranges(start, end) for n in range(one.start, one.end)}
    seen: list[tuple[str, int, int]] = []
    while ranges(start, end):
        following = at_most(start, end, rows_max)
        taken = [
            (one.topic, one.partition, n)
            for one in tasks(start, following, 7)
            for n in range(one.start, one.end)
        ]
        assert 0 < len(taken) <= rows_max
        seen += taken
        start = following

    assert sorted(seen) == sorted(whole)


# The command line, as far as it goes without Spark


def test_a_bad_sets_file_ends_a_backfill_with_2_and_an_unreadable_dump_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_packages()
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(sets_bytes())
    bad.write_text(json.dumps({"sessions": [{"session_id": "zz"}]}))
    dump = tmp_path / "dump.jsonl"
    dump.touch()
    common = ["pipeline", "backfill", "--out", str(tmp_path / "tables")]

    assert run([*common, "--input", str(dump), "--validator-sets", str(bad)]) == 2
    assert "session_id" in capsys.readouterr().err
    assert run([*common, "--input", str(tmp_path / "no"), "--validator-sets", str(good)]) == 3
    assert "cannot read the dump" in capsys.readouterr().err
    assert not (tmp_path / "tables").exists()


def test_commands_that_read_say_when_there_are_no_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_packages()
    for command in (["check"], ["export", "messages", "--out", "x.csv"], ["report", "--out", "x.html"]):
        assert run(["pipeline", *command, "--tables", str(tmp_path)]) == 3
        assert "there are no tables in" in capsys.readouterr().err


def test_help_is_shown_without_loading_spark() -> None:
    script = (
        "import sys; from stagepost.cli.main import run\n"
        "code = run(['pipeline', 'backfill', '--help'])\n"
        "sys.exit(code or any(name in sys.modules for name in ('pyspark', 'duckdb', 'pyarrow')))"
    )

    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    assert "--validator-sets" in ended.stdout


def test_defaults_of_a_manifest_are_not_shared() -> None:
    first = msgspec.structs.replace(Manifest(), taken=["a"])

    assert first.taken == ["a"]
    assert Manifest().taken == []
