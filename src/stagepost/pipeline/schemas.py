"""The columns of every step and table, written out, and rows of plain Python as Arrow columns and small tables of Spark.

Times are Unix milliseconds, ids are hexadecimal text in small letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from stagepost.pipeline.dictionary import BY_NAME
from stagepost.remp.receipts.status import Stage

_text, _long, _int, _bytes, _flag = StringType(), LongType(), IntegerType(), BinaryType(), BooleanType()
_TYPES: dict[str, DataType] = {
    **{"string": _text, "long": _long, "integer": _int, "binary": _bytes, "boolean": _flag},
    **{"double": DoubleType(), "array<integer>": ArrayType(_int)},
}
"""Types by their names in the dictionary."""

STAGES = tuple(stage.value for stage in Stage)
"""Stages of a message's life, in order; each has a column `<stage>_ms`."""


def _schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable=True) for name, kind in columns.items()])


def _table(name: str) -> StructType:
    """Return the schema of a table of the dictionary."""
    return _schema(**{column.name: _TYPES[column.type] for column in BY_NAME[name].columns})


_stages: dict[str, DataType] = {f"{stage}_ms": _long for stage in STAGES}
_proved: dict[str, DataType] = {"proof": _text, "proof_block": _long, "executed_as": _text}

RAW = _schema(
    topic=_text,
    partition=_int,
    offset=_long,
    arrived_ms=_long,
    key=_text,
    value=_bytes,
    is_fault=_flag,
    session_hint=_text,
    delivery_id=_text,
    dmq_id=_text,
    origin=_text,
)
"""A record as read. `is_fault`: the line itself was not a record, and `value` is that line. `origin`: local,
or the peer.
"""

_checked = _schema(
    reason=_text,
    message_id=_text,
    signed_hash=_text,
    raw_hash=_text,
    source_id=_text,
    timestamp_ms=_long,
)
RECORDS = StructType([*RAW.fields, *_checked.fields])
"""A record with the result of its checks: `reason` is null for one that passes. Hashes are the first sixteen
bytes of SHA-256, in hexadecimal digits.
"""

STATE = _schema(
    message_id=_text,
    source_id=_text,
    role=_text,
    session_hint=_text,
    wc=_int,
    shard=_text,
    last=DecimalType(21, 0),
    last_ms=_long,
    first_ms=_long,
    has_finalized=_flag,
    **_stages,
    total_validators=_int,
    delivery_id=_text,
    dmq_id=_text,
    signed_hashes=ArrayType(_text),
    **_proved,
)
"""The kept content of receipts: maxima, minima and sets, so that a join of two states is free of order and
may be repeated.

`last` is the greatest (time, level, rank) as one number, 64 · time + 8 · level + rank: Spark's quick way of
grouping takes the maximum of numbers, and not of structures. A validator's row has its last status and its
time; a message has one row more for all validators together and one for all full nodes, without a source,
with stages, ids and hashes. For quarantined records it has another row, in which `signed_hashes` are those of
the raw values. Each proof that holds is a row, too, with the end that it shows.
"""

MESSAGES = _table("messages")
_life = _schema(
    verdict_alive=_text, verdict_over=_text, first_seen_ms=_long, days=ArrayType(_text), ends=ArrayType(_text)
)
MESSAGE_ROWS = StructType([*MESSAGES.fields, *_life.fields, *_schema(open_since_ms=_long).fields])
"""The table `messages` as it is stored: with the verdict while the message lives, the verdict when its life is over, and
the time from which that is counted, so that it can be shown for another moment. `days` are the days on which its receipts
arrived, the first of which is that of the message. `ends` are the different ends that proofs show: more than one is a
contradiction. `open_since_ms` is `first_seen_ms` until the end of the life has been entered, where that changes the verdict or
leaves a Finalized without a proof, and null otherwise: the list of what is due.
"""

LIVES = StructType(
    [
        *(field for field in MESSAGES.fields if field.name != "verdict"),
        *_life.fields,
        *_schema(receipts_before=_long, day=_text, day_before=_text).fields,
    ]
)
"""`messages` without the moment, as it is evaluated. `receipts_before` were known to the batches before, under the day
`day_before`.
"""

TABLES = {name: _table(name) for name in BY_NAME}
"""Schemas of the tables that people read, by name."""

RECEIPTS, QUARANTINE, PROOFS = TABLES["receipts"], TABLES["quarantine"], TABLES["proofs"]

STORED = {**TABLES, "messages": MESSAGE_ROWS, "records": RECORDS, "state": STATE}
"""Schemas of the tables that are stored, by name, without the column `day` that each of them has as its last."""


def with_day(schema: StructType) -> StructType:
    """Return a stored table's schema as it is read: with the day as text."""
    return StructType([*schema.fields, StructField("day", _text, nullable=True)])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema, with small offsets, as Spark declares the batches that it takes."""
    return to_arrow_schema(schema)


def arrays_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    return arrays_of_columns(zip(*rows, strict=True) if rows else [()] * len(schema), schema)


def arrays_of_columns(columns: Iterable[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    return [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]


def batch_of(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays_of(rows, schema), schema=schema)


def small_table(spark: SparkSession, rows: Sequence[Sequence[Any]], columns: StructType | str) -> DataFrame:
    """Return a small table, which is part of the plan itself and needs no job and no worker. `columns` as Spark writes them: name
    and type, separated by commas.
    """
    schema = StructType.fromDDL(columns) if isinstance(columns, str) else columns
    arrow = arrow_schema(schema)
    return spark.createDataFrame(pa.Table.from_arrays(arrays_of(rows, arrow), schema=arrow), schema)
