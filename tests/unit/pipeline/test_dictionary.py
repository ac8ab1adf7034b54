"""The data dictionary has every column of every table, with its type, and its page is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stagepost.pipeline.dictionary import BY_NAME, COMMENT, TABLES, ColumnEntry, about, commented
from stagepost.remp.receipts.status import Level, Stage, Status
from stagepost.remp.verdict.verdict import Conclusion
from tests.worlds.pipeline.pipeline_spark import need_packages
from tools.tables_docs import page

ROOT = Path(__file__).parents[3]


def entry(table: str, name: str) -> ColumnEntry:
    return next(one for one in BY_NAME[table].columns if one.name == name)


def test_it_has_the_columns_and_types_of_every_table() -> None:
    need_packages()
    from stagepost.pipeline import schemas

    for name, schema in schemas.TABLES.items():
        found = [(one.name, one.type) for one in BY_NAME[name].columns]
        wanted = [
            (field.name, str(field.dataType.jsonValue()) if not is_list(field) else "array<integer>")
            for field in schema.fields
            if field.name != "day"
        ]
        assert found == wanted, name
    assert set(BY_NAME) == set(schemas.TABLES)


def is_list(field: object) -> bool:
    from pyspark.sql.types import ArrayType, IntegerType

    kind = getattr(field, "dataType", None)
    return isinstance(kind, ArrayType) and isinstance(kind.elementType, IntegerType)


def test_every_row_and_column_is_explained_in_a_sentence() -> None:
    texts = [text for table in TABLES for text in (table.about, *(one.about for one in table.columns))]

    assert [text for text in texts if len(text) < 10 or not text.endswith(".")] == []
    assert len(BY_NAME) == len(TABLES)


def test_every_time_says_its_unit() -> None:
    times = [one for table in TABLES for one in table.columns if one.name.endswith(("_ms", "_at"))]

    assert len(times) >= 15
    assert [
        one.name for one in times if one.type == "long" and not re.search(r"\bms\b|seconds", one.about)
    ] == []


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("messages", "verdict", {one.value for one in Conclusion}),
        ("receipts", "status", {one.value for one in Status}),
        ("stage_latency", "stage", {one.value for one in Stage} - {"sent"}),
        ("receipts", "level", {str(int(one)) for one in Level}),
    ],
)
def test_a_column_of_fixed_values_names_them_all(table: str, column: str, values: set[str]) -> None:
    words = set(re.findall(r"[\w]+", entry(table, column).about))

    assert values <= words


def test_the_comments_stand_in_the_schema_and_strangers_stay_as_they_are() -> None:
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("message_id", pa.string()), ("day", pa.date32()), ("of_ours", pa.int64())])

    found = commented("messages", schema)

    assert found.field("message_id").metadata == {
        COMMENT.encode(): entry("messages", "message_id").about.encode()
    }
    assert b"UTC" in found.field("day").metadata[COMMENT.encode()]
    assert found.field("of_ours").metadata is None
    assert found.equals(schema)
    assert commented("state", schema) is schema
    assert about("state") is None
    assert about("messages") == BY_NAME["messages"].about


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "tables.md").read_text(encoding="utf-8") == page(), "run `make docs`"
