"""Look-ups of one message or a few in large tables, and accounts of days and topics, without Spark.

Every file has a bloom filter of its message ids, and a message knows on which days its receipts arrived. So a look-up reads
the ends of the files, and those parts that hold one of the ids, however many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from stagepost.errors import ConfigError
from stagepost.pipeline.dictionary import BY_NAME
from stagepost.pipeline.tables.damage import damage_named
from stagepost.pipeline.tables.delta import DAY, DataFile, Held, held_files, open_table
from stagepost.pipeline.tables.manifest import (
    MESSAGES,
    QUARANTINE,
    RECEIPTS,
    RECORDS,
    STATE,
    Batch,
    Manifest,
    require_manifest,
)
from stagepost.pipeline.tables.store import TableStore
from stagepost.topics.topic import STATUSES

if TYPE_CHECKING:
    import duckdb
    from deltalake import DeltaTable


IDS_AT_ONCE = 2_000
"""Ids, at most, that one query names; more take several."""

ROWS_READ_PER_ID = 16
"""Rows of a table for each id, at most, at which the whole table is read rather than looked up."""

ROWS_PER_FETCH = 100_000
_MESSAGE_ID_DIGITS = 64
_DIGITS = frozenset("0123456789abcdef")


def touched(store: TableStore, files: Sequence[DataFile]) -> list[str]:
    """Return the messages that files of state are of."""
    found: set[str] = set()
    for file in files:
        with pq.ParquetFile(store.file_system(file.table).open_input_file(file.path)) as parts:
            for rows in parts.iter_batches(columns=["message_id"]):
                # A receipt's message is named by 64 digits. Other keys are those of bad records, and no message has them.
                found.update(one for one in rows.column(0).unique().to_pylist() if is_message_id(one))
    return sorted(found)


def is_message_id(text: str) -> bool:
    return len(text) == _MESSAGE_ID_DIGITS and _DIGITS.issuperset(text)


def rows_of(table: DeltaTable, message_ids: Iterable[str], schema: pa.Schema) -> pa.Table:
    """Return the rows of a table that are of these messages, with the columns of `schema`.

    The rows that are read are in proportion to the ids: these are named in queries, so that parts of files without them are
    passed over; a table that has few rows for each of the ids is read once instead.
    """
    from deltalake import QueryBuilder

    wanted = sorted(message_ids)
    if not wanted:
        return schema.empty_table()
    if len(wanted) > IDS_AT_ONCE and ROWS_READ_PER_ID * len(wanted) >= sum(
        one.rows for one in held_files(table)
    ):
        from pyarrow import dataset

        is_wanted = dataset.field("message_id").isin(pa.array(wanted, pa.string()))
        return table.to_pyarrow_dataset().to_table(schema.names, filter=is_wanted).cast(schema)
    names = ", ".join(f'"{name}"' for name in schema.names)
    builder = QueryBuilder().register("found", table)
    found = []
    for start in range(0, len(wanted), IDS_AT_ONCE):
        listed = quoted_list(wanted[start : start + IDS_AT_ONCE])
        query = f"SELECT {names} FROM found WHERE message_id IN ({listed})"
        found.append(pa.table(builder.execute(query).read_all()).cast(schema))
    return pa.concat_tables(found)


@contextmanager
def queries(
    store: TableStore, named: Mapping[str, tuple[str, Sequence[str]]]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give a connection with views on files, by name: each of a table and some of its files."""
    import duckdb

    connection = duckdb.connect(":memory:")
    try:
        for name, (table, paths) in named.items():
            connection.execute(f"CREATE VIEW {name} AS {files_query(connection, store, table, paths)}")
        yield connection
    finally:
        connection.close()


