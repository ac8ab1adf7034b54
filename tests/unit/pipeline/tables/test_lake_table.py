"""Delta tables from files of our own: a round trip, refusals beside another writer, and going back."""

from __future__ import annotations

import os
import time
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.tables import delta
from stagepost.pipeline.tables.delta import (
    CHECKPOINT_COMMITS,
    LOG_FOLDER,
    Commit,
    DataFile,
    DayFile,
    LakeTable,
    day_of,
    open_table,
)
from stagepost.pipeline.tables.look_up import queries
from stagepost.pipeline.tables.store import TableStore, storage_options

pytest.importorskip("deltalake")

SCHEMA = pa.schema([("message_id", pa.string()), ("count", pa.int64())])
DAY = "2026-01-31"


def a_file(store: TableStore, rows: int, day: str = DAY) -> DataFile:
    file = DayFile(store, "things", day, SCHEMA)
    file.write(pa.table({"message_id": [f"{n:064x}" for n in range(rows)], "count": range(rows)}, SCHEMA))
    return file.close()


def rows_of(store: TableStore) -> int:
    table = open_table(store, "things")
    return 0 if table is None else table.to_pyarrow_table().num_rows


def test_files_count_once_they_are_committed(tmp_path: Path) -> None:
    store = TableStore.at(tmp_path)
    table = LakeTable(store, "things", SCHEMA)
    file = a_file(store, 5)
    table.make()
    assert rows_of(store) == 0
    table.commit(Commit(adds=(file,), transactions={"topics": 0}, account={"offsets": {"a": 1}}))
    found = open_table(store, "things")
    assert found is not None
    assert found.transaction_version("topics") == 0
    assert found.history(1)[0]["stagepost"] == {"offsets": {"a": 1}}
    assert found.to_pyarrow_table().column("day").to_pylist() == [date(2026, 1, 31)] * 5
    assert [one.rows for one in table.held([DAY])] == [5]
    assert table.held(["2026-02-01"]) == []


def test_one_commit_replaces_files(tmp_path: Path) -> None:
    store = TableStore.at(tmp_path)
    table = LakeTable(store, "things", SCHEMA)
    table.commit(Commit(adds=(a_file(store, 5),)))
    table.commit(Commit(adds=(a_file(store, 2),), removes=tuple(table.held())))
    assert rows_of(store) == 2


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    store = TableStore.at(tmp_path)
    first = LakeTable(store, "things", SCHEMA)
    first.make()
    second = LakeTable(store, "things", SCHEMA)
    first.commit(Commit(adds=(a_file(store, 1),), transactions={"topics": 1}))
    with pytest.raises(StorageError, match="refused"):
        second.commit(Commit(adds=(a_file(store, 1),), transactions={"topics": 1}))
    assert rows_of(store) == 1


def test_a_commit_whose_answer_was_lost_counts_and_another_writers_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    store = TableStore.at(tmp_path)
    table = LakeTable(store, "things", SCHEMA)
    table.commit(Commit(adds=(a_file(store, 1),)))
    other = LakeTable(store, "things", SCHEMA)
    commit = DeltaTable.create_write_transaction

    def lose(found: DeltaTable, *arguments: Any, **more: Any) -> None:
        commit(found, *arguments, **more)
        raise CommitFailedError("Failed to commit transaction: 0")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lose)
    assert table.commit(Commit(adds=(a_file(store, 2),))) == 2
    assert rows_of(store) == 3
    with pytest.raises(StorageError, match="was refused"):
        other.commit(Commit(adds=(a_file(store, 4),)))
    assert rows_of(store) == 3


def test_compaction_beside_another_writers_is_refused_and_can_be_taken_back(tmp_path: Path) -> None:
    store = TableStore.at(tmp_path)
    table = LakeTable(store, "things", SCHEMA)
    for number in (1, 2):
        table.commit(Commit(adds=(a_file(store, number),)))
    other = LakeTable(store, "things", SCHEMA)
    table.change(lambda found, how: found.optimize.compact(**how), {})
    published = table.version

    # The package goes on beside the first one's, and holds every row twice then.
    with pytest.raises(StorageError, match=f"another process has written the table things in {tmp_path}"):
        other.change(lambda found, how: found.optimize.compact(**how), {})
    other.go_back(published)
    assert rows_of(store) == 3


