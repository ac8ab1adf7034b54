"""One small Spark for all tests of a process; where there is none, tests skip with the reason."""

from __future__ import annotations

import atexit
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING

from rigs.optional import require
from stagepost.errors import ConfigError
from stagepost.pipeline.spark import refuse_missing_packages, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Small data: one partition for every shuffle, and no second thoughts about plans, cost least.
SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",
}


def small_spark() -> SparkSession:
    found = _started()
    if isinstance(found, str):
        require("java", found)
    return found


def need_packages() -> None:
    """Of the extra `spark`: for tests that need them, and no session."""
    try:
        refuse_missing_packages()
    except ConfigError as error:
        require("java", error.text)


@lru_cache(maxsize=1)
def _started() -> SparkSession | str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Spark's own imports; ours are looked at everywhere else
        try:
            spark = start_session("tests", master="local[2]", settings=SETTINGS, is_short=True)
        except ConfigError as error:
            return error.text
    atexit.register(spark.stop)
    return spark
