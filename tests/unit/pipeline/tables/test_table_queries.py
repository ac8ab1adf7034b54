"""Readers agree on Delta tables (`examples/table_queries.py`, `examples/tables.ipynb`): a parser of the log itself, pandas, DuckDB, the command `sql`, and ten questions."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

pytest.importorskip("deltalake", reason="the extra spark brings it")

from rigs.object_storage import object_storage
from stagepost.cli.pipeline.command import pipeline
from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.catalog import spark_address, statements
from stagepost.pipeline.dictionary import BY_NAME, TABLES
from stagepost.pipeline.tables.delta import open_table
from stagepost.pipeline.tables.query import TableQuery
from stagepost.pipeline.tables.store import TableStore
from tests.worlds.pipeline.delta_log_reader import read_log, read_rows
from tests.worlds.pipeline.small_lake import Rows, name_of, write_small_lake

ROOT = Path(__file__).parents[4]


def examples() -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        "table_queries", ROOT / "examples" / "table_queries.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


QUESTIONS = examples().QUESTIONS


class Lake:
    """Small tables in a folder, and the rows that were written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = TableStore.at(folder)
        self.rows: Rows = write_small_lake(self.store)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with TableQuery(self.store, query) as found:
            return list(found.rows())

    def run(self, *arguments: str) -> str:
        done = CliRunner().invoke(pipeline, ["sql", *arguments, "--tables", str(self.folder)])
        assert done.exit_code == 0, done.output
        return done.stdout


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("lake") / "tables")


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted((name, _plain(value)) for name, value in row.items())) for row in rows)


