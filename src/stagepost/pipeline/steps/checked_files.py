"""Checks of records and writing of them into files, in one step of Spark's workers; the step returns only an
account of it.

A record enters a worker once and leaves it as a row of a Parquet file. Sending it back through the JVM, to be
written there and read again for its state, costs more processor time than anything but the signatures
themselves. A task writes files that no other attempt shares, and they count when the manifest names them: a
task that fails, or is run twice, leaves only files that no manifest names.
"""

from __future__ import annotations

import gc
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from stagepost.pipeline.schemas import RAW, RECORDS, STATE
from stagepost.pipeline.sources.dumps import Piece, Record, lines_of, read_line
from stagepost.pipeline.steps.columns import arrays_of, arrays_of_columns, arrow_schema
from stagepost.pipeline.steps.other_checks import OtherChecks
from stagepost.pipeline.steps.partial_state import ROWS_MAX, PartialState
from stagepost.pipeline.steps.record_checks import ROLES, Checked, RecordChecks
from stagepost.pipeline.tables.manifest import RECORDS as RECORD_FILES
from stagepost.pipeline.tables.manifest import STATE as STATE_FILES
from stagepost.pipeline.tables.manifest import Batch, sync_file
from stagepost.remp.validator_sets import Role, ValidatorSets, parse_validator_sets
from stagepost.topics import names as topics

ROWS_PER_BATCH = 4_096
BYTES_PER_ROW_GROUP = 32 * 1024 * 1024
"""Bytes that a task keeps in memory before it writes."""

IDS_BYTES_PER_ROW_GROUP = 8 * 1024 * 1024
"""Bytes for the distinct ids of a row group: enough that each id is written once and referred to by its
number.
"""

COMPRESSION = "zstd"
FULL_NODE = ROLES[Role.FULL_NODE]
ACCOUNT = "account string"
"""Schema of a task's result: one `Batch` as JSON."""

# Columns in which the same few values come again and again. Values of records are all different.
_REPEATING = [
    name
    for name in RECORDS.fieldNames()
    if name not in ("value", "offset", "arrived_ms", "signed_hash", "raw_hash", "timestamp_ms")
]

_REPEATING_IN_STATE = [name for name in STATE.fieldNames() if not name.endswith("_ms")]

Batches = Iterator[pa.RecordBatch]


class Rows(NamedTuple):
    """The same rows twice: as Arrow columns of `schemas.RAW`, and one by one."""

    columns: Sequence[pa.Array]
    records: Sequence[Record]


def checking_raw(sets_file: bytes, place: str, root: str) -> Callable[[Batches], Batches]:
    """Return a function that checks rows with the columns of `schemas.RAW`. Files go into `place` and are
    named relative to `root`.
    """

    def check(batches: Batches) -> Batches:
        yield from _accounted(map(_rows_of_batch, batches), sets_file, place, root)

    return check


def checking_pieces(
    pieces: Sequence[Piece], sets_file: bytes, place: str, root: str
) -> Callable[[Batches], Batches]:
    """Return a function that checks pieces of dumps; the rows that come in are their numbers."""

    def check(batches: Batches) -> Batches:
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        lines = (rows for number in numbers for rows in _rows_of_piece(pieces[number]))
        yield from _accounted(lines, sets_file, place, root)

    return check


def _rows_of_batch(batch: pa.RecordBatch) -> Rows:
    columns = [batch.column(name) for name in RAW.fieldNames()]
    return Rows(columns, [Record(*row) for row in zip(*(one.to_pylist() for one in columns), strict=True)])


def _rows_of_piece(piece: Piece) -> Iterator[Rows]:
    schema = arrow_schema(RAW)
    records = (read_line(line, number) for number, line in enumerate(lines_of(piece), start=piece.line))
    while rows := list(islice(records, ROWS_PER_BATCH)):
        yield Rows(arrays_of(rows, schema), rows)


def _accounted(given: Iterable[Rows], sets_file: bytes, place: str, root: str) -> Batches:
    # What the loop makes holds no cycles; looking for them again and again among 100,000 rows costs a tenth of the time.
    gc.disable()
    try:
        task = CheckedFiles(_sets(sets_file), place, root)
        for rows in given:
            task.take(rows)
        account = msgspec.json.encode(task.close()).decode("utf-8")
    finally:
        gc.enable()
    yield pa.RecordBatch.from_pydict({"account": [account]})


