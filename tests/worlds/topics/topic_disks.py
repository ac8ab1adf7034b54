"""Disks under a topic log: one that fails on order, one that is quick, and one whose power can be cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

from stagepost.ground.files.small_files import Files

T = TypeVar("T")
SECTOR_BYTES = 512


class QuickFiles(Files):
    """Does not wait for the disk: for tests in which neither a process nor a machine ends."""

    def sync(self, file: int) -> None:
        os.fstat(file)

    def sync_folder(self, path: Path) -> None:
        path.stat()


class FailingFiles(QuickFiles):
    """Makes the Nth call fail, and `failures` of them in a row; a short write does half of it first."""

    def __init__(self) -> None:
        self.calls = 0
        self.syncs = 0
        self.fails_at: int | None = None
        self.failures = 1
        self.error = errno.EIO
        self.is_short = False
        self.kinds: tuple[str, ...] = ()

    def fail(
        self, at: int, error: int = errno.EIO, *, failures: int = 1, kinds: tuple[str, ...] = ()
    ) -> None:
        self.calls, self.fails_at, self.error, self.failures, self.kinds = 0, at, error, failures, kinds

    def heal(self) -> bool:
        """Whether a call was made to fail since the order."""
        has_failed = self.fails_at is not None and self.calls >= self.fails_at
        self.fails_at = None
        return has_failed

    def _do(self, kind: str, act: Callable[[], T]) -> T:
        if not self.kinds or kind in self.kinds:
            self.calls += 1
            if self.fails_at is not None and self.fails_at <= self.calls < self.fails_at + self.failures:
                raise OSError(self.error, os.strerror(self.error))
        return act()

    def open(self, path: Path, *, is_new: bool = False) -> int:
        return self._do("open", lambda: super(FailingFiles, self).open(path, is_new=is_new))

    def write(self, file: int, content: bytes | memoryview, position: int) -> int:
        if (
            self.is_short
            and self.fails_at is not None
            and self.calls + 1 == self.fails_at
            and len(content) > 1
        ):
            return super().write(file, content[: len(content) // 2], position)
        return self._do("write", lambda: super(FailingFiles, self).write(file, content, position))

    def sync(self, file: int) -> None:
        self.syncs += 1
        self._do("sync", lambda: super(FailingFiles, self).sync(file))

    def cut(self, file: int, size: int) -> None:
        self._do("cut", lambda: super(FailingFiles, self).cut(file, size))

    def remove(self, path: Path) -> None:
        self._do("remove", lambda: super(FailingFiles, self).remove(path))

    def rename(self, old: Path, new: Path) -> None:
        self._do("rename", lambda: super(FailingFiles, self).rename(old, new))

    def sync_folder(self, path: Path) -> None:
        self._do("sync folder", lambda: super(FailingFiles, self).sync_folder(path))


class PowerCut(Exception):
    """The machine is off: nothing more is done."""


class CuttableFiles(QuickFiles):
    """Remembers what is safe. `cut_at` ends everything with the Nth call; `come_back` then leaves on the disk what could be there.

    Of what was written and not synced, each sector may have reached the disk or not, the size of the file may have grown or
    not, and names that were removed may be there again. Without `is_syncing` it only says that it has synced.
    """

    def __init__(self, chance: Random, cut_at: int, *, is_syncing: bool = True) -> None:
        self._is_syncing = is_syncing
        self._chance = chance
        self._left = cut_at
        self._paths: dict[int, Path] = {}
        self._versions: dict[Path, list[bytes]] = {}
        """Of each file the content at its last sync, and after every write since."""
        self._removed: dict[Path, bytes] = {}
        self._is_off = False

    def _tick(self) -> None:
        self._left -= 1
        if self._left < 0 or self._is_off:
            self._is_off = True
            raise PowerCut

    def open(self, path: Path, *, is_new: bool = False) -> int:
        self._tick()
        file = super().open(path, is_new=is_new)
        self._paths[file] = path
        self._versions.setdefault(path, [b"" if is_new else path.read_bytes()])
        return file

    def write(self, file: int, content: bytes | memoryview, position: int) -> int:
        if self._left == 0:
            # The last write of all comes to the end of some sector: a disk writes no half ones.
            end = position + self._chance.randrange(len(content) + 1)
            whole = max(0, end - end % SECTOR_BYTES - position)
            super().write(file, content[:whole], position)
            self._note(file)
        self._tick()
        written = super().write(file, content, position)
        self._note(file)
        return written

    def _note(self, file: int) -> None:
        path = self._paths[file]
        self._versions[path].append(path.read_bytes())

    def sync(self, file: int) -> None:
        self._tick()
        path = self._paths[file]
        if self._is_syncing:
            self._versions[path] = [path.read_bytes()]

    def cut(self, file: int, size: int) -> None:
        self._tick()
        super().cut(file, size)
        self._note(file)

    def remove(self, path: Path) -> None:
        self._tick()
        if path.exists():
            self._removed[path] = path.read_bytes()
        super().remove(path)

    def rename(self, old: Path, new: Path) -> None:
        self._tick()
        super().rename(old, new)
        self._versions[new] = self._versions.pop(old)
        self._removed.pop(new, None)

    def come_back(self) -> None:
        for path, versions in self._versions.items():
            if path.exists():
                path.write_bytes(self._what_is_left(versions))
        for path, content in self._removed.items():
            if not path.exists() and not path.name.startswith(".") and self._chance.random() < 0.5:
                path.write_bytes(content)

    def _what_is_left(self, versions: list[bytes]) -> bytes:
        old, new = versions[0], self._chance.choice(versions)
        size = self._chance.choice([len(old), len(new)])
        sectors = []
        for at in range(0, size, SECTOR_BYTES):
            source = self._chance.choice([old, new])
            sectors.append(source[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0"))
        return b"".join(sectors)[:size]
