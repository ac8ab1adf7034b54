"""Messages or receipts that a filter lets through, as one file or as rows one after another. Needs no Spark.

DuckDB writes while it reads, and puts aside on the disk what does not fit into its share of memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stagepost.errors import StorageError
from stagepost.pipeline.tables.filter import Condition, MessageFilter
from stagepost.pipeline.tables.reader import FORMATS, Reader, file_column

MEMORY_MAX = "512MB"
ROWS_PER_FETCH = 1_000
STANDARD_OUTPUT = "-"


class Exported(StrEnum):
    MESSAGES = "messages"
    RECEIPTS = "receipts"


class FileFormat(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


def query_of(what: Exported, wanted: MessageFilter) -> Condition:
    """The whole query, in a fixed order, and its parameters."""
    if what is Exported.MESSAGES:
        condition = wanted.messages()
        text = f"SELECT m.* FROM messages m WHERE {condition.text} ORDER BY m.message_id"
    else:
        condition = wanted.receipts()
        text = (
            "SELECT r.* FROM receipts r JOIN messages m ON m.message_id = r.message_id "
            f"WHERE {condition.text} ORDER BY r.message_id, r.timestamp_ms, r.source_id, r.kind"
        )
    return Condition(text, condition.parameters)


def require_tables(reader: Reader, wanted: MessageFilter) -> None:
    """`StorageError` names one that has not been made yet."""
    for name in (Exported.MESSAGES.value, Exported.RECEIPTS.value, *wanted.tables()):
        reader.known(name)


def rows(reader: Reader, what: Exported, wanted: MessageFilter) -> Iterator[dict[str, Any]]:
    """A bounded number in memory at a time."""
    require_tables(reader, wanted)
    query = query_of(what, wanted)
    found = reader.connection.cursor().execute(query.text, query.parameters)
    names = [column[0] for column in found.description or ()]
    while several := found.fetchmany(ROWS_PER_FETCH):
        for row in several:
            yield dict(zip(names, row, strict=True))


def export(reader: Reader, what: Exported, wanted: MessageFilter, to: FileFormat, out: str) -> int:
    """The number of rows. A file gets its name when it is complete; `-` is the standard output."""
    require_tables(reader, wanted)
    query = query_of(what, wanted)
    is_file = out != STANDARD_OUTPUT
    temporary = (
        Path(out).with_name(f".{Path(out).name}.{os.getpid()}.new") if is_file else Path("/dev/stdout")
    )
    # A cursor sees the same tables; the limits stay with this reader.
    with TemporaryDirectory(prefix="stagepost-export-") as spill:
        connection = reader.connection.cursor()
        try:
            connection.execute(f"SET temp_directory = {_quoted(spill)}")
            connection.execute(f"SET memory_limit = '{MEMORY_MAX}'")
            described = connection.execute(f"DESCRIBE {what.value}").fetchall()
            columns = ", ".join(file_column(name, kind, f".{to.value}") for name, kind, *_ in described)
            copied = connection.execute(
                f"COPY (SELECT {columns} FROM ({query.text})) TO {_quoted(str(temporary))} ({FORMATS[f'.{to.value}']})",
                query.parameters,
            ).fetchone()
            if is_file:
                temporary.replace(out)
        except Exception as error:
            if is_file:
                temporary.unlink(missing_ok=True)
            raise StorageError(f"cannot write {out}: {error}", advice="see --out") from error
        finally:
            connection.close()
    return 0 if copied is None else int(copied[0])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
