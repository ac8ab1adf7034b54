"""A tables folder removes its own files alone, and a folder that holds anything else is refused before the first write."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from stagepost.cli.main import run
from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.audit import AUDIT_FILE, user_name
from stagepost.pipeline.tables.delta import CHECKPOINT_COMMITS, CHECKPOINT_END, LOG_FOLDER
from stagepost.pipeline.tables.manifest import COMMITS, RECORDS, Batch, Manifest, read_manifest
from stagepost.pipeline.tables.own_files import require_own_folder
from stagepost.pipeline.tables.store import TableStore
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import sets_bytes
from tests.worlds.pipeline.written_tables import DAY, write_lake

if TYPE_CHECKING:
    from stagepost.pipeline.tables.tables import Point, Tables

STRANGE = (
    "notes.txt",
    "data/notes.txt",
    "records/notes.txt",
    "records/2026/notes.txt",
    f"records/day={DAY}/mine.parquet",
    "records/day=today/00000001-00112233aabbccdd.parquet",
    "sets/notes.json",
    "messages",
)
RECORD = {"topic": "stagepost.remp.statuses", "offset": 1}
ON_A_FULL_DISK = """
import resource, signal, sys
from stagepost.cli.main import run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
sys.exit(run(sys.argv[1:]))
"""
KILLED_DRIVER = """
import os, signal, sys
from pathlib import Path
import pyarrow as pa
from stagepost.pipeline.schemas import RECORDS, with_day
from stagepost.pipeline.schemas import arrow_schema
from stagepost.pipeline.tables.delta import Commit
from stagepost.pipeline.tables.tables import Tables

