"""Registration of the Delta tables in Spark's catalog, so that people name them in SQL. Needs a Spark with Delta to run it.

spark = SparkSession.builder.config("spark.jars", …).config(map=SETTINGS).getOrCreate()  # `stagepost pipeline jars` prints them
register_tables(spark, TableStore.at("tables"))
spark.sql("SELECT verdict, count(*) FROM stagepost.messages GROUP BY verdict")
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.dictionary import BY_NAME
from stagepost.pipeline.tables.delta import open_table
from stagepost.pipeline.tables.store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABASE = "stagepost"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""Settings by which a Spark reads and names Delta tables."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def statements(store: TableStore, database: str = DATABASE) -> list[str]:
    """Return the SQL that registers every table of the dictionary that is in `store`."""
    if not _NAME.fullmatch(database):
        raise ConfigError(
            f"{database!r} is not a valid name of a schema",
            advice="give letters, digits and underscores, a letter first",
            found=database,
        )
    there = [name for name in BY_NAME if open_table(store, name) is not None]
    if not there:
        raise StorageError(
            f"there are no tables in {store.address}",
            advice="make them with `stagepost pipeline backfill` or `run`, or see --tables",
        )
    found = [f"CREATE SCHEMA IF NOT EXISTS {database}"]
    for name in there:
        place = spark_address(store, name).replace("\\", "\\\\").replace("'", "\\'")
        found.append(f"CREATE TABLE IF NOT EXISTS {database}.{name} USING DELTA LOCATION '{place}'")
    return found


def register_tables(spark: SparkSession, store: TableStore, database: str = DATABASE) -> list[str]:
    """Register the tables in the catalog of `spark`; those that are registered already stay. Return their names."""
    for statement in statements(store, database):
        spark.sql(statement)
    return [f"{database}.{name}" for name in BY_NAME if spark.catalog.tableExists(f"{database}.{name}")]


def spark_address(store: TableStore, table: str) -> str:
    """Return the address of a table as Spark's file systems name it."""
    address = store.of(table)
    return f"file://{address}" if store.is_local else re.sub(r"^s3://", "s3a://", address)
