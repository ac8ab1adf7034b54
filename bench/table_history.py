"""History made straight into the tables: as many receipts as are asked for, over days, without Spark and without signing.

The rows of one real message, checked by the pipeline's own step, are repeated with other ids, times and hashes. So the files
have the form and about the size that a year of batches and compaction leaves, and are there within a minute.

    python -m bench.table_history FOLDER --receipts 10000000 --days 20

prints how long it took, and how long the look-up of one message takes then, in a process that runs already.

    python -m bench.table_history FOLDER --plan

prints what `docs/scale.md` is computed from: the bytes of a receipt in each table, and what one more file in a table's log
costs every commit and every listing, in processor time.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.receipts import RECEIPTS_PER_MESSAGE, SETS, receipts
from rigs.receipt_lines import EPOCH_MS
from stagepost.pipeline.schemas import MESSAGE_ROWS, RAW, STORED, arrays_of, arrow_schema
from stagepost.pipeline.sources.dumps import Record
from stagepost.pipeline.steps.checked_files import CheckedFiles, Rows, Target
from stagepost.pipeline.tables.delta import DAY_MS, Commit, DataFile, DayFile, LakeTable, day_of
from stagepost.pipeline.tables.look_up import stored_message
from stagepost.pipeline.tables.manifest import Batch, Reports, keep_sets
from stagepost.pipeline.tables.store import TableStore
from stagepost.pipeline.tables.tables import Tables
from stagepost.remp.validator_sets import parse_validator_sets
from stagepost.topics.topic import STATUSES

MESSAGES_PER_FILE = 11_000
"""Messages of one file: about a quarter of a million receipts."""

TIMEOUT_MS = 240_000
FIRST_DAY_MS = EPOCH_MS // DAY_MS * DAY_MS
TILED = ("records", "receipts", "state", "messages")


def make_history(where: TableStore, count: int, days: int) -> list[str]:
    """Make tables of about `count` receipts over `days` days. Return some of the ids of messages, of all days."""
    template = _template()
    messages = max(days, count // RECEIPTS_PER_MESSAGE)
    per_day = -(-messages // days)
    shown: list[str] = []
    tables = Tables(where)
    try:
        with tables.changing():
            files: dict[str, list[DataFile]] = {name: [] for name in TILED}
            for number, day_messages in _shares(days, per_day):
                first_ms = FIRST_DAY_MS + number * DAY_MS
                ids = _hexadecimal(day_messages, 32)
                shown.append(ids[day_messages // 2].as_py())
                times = first_ms + np.linspace(0, DAY_MS - TIMEOUT_MS, day_messages, dtype=np.int64)
                for name in TILED:
                    rows = _tiled(template[name], ids, times - EPOCH_MS, number)
                    files[name].append(_written(where, name, tables.mark, day_of(first_ms) or "", rows))
            for name, added in files.items():
                tables.commit(name, Commit(adds=tuple(added)))
            rows_in_all = sum(file.rows for file in files["records"])
            end_ms = FIRST_DAY_MS + days * DAY_MS
            total = Batch(
                rows=rows_in_all, passing=rows_in_all, counted=rows_in_all, greatest_arrival_ms=end_ms
            )
            digest = keep_sets(where, SETS)
            tables.publish(
                lambda manifest: msgspec.structs.replace(
                    manifest, sets_digest=digest, total=total, reports=Reports(end_ms, TIMEOUT_MS, True)
                )
            )
    finally:
        tables.close()
    return shown


def _shares(days: int, per_day: int) -> Iterator[tuple[int, int]]:
    """Yield the number of a day and the messages of one file of it."""
    for number in range(days):
        left = per_day
        while left > 0:
            yield number, min(left, MESSAGES_PER_FILE)
            left -= MESSAGES_PER_FILE


def _template() -> dict[str, pa.Table]:
    """Return the rows of one message in each table."""
    records = [
        Record(
            STATUSES,
            0,
            offset,
            receipt.timestamp_ms + 1,
            receipt.message_id.hex(),
            receipt.to_json().encode(),
            False,
            hint,
        )
        for offset, (receipt, hint) in enumerate(receipts(RECEIPTS_PER_MESSAGE))
    ]
    with tempfile.TemporaryDirectory() as folder:
        store = TableStore.at(folder)
        task = CheckedFiles(parse_validator_sets(SETS, "sets"), Target(store, "0", "1970-01-01"))
        task.take(Rows(arrays_of(records, arrow_schema(RAW)), records))
        batch = task.close()
        found: dict[str, list[pa.Table]] = {}
        for file in batch.files:
            rows = pq.ParquetFile(store.path(file.table, file.path)).read()
            found.setdefault(file.table, []).append(rows.cast(arrow_schema(STORED[file.table])))
    if batch.passing != RECEIPTS_PER_MESSAGE:
        raise RuntimeError(f"the template has faults: {batch.quarantined}")
    made = {name: pa.concat_tables(rows).combine_chunks() for name, rows in found.items()}
    made["messages"] = _message(made["receipts"])
    return made


def _message(rows: pa.Table) -> pa.Table:
    least = min(rows["timestamp_ms"].to_pylist())
    schema = arrow_schema(MESSAGE_ROWS)
    values: dict[str, object] = dict.fromkeys(schema.names)
    values |= {f"{stage}_ms": least for stage in ("sent", "queued", "included", "accepted", "finalized")}
    values |= {"verdict": "finalized", "verdict_alive": "finalized", "verdict_over": "finalized"}
    values |= {"queued_at": [], "rejected_by": [], "silent": [], "days": [], "first_seen_ms": least}
    values |= {"session_id": rows["session_hint"][0].as_py(), "validators": 7}
    values |= {"receipts": len(rows), "receipts_bad": 0, "message_id": rows["message_id"][0].as_py()}
    values |= {"proof": "none", "ends": []}
    return pa.Table.from_pylist([values], schema)


def _hexadecimal(count: int, size: int) -> pa.Array:
    """Return random texts, each of `size` bytes in hexadecimal digits."""
    digits = secrets.token_bytes(count * size).hex().encode()
    offsets = np.arange(count + 1, dtype=np.int32) * 2 * size
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(digits))


def _tiled(template: pa.Table, ids: pa.Array, shifts_ms: np.ndarray, day: int) -> pa.Table:
    """Return the rows of a message once for each id, moved by so many milliseconds."""
    width, count = len(template), len(ids)
    rows = template.take(pa.array(np.tile(np.arange(width), count))).combine_chunks()
    owners = np.repeat(np.arange(count), width)
    moved = shifts_ms[owners]
    for place, field in enumerate(template.schema):
        column: pa.Array = rows[field.name].combine_chunks()
        if field.name == "message_id" or field.name == "key":
            column = ids.take(pa.array(owners))
        elif field.name == "signed_hash":
            column = _hexadecimal(len(rows), 16)
        elif field.name == "signed_hashes":
            column = pa.ListArray.from_arrays(column.offsets, _hexadecimal(len(column.values), 16))
        elif field.name == "days":
            text = day_of(FIRST_DAY_MS + day * DAY_MS)
            column = pa.array([[text]] * len(rows), field.type)
        elif field.name == "last":
            column = _moved(column.cast(pa.int64()), 64 * moved).cast(field.type)
        elif field.name.endswith("_ms") and field.name != "open_since_ms":
            column = _moved(column, moved)
        rows = rows.set_column(place, field, column)
    return rows


def _moved(column: pa.Array, by: np.ndarray) -> pa.Array:
    import pyarrow.compute as pc

    return pc.add(column, pa.array(by))


def _written(where: TableStore, name: str, mark: str, day: str, rows: pa.Table) -> DataFile:
    schema = arrow_schema(STORED[name])
    file = DayFile(where, name, day, schema, True, len(rows), mark)
    file.write(rows.cast(schema))
    return file.close()


PLANNED_RECEIPTS = 23_000
PLANNED_FILES = (1_000, 21_000)


def planned(folder: Path) -> list[str]:
    """Return lines with bytes of a receipt by table, and microseconds of a file in the log of a table."""
    store = TableStore.at(folder)
    records = [
        Record(
            STATUSES, 0, at, one.timestamp_ms + 1, one.message_id.hex(), one.to_json().encode(), False, hint
        )
        for at, (one, hint) in enumerate(receipts(PLANNED_RECEIPTS))
    ]
    task = CheckedFiles(parse_validator_sets(SETS, "sets"), Target(store, "0", "1970-01-01"))
    task.take(Rows(arrays_of(records, arrow_schema(RAW)), records))
    sizes: dict[str, int] = {}
    for file in task.close().files:
        sizes[file.table] = sizes.get(file.table, 0) + file.size
    lines = [f"a receipt in {name}: {size / PLANNED_RECEIPTS:.0f} B" for name, size in sorted(sizes.items())]
    few, many = (_log_costs(TableStore.at(folder / str(count)), count) for count in PLANNED_FILES)
    more = PLANNED_FILES[1] - PLANNED_FILES[0]
    for what, less, most in zip(("commit", "listing"), few, many, strict=True):
        lines.append(f"one more file, every {what}: {(most - less) / more * 1e6:.1f} µs")
    return lines


def _log_costs(store: TableStore, count: int) -> tuple[float, float]:
    """Return the processor seconds of a commit, and of a listing of the files, of a table of so many files."""
    schema = pa.schema([("first_ms", pa.int64()), ("last_ms", pa.int64())])
    table = LakeTable(store, "state", schema)
    table.make()
    bounds = {"first_ms": 1, "last_ms": 2}
    files = [
        DataFile("state", f"day={day}/0-{number:016x}.parquet", day, 1_000, 10, bounds, bounds)
        for number, day in ((one, day_of(one % 30 * DAY_MS) or "") for one in range(count))
    ]
    table.commit(Commit(adds=tuple(files)))
    spent = []
    for number in range(5):
        began = time.process_time()
        table.commit(
            Commit(adds=(DataFile("state", f"day=1970-01-01/1-{number:016x}.parquet", "1970-01-01", 1, 1),))
        )
        committed = time.process_time()
        table.held()
        spent.append((committed - began, time.process_time() - committed))
    commits, listings = zip(*spent, strict=True)
    return statistics.median(commits), statistics.median(listings)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", action="store_true", help="print the figures of docs/scale.md")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--receipts", type=int, default=1_000_000)
    parser.add_argument("--days", type=int, default=10)
    options = parser.parse_args()
    if options.plan:
        print("\n".join(planned(options.folder)))
        return
    store = TableStore.at(options.folder)
    began = time.perf_counter()
    message_ids = make_history(store, options.receipts, options.days)
    print(f"{options.receipts} receipts made in {time.perf_counter() - began:.1f} s")
    times = [looked_up(store, message_id) for message_id in [*message_ids, *message_ids]]
    wall_ms, processor_ms = (statistics.median(some) for some in zip(*times, strict=True))
    print(f"one message by its id: median {wall_ms:.0f} ms, of the processor {processor_ms:.0f} ms")


def looked_up(store: TableStore, message_id: str) -> tuple[float, float]:
    """Return the milliseconds that one look-up takes, by the clock and of the processor."""
    began, began_processor = time.perf_counter(), time.process_time()
    found = stored_message(store, message_id)
    if found is None or len(found.receipts) != RECEIPTS_PER_MESSAGE:
        raise RuntimeError(f"{message_id} was not found whole")
    return (time.perf_counter() - began) * 1_000, (time.process_time() - began_processor) * 1_000


if __name__ == "__main__":
    main()
