"""What a task of Spark's does with its records, without Spark: files that hold all of them, and an account that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rigs.receipt_lines import EPOCH_MS, line_of, signed
from stagepost.pipeline.sources.dumps import records_of, survey
from stagepost.pipeline.tables.delta import DataFile
from stagepost.pipeline.tables.manifest import QUARANTINE, RECEIPTS, RECORDS, STATE, Batch
from stagepost.pipeline.tables.store import TableStore
from stagepost.remp.receipts.message_status import New
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
    target = checked_files.Target(TableStore.at(folder / "tables"), "00000001", "1970-01-01")
    task = checked_files.CheckedFiles(sets, target)
    for piece in survey(path).pieces:
        for rows in checked_files.rows_of(records_of(piece)):
            task.take(rows)
    return task.close()


def path_of(folder: Path, file: DataFile) -> Path:
    return folder / "tables" / file.table / file.path


def rows_in(folder: Path, files: list[DataFile]) -> int:
    import pyarrow.parquet as pq

    found: int = sum(pq.ParquetFile(path_of(folder, one)).metadata.num_rows for one in files)
    assert found == sum(one.rows for one in files)
    return found


def test_a_task_accounts_for_every_record(tmp_path: Path, run_seed: int) -> None:
    lines = a_dump(6, run_seed)

    found = task_of(tmp_path, lines)

    expected = recompute(lines, world_sets())
    assert found.rows == len(lines) == rows_in(tmp_path, found.of(RECORDS))
    assert found.passing == expected.counted + expected.repeated == rows_in(tmp_path, found.of(RECEIPTS))
    assert rows_in(tmp_path, found.of(QUARANTINE)) == expected.quarantine.total()
    assert sum(found.quarantined.values()) == expected.quarantine.total() == found.rows - found.passing
    assert found.greatest_arrival_ms == expected.as_of_ms


def test_a_task_without_records_leaves_no_file(tmp_path: Path) -> None:
    found = task_of(tmp_path, [])

    assert found == Batch()
    assert not (tmp_path / "tables").exists()


@pytest.mark.parametrize(("more", "files"), [(0, 2), (1, 1)])
def test_a_task_that_has_so_much_state_begins_another_part(
    tmp_path: Path, run_seed: int, monkeypatch: pytest.MonkeyPatch, more: int, files: int
) -> None:
    from stagepost.pipeline.steps import checked_files

    lines = a_dump(4, run_seed)
    whole = task_of(tmp_path, lines)
    monkeypatch.setattr(checked_files, "ROWS_PER_BATCH", len(lines) - 1)
    first = rows_in(tmp_path, task_of(tmp_path, lines[:-1]).of(STATE))
    monkeypatch.setattr(checked_files, "ROWS_MAX", first + more)

    parts = task_of(tmp_path, [*lines, lines[0]])

    assert len(whole.of(STATE)) == 1
    assert len(parts.of(STATE)) == files


def test_a_task_writes_before_it_holds_too_much(
    tmp_path: Path, run_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq

    from stagepost.pipeline.steps import checked_files

    lines = a_dump(4, run_seed)
    monkeypatch.setattr(checked_files, "ROWS_PER_BATCH", 50)
    monkeypatch.setattr(checked_files, "BYTES_PER_ROW_GROUP", 1)

    # Few records say nothing of when they came, and are of another day.
    largest = max(task_of(tmp_path, lines).of(RECORDS), key=lambda file: file.rows)

    assert pq.ParquetFile(path_of(tmp_path, largest)).metadata.num_row_groups == -(-len(lines) // 50)


@pytest.mark.parametrize(("days_max", "files"), [(3, 3), (2, 5)])
def test_a_task_keeps_so_many_days_open_and_loses_nothing_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days_max: int, files: int
) -> None:
    from stagepost.pipeline.steps import checked_files

    days = (0, 1, 2, 0, 1)
    receipt = signed(1, 0, New(), EPOCH_MS)
    lines = [json.dumps(line_of(receipt, 86_400_000 * (20_000 + day))).encode() for day in days]
    monkeypatch.setattr(checked_files, "ROWS_PER_BATCH", 1)
    monkeypatch.setattr(checked_files, "DAYS_OPEN_MAX", days_max)

    found = task_of(tmp_path, lines)

    assert found.rows == len(days) == rows_in(tmp_path, found.of(RECORDS))
    assert {one.day for one in found.of(RECORDS)} == {"2024-10-04", "2024-10-05", "2024-10-06"}
    assert len(found.of(RECORDS)) == files