def _plain(value: Any) -> Any:
    """Return a value as Python has it, whichever library gave it."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return None if value != value else int(value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, date) else value


@pytest.mark.parametrize("name", BY_NAME)
def test_the_log_pandas_and_duckdb_show_the_rows_that_were_written(lake: Lake, name: str) -> None:
    wanted = in_order(lake.rows[name])
    table = open_table(lake.store, name)
    assert table is not None
    frame = table.to_pandas().astype(object)
    with TableQuery(lake.store, f"SELECT * FROM {name}") as found:
        asked = [dict(zip(found.names, row, strict=True)) for row in found.rows()]

    assert in_order(read_rows(lake.folder / name)) == wanted
    assert in_order(frame.to_dict("records")) == wanted
    assert in_order(asked) == wanted


def test_the_verdicts_are_counted_alike(lake: Lake) -> None:
    by_log = sorted(row["verdict"] for row in read_rows(lake.folder / "messages"))
    by_sql = [verdict for (verdict,) in lake.ask("SELECT verdict FROM messages ORDER BY verdict")]

    assert by_sql == by_log
    assert len(set(by_log)) > 3


def test_the_comments_of_the_dictionary_stand_in_the_log(lake: Lake) -> None:
    for table in TABLES:
        found = read_log(lake.folder / table.name).columns
        assert {name: text for name, text in found.items() if name != "day"} == {
            one.name: one.about for one in table.columns
        }


@pytest.mark.parametrize("question", QUESTIONS, ids=[question.title for question in QUESTIONS])
def test_pandas_and_duckdb_answer_each_question_alike(lake: Lake, question: Any) -> None:
    frames = {}
    for name in question.tables:
        table = open_table(lake.store, name)
        assert table is not None
        frames[name] = table.to_pandas()
    by_pandas = question.pandas(frames).astype(object).to_numpy().tolist()

    by_duckdb = lake.ask(question.duckdb)

    assert [_plain(row) for row in by_duckdb] == [_plain(row) for row in by_pandas]
    assert by_duckdb


def test_there_are_ten_questions() -> None:
    assert len(QUESTIONS) == len({question.title for question in QUESTIONS}) == 10


def test_the_command_prints_lines_for_people_json_and_csv(lake: Lake) -> None:
    query = "SELECT kind, since_ms, detail, day FROM alerts"
    detail = "=1+1, a text that a spreadsheet would take for a formula"

    people = lake.run(query).splitlines()
    assert people[0].split() == ["kind", "since_ms", "detail", "day"]
    assert people[1].startswith("expired")
    assert people[1].endswith("2026-01-30")
    assert json.loads(lake.run(query, "--json")) == {
        "kind": "expired",
        "since_ms": 1_769_731_200_000,
        "detail": detail,
        "day": "2026-01-30",
    }
    header, row = csv.reader(io.StringIO(lake.run(query, "--csv")))
    assert header == ["kind", "since_ms", "detail", "day"]
    assert row[2] == f"'{detail}"


def test_bytes_lists_and_what_is_not_there_have_a_form(lake: Lake) -> None:
    line = lake.run("SELECT raw, [1, 2] AS several, NULL AS nothing FROM quarantine LIMIT 1", "--json")

    found = json.loads(line)
    assert found["raw"].startswith("00ff")
    assert found["several"] == [1, 2]
    assert found["nothing"] is None


def test_values_that_json_does_not_have_are_texts_and_no_column_is_lost(lake: Lake) -> None:
    times = "TIME '12:30' AS a, INTERVAL '36 hours' AS b, TIMESTAMPTZ '2026-01-31 00:00:00+00' AS c"
    odd = "UUID '00000000-0000-0000-0000-000000000001' AS d, 'nan'::DOUBLE AS e, 1 / 0 AS f, MAP {1: 2.50::DECIMAL(5, 2)} AS g"

    line = lake.run(f"SELECT {times}, {odd}, 1 AS h, 2 AS h", "--json")

    assert json.loads(line, parse_constant=lambda name: pytest.fail(name)) == {
        **{"a": "12:30:00", "b": "1 day, 12:00:00", "c": "2026-01-31T00:00:00+00:00"},
        **{"d": "00000000-0000-0000-0000-000000000001", "e": "nan", "f": "inf", "g": {"1": 2.5}},
        **{"h": 1, "h_1": 2},
    }


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT '\udcff'", "UTF-8"),
        ("SELEKT 1", "syntax error"),
        ("SELECT nothing FROM messages", "nothing"),
        ("SELECT * FROM letters", "letters"),
        ("DROP VIEW messages", "only read"),
        ("COPY messages TO 'out.csv'", "only read"),
        ("SET memory_limit = '1TB'", "only read"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("", "0 statements"),
        ("SELECT * FROM read_csv('/etc/passwd')", "disabled"),
        ("SELECT * FROM read_parquet('*.parquet')", "disabled"),
        ("SELECT * FROM lake", "lake"),
        ("SELECT error('stop') FROM messages", "stop"),
    ],
)
def test_a_query_that_is_not_valid_is_refused_in_one_sentence(lake: Lake, query: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        lake.ask(query)

    assert "\n" not in refused.value.text


def test_a_folder_without_tables_is_named(tmp_path: Path) -> None:
    for ask in (lambda store: TableQuery(store, "SELECT 1"), statements):
        with pytest.raises(StorageError, match=f"there are no tables in {tmp_path}"):
            ask(TableStore.at(tmp_path))


def test_tables_are_shown_at_the_versions_that_belong_together(tmp_path: Path) -> None:
    import pyarrow as pa

    from stagepost.pipeline.tables.delta import Commit, LakeTable
    from stagepost.pipeline.tables.manifest import COMMITS, Manifest

    lake = Lake(tmp_path / "tables")
    whole = lake.ask("SELECT count(*) FROM messages")
    commits = LakeTable(lake.store, COMMITS, pa.schema([("number", pa.int64())]))
    commits.commit(Commit(account=msgspec.to_builtins(Manifest(versions={"messages": 1}))))

    assert whole == [(60,)]
    assert lake.ask("SELECT count(*) FROM messages") == [(30,)]


def test_the_statements_of_the_catalog_name_every_table(lake: Lake, tmp_path: Path) -> None:
    found = statements(lake.store)

    assert found[0] == "CREATE SCHEMA IF NOT EXISTS stagepost"
    assert len(found) == 1 + len(TABLES)
    place = f"file://{lake.folder}/messages"
    assert found[1] == f"CREATE TABLE IF NOT EXISTS stagepost.messages USING DELTA LOCATION '{place}'"
    done = CliRunner().invoke(pipeline, ["catalog", "--tables", str(lake.folder), "--database", "lake"])
    assert done.stdout.splitlines()[0] == "CREATE SCHEMA IF NOT EXISTS lake;"
    with pytest.raises(ConfigError, match="is not a valid name of a schema"):
        statements(lake.store, "x; DROP TABLE y")
    assert spark_address(TableStore.at("s3://lake/tables"), "messages") == "s3a://lake/tables/messages"


@pytest.fixture
def on_object_storage() -> Iterator[tuple[TableStore, Path]]:
    with object_storage() as storage:
        yield (
            TableStore.at(storage.address("tables"), storage.options),
            storage.folder / "lake" / "tables",
        )


@pytest.mark.xdist_group("object storage")
def test_tables_on_object_storage_are_read_alike(on_object_storage: tuple[TableStore, Path]) -> None:
    store, folder = on_object_storage
    rows = write_small_lake(store)

    with TableQuery(store, "SELECT message_id, verdict FROM messages ORDER BY message_id") as found:
        asked = list(found.rows())

    assert asked == sorted((row["message_id"], row["verdict"]) for row in rows["messages"])
    assert asked == sorted((row["message_id"], row["verdict"]) for row in read_rows(folder / "messages"))
    with TableQuery(
        store, f"SELECT verdict FROM messages WHERE message_id = '{name_of('message', 7)}'"
    ) as one:
        assert len(list(one.rows())) == 1


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = json.loads((ROOT / "examples" / "tables.ipynb").read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    monkeypatch.setenv("STAGEPOST_TABLES", str(lake.folder))
    names: dict[str, Any] = {}

    for cell in code:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)

    shown = capsys.readouterr().out
    last = sum(row["day"] == "2026-02-01" for row in lake.rows["messages"])
    assert f"3 days; {last} messages on 2026-02-01" in shown
    assert "finalized" in shown
    assert "message_id: Hash of the external message" in shown
    most = max(row["silent"] for row in lake.rows["validators"])
    assert f" {most} " in shown.split("session v silent messages\n")[1].splitlines()[0]
