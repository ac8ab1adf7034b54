"""The manifest of a tables folder: the one small file that says which Parquet files are published.

A file that it does not name does not exist for readers. It is replaced whole, so a reader sees one moment, and a batch
is in it with all its files or not at all. Needs no Spark.

Copies of validator-sets files beside the tables, by the hash of their content. Needs no Spark.

What a batch is called, so that it is taken once: a dump by its content, a batch of a stream by its number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from stagepost.errors import ConfigError, StorageError

SCHEMA_VERSION = 3
MANIFEST_FILE = "manifest.json"
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
RECORDS, STATE, LIVES = "records", "state", "lives"
"""Kinds of a batch's files. A batch without an entry for its lives has not been evaluated yet."""


class Batch(msgspec.Struct, frozen=True):
    """One commit's records and state, or many commits' after compaction. Files are named from the folder on.

    `rows` are records of the status topic: each passed or is quarantined. `counted` are the receipts that no batch before
    had, known when the batch has been evaluated.
    """

    files: dict[str, list[str]]
    rows: int = 0
    passing: int = 0
    quarantined: dict[str, int] = {}
    other_rows: int = 0
    other_quarantined: dict[str, int] = {}
    greatest_arrival_ms: int | None = None
    greatest_full_node_ms: int | None = None
    counted: int = 0


class Reports(msgspec.Struct, frozen=True):
    """The moment that the tables are shown for, and the files of those tables that are not worked out when read."""

    files: dict[str, list[str]]
    as_of_ms: int | None
    message_timeout_ms: int


class Dropped(msgspec.Struct, frozen=True):
    """Files that no longer count: they stay a while for readers who have just read the manifest before."""

    files: list[str]
    dropped_ms: int


class Manifest(msgspec.Struct, frozen=True):
    """`taken` names the dumps that are in; `stream_batches` says up to which batch a stream is in, by its name."""

    schema_version: int = SCHEMA_VERSION
    generation: int = 0
    sets_digest: str | None = None
    taken: list[str] = []
    stream_batches: dict[str, int] = {}
    batches: list[Batch] = []
    reports: Reports | None = None
    dropped: list[Dropped] = []
    removed_rows: int = 0

    def files(self, kind: str) -> list[str]:
        return [name for batch in self.batches for name in batch.files.get(kind, ())]

    @property
    def counted(self) -> int:
        return sum(batch.counted for batch in self.batches)

    def live(self) -> Iterator[str]:
        """Files that count."""
        for batch in self.batches:
            for names in batch.files.values():
                yield from names
        for names in (self.reports.files if self.reports else {}).values():
            yield from names

    def published(self) -> Iterator[str]:
        """Files that count, and those that did and have not been removed for certain."""
        yield from self.live()
        for dropped in self.dropped:
            yield from dropped.files

    @property
    def natural_as_of_ms(self) -> int | None:
        """The greatest arrival ever put in, else the greatest time of a full node, else none: life is never over."""
        arrival_ms = self.greatest_arrival_ms
        return self.greatest_full_node_ms if arrival_ms is None else arrival_ms

    @property
    def greatest_arrival_ms(self) -> int | None:
        return max(
            (time for one in self.batches if (time := one.greatest_arrival_ms) is not None), default=None
        )

    @property
    def greatest_full_node_ms(self) -> int | None:
        return max(
            (time for one in self.batches if (time := one.greatest_full_node_ms) is not None), default=None
        )


def read_manifest(folder: Path) -> Manifest | None:
    """None where there are no tables yet."""
    path = folder / MANIFEST_FILE
    try:
        with path.open("rb") as file:
            content = file.read(MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}", advice="see --tables") from error
    _require_size(path, len(content))
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"the tables in {folder} have schema version {version}, this program reads {SCHEMA_VERSION}",
                advice="make new ones from the topics or the dump with `stagepost pipeline backfill`",
            )
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path} is no manifest: {error}", advice="make the tables anew") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Durable when this returns; the files that it names have to be durable before."""
    path = folder / MANIFEST_FILE
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    _require_size(path, len(content))
    replace_durably(path, content)


def replace_durably(path: Path, content: bytes) -> None:
    """Replace the file whole. The new content is durable when this returns; `StorageError` if it cannot be written."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}", advice="is the disk full, or the folder another's?"
        ) from error


def _require_size(path: Path, size: int) -> None:
    if size > MANIFEST_BYTES_MAX:
        raise StorageError(
            f"{path} would name more files than fit in {MANIFEST_BYTES_MAX} bytes",
            advice="fold them with `stagepost pipeline compact`, and forget old messages with its --keep",
            limit=MANIFEST_BYTES_MAX,
        )


def sync_folder(folder: Path) -> None:
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: str | os.PathLike[str]) -> None:
    _sync(path, os.O_RDONLY)


def _sync(path: str | os.PathLike[str], flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Version(msgspec.Struct):
    schema_version: int


SETS_FOLDER = "sets"


def keep_sets(folder: Path, content: bytes) -> str:
    """So that tables can be evaluated again without the file that made them. Durable when this returns."""
    digest = sha256(content).hexdigest()
    path = folder / SETS_FOLDER / f"{digest}.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(".new")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    return digest


def kept_sets(folder: Path, manifest: Manifest) -> bytes:
    path = folder / SETS_FOLDER / f"{manifest.sets_digest}.json"
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"the validator sets of the tables cannot be read: {path}",
            advice="give the file with --validator-sets",
        ) from error


class BatchName(Protocol):
    def is_taken(self, manifest: Manifest) -> bool: ...

    def enter(self, manifest: Manifest) -> Manifest:
        """The same, with this batch taken."""
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

    def is_taken(self, manifest: Manifest) -> bool:
        return self.number <= manifest.stream_batches.get(self.stream, -1)

    def enter(self, manifest: Manifest) -> Manifest:
        return msgspec.structs.replace(
            manifest, stream_batches={**manifest.stream_batches, self.stream: self.number}
        )
