"""Checks of records and writing of them into files, in one step of Spark's workers; the step returns only an
account of it.

A record enters a worker once and leaves it as a row of a Parquet file. Sending it back through the JVM, to be
written there and read again for its state, costs more processor time than anything but the signatures
themselves. A task writes files that no other attempt shares, by table and day, and they count once they are
committed: a task that fails, or is run twice, leaves only files that no commit names.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stagepost.pipeline.schemas import (
    QUARANTINE,
    RAW,
    RECEIPTS,
    RECORDS,
    STATE,
    arrays_of,
    arrays_of_columns,
    arrow_schema,
)
from stagepost.pipeline.sources.dumps import Record
from stagepost.pipeline.steps.other_checks import OtherChecks
from stagepost.pipeline.steps.partial_state import ROWS_MAX, PartialState
from stagepost.pipeline.steps.record_checks import ROLES, Checked, RecordChecks
from stagepost.pipeline.tables import manifest as tables
from stagepost.pipeline.tables.delta import BYTES_PER_ROW_GROUP, DataFile, DayFile, day_of
from stagepost.pipeline.tables.manifest import Batch
from stagepost.pipeline.tables.store import TableStore
from stagepost.remp.receipts.status import KINDS
from stagepost.remp.validator_sets import Role, ValidatorSets, parse_validator_sets
from stagepost.topics import topic as topics

ROWS_PER_BATCH = 4_096

DAYS_OPEN_MAX = 32
"""Days, at most, whose files a task keeps open at a time; a dump of more days gets more files."""

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
_REPEATING_IN_RECEIPTS = [
    name for name in RECEIPTS.fieldNames() if name not in ("timestamp_ms", "signed_hash")
]
_MEANINGS = {kind.name: (int(kind.level), kind.status.value) for kind in KINDS}
_NO_MEANING = (None, None)

Batches = Iterator[pa.RecordBatch]
Part = TypeVar("Part")
"""Piece of a dump, or range of a topic."""


class Rows(NamedTuple):
    """The same rows twice: as Arrow columns of `schemas.RAW`, and one by one."""

    columns: Sequence[pa.Array]
    records: Sequence[Record]


class Target(NamedTuple):
    """Destination of the files of one batch: the store, the mark that their names begin with, and the day of records that
    say nothing of when they arrived.
    """

    store: TableStore
    mark: str
    day: str


def checking_raw(sets_file: bytes, target: Target) -> Callable[[Batches], Batches]:
    """Return a function that checks rows with the columns of `schemas.RAW`."""

    def check(batches: Batches) -> Batches:
        yield from _accounted(map(_rows_of_batch, batches), sets_file, target)

    return check


def checking_parts(
    parts: Sequence[Part], read: Callable[[Part], Iterator[Record]], sets_file: bytes, target: Target
) -> Callable[[Batches], Batches]:
    """Return a function that reads and checks parts of the input; the rows that come in are their numbers."""

    def check(batches: Batches) -> Batches:
        numbers = (number for batch in batches for number in batch.column(0).to_pylist())
        rows = (rows for number in numbers for rows in rows_of(read(parts[number])))
        yield from _accounted(rows, sets_file, target)

    return check


def _rows_of_batch(batch: pa.RecordBatch) -> Rows:
    columns = [batch.column(name) for name in RAW.fieldNames()]
    return Rows(columns, [Record(*row) for row in zip(*(one.to_pylist() for one in columns), strict=True)])


def rows_of(records: Iterator[Record]) -> Iterator[Rows]:
    """Yield records in batches, as `CheckedFiles` takes them."""
    schema = arrow_schema(RAW)
    while rows := list(islice(records, ROWS_PER_BATCH)):
        yield Rows(arrays_of(rows, schema), rows)


def _accounted(given: Iterable[Rows], sets_file: bytes, target: Target) -> Batches:
    # What the loop makes holds no cycles; looking for them again and again among 100,000 rows costs a tenth of the time.
    gc.disable()
    try:
        task = CheckedFiles(_sets(sets_file), target)
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
    """The files of one task: of each day one of records, receipts and quarantine, and one or more of their state."""

    def __init__(self, sets: ValidatorSets, target: Target) -> None:
        self._checks = RecordChecks(sets)
        self._other_checks = OtherChecks()
        self._target = target
        self._days: dict[str, _Day] = {}
        self._files: list[DataFile] = []
        self._reasons: Counter[str] = Counter()
        self._other_reasons: Counter[str] = Counter()
        self._rows = self._passing = self._other_rows = self._proof_parts = 0
        self._greatest_arrival_ms = self._greatest_full_node_ms = -1

    def take(self, rows: Rows) -> None:
        if not rows.records:
            return
        checked = [self._checked(record) for record in rows.records]
        days = [
            day_of(record.arrived_ms) or day_of(found.timestamp_ms) or self._target.day
            for record, found in zip(rows.records, checked, strict=True)
        ]
        for record, found, day in zip(rows.records, checked, days, strict=True):
            if record.topic == topics.STATUSES:
                self._day(day).state.add(record, found)
        whole = _checked_rows(rows.columns, checked)
        wanted = set(days)
        for day in wanted:
            part = whole if len(wanted) == 1 else whole.filter(pa.array([one == day for one in days]))
            self._day(day).take(part)
        if len(self._days) > DAYS_OPEN_MAX:
            self._close_days()

    def _day(self, day: str) -> _Day:
        found = self._days.get(day)
        if found is None:
            found = self._days[day] = _Day(self._target, day)
        return found

    def _checked(self, record: Record) -> Checked:
        if record.topic != topics.STATUSES:
            self._other_rows += 1
            other = self._other_checks.check(record.topic, record.key, record.value)
            if other.reason is not None:
                self._other_reasons[other.reason] += 1
            elif record.topic == topics.PROOFS:
                self._proof_parts += 1
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
        return found

    def _close_days(self) -> None:
        for day in self._days.values():
            self._files += day.close()
        self._days = {}

    def close(self) -> Batch:
        """Write everything durably and return the account."""
        self._close_days()
        return Batch(
            self._files,
            rows=self._rows,
            passing=self._passing,
            quarantined=dict(self._reasons),
            other_rows=self._other_rows,
            other_quarantined=dict(self._other_reasons),
            proof_parts=self._proof_parts,
            greatest_arrival_ms=_or_none(self._greatest_arrival_ms),
            greatest_full_node_ms=_or_none(self._greatest_full_node_ms),
        )


class _Day:
    """The rows and files of one day in one task."""

    def __init__(self, target: Target, day: str) -> None:
        self._target, self._name = target, day
        self.state = PartialState()
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._writers: dict[str, DayFile] = {}
        self._files: list[DataFile] = []

    def take(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= BYTES_PER_ROW_GROUP:
            self._write_rows()
        if len(self.state) >= ROWS_MAX:
            self._write_state()

    def close(self) -> list[DataFile]:
        self._write_rows()
        self._write_state()
        return [*self._files, *(writer.close() for writer in self._writers.values())]

    def _write_rows(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        is_bad = pc.is_valid(rows["reason"])
        counts = pc.and_(pc.invert(is_bad), pc.equal(rows["topic"], topics.STATUSES))
        # Proofs in a row group of their own: they are read again, and nothing else with them.
        is_proof = pc.equal(rows["topic"], topics.PROOFS)
        self._write(tables.RECORDS, arrow_schema(RECORDS), _REPEATING, rows, pc.invert(is_proof))
        self._write(tables.RECORDS, arrow_schema(RECORDS), _REPEATING, rows, is_proof)
        self._write(tables.RECEIPTS, arrow_schema(RECEIPTS), _REPEATING_IN_RECEIPTS, rows, counts)
        bad = rows.append_column("raw", rows["value"])
        self._write(tables.QUARANTINE, arrow_schema(QUARANTINE), True, bad, is_bad)

    def _write(
        self,
        table: str,
        schema: pa.Schema,
        repeating: list[str] | bool,
        rows: pa.Table,
        which: pa.ChunkedArray,
    ) -> None:
        """Write those rows of which `which` is true; most often these are all or none, and then no column is copied."""
        count = pc.sum(which).as_py() or 0
        if not count:
            return
        some = rows.select(schema.names)
        if count < len(rows):
            some = some.filter(which)
        writer = self._writers.get(table)
        if writer is None:
            writer = DayFile(
                self._target.store, table, self._name, schema, repeating, count, self._target.mark
            )
            self._writers[table] = writer
        writer.write(some.cast(schema))

    def _write_state(self) -> None:
        if not len(self.state):
            return
        schema = arrow_schema(STATE)
        target = self._target
        file = DayFile(
            target.store, tables.STATE, self._name, schema, _REPEATING_IN_STATE, len(self.state), target.mark
        )
        for columns in self.state.parts():
            file.write(pa.Table.from_arrays(arrays_of_columns(columns, schema), schema=schema))
        self._files.append(file.close())
        self.state = PartialState()


def _checked_rows(given: Sequence[pa.Array], checked: Sequence[Checked]) -> pa.Table:
    """Return the columns of records and of receipts in one table."""
    names = list(RAW.fieldNames())
    arrays = list(given)
    columns = dict(zip(Checked._fields, zip(*checked, strict=True), strict=True))
    meanings = [_MEANINGS.get(kind or "", _NO_MEANING) for kind in columns["kind"]]
    columns["level"], columns["status"] = zip(*meanings, strict=True)
    schema = pa.unify_schemas([arrow_schema(RECORDS), arrow_schema(RECEIPTS)])
    for field in schema:
        if field.name not in names:
            names.append(field.name)
            arrays.append(pa.array(columns[field.name], field.type))
    return pa.Table.from_arrays(arrays, names=names)


def _or_none(greatest: int) -> int | None:
    return None if greatest < 0 else greatest