@lru_cache(maxsize=2)
def _sets(sets_file: bytes) -> ValidatorSets:
    """Return the parsed sets; kept, because a worker's tasks come one after another with the same sets."""
    return parse_validator_sets(sets_file, "validator sets")


class CheckedFiles:
    """The files of one task: one of records, and one or more of their state."""

    def __init__(self, sets: ValidatorSets, place: str, root: str) -> None:
        self._checks = RecordChecks(sets)
        self._other_checks = OtherChecks()
        self._schema, self._state_schema = arrow_schema(RECORDS), arrow_schema(STATE)
        self._added = arrow_schema(StructType(RECORDS.fields[len(RAW.fields) :]))
        self._state = PartialState()
        self._place, self._root = place, root
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._writer: ParquetFile | None = None
        self._files: dict[str, list[str]] = {RECORD_FILES: [], STATE_FILES: []}
        self._reasons: Counter[str] = Counter()
        self._other_reasons: Counter[str] = Counter()
        self._rows = self._passing = self._other_rows = 0
        self._greatest_arrival_ms = self._greatest_full_node_ms = -1

    def take(self, rows: Rows) -> None:
        checked = [self._checked(record) for record in rows.records]
        arrays = [*rows.columns, *arrays_of(checked, self._added)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        if self._waiting_bytes >= BYTES_PER_ROW_GROUP:
            self._write_records()
        if len(self._state) >= ROWS_MAX:
            self._write_state()

    def _checked(self, record: Record) -> Checked:
        if record.topic != topics.STATUSES:
            self._other_rows += 1
            other = self._other_checks.check(record.topic, record.key, record.value)
            if other.reason is not None:
                self._other_reasons[other.reason] += 1
            return other
        found = self._checks.check(
            record.key, record.value, record.arrived_ms, is_fault=bool(record.is_fault)
        )
        self._rows += 1
        if record.arrived_ms is not None and record.arrived_ms > self._greatest_arrival_ms:
            self._greatest_arrival_ms = record.arrived_ms
        if found.reason is not None:
            self._reasons[found.reason] += 1
        else:
            self._passing += 1
            if found.role == FULL_NODE and (time_ms := found.timestamp_ms or 0) > self._greatest_full_node_ms:
                self._greatest_full_node_ms = time_ms
        self._state.add(record, found)
        return found

    def close(self) -> Batch:
        """Write everything durably and return the account; the caller syncs the folder of the files."""
        self._write_records()
        self._write_state()
        if self._writer is not None:
            self._files[RECORD_FILES].append(self._writer.close())
        return Batch(
            self._files,
            rows=self._rows,
            passing=self._passing,
            quarantined=dict(self._reasons),
            other_rows=self._other_rows,
            other_quarantined=dict(self._other_reasons),
            greatest_arrival_ms=_or_none(self._greatest_arrival_ms),
            greatest_full_node_ms=_or_none(self._greatest_full_node_ms),
        )

    def _write_records(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._writer = ParquetFile(self._place, self._root, RECORD_FILES, self._schema, _REPEATING)
        self._writer.write(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._waiting_bytes = [], 0

    def _write_state(self) -> None:
        if len(self._state):
            file = ParquetFile(self._place, self._root, STATE_FILES, self._state_schema, _REPEATING_IN_STATE)
            for columns in self._state.parts():
                arrays = arrays_of_columns(columns, self._state_schema)
                file.write(pa.Table.from_arrays(arrays, schema=self._state_schema))
            self._files[STATE_FILES].append(file.close())
            self._state = PartialState()


class ParquetFile:
    """A new file under a name that no other file has."""

    def __init__(self, place: str, root: str, kind: str, schema: pa.Schema, repeating: list[str]) -> None:
        folder = os.path.join(place, kind)
        os.makedirs(folder, exist_ok=True)
        self._path = os.path.join(folder, f"{secrets.token_hex(8)}.parquet")
        self._root = root
        self._writer = pq.ParquetWriter(
            self._path,
            schema,
            compression=COMPRESSION,
            use_dictionary=repeating,
            dictionary_pagesize_limit=IDS_BYTES_PER_ROW_GROUP,
            store_schema=False,
        )

    def write(self, table: pa.Table) -> None:
        """Write one row group."""
        self._writer.write_table(table, row_group_size=max(1, len(table)))

    def close(self) -> str:
        self._writer.close()
        sync_file(self._path)
        return os.path.relpath(self._path, self._root)


def _or_none(greatest: int) -> int | None:
    return None if greatest < 0 else greatest
