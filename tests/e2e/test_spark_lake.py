"""Spark with Delta reads the tables as every other reader does, names them in its catalog, and finds our source by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="the extra spark brings it")

from examples.table_queries import QUESTIONS, answer
from rigs.optional import require
from stagepost.errors import ConfigError
from stagepost.pipeline.dictionary import BY_NAME, DAY_ENTRY
from stagepost.pipeline.tables.query import as_json_value
from stagepost.pipeline.tables.store import TableStore
from stagepost.topics.kafka.jars import Artifacts, default_folder, fetch_jars
from tests.worlds.pipeline.delta_log_reader import read_rows
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_topics import a_topic
from tests.worlds.pipeline.pipeline_world import a_dump
from tests.worlds.pipeline.small_lake import write_small_lake
from tests.worlds.pipeline.spark_lake_process import read_by_spark

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]  # Sparks in processes of their own

MESSAGES = 2
TRIED_SPARK = "4.2."
"""Beginning of the release of Spark for which Delta is published."""


class SparkSays:
    """Everything that one Spark with Delta said, beside the tables and topics that it read."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.store = TableStore.at(folder / "tables")
        write_small_lake(self.store)
        data = folder / "data"
        self.records = len(a_topic(data, a_dump(MESSAGES, seed)).read_bytes().splitlines())
        self.found: dict[str, Any] = read_by_spark(folder / "tables", delta_jars(), data, folder)


def delta_jars() -> list[Path]:
    need_packages()
    import pyspark

    if not pyspark.__version__.startswith(TRIED_SPARK):
        require(
            "java", f"Delta Lake is published for Spark {TRIED_SPARK}x, and not for {pyspark.__version__}"
        )
    try:
        return fetch_jars(Artifacts.DELTA, default_folder(os.environ), os.environ)
    except ConfigError as error:
        require("java", error.text)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, run_seed: int) -> SparkSays:
    return SparkSays(tmp_path_factory.mktemp("lake"), run_seed)


def as_texts(rows: list[list[Any]]) -> list[str]:
    return sorted(map(repr, rows))


def test_spark_shows_the_rows_that_the_log_names(spark: SparkSays) -> None:
    for name, entry in BY_NAME.items():
        columns = [*(one.name for one in entry.columns), DAY_ENTRY.name]
        logged = [
            [as_json_value(row[one]) for one in columns] for row in read_rows(spark.store.folder / name)
        ]
        assert as_texts(spark.found["rows"][f"stagepost.{name}"]) == as_texts(logged), name
    assert len(spark.found["rows"]["stagepost.messages"]) == 60


def test_spark_sql_answers_the_ten_questions_like_duckdb(spark: SparkSays) -> None:
    for question in QUESTIONS:
        by_duckdb = [[as_json_value(value) for value in row] for row in answer(spark.store, question)]
        assert spark.found["answers"][question.title] == by_duckdb, question.title
    assert len(QUESTIONS) == 10


def test_the_tables_are_in_the_catalog_with_their_comments(spark: SparkSays) -> None:
    assert spark.found["names"] == [f"stagepost.{name}" for name in BY_NAME]
    assert spark.found["again"] == spark.found["names"]
    for column in (*BY_NAME["messages"].columns,):
        assert spark.found["comments"][column.name] == column.about


def test_spark_finds_the_source_of_topics_without_a_registration(spark: SparkSays) -> None:
    assert spark.found["topics"] == spark.records > 0