tables = Tables(Path(sys.argv[1]))
rows = pa.Table.from_pylist([{"offset": 7, "day": sys.argv[2]}], arrow_schema(with_day(RECORDS)))
for is_committed in (True, False):
    files = tables.write_rows(rows, "records")
    if is_committed:
        tables.commit("records", Commit(adds=tuple(files)))
    print(files[0].path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def a_commit(folder: Path, number: int = 1) -> Manifest:
    """Publish one batch with one record."""
    return write_lake(folder, {RECORDS: [{**RECORD, "offset": number}]}, Manifest(total=Batch(rows=number)))


def tables_in(folder: Path, at_point: Point | None = None) -> Tables:
    need_packages()
    from stagepost.pipeline.tables.tables import Tables, pass_by

    return Tables(folder, at_point=at_point or pass_by)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shown(name: str) -> str:
    """Return what a refusal names: an unknown folder as a whole."""
    return next(
        (whole for whole in ("data", "records/2026", "records/day=today") if name.startswith(whole)), name
    )


def a_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of somebody else")


@pytest.mark.parametrize("name", STRANGE)
def test_a_folder_with_a_strangers_file_is_refused_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    a_file(tmp_path / name)
    before = files_in(tmp_path)

    with pytest.raises(ConfigError, match=f"no driver of these tables has made: {shown(name)}$") as refused:
        tables_in(tmp_path)

    assert "name an empty folder" in refused.value.advice
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("name", STRANGE[:-1])
def test_a_strangers_file_in_tables_is_neither_removed_nor_passed_over(tmp_path: Path, name: str) -> None:
    a_commit(tmp_path, 1)
    tables = tables_in(tmp_path)
    a_file(tmp_path / name)
    tables.publish(lambda manifest: msgspec.structs.replace(manifest, taken=["ab"]))
    tables.close()
    before = files_in(tmp_path)

    with pytest.raises(ConfigError, match=f"no driver of these tables has made: {shown(name)}$"):
        tables_in(tmp_path)

    assert files_in(tmp_path) == before
    (tmp_path / name).unlink()
    if shown(name) != name:
        (tmp_path / name).parent.rmdir()
    tables_in(tmp_path).close()


@pytest.mark.parametrize("name", STRANGE[1:-1])
def test_upkeep_removes_no_strangers_file(tmp_path: Path, name: str) -> None:
    a_commit(tmp_path, 1)
    tables = tables_in(tmp_path)
    a_file(tmp_path / name)
    try:
        for one in tables.table(RECORDS), tables.table("messages"):
            one.remove_dead(0)
    finally:
        tables.close()

    assert (tmp_path / name).read_text() == "of somebody else"


def test_tables_without_their_commits_are_refused_and_no_empty_history(tmp_path: Path) -> None:
    published = a_commit(tmp_path)
    before = files_in(tmp_path / RECORDS)
    (tmp_path / COMMITS).rename(tmp_path.parent / "kept")

    with pytest.raises(ConfigError, match=f"and no table {COMMITS} that says what of them counts"):
        tables_in(tmp_path)

    assert files_in(tmp_path / RECORDS) == before
    (tmp_path.parent / "kept").rename(tmp_path / COMMITS)
    again = tables_in(tmp_path)
    assert again.manifest == published
    again.close()


def test_commits_without_their_tables_are_refused_and_no_empty_history(tmp_path: Path) -> None:
    a_commit(tmp_path)
    shutil.rmtree(tmp_path / RECORDS)
    before = files_in(tmp_path)

    with pytest.raises(StorageError, match=f"{RECORDS} in .* is not there"):
        tables_in(tmp_path)

    assert files_in(tmp_path) == before


def test_a_backfill_is_refused_before_spark_starts_and_the_folder_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_packages()
    out, sets, dump = tmp_path / "out", tmp_path / "sets.json", tmp_path / "dump.jsonl"
    sets.write_bytes(sets_bytes())
    dump.touch()
    a_file(out / "records" / "thesis.txt")
    where = ["--validator-sets", str(sets), "--out", str(out)]

    for job in (["backfill", "--input", str(dump)], ["run", "--once", "--kafka", "127.0.0.1:1"]):
        assert run(["pipeline", *job, *where]) == 2
        assert "records/thesis.txt" in capsys.readouterr().err
    assert run(["pipeline", "compact", "--tables", str(out)]) == 2
    assert list(files_in(out)) == ["records/thesis.txt"]


def test_a_compaction_writes_an_audit_line_before_spark_starts_and_nothing_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_commit(tmp_path)
    before = files_in(tmp_path)

    def no_spark(*given: object, **named: object) -> None:
        raise StorageError("there is no Java here", advice="bring one")

    monkeypatch.setattr("stagepost.pipeline.spark.start_session", no_spark)
    command = ["pipeline", "compact", "--tables", str(tmp_path), "--keep", "30d"]
    full = subprocess.run(
        [sys.executable, "-c", ON_A_FULL_DISK, *command], capture_output=True, text=True, check=False
    )
    assert full.returncode == 3
    assert "audit.jsonl cannot be written, so the action was not begun" in full.stderr
    assert "Spark" not in full.stderr
    (tmp_path / AUDIT_FILE).unlink()
    assert files_in(tmp_path) == before

    assert run(command) == 3
    assert "no Java" in capsys.readouterr().err
    (line,) = (json.loads(one) for one in (tmp_path / AUDIT_FILE).read_text().splitlines())
    assert (line["what"], line["who"]) == ("pipeline compact --keep 2592000s", user_name())
    assert read_manifest(tmp_path) is not None
    require_own_folder(TableStore.at(tmp_path))
    tables_in(tmp_path).close()
    assert (tmp_path / AUDIT_FILE).exists()


def test_what_a_killed_driver_wrote_and_committed_without_publishing_is_gone_also_when_it_comes_late(
    tmp_path: Path,
) -> None:
    published = a_commit(tmp_path)
    kept = set(files_in(tmp_path / RECORDS))

    ended = subprocess.run(
        [sys.executable, "-c", KILLED_DRIVER, tmp_path, DAY], capture_output=True, text=True, check=False
    )

    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = [tmp_path / RECORDS / name for name in ended.stdout.split()]
    assert [path.exists() for path in left] == [True, True]
    for _ in range(2):
        tables = tables_in(tmp_path)
        assert sum(one.rows for one in tables.table(RECORDS).held()) == 1
        assert tables.manifest == published
        tables.close()
        assert not any(path.exists() for path in left)
        # A task of the driver that is gone may write a little longer.
        left[1].write_bytes(b"late")
    tables_in(tmp_path).close()
    assert not left[1].exists()
    assert {name for name in files_in(tmp_path / RECORDS) if LOG_FOLDER not in name} == {
        name for name in kept if LOG_FOLDER not in name
    }


@pytest.mark.parametrize("name", [RECORDS, "messages", COMMITS])
def test_an_entry_that_a_power_cut_left_half_is_gone_and_one_that_counts_is_not(
    tmp_path: Path, name: str
) -> None:
    published = a_commit(tmp_path)
    tables_in(tmp_path).close()
    last = max((tmp_path / name / LOG_FOLDER).glob("*.json"))
    whole = last.read_bytes()
    following = last.with_name(f"{int(last.stem) + 1:020d}.json")
    for torn in (whole[: len(whole) // 2], bytes(len(whole)), b""):
        following.write_bytes(torn)
        tables = tables_in(tmp_path)
        assert tables.manifest.total == published.total
        tables.publish(lambda manifest: manifest)
        tables.close()

    counting = max((tmp_path / RECORDS / LOG_FOLDER).glob("*.json"))
    counting.write_bytes(counting.read_bytes()[:-40])
    with pytest.raises(StorageError, match=r"the table records in .* cannot be read"):
        tables_in(tmp_path)


def test_a_checkpoint_that_a_power_cut_left_half_is_gone_while_its_entries_are_there(tmp_path: Path) -> None:
    a_commit(tmp_path)
    tables = tables_in(tmp_path)
    while tables.manifest.generation < CHECKPOINT_COMMITS:
        tables.publish(lambda manifest: manifest)
    tables.close()
    log = tmp_path / COMMITS / LOG_FOLDER
    (checkpoint,) = log.glob(f"*{CHECKPOINT_END}")
    whole = checkpoint.read_bytes()
    for torn in (b"", whole[: len(whole) // 2], bytes(len(whole))):
        checkpoint.write_bytes(torn)
        again = tables_in(tmp_path)
        again.close()
        assert again.manifest == tables.manifest
        assert not checkpoint.exists()

    checkpoint.write_bytes(b"")
    min(log.glob("*.json")).unlink()
    with pytest.raises(StorageError, match=r"the table commits in .* cannot be read"):
        tables_in(tmp_path)
    assert checkpoint.exists()


def test_at_every_point_of_a_commit_a_successor_knows_every_file(tmp_path: Path) -> None:
    need_packages()
    from stagepost.pipeline.tables.own_files import require_own_folder
    from stagepost.pipeline.tables.store import TableStore

    points = []

    def at_point(name: str) -> None:
        points.append(name)
        require_own_folder(TableStore.at(tmp_path))

    a_commit(tmp_path, 1)
    tables = tables_in(tmp_path, at_point)
    for number in range(3):
        tables.publish(lambda manifest, number=number: msgspec.structs.replace(manifest, taken=[str(number)]))  # type: ignore[misc]
        require_own_folder(TableStore.at(tmp_path))
    tables.close()

    assert points == ["before manifest", "after manifest"] * 3


def test_a_second_driver_is_told_of_the_first(tmp_path: Path) -> None:
    tables = tables_in(tmp_path)
    with pytest.raises(StorageError, match="are being written by process"):
        tables_in(tmp_path)
    tables.publish(lambda manifest: manifest)
    tables.close()

    assert read_manifest(tmp_path) is not None
