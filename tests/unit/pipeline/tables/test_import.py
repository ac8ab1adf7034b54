"""Tables of the former format, and tables to derive again: what is taken over, and what is refused untouched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("deltalake", reason="the extra spark brings it")

from stagepost.cli.pipeline.command import pipeline
from stagepost.errors import ConfigError, StagepostError, StorageError
from stagepost.pipeline.sources.checkpoint_fit import require_fitting_checkpoint, restore_checkpoint
from stagepost.pipeline.tables.former import import_source
from stagepost.pipeline.tables.manifest import RECORDS, read_manifest
from stagepost.pipeline.tables.own_files import CHECKPOINT_FOLDER
from stagepost.pipeline.tables.reader import Reader
from stagepost.pipeline.tables.recomputation import check_tables
from stagepost.pipeline.tables.store import TableStore
from stagepost.remp.validator_sets import parse_validator_sets
from tests.worlds.pipeline.pipeline_spark import small_spark

FORMER = Path(__file__).parents[3] / "vectors" / "stores" / "0.1" / "tables"
EXPECTED = json.loads((FORMER / "expected.json").read_text())


def content_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def former(tmp_path: Path) -> Path:
    shutil.copytree(FORMER / "data", tmp_path / "former")
    return tmp_path / "former"


def with_manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def harm(folder: Path) -> None:
        path = folder / "manifest.json"
        found = json.loads(path.read_text())
        change(found)
        path.write_text(json.dumps(found))

    return harm


def first_records(folder: Path) -> Path:
    return next(iter(sorted(folder.glob("data/*/records/*.parquet"))))


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another version": (with_manifest(lambda one: one.update(schema_version=2)), "schema version 2"),
    "a name that leads out": (
        with_manifest(lambda one: one["batches"][0]["files"].update(records=["../secret.parquet"])),
        "not a valid file of records",
    ),
    "no sets": (with_manifest(lambda one: one.update(sets_digest=None)), "name no validator sets"),
    "not a manifest": (lambda folder: (folder / "manifest.json").write_text("[]"), "is not a valid manifest"),
    "a lost file": (lambda folder: first_records(folder).unlink(), "is lost or damaged"),
    "a cut file": (
        lambda folder: first_records(folder).write_bytes(first_records(folder).read_bytes()[:-9]),
        "is lost or damaged",
    ),
    "other sets": (
        lambda folder: next((folder / "sets").iterdir()).write_text("{}"),
        "its name is not its hash",
    ),
    "lost sets": (lambda folder: next((folder / "sets").iterdir()).unlink(), "cannot be read"),
}


@pytest.mark.parametrize("kind", HARMS)
def test_a_harmed_folder_is_refused_untouched(kind: str, former: Path) -> None:
    harm, words = HARMS[kind]
    harm(former)
    before = content_of(former)
    with pytest.raises(StagepostError, match=words):
        import_source(TableStore.at(former))
    assert content_of(former) == before


def test_the_former_tables_are_found(former: Path) -> None:
    found = import_source(TableStore.at(former))
    account = json.loads((former / "manifest.json").read_text())["batches"]
    assert found.rows == sum(one["rows"] + one["other_rows"] for one in account)
    assert found.stream_batches == EXPECTED["stream_batches"]
    assert found.reports is not None


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds neither"):
        import_source(TableStore.at(tmp_path))


def test_the_command_refuses_strangers_before_it_writes(former: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    told = CliRunner().invoke(pipeline, ["import", "--from", str(former), "--out", str(out)])
    assert isinstance(told.exception, ConfigError)
    assert "notes.txt" in told.exception.text
    assert content_of(out) == {"notes.txt": sha256(b"mine").hexdigest()}
    within = CliRunner().invoke(pipeline, ["import", "--from", str(former), "--out", str(former / "new")])
    assert within.exit_code == 2
    assert not (former / "new").exists()


def test_tables_are_imported_and_derived_again(former: Path, tmp_path: Path) -> None:
    spark = small_spark()
    from stagepost.pipeline.jobs import import_tables

    before = content_of(former)
    first, second = TableStore.at(tmp_path / "first"), TableStore.at(tmp_path / "second")
    said: list[str] = []
    manifest = import_tables(spark, import_source(TableStore.at(former)), first, say=said.append)
    assert content_of(former) == before
    assert said
    require_tables(first)
    for stream, number in manifest.stream_batches.items():
        checkpoint = first.folder / CHECKPOINT_FOLDER
        assert restore_checkpoint(checkpoint, manifest, stream)
        require_fitting_checkpoint(checkpoint, manifest, stream)
        planned = EXPECTED["checkpoint"]["planned"][str(number)]
        assert json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1]) == planned
    # Again: nothing changes but the number of the commit.
    again = import_tables(spark, import_source(TableStore.at(former)), first)
    assert (again.total, again.taken, again.stream_batches) == (
        manifest.total,
        manifest.taken,
        manifest.stream_batches,
    )
    # From the new tables, of which some are lost.
    harmed = shutil.copytree(first.folder, tmp_path / "harmed")
    shutil.rmtree(harmed / "messages")
    shutil.rmtree(harmed / "state")
    derived = import_tables(spark, import_source(TableStore.at(harmed)), second)
    assert derived.total == manifest.total
    require_tables(second)
    # Tables of others are not mixed with them.
    source = import_source(TableStore.at(former))
    other = source._replace(batches=[one._replace(digest="00" * 32) for one in source.batches])
    with pytest.raises(ConfigError, match="holds other tables already"):
        import_tables(spark, other, second)
    require_tables(second)
    lost = next(harmed.glob(f"{RECORDS}/day=*/*.parquet"))
    lost.unlink()
    with pytest.raises(StorageError, match="of the table records and the day"):
        import_source(TableStore.at(harmed))


def require_tables(store: TableStore) -> None:
    """Require what the release that made the vectors had in its tables."""
    manifest = read_manifest(store)
    assert manifest is not None
    assert (manifest.total.rows, manifest.total.counted) == (EXPECTED["rows"], EXPECTED["counted"])
    assert manifest.stream_batches == EXPECTED["stream_batches"]
    reader = Reader(store)
    verdicts = {row["message_id"]: row["verdict"] for row in reader.table("messages")}
    assert verdicts == EXPECTED["verdicts"]
    for name, wanted in EXPECTED["tables"].items():
        # A validator has a row for each day now, and had one for all days.
        columns = "session_id, validator" if name == "validators" else "*"
        found = reader.sql(f"SELECT {'DISTINCT ' if name == 'validators' else ''}{columns} FROM {name}")
        assert len(found) == wanted["rows"], name
    reader.close()
    kept = next((store.folder / "sets").iterdir()).read_bytes()
    assert check_tables(store, parse_validator_sets(kept, "sets")).differences == []
