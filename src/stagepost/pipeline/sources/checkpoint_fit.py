"""Check that a stream's checkpoint and the tables beside it belong together, before a stream goes on from
them.

The manifest says up to which batch a stream is in the tables, the checkpoint how far each batch reads. If one
of them is lost or put back from elsewhere, batches of the same number would hold other records, and records
would silently be lost or counted twice. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline.tables.manifest import Manifest

Marked = dict[str, dict[str, int | tuple[int, str]]]
"""Offsets of a stream by topic and partition; those of our own topics with the mark of the record before (`topic_marks`)."""

LOG_VERSION = "v1"
START_AGAIN = "put back the checkpoint that belongs to these tables, or make new tables with another --out"


def require_fitting_checkpoint(checkpoint: Path, manifest: Manifest, stream: str) -> None:
    """Raise `ConfigError` in one sentence if the stream would not go on where these tables end."""
    taken = manifest.stream_batches.get(stream, -1)
    planned, finished = _last(checkpoint / "offsets"), _last(checkpoint / "commits")
    if taken > planned:
        raise ConfigError(
            f"the tables hold batch {taken} of the stream, and the checkpoint {checkpoint} "
            + (f"knows batches up to {planned} only" if planned >= 0 else "is empty"),
            advice=START_AGAIN,
            found=planned,
        )
    if finished > taken:
        raise ConfigError(
            f"the checkpoint {checkpoint} has finished batch {finished} of the stream, and the tables "
            + (f"hold batches up to {taken} only" if taken >= 0 else "hold none of it"),
            advice=START_AGAIN,
            found=finished,
        )
    planned_offsets(checkpoint)


def planned_offsets(checkpoint: Path) -> Marked:
    """Return how far the last batch reads that was planned; empty where none was."""
    planned = _last(checkpoint / "offsets")
    return read_offsets(checkpoint / "offsets" / str(planned)) if planned >= 0 else {}


def read_offsets(path: Path) -> Marked:
    """Return the offsets of one batch, as Spark and our source write it: a version, Spark's settings, our offsets."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}", advice=START_AGAIN) from error
    if not lines or lines[0] != LOG_VERSION:
        found = lines[0][:20] if lines else "nothing"
        raise ConfigError(
            f"the checkpoint {path.parents[1]} begins with {found}, and this program reads {LOG_VERSION}",
            advice=START_AGAIN,
            found=found,
        )
    try:
        return msgspec.json.decode(lines[2], type=Marked)
    except (IndexError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"the checkpoint {path.parents[1]} is of another kind of stream: {path} holds no offsets of topics",
            advice=START_AGAIN,
        ) from error


def _last(folder: Path) -> int:
    return max(_numbers(folder), default=-1)


def _numbers(folder: Path) -> Iterable[int]:
    return (int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else ()
