"""Check that a stream's checkpoint and the tables beside it belong together, before a stream goes on from
them.

The manifest says up to which batch a stream is in the tables, the checkpoint how far each batch reads. If one
of them is put back from elsewhere, batches of the same number would hold other records, and records would
silently be lost or counted twice. A checkpoint that is lost is made anew from the last commit. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import msgspec

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.small_files import replace_file, sync_file, sync_folder
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.pipeline.tables.manifest import Manifest

Marked = dict[str, dict[str, int | tuple[int, str]]]
"""Offsets of a stream by topic and partition; those of our own topics with the mark of the record before (`topic_marks`)."""

STREAM = "topics"
"""Name of the stream of `stagepost pipeline run` in the commits of the tables."""

LOG_VERSION = "v1"
FINISHED = f'{LOG_VERSION}\n{{"nextBatchWatermarkMs":0}}'
"""Content by which Spark knows that a batch is done."""

PLANNED = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
"""Line of a planned batch that is of Spark's own: no stream of ours has watermarks or settings of its own."""

CHECKPOINT_MODE = 0o644
"""Bits, less the umask: as Spark writes it."""

START_AGAIN = "put back the checkpoint that belongs to these tables, or make new tables with another --out"


def require_fitting_checkpoint(checkpoint: Path, manifest: Manifest, stream: str) -> None:
    """Raise `ConfigError` in one sentence if the stream would not go on where these tables end."""
    taken = manifest.stream_batches.get(stream, -1)
    planned, finished = last_number(checkpoint / "offsets"), last_number(checkpoint / "commits")
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


def planned_text(checkpoint: Path, number: int) -> str:
    """Return what the checkpoint says of a batch that was planned, for the commit of the batch."""
    path = checkpoint / "offsets" / str(number)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}", advice=START_AGAIN) from error


def restore_checkpoint(checkpoint: Path, manifest: Manifest, stream: str) -> bool:
    """Make a checkpoint that was lost anew, from what the last commit says of its batch. Return whether it was lost."""
    taken, text = manifest.stream_batches.get(stream, -1), manifest.offsets.get(stream, "")
    if taken < 0 or not text or any((checkpoint / name).exists() for name in ("offsets", "commits")):
        return False
    # Spark looks at the batch before, too, and takes nothing from it when the last one is done.
    for number in range(max(0, taken - 1), taken + 1):
        write_checkpoint(checkpoint, "offsets", number, text)
        write_checkpoint(checkpoint, "commits", number, FINISHED)
    return True


def write_checkpoint(checkpoint: Path, name: str, number: int, content: str) -> None:
    """Write the entry of a batch among the `offsets` or `commits` of a checkpoint, durably."""
    try:
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
        if not (checkpoint / "metadata").exists():
            replace_file(checkpoint / "metadata", f'{{"id":"{uuid4()}"}}'.encode(), CHECKPOINT_MODE)
        replace_file(checkpoint / name / str(number), content.encode(), CHECKPOINT_MODE)
        sync_file(checkpoint / name / str(number))
        sync_folder(checkpoint / name)
    except OSError as error:
        raise StorageError(
            f"the checkpoint {checkpoint} cannot be written: {error.strerror}", advice="see --out"
        ) from error


def planned_offsets(checkpoint: Path) -> Marked:
    """Return how far the last batch reads that was planned; empty where none was."""
    planned = last_number(checkpoint / "offsets")
    return read_offsets(checkpoint / "offsets" / str(planned)) if planned >= 0 else {}


def read_offsets(path: Path) -> Marked:
    """Return the offsets of one batch in a checkpoint."""
    try:
        return parsed_offsets(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}", advice=START_AGAIN) from error


def parsed_offsets(text: str, where: str) -> Marked:
    """Return the offsets of one batch, as Spark and our source write it: a version, Spark's settings, our offsets."""
    lines = text.splitlines()
    if not lines or lines[0] != LOG_VERSION:
        found = lines[0][:20] if lines else "nothing"
        raise ConfigError(
            f"the checkpoint {where} begins with {found}, and this program reads {LOG_VERSION}",
            advice=START_AGAIN,
            found=found,
        )
    try:
        return decode_foreign(lines[2].encode(), Marked)
    except (IndexError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f"the checkpoint is of another kind of stream: {where} holds no offsets of topics",
            advice=START_AGAIN,
        ) from error


def last_number(folder: Path) -> int:
    return max(_numbers(folder), default=-1)


def _numbers(folder: Path) -> Iterable[int]:
    return (int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else ()
