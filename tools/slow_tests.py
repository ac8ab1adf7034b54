"""Write tests/slow_tests.txt, the tests that `make quick` leaves out, from what pytest measured on an idle machine.

    .venv/bin/python -m pytest -q tests/unit tests/property -m 'not fuzz' --durations=0 -vv | python tools/slow_tests.py

A test's parameters count together: what is left out is a function with all its cases, its set-up included.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

LIST = Path(__file__).parents[1] / "tests" / "slow_tests.txt"
SLOW_S = 0.5
"""Seconds of a test function with all its cases: from here on it is slow."""
HEADER = "# Tests that `make quick` leaves out; written by tools/slow_tests.py from measured durations.\n"
_MEASURED = re.compile(r"^\s*(\d+\.\d+)s (?:setup|call|teardown)\s+(\S+?::[^\s\[]+)")


def slow_functions(lines: Iterable[str], slow_s: float = SLOW_S) -> list[str]:
    """Return `file::function` of each function whose cases took `slow_s` or more together, sorted."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        if found := _MEASURED.match(line):
            seconds[found[2]] += float(found[1])
    return sorted(name for name, taken in seconds.items() if taken >= slow_s)


def main(arguments: Sequence[str] = ()) -> int:
    names = slow_functions(sys.stdin, float(arguments[0]) if arguments else SLOW_S)
    LIST.write_text(HEADER + "".join(f"{name}\n" for name in names))
    print(f"{len(names)} slow test functions")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
