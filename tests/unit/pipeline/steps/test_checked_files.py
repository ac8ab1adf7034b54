"""What a task of Spark's does with its records, without Spark: files that hold all of them, and an account that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from stagepost.pipeline.sources.dumps import survey
from stagepost.pipeline.tables.manifest import RECORDS, STATE, Batch
from stagepost.remp.validator_sets import parse_validator_sets
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import a_dump, sets_bytes, world_sets


@pytest.fixture(autouse=True)
def _packages() -> None:
    need_packages()


def task_of(folder: Path, lines: list[bytes]) -> Batch:
    from stagepost.pipeline.steps import checked_files

    path = folder / "dump.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    sets = parse_validator_sets(sets_bytes(), "sets")
    task = checked_files.CheckedFiles(sets, str(folder / "data"), str(folder))
    for piece in survey(path).pieces:
        for rows in checked_files._rows_of_piece(piece):
            task.take(rows)
    return task.close()


def rows_in(folder: Path, files: list[str]) -> int:
    import pyarrow.parquet as pq

    return sum(pq.ParquetFile(folder / name).metadata.num_rows for name in files)


def test_a_task_accounts_for_every_record(tmp_path: Path, run_seed: int) -> None:
    lines = a_dump(6, run_seed)

    found = task_of(tmp_path, lines)

    expected = recompute(lines, world_sets())
    assert found.rows == len(lines) == rows_in(tmp_path, found.files[RECORDS])
    assert found.passing == expected.counted + expected.repeated
    assert sum(found.quarantined.values()) == expected.quarantine.total() == found.rows - found.passing
    assert found.greatest_arrival_ms == expected.as_of_ms


def test_a_task_without_records_leaves_no_file(tmp_path: Path) -> None:
    found = task_of(tmp_path, [])

    assert found == Batch({RECORDS: [], STATE: []})
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("more", "files"), [(0, 2), (1, 1)])
def test_a_task_that_has_so_much_state_begins_another_part(
    tmp_path: Path, run_seed: int, monkeypatch: pytest.MonkeyPatch, more: int, files: int
) -> None:
    from stagepost.pipeline.steps import checked_files

    lines = a_dump(4, run_seed)
    whole = task_of(tmp_path, lines)
    monkeypatch.setattr(checked_files, "ROWS_PER_BATCH", len(lines) - 1)
    first = rows_in(tmp_path, task_of(tmp_path, lines[:-1]).files[STATE])
    monkeypatch.setattr(checked_files, "ROWS_MAX", first + more)

    parts = task_of(tmp_path, [*lines, lines[0]])

    assert len(whole.files[STATE]) == 1
    assert len(parts.files[STATE]) == files


def test_a_task_writes_before_it_holds_too_much(
    tmp_path: Path, run_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    from stagepost.pipeline.steps import checked_files

    lines = a_dump(4, run_seed)
    monkeypatch.setattr(checked_files, "ROWS_PER_BATCH", 50)
    monkeypatch.setattr(checked_files, "BYTES_PER_ROW_GROUP", 1)

    (name,) = task_of(tmp_path, lines).files[RECORDS]

    assert pq.ParquetFile(tmp_path / name).metadata.num_row_groups == -(-len(lines) // 50)


@pytest.mark.parametrize(("less", "is_named"), [(0, True), (1, False)])
def test_so_many_touched_messages_are_named_and_no_more(
    tmp_path: Path, run_seed: int, monkeypatch: pytest.MonkeyPatch, less: int, is_named: bool
) -> None:
    from stagepost.pipeline.tables import folding as touched

    lines = a_dump(5, run_seed)
    files = task_of(tmp_path, lines).files[STATE]
    whole = touched.touched(tmp_path, files)
    assert whole is not None
    assert recompute(lines, world_sets()).messages.keys() <= set(whole)
    monkeypatch.setattr(touched, "TOUCHED_MAX", len(whole) - less)

    assert touched.touched(tmp_path, files) == (whole if is_named else None)
