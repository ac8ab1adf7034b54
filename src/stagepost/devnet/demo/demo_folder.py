"""The folder of the demonstration: empty, or left by an earlier one, whose things and nobody else's are removed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stagepost.errors import ConfigError, StorageError
from stagepost.ground.files.data_folder import make_private
from stagepost.ground.files.owner_lock import OwnerLock

MARK = "demo.lock"
"""Its presence says that a demonstration made this folder; held while one runs there."""
TABLES_FOLDER = "tables"
OURS = frozenset(
    [
        "chain",
        "complaints.jsonl",
        "dmq-1",
        "dmq-2",
        "dmq-3",
        "full-node.json",
        "full-node.socket",
        "inbox",
        "keys",
        "log",
        "network.json",
        "outbox",
        "pools.json",
        "spark.log",
        "tables",
        "topics",
        "validator-sets.json",
        "web-token.json",
    ]
) | {f"validator-{number}" for number in range(1, 8)}
"""What a demonstration, and the dashboard over its folder, may have left there."""


@contextmanager
def demo_folder(data: Path) -> Iterator[None]:
    """Ours while it lasts. `ConfigError` if it holds anything that no demonstration has made."""
    make_private(data, "data folder", advice="choose another folder with --data")
    names = {path.name for path in data.iterdir()} - {MARK}
    foreign = sorted(names - OURS)
    if foreign or (names and not (data / MARK).exists()):
        raise ConfigError(
            f"{data} is not empty and was not made by a demo: it holds {(foreign or sorted(names))[0]}",
            advice="choose another folder with --data, or move away what is in it",
        )
    lock = OwnerLock(data / MARK)
    try:
        for name in names:
            _remove(data / name)
        yield
    finally:
        lock.release()


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise StorageError(
            f"{path} of an earlier demo cannot be removed: {error.strerror}",
            advice="choose another folder with --data",
        ) from error
