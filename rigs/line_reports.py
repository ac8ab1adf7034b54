"""Files of lines in which processes that are killed, or lose their disk, tell what they have seen."""

from __future__ import annotations

import os
from pathlib import Path


def open_report(path: Path) -> int:
    """For appending whole lines. What an earlier life had begun of one is cut off, or our first line would go on with it:
    the kernel writes a line that crosses a page in two steps.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    os.truncate(file, path.read_bytes().rfind(b"\n") + 1)
    return file


class Report:
    """Lines that survive the end of the process that wrote them."""

    def __init__(self, path: Path) -> None:
        self._file = open_report(path)

    def line(self, *words: str) -> None:
        os.write(self._file, " ".join(words).encode() + b"\n")
