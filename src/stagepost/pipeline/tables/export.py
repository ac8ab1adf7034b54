"""Messages or receipts that a filter lets through, as one file. Needs no Spark.

DuckDB writes while it reads, and puts aside on the disk what does not fit into its share of memory.
"""

from __future__ import annotations

from enum import StrEnum
from tempfile import TemporaryDirectory

from stagepost.pipeline.tables.filter import Condition, MessageFilter
from stagepost.pipeline.tables.reader import Reader, quoted

MEMORY_MAX = "512MB"


class Exported(StrEnum):
    MESSAGES = "messages"
    RECEIPTS = "receipts"


class FileFormat(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


def query_of(what: Exported, wanted: MessageFilter) -> Condition:
    """Return the whole query, in a fixed order, and its parameters."""
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
    """Raise a `StorageError` that names a table which has not been made yet, if one is needed."""
    for name in (Exported.MESSAGES.value, Exported.RECEIPTS.value, *wanted.tables()):
        reader.known(name)


def export(reader: Reader, what: Exported, wanted: MessageFilter, to: FileFormat, out: str) -> int:
    """Write the rows that `wanted` lets through into one file, or to the standard output for `-`. Return their number."""
    require_tables(reader, wanted)
    query = query_of(what, wanted)
    # A cursor sees the same tables; the limits stay with this reader.
    with TemporaryDirectory(prefix="stagepost-export-") as spill, reader.cursor() as connection:
        connection.execute(f"SET temp_directory = {quoted(spill)}")
        connection.execute(f"SET memory_limit = '{MEMORY_MAX}'")
        return reader.copy(connection, what.value, query.text, query.parameters, f".{to.value}", out)
