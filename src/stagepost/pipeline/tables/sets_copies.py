"""Copies of validator-sets files beside the tables, by the hash of their content. Needs no Spark."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from stagepost.errors import StorageError
from stagepost.pipeline.tables.manifest import Manifest

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