def files_query(
    connection: duckdb.DuckDBPyConnection, store: TableStore, table: str, paths: Sequence[str]
) -> str:
    """Return a query for the rows of files of one table, with `day`; there is at least one file."""
    if store.is_local:
        files = ", ".join("'" + store.path(table, path).replace("'", "''") + "'" for path in paths)
        # DuckDB's own way would make columns of folders above the tables, too. Files of other days are passed over alike.
        day = f"CAST(regexp_extract(filename, '/{DAY}=([^/]*)/[^/]*$', 1) AS DATE) AS {DAY}"
        return f"SELECT *, {day} FROM read_parquet([{files}], hive_partitioning = false)"
    from pyarrow import dataset

    name = f"stored_{table}_{abs(hash(tuple(paths)))}"
    found = dataset.dataset(
        list(paths),
        filesystem=store.file_system(table),
        format="parquet",
        partitioning=dataset.partitioning(pa.schema([(DAY, pa.date32())]), flavor="hive"),
    )
    connection.register(name, found)
    return f"SELECT * FROM {name}"


class LateMessages(NamedTuple):
    """Messages of which some records arrived on later days than that of the message, and these days."""

    message_ids: list[str]
    days: list[str]

    @property
    def condition(self) -> str:
        """Return the condition of SQL that holds for all rows of these messages on these days."""
        return f"day IN ({quoted_list(self.days)}) AND message_id IN ({quoted_list(self.message_ids)})"


def late_messages(store: TableStore, files: Sequence[Held], first: str) -> LateMessages:
    """Return those among the rows of files of `messages` of which records arrived on the day `first` or after it."""
    if not files:
        return LateMessages([], [])
    with queries(store, {"given": (MESSAGES, [one.path for one in files])}) as connection:
        found = connection.execute(
            "SELECT message_id, list_filter(days, lambda day: day >= ?) AS late FROM given WHERE len(late) > 0",
            [first],
        ).fetchall()
    return LateMessages([row[0] for row in found], sorted({day for row in found for day in row[1]}))


def beside_receipts(store: TableStore, files: Sequence[Held]) -> list[str]:
    """Return the messages of which files of state hold anything else than receipts that count: bad records, or proofs."""
    if not files:
        return []
    with queries(store, {"given": (STATE, [one.path for one in files])}) as connection:
        found = connection.execute(
            "SELECT DISTINCT message_id FROM given WHERE role IN ('quarantine', 'proof')"
        ).fetchall()
    return sorted(one for (one,) in found if is_message_id(one))


_ACCOUNT = """
    SELECT topic = ? AS is_status, reason, count(*) FROM {table} WHERE {condition} GROUP BY ALL ORDER BY ALL
"""


def held_account(
    store: TableStore,
    records: DeltaTable,
    receipts: DeltaTable,
    days: Collection[str],
    message_ids: Collection[str] | None = None,
) -> Batch:
    """Return the account of what these days hold, of some messages or of all, counted from few columns."""
    files = {RECORDS: held_files(records, days), RECEIPTS: held_files(receipts, days)}
    if not files[RECORDS] or message_ids == []:
        return Batch()
    condition = "true" if message_ids is None else "message_id IN (SELECT message_id FROM wanted)"
    counted = sum(one.rows for one in files[RECEIPTS])
    named = {name: (name, [one.path for one in held]) for name, held in files.items() if held}
    with queries(store, named) as connection:
        connection.register("wanted", pa.table({"message_id": pa.array(message_ids or (), pa.string())}))
        query = _ACCOUNT.format(table=RECORDS, condition=condition)
        found = connection.execute(query, [STATUSES]).fetchall()
        if message_ids is not None and RECEIPTS in named:
            query = f"SELECT count(*) FROM {RECEIPTS} WHERE {condition}"
            ((counted,),) = connection.execute(query).fetchall()
    reasons, others = Counter[str](), Counter[str]()
    for is_status, reason, count in found:
        (reasons if is_status else others)[reason] += count
    passing, other_passing = reasons.pop(None, 0), others.pop(None, 0)  # type: ignore[call-overload]
    return Batch(
        rows=passing + reasons.total(),
        passing=passing,
        quarantined=dict(reasons),
        other_rows=other_passing + others.total(),
        other_quarantined=dict(others),
        counted=counted,
    )


