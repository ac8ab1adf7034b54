"""Damaged files of tables, by name: the file, its day, and the command that derives the rows again. Needs no Spark.

A reader that fails says what its library says, which is seldom the file. So the files of the version are looked at again,
those that the library named first, until one of them cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta

from stagepost.errors import StagepostError, StorageError
from stagepost.pipeline.tables.delta import Held, held_files, open_table
from stagepost.pipeline.tables.manifest import RECORDS, read_manifest
from stagepost.pipeline.tables.store import TableStore, said

QUERY_FAULTS = frozenset({"ParserException", "BinderException", "CatalogException", "InterruptException"})
"""Names of DuckDB's failures that no file can be the reason of."""

REQUEST_FAILED = "Error performing"
"""Words of the `deltalake` package for a request that object storage did not answer as it should: nothing is known of the file."""


@contextmanager
def damage_named(where: TableStore, versions: dict[str, int], names: Iterable[str]) -> Iterator[None]:
    """Raise `StorageError` with the damaged file if reading fails and one of the files of `names` cannot be read.

    Any other failure goes on as it is: a query may be wrong while all files are whole.
    """
    try:
        yield
    except StagepostError:
        raise
    except Exception as error:
        if type(error).__name__ in QUERY_FAULTS:
            raise
        found = damage(where, versions, names, str(error))
        if found is None:
            raise
        raise found from error


def damage(
    where: TableStore, versions: dict[str, int], names: Iterable[str], text: str = ""
) -> StorageError | None:
    """Return the first file of some tables that cannot be read, as an error; None if all are whole.

    `text` is what a library said: a file that is named there is looked at first.
    """
    first_line = text.partition("\n")[0]
    held = [(name, one) for name in names if name in versions for one in _held(where, name, versions[name])]
    for name, file in sorted(held, key=lambda entry: entry[1].path not in first_line):
        reason = fault_of(where, name, file)
        if reason is not None:
            return _moved_on(where, versions, name, file) or damaged(where, name, file, reason)
    return None


def _moved_on(where: TableStore, versions: dict[str, int], name: str, file: Held) -> StorageError | None:
    """Return the error of a reader whose version is so old that its file was removed; None if the present version holds the file."""
    now = read_manifest(where)
    version = None if now is None else now.versions.get(name)
    if version in (None, versions[name]) or any(one.path == file.path for one in _held(where, name, version)):
        return None
    return StorageError(
        f"the tables in {where.address} have moved on since they were opened: {name} is at version {version}, "
        f"and files of version {versions[name]} are removed",
        advice="open the tables again: files stay for an hour after a later version has left them out",
    )


def fault_of(where: TableStore, name: str, file: Held) -> str | None:
    """Return why a file of a table cannot be read from its beginning to its end; None if it can."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    system = where.file_system(name)
    try:
        with system.open_input_file(file.path) as source:
            if (size := int(source.size())) != file.size:
                return f"it has {size} bytes, and the log of the table says {file.size}"
            rows = sum(
                len(batch) for batch in pq.ParquetFile(source, page_checksum_verification=True).iter_batches()
            )
    except FileNotFoundError:
        return "it is not there"
    except (OSError, ArrowException) as error:
        if not where.is_local and REQUEST_FAILED in str(error):
            raise StorageError(
                f"{where.path(name, file.path)} cannot be read: {said(error)}",
                advice="is the storage in reach, and may these keys read it?",
            ) from error
        return said(error).rstrip(".")
    return None if rows == file.rows else f"it has {rows} rows, and the log of the table says {file.rows}"


def damaged(where: TableStore, name: str, file: Held, reason: str) -> StorageError:
    """Return the error of a damaged file, with the way to its rows."""
    if name == RECORDS:
        following = (date.fromisoformat(file.day) + timedelta(days=1)).isoformat()
        advice = (
            "the records are the only copy in these tables: read that day from its topics into new tables with "
            f"`stagepost pipeline backfill --from {file.day}T00:00:00Z --to {following}T00:00:00Z --tables NEW …`"
        )
    else:
        advice = (
            "derive the tables again from the records: "
            f"`stagepost pipeline import --from {where.address} --out NEW`"
        )
    return StorageError(
        f"{where.path(name, file.path)}, of the table {name} and the day {file.day}, is damaged: {reason}",
        advice=advice,
        found=file.day,
    )


def _held(where: TableStore, name: str, version: int | None) -> list[Held]:
    return held_files(open_table(where, name, version))
