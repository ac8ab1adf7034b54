"""Tables to import: those of the former format of our own, or Delta tables whose files are to be derived again. They are
read and never written. Needs no Spark.

Only the records are taken over, with the validator sets, the names of the dumps that are in, and how far a stream has come:
everything else follows from the records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.pipeline.sources.checkpoint_fit import planned_text
from stagepost.pipeline.tables.damage import damaged, fault_of
from stagepost.pipeline.tables.delta import Held, held_files, open_table
from stagepost.pipeline.tables.manifest import (
    COMMITS,
    FORMER_MANIFEST_FILE,
    RECORDS,
    SCHEMA_VERSION,
    Manifest,
    Reports,
    kept_genesis,
    kept_sets,
    read_manifest,
)
from stagepost.pipeline.tables.own_files import CHECKPOINT_FOLDER
from stagepost.pipeline.tables.store import TableStore

FORMER_SCHEMA_VERSION = 3
WITHOUT_PROOFS_VERSION = 4
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
ROWS_PER_BATCH_AIM = 1_000_000
"""Records of one batch, about: an import that was cut off goes on after the last batch."""

_RECORD_FILE = re.compile(r"data/[0-9a-f-]+/records/[A-Za-z0-9._-]+\.parquet")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ImportBatch(NamedTuple):
    """Files of records that are taken as one batch. `digest` names them, so that they are taken once."""

    paths: list[str]
    rows: int
    digest: str


class ImportSource(NamedTuple):
    """Tables to import. `is_delta`: `paths` go from the folder of the table `records` on, and not from `folder`."""

    where: TableStore
    is_delta: bool
    batches: list[ImportBatch]
    sets_file: bytes
    genesis: bytes | None
    taken: list[str]
    stream_batches: dict[str, int]
    offsets: dict[str, str]
    removed_rows: int
    reports: Reports | None

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)


class _FormerBatch(msgspec.Struct):
    files: dict[str, list[str]]


class _FormerReports(msgspec.Struct):
    as_of_ms: int | None
    message_timeout_ms: int


class _FormerManifest(msgspec.Struct):
    schema_version: int
    sets_digest: str | None = None
    taken: list[str] = []
    stream_batches: dict[str, int] = {}
    batches: list[_FormerBatch] = []
    reports: _FormerReports | None = None
    removed_rows: int = 0


def import_source(where: TableStore) -> ImportSource:
    """Return the tables at an address, of either format; `ConfigError` or `StorageError` if there are none or a file is lost.

    Every file of records is looked at before anything is written elsewhere.
    """
    if where.is_local and (where.folder / FORMER_MANIFEST_FILE).is_file():
        return _former(where)
    manifest = read_manifest(where, (WITHOUT_PROOFS_VERSION, SCHEMA_VERSION))
    if manifest is None:
        raise StorageError(
            f"{where.address} holds neither {FORMER_MANIFEST_FILE} nor the table {COMMITS}",
            advice="give the folder or address of tables with --from",
        )
    return _current(where, manifest)


def _former(where: TableStore) -> ImportSource:
    folder = where.folder
    path = folder / FORMER_MANIFEST_FILE
    manifest = _read(path)
    if manifest.schema_version != FORMER_SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema version {manifest.schema_version}, and this program imports {FORMER_SCHEMA_VERSION}",
            advice="make new tables from the topics or the dump with `stagepost pipeline backfill`",
            found=manifest.schema_version,
        )
    names = [name for batch in manifest.batches for name in batch.files.get(RECORDS, ())]
    files = [(name, _former_rows(folder, path, name)) for name in names]
    reports = manifest.reports
    return ImportSource(
        where,
        False,
        list(_batches(files)),
        _former_sets(folder, manifest.sets_digest),
        None,
        manifest.taken,
        manifest.stream_batches,
        {name: _planned(folder, number) for name, number in manifest.stream_batches.items()},
        manifest.removed_rows,
        None if reports is None else Reports(reports.as_of_ms, reports.message_timeout_ms),
    )


def _read(path: Path) -> _FormerManifest:
    try:
        with path.open("rb") as file:
            content = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}", advice="see --from") from error
    if len(content) > MANIFEST_BYTES_MAX:
        raise ConfigError(f"{path} has more than {MANIFEST_BYTES_MAX} bytes", advice="see --from")
    try:
        return decode_foreign(content, _FormerManifest)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is not a valid manifest: {error}", advice="see --from") from error


def _former_rows(folder: Path, manifest: Path, name: str) -> int:
    """Return the rows of a file that a manifest names; refuse a name that leads elsewhere and a file that is damaged."""
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    if not _RECORD_FILE.fullmatch(name) or ".." in name or (folder / name).is_symlink():
        raise ConfigError(
            f"{manifest} names {name}, which is not a valid file of records",
            advice="nothing was imported: is this a folder of tables?",
            found=name,
        )
    try:
        return int(pq.read_metadata(folder / name).num_rows)
    except (OSError, ArrowException) as error:
        raise StorageError(
            f"{folder / name} is lost or damaged, and {manifest} names it: {error}",
            advice="put it back from a copy, or make new tables from the topics with `stagepost pipeline backfill`",
        ) from error


def _former_sets(folder: Path, found: str | None) -> bytes:
    if found is None or not _DIGEST.fullmatch(found):
        raise ConfigError(
            f"the tables in {folder} name no validator sets", advice="make new tables from the topics"
        )
    return kept_sets(TableStore.at(folder), Manifest(sets_digest=found))


def _planned(folder: Path, number: int) -> str:
    """Return what the checkpoint says of the last batch; nothing where it is lost, and then no stream can go on."""
    checkpoint = folder / CHECKPOINT_FOLDER
    return planned_text(checkpoint, number) if (checkpoint / "offsets" / str(number)).is_file() else ""


def _current(where: TableStore, manifest: Manifest) -> ImportSource:
    held: list[Held] = held_files(open_table(where, RECORDS, manifest.versions.get(RECORDS)))
    for file in held:
        reason = fault_of(where, RECORDS, file)
        if reason is not None:
            raise damaged(where, RECORDS, file, reason)
    return ImportSource(
        where,
        True,
        list(_batches((file.path, file.rows) for file in held)),
        kept_sets(where, manifest),
        kept_genesis(where, manifest),
        manifest.taken,
        manifest.stream_batches,
        manifest.offsets,
        manifest.removed_rows,
        manifest.reports,
    )


def _batches(files: Iterable[tuple[str, int]]) -> Iterator[ImportBatch]:
    """Yield files in batches of about `ROWS_PER_BATCH_AIM` records."""
    paths: list[str] = []
    rows = 0
    for path, count in files:
        paths.append(path)
        rows += count
        if rows >= ROWS_PER_BATCH_AIM:
            yield _named(paths, rows)
            paths, rows = [], 0
    if paths:
        yield _named(paths, rows)


def _named(paths: list[str], rows: int) -> ImportBatch:
    # Names of files hold random digits, so no two files of different tables have the same.
    text = "\n".join(["import", *(os.path.normpath(path) for path in paths), str(rows)])
    return ImportBatch(paths, rows, sha256(text.encode()).hexdigest())