def test_a_writer_whose_new_table_was_written_by_another_at_once_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer looked, found no table, and so would begin with batch 0, which the other writer has committed."""
    import deltalake

    store = TableStore.at(tmp_path)
    late = LakeTable(store, "things", SCHEMA)
    file = a_file(store, 1)
    create = deltalake.DeltaTable.create

    def create_beside_a_quick_writer(*given: object, **named: object) -> object:
        create(*given, **named)
        LakeTable(store, "things", SCHEMA).commit(
            Commit(adds=(a_file(store, 1),), transactions={"topics": 0})
        )
        return deltalake.DeltaTable(given[0])

    monkeypatch.setattr(deltalake.DeltaTable, "create", create_beside_a_quick_writer)
    with pytest.raises(StorageError, match="meanwhile"):
        late.commit(Commit(adds=(file,), transactions={"topics": 0}))
    assert rows_of(store) == 1


def test_going_back_leaves_out_later_commits(tmp_path: Path) -> None:
    store = TableStore.at(tmp_path)
    table = LakeTable(store, "things", SCHEMA)
    table.commit(Commit(adds=(a_file(store, 3),)))
    version = table.version
    table.commit(Commit(adds=(a_file(store, 4),)))
    table.go_back(version)
    assert rows_of(store) == 3


def test_a_commit_that_makes_a_checkpoint_removes_no_version_before_it_is_published(tmp_path: Path) -> None:
    store = TableStore.at(tmp_path)
    table = LakeTable(store, "things", SCHEMA)
    table.commit(Commit(adds=(a_file(store, 7),)))
    while table.version < CHECKPOINT_COMMITS - 2:
        table.commit(Commit(transactions={"topics": table.version}))
    published, log = table.version, tmp_path / "things" / LOG_FOLDER
    month_ago = time.time() - 30 * 86_400
    for entry in log.iterdir():
        os.utime(entry, (month_ago, month_ago))

    table.commit(Commit(adds=(a_file(store, 1),)))
    assert list(log.glob("*.checkpoint.parquet"))
    reader = open_table(store, "things", published)
    assert reader is not None
    assert reader.to_pyarrow_table().num_rows == 7
    successor = LakeTable(store, "things", SCHEMA)
    successor.go_back(published)
    assert rows_of(store) == 7

    table = LakeTable(store, "things", SCHEMA)
    table.clean_log()
    assert not list(log.glob(f"{published:020d}.json"))
    assert rows_of(store) == 7


def test_dead_files_go_before_a_checkpoint_forgets_them_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TableStore.at(tmp_path)
    table = LakeTable(store, "things", SCHEMA)
    hours_ago = time.time() - 4 * 3_600
    monkeypatch.setattr(delta, "time", SimpleNamespace(time=lambda: hours_ago))
    for _ in range(5):
        table.commit(Commit(adds=(a_file(store, 1),), removes=tuple(table.held())))
    while table.version < CHECKPOINT_COMMITS - 4:
        table.commit(Commit(transactions={"topics": table.version}))
    strange = tmp_path / "things" / f"day={DAY}" / "mine.parquet"
    strange.write_text("of somebody else")
    monkeypatch.undo()
    table.commit(Commit(adds=(a_file(store, 2),), removes=tuple(table.held())))
    young = {one.name for one in strange.parent.glob("0-*.parquet")}
    while table.version < CHECKPOINT_COMMITS + 1:
        table.commit(Commit(transactions={"topics": table.version}))

    left = {one.name for one in strange.parent.iterdir()}
    assert left == {*young, strange.name}
    assert len(young) == 2, "one that counts, and one for readers of a version of this hour"
    assert LakeTable(store, "things", SCHEMA).held() == table.held()
    assert rows_of(store) == 2


@pytest.mark.parametrize("address", ["s3a://bucket/tables", "gs://bucket", "s3:/bucket", "file:///tables"])
def test_addresses_without_safe_commits_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid address of tables"):
        TableStore.at(address)


@pytest.mark.parametrize("name", ["a?b", "a#b", "a\\b", "a%41b", "a%20b", "a\nb", "a\x01b"])
@pytest.mark.parametrize("before", ["/data/", "s3://bucket/"])
def test_addresses_that_the_package_would_read_as_others_are_refused(before: str, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid address of tables") as refused:
        TableStore.at(f"{before}{name}/tables")
    assert "\n" not in refused.value.text


@pytest.mark.parametrize("name", ["a b", "100%", "ü'\"", "[1]{2}(3)", "a*b", "a=b", "a:b;c", "日本"])
def test_folders_of_other_names_hold_tables(tmp_path: Path, name: str) -> None:
    store = TableStore.at(tmp_path / name)
    table = LakeTable(store, "things", SCHEMA)
    table.commit(Commit(adds=(a_file(store, 5),)))

    with queries(store, {"found": ("things", [one.path for one in table.held()])}) as connection:
        assert connection.execute("SELECT count(*), min(day) FROM found").fetchall() == [
            (5, date(2026, 1, 31))
        ]


def test_folders_above_the_tables_are_no_columns(tmp_path: Path) -> None:
    store = TableStore.at(tmp_path / "net=main" / "message_id=x" / "day=2020-01-01")
    table = LakeTable(store, "things", SCHEMA)
    table.commit(Commit(adds=(a_file(store, 1), a_file(store, 2, "2026-02-01"))))

    with queries(store, {"found": ("things", [one.path for one in table.held()])}) as connection:
        found = connection.execute("SELECT * FROM found WHERE day < DATE '2026-02-01'")
        assert [column[0] for column in found.description or ()] == ["message_id", "count", "day"]
        assert found.fetchall() == [("0" * 64, 0, date(2026, 1, 31))]


def test_days_of_the_calendar() -> None:
    assert day_of(0) == "1970-01-01"
    assert day_of(253_402_300_799_999) == "9999-12-31"
    assert day_of(253_402_300_800_000) is None
    assert day_of(-1) is None
    assert day_of(None) is None


def test_keys_of_a_storage_are_in_no_text_of_it() -> None:
    environment = {"AWS_SECRET_ACCESS_KEY": "a secret", "AWS_REGION": "here", "HOME": "/root"}
    store = TableStore.at("s3://lake/tables/", storage_options(environment))

    assert store.options == {"AWS_SECRET_ACCESS_KEY": "a secret", "AWS_REGION": "here"}
    assert (str(store), repr(store)) == ("s3://lake/tables", "TableStore('s3://lake/tables')")
    assert TableStore.at(store) is store
