"""Faults of several files and of the command line, collected before anything is started."""

from __future__ import annotations

from collections.abc import Iterable

from stagepost.errors import ConfigFaults, Fault

COMMAND_LINE = "command line"


class FaultsByFile:
    """In the order in which the files were looked at."""

    def __init__(self) -> None:
        self._faults: dict[str, list[Fault]] = {}

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add(self, file: str, *faults: Fault) -> None:
        if faults:
            self._faults.setdefault(file, []).extend(faults)

    def extend(self, other: ConfigFaults) -> None:
        for file, faults in other.faults.items():
            self.add(file, *faults)

    def of(self, file: str) -> Iterable[Fault]:
        return self._faults.get(file, [])

    def error(self) -> ConfigFaults:
        return ConfigFaults(self._faults)

    def raise_if_any(self) -> None:
        if self._faults:
            raise self.error()