def quoted_list(texts: Iterable[str]) -> str:
    """Return days or ids, which are of digits, letters and dashes, as a list of SQL."""
    return ", ".join(f"'{one}'" for one in sorted(texts))


# What is not looked at has no hash, and every record of it counts.
_QUERY = """
    SELECT topic, reason, count(*), count(DISTINCT signed_hash) + count(*) FILTER (WHERE signed_hash IS NULL)
    FROM records WHERE topic <> ? GROUP BY topic, reason ORDER BY topic, reason
"""


class TopicAccount(NamedTuple):
    rows: int = 0
    counted: int = 0
    repeated: int = 0
    quarantined: int = 0
    reasons: dict[str, int] = {}  # noqa: RUF012  # replaced, never changed


def topic_accounts(where: TableStore, manifest: Manifest) -> dict[str, TopicAccount]:
    """Return the accounts by name; topics without a record are not in it."""
    if not manifest.total.other_rows:
        return {}
    files = held_files(open_table(where, RECORDS, manifest.versions[RECORDS]))
    with queries(where, {RECORDS: (RECORDS, [one.path for one in files])}) as connection:
        found = connection.execute(_QUERY, [STATUSES]).fetchall()
    accounts: dict[str, TopicAccount] = {}
    for topic, reason, rows, distinct in found:
        known = accounts.get(topic, TopicAccount())
        if reason is None:
            change = known._replace(counted=distinct, repeated=rows - distinct)
        else:
            change = known._replace(
                quarantined=known.quarantined + rows, reasons={**known.reasons, reason: rows}
            )
        accounts[topic] = change._replace(rows=known.rows + rows)
    return accounts


Row = dict[str, Any]


class FoundMessage(NamedTuple):
    """`message` is None for an id that only quarantined records have."""

    message: Row | None
    receipts: list[Row]
    quarantined: list[Row]


def stored_message(where: TableStore, message_id: str) -> FoundMessage | None:
    """Return what the tables hold of a message, receipts in the order of their times; None if they hold nothing of it."""
    wanted = message_id.lower()
    if not is_message_id(wanted):
        raise ConfigError(
            f"{message_id!r} is not a valid message id", advice="give 64 hexadecimal digits", found=message_id
        )
    versions = require_manifest(where).versions
    with damage_named(where, versions, (MESSAGES, RECEIPTS, QUARANTINE)), queries(where, {}) as connection:

        def rows(name: str, days: list[str] | None = None) -> list[Row]:
            table = open_table(where, name, versions[name]) if name in versions else None
            paths = [one.path for one in held_files(table, days)]
            if not paths:
                return []
            files = files_query(connection, where, name, paths)
            # Written into the query: the filters of files are looked at for a value that is known beforehand.
            answer = connection.execute(f"SELECT * FROM ({files}) WHERE message_id = '{wanted}'")
            names = [column[0] for column in answer.description or ()]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

        found = rows(MESSAGES)
        days = sorted({day for row in found for day in (*(row.pop("days", None) or ()), str(row["day"]))})
        receipts = rows(RECEIPTS, days) if found else []
        quarantined = rows(QUARANTINE)
    if not (found or quarantined):
        return None
    receipts.sort(key=lambda row: (row["timestamp_ms"], row["level"], row["source_id"], row["kind"]))
    quarantined.sort(key=lambda row: (row["arrived_ms"] or 0, row["partition"] or 0, row["offset"] or 0))
    return FoundMessage(_shown(found[0]) if found else None, receipts, quarantined)


def _shown(row: Row) -> Row:
    """Return the columns that people read, without those by which the pipeline brings the row up to date."""
    known = [column.name for column in BY_NAME[MESSAGES].columns]
    return {name: row[name] for name in (*known, "day") if name in row}
