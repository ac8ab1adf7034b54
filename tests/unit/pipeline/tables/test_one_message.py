"""One message out of the tables without Spark, and damaged files: named with their day and the command that helps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner

pytest.importorskip("deltalake", reason="the extra spark brings it")

from rigs.object_storage import object_storage
from stagepost.cli.exit_codes import NOT_THAT_OUTCOME
from stagepost.cli.pipeline.command import pipeline
from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.dictionary import BY_NAME
from stagepost.pipeline.tables.damage import damage
from stagepost.pipeline.tables.delta import Commit, LakeTable, held_files, open_table
from stagepost.pipeline.tables.filter import Exported, FileFormat, MessageFilter, export
from stagepost.pipeline.tables.look_up import stored_message
from stagepost.pipeline.tables.manifest import COMMITS, read_manifest
from stagepost.pipeline.tables.query import TableQuery
from stagepost.pipeline.tables.reader import Reader
from stagepost.pipeline.tables.store import TableStore
from stagepost.web.tables import TableQueries
from tests.worlds.pipeline.small_lake import Rows, name_of, schema_of, write_published_lake

Harm = Callable[[Path], object]


@pytest.fixture
def lake(tmp_path: Path) -> tuple[TableStore, Rows]:
    store = TableStore.at(tmp_path / "tables")
    return store, write_published_lake(store)


def of_message(rows: Rows, name: str, message_id: str) -> list[dict[str, object]]:
    return [row for row in rows[name] if row["message_id"] == message_id]


def test_every_message_is_found_with_its_receipts(lake: tuple[TableStore, Rows]) -> None:
    store, rows = lake
    for row in rows["messages"][:12]:
        found = stored_message(store, row["message_id"].upper())
        assert found is not None
        assert found.message is not None
        assert (found.message["verdict"], str(found.message["day"])) == (row["verdict"], row["day"])
        assert "verdict_alive" not in found.message
        told = [(one["timestamp_ms"], one["source_id"]) for one in found.receipts]
        assert told == sorted(
            (one["timestamp_ms"], one["source_id"]) for one in of_message(rows, "receipts", row["message_id"])
        )
        assert [one["raw"] for one in found.quarantined] == [
            one["raw"] for one in of_message(rows, "quarantine", row["message_id"])
        ]


def test_an_id_that_is_not_one_and_tables_that_are_not_there_are_refused(
    lake: tuple[TableStore, Rows], tmp_path: Path
) -> None:
    assert stored_message(lake[0], name_of("nobody")) is None
    with pytest.raises(ConfigError, match="is not a valid message id"):
        stored_message(lake[0], "ab' OR 1=1")
    with pytest.raises(StorageError, match="there are no tables"):
        stored_message(TableStore.at(tmp_path / "nothing"), name_of("x"))


def test_the_command_shows_a_message(lake: tuple[TableStore, Rows]) -> None:
    store, rows = lake
    row = next(one for one in rows["messages"] if of_message(rows, "quarantine", one["message_id"]))
    shown = CliRunner().invoke(pipeline, ["show", row["message_id"], "--tables", store.address])
    assert shown.exit_code == 0, shown.output
    assert row["verdict"] in shown.output
    assert "SentToValidators" in shown.output
    assert "quarantined" in shown.output
    told = CliRunner().invoke(pipeline, ["show", row["message_id"], "--tables", store.address, "--json"])
    found = json.loads(told.stdout)
    assert found["message"]["message_id"] == row["message_id"]
    assert len(found["receipts"]) == len(of_message(rows, "receipts", row["message_id"]))
    absent = CliRunner().invoke(pipeline, ["show", name_of("nobody"), "--tables", store.address])
    assert absent.exit_code == NOT_THAT_OUTCOME
    assert "holds nothing" in absent.output


@pytest.mark.slow
def test_a_message_on_object_storage_is_found() -> None:
    with object_storage() as server:
        store = TableStore.at(server.address("tables"), server.options)
        rows = write_published_lake(store)
        row = rows["messages"][3]
        found = stored_message(store, row["message_id"])
        assert found is not None
        assert len(found.receipts) == len(of_message(rows, "receipts", row["message_id"]))


# Damage


def overwrite(path: Path) -> None:
    """Write over most of the data, and leave the end of the file, which says where the data lies."""
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 3] = b"\xff" * (len(content) // 3 - 4)
    path.write_bytes(content)


HARMS: dict[str, Harm] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-40]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
    "overwritten": overwrite,
}


def harmed(store: TableStore, name: str, harm: Harm) -> str:
    """Harm the last file of a table. Return its day."""
    file = held_files(open_table(store, name))[-1]
    harm(Path(store.path(name, file.path)))
    return file.day


@pytest.mark.parametrize("kind", HARMS)
def test_readers_name_the_day_of_a_damaged_file(kind: str, lake: tuple[TableStore, Rows]) -> None:
    store, rows = lake
    day = harmed(store, "receipts", HARMS[kind])
    message_id = next(row["message_id"] for row in rows["messages"] if row["day"] == day)
    wanted = f"of the table receipts and the day {day}, is damaged"
    with pytest.raises(StorageError, match=wanted) as raised:
        Reader(store).sql("SELECT * FROM receipts ORDER BY ALL")
    assert f"pipeline import --from {store.address}" in str(raised.value.advice)
    with pytest.raises(StorageError, match=wanted):
        stored_message(store, message_id)
    queries = TableQueries(store.folder, 30)
    with pytest.raises(StorageError, match=wanted), queries.asking() as asking:
        asking.rows("SELECT * FROM receipts ORDER BY ALL")
    with pytest.raises(StorageError, match=wanted):
        Reader(store).export("receipts", store.folder.parent / "receipts.csv")
    with pytest.raises(StorageError, match=wanted):
        export(
            Reader(store),
            Exported.RECEIPTS,
            MessageFilter(),
            FileFormat.CSV,
            str(store.folder.parent / "r.csv"),
        )
    assert not list(store.folder.parent.glob("*r*.csv*"))
    with pytest.raises(StorageError, match=wanted), TableQuery(store, "SELECT * FROM receipts") as query:
        list(query.rows())


def test_a_reader_of_a_version_whose_files_were_removed_is_told_to_open_the_tables_again(
    lake: tuple[TableStore, Rows],
) -> None:
    store, rows = lake
    reader = Reader(store)
    manifest = reader.manifest
    table = LakeTable(store, "receipts", schema_of(BY_NAME["receipts"]))
    before = table.held()
    table.commit(Commit(removes=tuple(before[:1])))
    commits = LakeTable(store, COMMITS, pa.schema([("generation", pa.int64())]))
    newer = msgspec.structs.replace(
        manifest,
        generation=manifest.generation + 1,
        versions={**manifest.versions, "receipts": table.version},
    )
    commits.commit(Commit(account=msgspec.to_builtins(newer)))
    table.remove_dead(hours=0)

    assert not Path(store.path("receipts", before[0].path)).exists()
    with pytest.raises(StorageError, match="have moved on") as raised:
        reader.sql("SELECT * FROM receipts ORDER BY ALL")
    assert "open the tables again" in str(raised.value.advice)
    assert len(Reader(store).sql("SELECT * FROM receipts")) == len(rows["receipts"]) - before[0].rows


def test_lost_records_are_read_from_the_topics_again(lake: tuple[TableStore, Rows]) -> None:
    store, _ = lake
    manifest = read_manifest(store)
    assert manifest is not None
    assert damage(store, manifest.versions, manifest.versions) is None
    day = harmed(store, "quarantine", HARMS["gone"])
    found = damage(store, manifest.versions, manifest.versions)
    assert found is not None
    assert day in found.text
    from stagepost.pipeline.tables.damage import damaged
    from stagepost.pipeline.tables.delta import Held

    lost = damaged(store, "records", Held("day=2026-01-31/x.parquet", "2026-01-31", 1, 1), "it is not there")
    assert "--from 2026-01-31T00:00:00Z --to 2026-02-01T00:00:00Z" in str(lost.advice)


def test_a_wrong_query_is_not_taken_for_damage(lake: tuple[TableStore, Rows]) -> None:
    store, _ = lake
    reader = Reader(store)
    harmed(store, "alerts", HARMS["cut"])
    with pytest.raises(Exception, match="nonsense") as raised:
        reader.sql("SELECT nonsense FROM messages")
    assert not isinstance(raised.value, StorageError)
