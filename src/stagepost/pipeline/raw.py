"""Records as read from dumps: one row for each line, whatever it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stagepost.pipeline.arrow_columns import arrow_schema, batch_of
from stagepost.pipeline.dump_lines import Record, read_line
from stagepost.pipeline.dumps import Dump, Piece, lines_of
from stagepost.pipeline.schemas import RAW

ROWS_PER_BATCH = 4_096

Batches = Iterator[pa.RecordBatch]


def dump_records(spark: SparkSession, dumps: Sequence[Dump]) -> DataFrame:
    """One task for each piece: the pieces themselves are all that travels to the workers."""
    pieces = tuple(chain.from_iterable(dump.pieces for dump in dumps))
    if not pieces:
        return spark.createDataFrame([], RAW)
    numbers = spark.range(0, len(pieces), 1, len(pieces))
    return numbers.mapInArrow(_reading(pieces), RAW)


def _reading(pieces: tuple[Piece, ...]) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        schema = arrow_schema(RAW)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                records = _records(pieces[number])
                while rows := list(islice(records, ROWS_PER_BATCH)):
                    yield batch_of(rows, schema)

    return read


def _records(piece: Piece) -> Iterator[Record]:
    for number, line in enumerate(lines_of(piece), start=piece.line):
        yield read_line(line, number)
