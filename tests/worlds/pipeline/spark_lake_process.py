"""A Spark with Delta in a process of its own, which says as JSON what it reads.

    python -m tests.worlds.pipeline.spark_lake_process TABLES JARS DATA WORK

registers the tables in its catalog, reads every one, answers the ten questions of the examples, and reads the topics of
DATA by `format("stagepost")` without a call of `register`. JARS are paths with commas; WORK is for Spark's own files.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stagepost.pipeline.tables.query import as_json_value
from tests.worlds.pipeline.pipeline_spark import SETTINGS

ENDS_WITHIN_S = 900


def main(tables: str, jars: str, data: str, work: str) -> None:
    from examples.table_queries import QUESTIONS
    from stagepost.pipeline.catalog import SETTINGS as DELTA
    from stagepost.pipeline.catalog import register_tables
    from stagepost.pipeline.spark import start_session
    from stagepost.pipeline.tables.store import TableStore

    places = {"spark.jars": jars, "spark.sql.warehouse.dir": f"{work}/warehouse"}
    spark = start_session("lake", master="local[2]", settings={**SETTINGS, **DELTA, **places}, is_short=True)
    # Before anything else of ours is named: Spark finds the source in its Python path.
    topics = spark.read.format("stagepost").load(data).count()
    names = register_tables(spark, TableStore.at(tables))
    again = register_tables(spark, TableStore.at(tables))
    spark.sql("USE stagepost")
    rows = {name: _rows(spark.sql(f"SELECT * FROM {name}").collect()) for name in names}
    answers = {question.title: _rows(spark.sql(question.spark).collect()) for question in QUESTIONS}
    described = spark.sql("DESCRIBE TABLE stagepost.messages").collect()
    comments = {row["col_name"]: row["comment"] for row in described}
    found = {"topics": topics, "names": names, "again": again, "rows": rows, "answers": answers}
    print(json.dumps({**found, "comments": comments}))
    spark.stop()


def _rows(rows: Sequence[Any]) -> list[list[object]]:
    return [[as_json_value(value) for value in row] for row in rows]


def read_by_spark(tables: Path, jars: Sequence[Path], data: Path, work: Path) -> dict[str, Any]:
    """Run the process and return what it says."""
    arguments = [str(tables), ",".join(map(str, jars)), str(data), str(work)]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.worlds.pipeline.spark_lake_process", *arguments],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
