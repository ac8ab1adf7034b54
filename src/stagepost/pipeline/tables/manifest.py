"""The manifest of a set of tables: the account of everything that is in them, the offsets up to which streams were read,
and the version of every table that belongs to it. Needs no Spark.

It stands in the metadata of the last commit to the table `commits`, which is made after the commits to all others. So a batch
is in with all its files or not at all: our readers open every table at the version that the manifest names, and a driver that
starts leaves out what was committed beyond it.

Copies of validator-sets files lie beside the tables, by the hash of their content.

What a batch is called, so that it is taken once: a dump by its content, a batch of a stream by its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.small_files import sync_file, sync_folder
from stagepost.pipeline.tables.delta import ACCOUNT_KEY, DataFile, open_table
from stagepost.pipeline.tables.store import TableStore

SCHEMA_VERSION = 5
"""Number of this form of tables; 1 to 3 were a format of our own, 4 had no proofs. `stagepost pipeline import` takes 3 and 4 over."""

FORMER_MANIFEST_FILE = "manifest.json"
COMMITS = "commits"
"""Name of the table whose commits hold the manifest; it has no rows."""

RECORDS, STATE, RECEIPTS, QUARANTINE, MESSAGES = "records", "state", "receipts", "quarantine", "messages"
PROOFS = "proofs"
COMMITS_LOOKED_AT_MAX = 20
"""Commits, at most, that are read back for the last manifest; ours all have one."""


class Batch(msgspec.Struct, frozen=True):
    """Account of a batch, or of many together; `files` are the files of a single batch that are to be committed.

    `rows` are records of the status topic: each passed or is quarantined. `counted` are the receipts that no batch before
    had, known when the batch has been evaluated. `proof_parts` are the parts of proofs of a single batch.
    """

    files: list[DataFile] = []
    rows: int = 0
    passing: int = 0
    quarantined: dict[str, int] = {}
    other_rows: int = 0
    other_quarantined: dict[str, int] = {}
    proof_parts: int = 0
    greatest_arrival_ms: int | None = None
    greatest_full_node_ms: int | None = None
    counted: int = 0

    @property
    def natural_as_of_ms(self) -> int | None:
        """Return the greatest arrival ever put in, else the greatest time of a full node, else none: life is never over."""
        return self.greatest_full_node_ms if self.greatest_arrival_ms is None else self.greatest_arrival_ms

    def of(self, table: str) -> list[DataFile]:
        return [file for file in self.files if file.table == table]


class Reports(msgspec.Struct, frozen=True):
    """The moment that the tables are shown for, and whether those beside `messages` have been evaluated once."""

    as_of_ms: int | None
    message_timeout_ms: int
    are_all_made: bool = False


class Manifest(msgspec.Struct, frozen=True):
    """`taken` names the dumps that are in; `stream_batches` says up to which batch a stream is in, by its name, and `offsets`
    how far that batch read. `waiting` are files of batches that were taken and not evaluated yet: those of their state, which
    are committed, and those of their receipts, which are not. `changed_days` are those whose reports are not up to date, with the
    generation in which they changed last. `genesis_digest` names the genesis by which proofs are checked; `awaited_blocks` are
    master blocks that proofs rest on and no record shows yet, with the days of these proofs.
    """

    schema_version: int = SCHEMA_VERSION
    generation: int = 0
    sets_digest: str | None = None
    genesis_digest: str | None = None
    awaited_blocks: dict[str, list[str]] = {}
    taken: list[str] = []
    stream_batches: dict[str, int] = {}
    offsets: dict[str, str] = {}
    total: Batch = Batch()
    waiting: list[DataFile] = []
    waiting_passing: int = 0
    changed_days: dict[str, int] = {}
    reports: Reports | None = None
    versions: dict[str, int] = {}
    removed_rows: int = 0
    written_ms: int = 0


def read_manifest(place: TableStore | Path, versions: Sequence[int] = (SCHEMA_VERSION,)) -> Manifest | None:
    """Return the manifest of the last commit; None where there are no tables yet. `versions` of it are accepted."""
    where = place if isinstance(place, TableStore) else TableStore.at(place)
    table = open_table(where, COMMITS)
    if table is None:
        refuse_former(where)
        return None
    if table.version() == 0:
        return None
    for commit in table.history(COMMITS_LOOKED_AT_MAX):
        if (found := commit.get(ACCOUNT_KEY)) is not None:
            return _converted(where, found, versions)
    raise StorageError(
        f"none of the last {COMMITS_LOOKED_AT_MAX} commits to {where.of(COMMITS)} has a manifest",
        advice=f"leave out what was committed after it: restore the table {COMMITS} to an earlier version",
    )


def require_manifest(where: TableStore) -> Manifest:
    """Return the manifest of the last commit; `StorageError` where there are no tables."""
    found = read_manifest(where)
    if found is None:
        raise StorageError(
            f"there are no tables in {where.address}",
            advice="make them with `stagepost pipeline backfill` or `run`, or see --tables",
        )
    return found


def _converted(where: TableStore, found: object, versions: Sequence[int]) -> Manifest:
    try:
        version = msgspec.convert(found, _Version).schema_version
        if version not in versions:
            raise ConfigError(
                f"the tables in {where.address} have schema version {version}, this program reads {SCHEMA_VERSION}",
                advice="a newer release has made them: use it, or one after it"
                if version > SCHEMA_VERSION
                else f"derive new ones: `stagepost pipeline import --from {where.address} --out {where.address}-2`",
            )
        return msgspec.convert(found, Manifest)
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"the last commit to {where.of(COMMITS)} is not a valid manifest: {error}",
            advice="make the tables anew",
        ) from error


def refuse_former(where: TableStore) -> None:
    """Raise `ConfigError` if a folder holds tables of the former format of our own."""
    if where.is_local and (where.folder / FORMER_MANIFEST_FILE).is_file():
        raise ConfigError(
            f"{where.address} holds tables of a former release ({FORMER_MANIFEST_FILE})",
            advice=f"take them over: `stagepost pipeline import --from {where.address} --out {where.address}-2`",
        )


class _Version(msgspec.Struct):
    schema_version: int


# Accounts


def joined(parts: Sequence[Batch]) -> Batch:
    """Return the account of everything that the parts hold."""
    reasons: Counter[str] = Counter()
    other_reasons: Counter[str] = Counter()
    for part in parts:
        reasons.update(part.quarantined)
        other_reasons.update(part.other_quarantined)
    return Batch(
        [file for part in parts for file in part.files],
        rows=sum(part.rows for part in parts),
        passing=sum(part.passing for part in parts),
        quarantined=dict(sorted(reasons.items())),
        other_rows=sum(part.other_rows for part in parts),
        other_quarantined=dict(sorted(other_reasons.items())),
        proof_parts=sum(part.proof_parts for part in parts),
        greatest_arrival_ms=_greatest(part.greatest_arrival_ms for part in parts),
        greatest_full_node_ms=_greatest(part.greatest_full_node_ms for part in parts),
        counted=sum(part.counted for part in parts),
    )


def _greatest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def without(total: Batch, gone: Batch) -> Batch:
    """Return the account without what is gone. The greatest arrival stays it, also when its record is forgotten."""

    def less(held: dict[str, int], taken: dict[str, int]) -> dict[str, int]:
        return {name: left for name, count in held.items() if (left := count - taken.get(name, 0)) > 0}

    return msgspec.structs.replace(
        total,
        rows=total.rows - gone.rows,
        passing=total.passing - gone.passing,
        quarantined=less(total.quarantined, gone.quarantined),
        other_rows=total.other_rows - gone.other_rows,
        other_quarantined=less(total.other_quarantined, gone.other_quarantined),
        counted=total.counted - gone.counted,
    )


def changed(manifest: Manifest, days: Iterable[str]) -> dict[str, int]:
    """Return the days whose reports are to be made, with more of them that change with the commit after this manifest."""
    return {**manifest.changed_days, **dict.fromkeys(sorted(set(days)), manifest.generation + 1)}


def counts(manifest: Manifest) -> dict[str, Any]:
    total = manifest.total
    return {
        "rows": total.rows,
        "counted": total.counted,
        "repeated": total.passing - total.counted,
        "quarantined": sum(total.quarantined.values()),
        "reasons": dict(total.quarantined),
        "other_rows": total.other_rows,
        "removed_rows": manifest.removed_rows,
        "as_of_ms": manifest.reports.as_of_ms if manifest.reports is not None else None,
    }


# Copies of the sets


SETS_FOLDER = "sets"
TRUST_FOLDER = "trust"
"""Folder of the genesis by which proofs are checked, and of the key blocks that were checked: they outlive dropped days."""


def keep_sets(where: TableStore, content: bytes) -> str:
    """Keep a copy, so that tables can be evaluated again without the file that made them. Return its name, durable."""
    digest = sha256(content).hexdigest()
    keep_copy(where, SETS_FOLDER, f"{digest}.json", content)
    return digest


def kept_sets(where: TableStore, manifest: Manifest) -> bytes:
    return _kept(
        where, SETS_FOLDER, str(manifest.sets_digest), ".json", "give the file with --validator-sets"
    )


def keep_genesis(where: TableStore, content: bytes) -> str:
    digest = sha256(content).hexdigest()
    keep_copy(where, TRUST_FOLDER, f"{digest}.tl", content)
    return digest


def kept_genesis(where: TableStore, manifest: Manifest) -> bytes | None:
    """Return the genesis by which proofs are checked; None for tables that know none."""
    if manifest.genesis_digest is None:
        return None
    return _kept(where, TRUST_FOLDER, manifest.genesis_digest, ".tl", "give the file with --genesis")


def _kept(where: TableStore, folder: str, digest: str, suffix: str, advice: str) -> bytes:
    """Return a copy whose name is the hash of its content."""
    content = kept_copy(where, folder, f"{digest}{suffix}", advice)
    if sha256(content).hexdigest() != digest:
        path = where.path(folder, f"{digest}{suffix}")
        raise StorageError(
            f"{path} is damaged: its name is not its hash", advice=f"{advice}, or put the copy back"
        )
    return content


def keep_copy(where: TableStore, folder: str, name: str, content: bytes) -> None:
    """Keep a small file whose name stands for its content. Durable when this returns."""
    if not where.is_local:
        where.put(folder, name, content)
        return
    path = where.folder / folder / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(content)
        sync_file(temporary)
        temporary.replace(path)
        sync_folder(path.parent)


def kept_copy(where: TableStore, folder: str, name: str, advice: str) -> bytes:
    try:
        with where.file_system(folder).open_input_file(name) as file:
            return bytes(file.read())
    except OSError as error:
        raise StorageError(
            f"a copy that the tables need cannot be read: {where.path(folder, name)}", advice=advice
        ) from error


# Names of batches


class BatchName(Protocol):
    def is_taken(self, manifest: Manifest) -> bool: ...

    def enter(self, manifest: Manifest) -> Manifest:
        """Return the same, with this batch taken."""
        ...


class OfDump(NamedTuple):
    digest: str

    def is_taken(self, manifest: Manifest) -> bool:
        return self.digest in manifest.taken

    def enter(self, manifest: Manifest) -> Manifest:
        return msgspec.structs.replace(manifest, taken=[*manifest.taken, self.digest])


class OfStream(NamedTuple):
    """A stream's batches come in order: whatever is not above the last one was taken before."""

    stream: str
    number: int
    offsets: str = ""

    def is_taken(self, manifest: Manifest) -> bool:
        return self.number <= manifest.stream_batches.get(self.stream, -1)

    def enter(self, manifest: Manifest) -> Manifest:
        return msgspec.structs.replace(
            manifest,
            stream_batches={**manifest.stream_batches, self.stream: self.number},
            offsets={**manifest.offsets, self.stream: self.offsets},
        )
