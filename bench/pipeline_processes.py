"""What the processes of a pipeline use: the JVM, its Python workers and whoever started them, from /proc."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LOOK_EVERY_S = 0.5


class Used(NamedTuple):
    cpu_s: float
    """Of those that have ended, too."""
    java_bytes: int
    python_bytes: int


def used_by(root: int) -> Used:
    """A process and everything below it."""
    cpu_s, java_bytes, python_bytes = 0.0, 0, 0
    for one in family(root):
        try:
            name, _, rest = Path(f"/proc/{one}/stat").read_text().rpartition(")")
        except OSError:
            continue  # ended meanwhile
        fields = rest.split()
        cpu_s += sum(map(int, fields[11:15])) / TICKS_PER_S
        resident = int(fields[21]) * PAGE_BYTES
        if name.endswith("(java"):
            java_bytes += resident
        else:
            python_bytes += resident
    return Used(cpu_s, java_bytes, python_bytes)


def family(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {root}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return found


class Memory:
    """The greatest resident memory of a family while it is watched: `with Memory(pid) as memory`."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.java_bytes = self.python_bytes = 0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            used = used_by(self._root)
            self.java_bytes = max(self.java_bytes, used.java_bytes)
            self.python_bytes = max(self.python_bytes, used.python_bytes)
