"""Rows as files of any length: CSV, JSON lines, Parquet, written a part at a time."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stagepost.errors import ConfigError
from stagepost.pipeline.tables.filter import Exported, FileFormat, MessageFilter, query_of
from stagepost.pipeline.tables.reader import csv_cell
from stagepost.web.listing import COLUMNS, ListSource, live_messages, tables_query
from stagepost.web.message_book import row_of
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.sources import Sources, UnreadableSource

ROWS_AT_A_TIME = 500
CHUNK_BYTES = 64 * 1024
EXPORT_TIME_MAX_S = 600.0
"""Seconds: a reader who takes a file slowly must not keep it open for ever."""

_PARQUET_TYPES = {
    **dict.fromkeys(COLUMNS, "BIGINT"),
    **dict.fromkeys(
        ("message_id", "verdict", "session_id", "delivery_id", "dmq_id", "proof", "executed_as"), "VARCHAR"
    ),
    **dict.fromkeys(("queued_at", "rejected_by", "silent"), "INTEGER[]"),
    "validators": "INTEGER",
}


MEDIA_TYPES = {
    FileFormat.CSV: "text/csv; charset=utf-8",
    FileFormat.JSONL: "application/x-ndjson",
    FileFormat.PARQUET: "application/vnd.apache.parquet",
}


def exported(
    sources: Sources, table: Exported, wanted: MessageFilter, source: ListSource, form: FileFormat
) -> Iterator[bytes]:
    """Yield the file in parts. Everything that can be refused is refused before the first part."""
    if source is ListSource.LIVE:
        if table is Exported.RECEIPTS:
            raise ConfigError(
                "receipts of many messages are in the tables only",
                advice="ask with source=tables, or for one message: /api/v1/messages/ID/receipts?to=csv",
            )
        if isinstance(sources.tail.state, Unreadable):
            raise UnreadableSource(sources.tail.state)
        found = live_messages(sources, wanted)
        rows = ({name: row_of(kept).get(name) for name in COLUMNS} for kept in found)
        return written(rows, list(COLUMNS), form)
    state = sources.tables.state()
    if isinstance(state, Unreadable):
        raise UnreadableSource(state)
    if isinstance(state, Nothing):
        raise ConfigError(f"{state.text}: {sources.tables.folder}", advice=state.advice)
    query, parameters, names = _query(table, wanted)
    return _of_tables(sources, query, parameters, names, form)


def _query(table: Exported, wanted: MessageFilter) -> tuple[str, list[Any], list[str]]:
    if table is Exported.MESSAGES:
        inner, parameters = tables_query(wanted, None)
        return f"SELECT {', '.join(COLUMNS)} FROM ({inner})", parameters, list(COLUMNS)
    condition = query_of(table, wanted)
    return condition.text, list(condition.parameters), []


def _of_tables(
    sources: Sources, query: str, parameters: list[Any], names: list[str], form: FileFormat
) -> Iterator[bytes]:
    with sources.tables.asking(EXPORT_TIME_MAX_S) as asking:
        if form is FileFormat.PARQUET:
            with tempfile.TemporaryDirectory(prefix="stagepost-export-") as folder:
                path = Path(folder) / "export.parquet"
                asking.copy(query, parameters, path, "FORMAT parquet")
                yield from _parts_of(path)
            return
        batches = asking.batches(query, parameters, ROWS_AT_A_TIME)
        first = next(batches, [])
        columns = names or list(first[0] if first else ())
        yield from written((row for batch in _chained(first, batches) for row in batch), columns, form)


def _chained(
    first: list[dict[str, Any]], rest: Iterator[list[dict[str, Any]]]
) -> Iterator[list[dict[str, Any]]]:
    yield first
    yield from rest


def written(rows: Iterable[dict[str, Any]], columns: list[str], form: FileFormat) -> Iterator[bytes]:
    if form is FileFormat.PARQUET:
        return _parquet(rows)
    return _csv(rows, columns) if form is FileFormat.CSV else _json_lines(rows)


def _csv(rows: Iterable[dict[str, Any]], columns: list[str]) -> Iterator[bytes]:
    """Yield CSV: lists are JSON, a missing value is an empty field, and no text is a formula."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for number, row in enumerate(rows, start=1):
        writer.writerow({name: _cell(row[name]) for name in columns})
        if number % ROWS_AT_A_TIME == 0:
            yield _taken(text)
    yield _taken(text)


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return csv_cell(value)
    return json.dumps(list(value), separators=(",", ":")) if isinstance(value, list | tuple) else value


def _json_lines(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    text = io.StringIO()
    for number, row in enumerate(rows, start=1):
        text.write(json.dumps(row, ensure_ascii=False) + "\n")
        if number % ROWS_AT_A_TIME == 0:
            yield _taken(text)
    yield _taken(text)


def _taken(text: io.StringIO) -> bytes:
    found = text.getvalue().encode()
    text.seek(0)
    text.truncate()
    return found


def _parquet(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Yield Parquet by way of a file: the end of a Parquet file completes it."""
    import duckdb

    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory(prefix="stagepost-export-")))
        lines, path = folder / "rows.jsonl", folder / "export.parquet"
        with lines.open("wb") as file:
            for part in _json_lines(rows):
                file.write(part)
        columns = ", ".join(f"{name}: '{_PARQUET_TYPES[name]}'" for name in COLUMNS)
        connection = parts.enter_context(duckdb.connect(":memory:"))
        connection.execute(
            f"COPY (SELECT * FROM read_json('{lines}', format = 'newline_delimited', columns = {{{columns}}})) "
            f"TO '{path}' (FORMAT parquet)"
        )
        yield from _parts_of(path)


def _parts_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(CHUNK_BYTES):
            yield part
