"""Records with what the checks say of them: every row that came in goes out, with a reason where it does not pass.

Copies are not dropped by a shuffle: a task checks the signature of a receipt once, whatever number of copies it sees,
and each copy is entered like the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from stagepost.pipeline import topics
from stagepost.pipeline.arrow_columns import arrays_of, arrow_schema
from stagepost.pipeline.record_checks import NOT_CHECKED, RecordChecks
from stagepost.pipeline.schemas import RAW, RECORDS, expect
from stagepost.remp.validator_sets import parse_validator_sets

Batches = Iterator[pa.RecordBatch]


def with_checks(raw: DataFrame, sets_file: bytes) -> DataFrame:
    """`sets_file` is the content of the validator-sets file, which travels to every worker with the step."""
    return expect(raw, RAW).mapInArrow(_checking(sets_file), RECORDS)


def passing(records: DataFrame) -> DataFrame:
    """Receipts that count, copies included."""
    return records.where((F.col("topic") == topics.STATUSES) & F.col("reason").isNull())


def quarantined(records: DataFrame) -> DataFrame:
    return records.where(F.col("reason").isNotNull())


def _checking(sets_file: bytes) -> Callable[[Batches], Batches]:
    def check(batches: Batches) -> Batches:
        checks = RecordChecks(parse_validator_sets(sets_file, "validator sets"))
        schema = arrow_schema(RECORDS)
        added = arrow_schema(StructType(RECORDS.fields[len(RAW.fields) :]))
        for batch in batches:
            names = ("topic", "key", "value", "arrived_ms", "is_fault")
            given = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            rows = [
                checks.check(key, value, arrived_ms, is_fault=bool(is_fault))
                if topic == topics.STATUSES
                else NOT_CHECKED
                for topic, key, value, arrived_ms, is_fault in given
            ]
            # What was read stays where it is in memory; only the answers are new.
            yield pa.RecordBatch.from_arrays([*batch.columns, *arrays_of(rows, added)], schema=schema)

    return check
