"""D4 on real nodes: every call of the store fails once, file systems and files are full."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rigs.results import Result, result, result_of
from tests.hostile.bad_disks import failing_calls, full_files, full_filesystem
from tests.hostile.disk_shim import NotToBeHad
from tests.hostile.storms import Figure
from tests.soak.runs import Run

DISKS: dict[str, Callable[[], tuple[Figure, list[str]]]] = {
    "calls that fail": failing_calls,
    "a full file system": full_filesystem,
    "a limit on the size of files": full_files,
}


def disks(run: Run) -> Iterator[Result]:
    for name, scenario in DISKS.items():
        run.say(name)
        test = f"tests/hostile/bad_disks.py: {name}"
        try:
            figure, faults = scenario()
        except NotToBeHad as reason:
            yield result("D4", test, f"not run: {reason}")
        else:
            yield result_of(figure, test, faults)
