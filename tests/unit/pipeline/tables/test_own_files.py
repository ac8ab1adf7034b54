"""A tables folder removes its own files alone, and a folder that holds anything else is refused before the first write."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from stagepost.cli.main import run
from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.tables.manifest import MANIFEST_FILE, Batch, Manifest, read_manifest
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import sets_bytes

if TYPE_CHECKING:
    from stagepost.pipeline.tables.tables import Tables

STRANGE = (
    "notes.txt",
    "data/notes.txt",
    "data/2026/notes.txt",
    "data/00000001-0123abcd/records/mine.parquet",
    "sets/notes.json",
    "data",
)
KILLED_DRIVER = """
import os, signal, sys
from pathlib import Path
from stagepost.pipeline.tables.tables import Tables

with Tables(Path(sys.argv[1])).work() as place:
    (place / "records").mkdir(parents=True)
    (place / "records" / "00112233aabbccdd.parquet").write_text("records")
    (place / "lives" / "_temporary" / "0").mkdir(parents=True)
    (place / "lives" / "_temporary" / "0" / "part-0.parquet").write_text("lives")
    print(place, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def a_commit(tables: Tables, digits: str) -> str:
    """Publish one batch with one file in the place of the batches before; return the file's name."""
    with tables.work() as place:
        (place / "records").mkdir(parents=True)
        file = place / "records" / f"{digits * 16}.parquet"
        file.write_text(digits)
        name = str(file.relative_to(tables.folder))
        tables.publish(
            lambda manifest: msgspec.structs.replace(manifest, batches=[Batch({"records": [name]}, rows=1)])
        )
    return name


def tables_in(folder: Path, now: Callable[[], float] = lambda: 0.0) -> Tables:
    need_packages()
    from stagepost.pipeline.tables.tables import Tables

    return Tables(folder, now=now)


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shown(name: str) -> str:
    """Return what a refusal names: an unknown folder as a whole."""
    return "data/2026" if "2026" in name else name


def a_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("of somebody else")


@pytest.mark.parametrize("name", STRANGE)
def test_a_folder_with_a_strangers_file_is_refused_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    a_file(tmp_path / name)
    before = files_in(tmp_path)

    with pytest.raises(
        ConfigError, match="files of tables" if "0123abcd" in name else shown(name)
    ) as refused:
        tables_in(tmp_path)

    assert "--out" in refused.value.advice
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("name", STRANGE[:-1])
def test_a_strangers_file_in_tables_is_neither_removed_nor_passed_over(tmp_path: Path, name: str) -> None:
    tables = tables_in(tmp_path)
    a_commit(tables, "1")
    a_file(tmp_path / name)
    a_commit(tables, "2")
    tables.close()
    before = files_in(tmp_path)

    with pytest.raises(ConfigError, match=f"no driver of these tables has made: {shown(name)}$"):
        tables_in(tmp_path)

    assert files_in(tmp_path) == before
    (tmp_path / name).unlink()
    if "2026" in name:
        (tmp_path / name).parent.rmdir()
    tables_in(tmp_path).close()


def test_a_strangers_file_in_a_folder_that_a_driver_writes_into_is_not_removed(tmp_path: Path) -> None:
    tables = tables_in(tmp_path)
    with tables.work() as place:
        a_file(place / "records" / "mine.parquet")
    tables.close()

    assert (place / "records" / "mine.parquet").exists()
    with pytest.raises(ConfigError, match=r"has made: data/.*/records/mine\.parquet"):
        tables_in(tmp_path)


def test_data_without_a_manifest_is_refused_and_no_empty_history(tmp_path: Path) -> None:
    tables = tables_in(tmp_path)
    name = a_commit(tables, "1")
    tables.close()
    content = (tmp_path / MANIFEST_FILE).read_bytes()
    (tmp_path / MANIFEST_FILE).unlink()

    with pytest.raises(ConfigError, match=rf"holds 1 files of tables, as {name}, and no manifest\.json"):
        tables_in(tmp_path)

    assert (tmp_path / name).read_text() == "1"
    (tmp_path / MANIFEST_FILE).write_bytes(content)
    again = tables_in(tmp_path)
    assert again.manifest.files("records") == [name]
    again.close()


def test_a_backfill_is_refused_before_spark_starts_and_the_folder_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_packages()
    out, sets, dump = tmp_path / "out", tmp_path / "sets.json", tmp_path / "dump.jsonl"
    sets.write_bytes(sets_bytes())
    dump.touch()
    a_file(out / "data" / "thesis.txt")
    where = ["--validator-sets", str(sets), "--out", str(out)]

    for job in (["backfill", "--input", str(dump)], ["run", "--once", "--kafka", "127.0.0.1:1"]):
        assert run(["pipeline", *job, *where]) == 2
        assert "data/thesis.txt" in capsys.readouterr().err
    assert run(["pipeline", "compact", "--tables", str(out)]) == 2
    assert list(files_in(out)) == ["data/thesis.txt"]


def test_what_a_killed_driver_left_is_known_by_name_and_removed_also_when_it_comes_late(
    tmp_path: Path,
) -> None:
    tables = tables_in(tmp_path)
    name = a_commit(tables, "1")
    tables.close()

    ended = subprocess.run(
        [sys.executable, "-c", KILLED_DRIVER, tmp_path], capture_output=True, text=True, check=False
    )

    assert ended.returncode == -signal.SIGKILL, ended.stderr
    place = Path(ended.stdout.strip())
    assert len(files_in(place)) == 2
    tables_in(tmp_path).close()
    assert not place.exists()
    # A task of the driver that is gone may write a little longer.
    a_file(place / "records" / f"{'a' * 16}.parquet")
    tables_in(tmp_path).close()
    assert not place.exists()
    assert (tmp_path / name).read_text() == "1"


def test_a_file_is_named_by_manifest_or_journal_until_it_is_gone(tmp_path: Path) -> None:
    """So wherever a driver ends, its successor knows every file."""
    need_packages()
    from stagepost.pipeline.tables.own_files import require_own_folder
    from stagepost.pipeline.tables.tables import GRACE_MS, JOURNAL_KEPT_MS, Tables

    now_s, points = 0.0, 0

    def at_point(name: str) -> None:
        nonlocal points
        points += 1
        require_own_folder(tmp_path)

    tables = Tables(tmp_path, at_point=at_point, now=lambda: now_s)
    for step in range(6):
        a_commit(tables, f"{step}")
        require_own_folder(tmp_path)
        now_s += (GRACE_MS if step % 2 else JOURNAL_KEPT_MS) / 1_000
    tables.close()

    left = {name for name in files_in(tmp_path) if name.endswith(".parquet")}
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert points == 12
    assert set(manifest.live()) <= left <= set(manifest.published())
    assert len(left) <= 2


def test_a_work_that_takes_longer_than_names_are_kept_stays_in_the_journal(tmp_path: Path) -> None:
    need_packages()
    from stagepost.pipeline.tables.own_files import read_journal
    from stagepost.pipeline.tables.tables import JOURNAL_KEPT_MS

    now_s = 0.0
    tables = tables_in(tmp_path, lambda: now_s)
    with tables.work() as long:
        now_s += 2 * JOURNAL_KEPT_MS / 1_000
        with tables.work() as short:
            assert read_journal(tmp_path).keys() == {long.name, short.name}
    now_s += 2 * JOURNAL_KEPT_MS / 1_000
    with tables.work() as last:
        assert read_journal(tmp_path).keys() == {last.name}
    tables.close()


def test_a_second_driver_is_told_of_the_first_and_not_of_its_files(tmp_path: Path) -> None:
    tables = tables_in(tmp_path)
    with tables.work() as place:
        a_file(place / "records" / f"{'a' * 16}.parquet")
        tables.publish(lambda manifest: manifest)
        with pytest.raises(StorageError, match="are being written by process"):
            tables_in(tmp_path)
    tables.close()


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    tables_in(tmp_path).close()
    (tmp_path / "works.json").write_text("{")

    with pytest.raises(StorageError, match=r"works\.json cannot be read"):
        tables_in(tmp_path)

    assert read_manifest(tmp_path) in (None, Manifest())
