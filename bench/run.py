"""Measures what each step of a message costs, in units of one signature check, against the limits it must keep.

    make bench               measure and print
    make bench CHECK=1       exit with 1 if a limit is missed, and name it

The table goes to stdout, one JSON line per step to results/bench.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measure import ROUNDS, Figure, measure
from bench.steps import steps, unit
from tests.soak.results import circumstances, write_lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="fail when a limit is missed")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"{ROUNDS} unless told")
    options = parser.parse_args(arguments)
    figures = measure_all(options.rounds)
    command = f"python bench/run.py{' --check' if options.check else ''} --rounds {options.rounds}"
    print(table(figures, circumstances(command)))
    write_lines("bench", command, [{**asdict(figure), "over": figure.is_over} for figure in figures])
    return verdict(figures, check=options.check)


def measure_all(rounds: int = ROUNDS) -> list[Figure]:
    one_check = unit()
    with steps() as found:
        return [measure(step, one_check, rounds) for step in found]


def table(figures: Sequence[Figure], where: Mapping[str, object]) -> str:
    lines = [f"{'step':32} {'ratio':>8} {'limit':>8}"]
    for figure in figures:
        limit = "" if figure.limit is None else f"{figure.limit:.2f}"
        state = "" if figure.limit is None else "over" if figure.is_over else "ok"
        lines.append(f"{figure.step:32} {figure.ratio:>8.3f} {limit:>8} {state}".rstrip())
    fastest = min(figure.unit_us for figure in figures)
    lines += [
        "",
        f"unit: one signature check by libsodium, here {fastest:.1f} microseconds",
        f"{where['processors']} processors, {where['machine']}, Python {where['python']}, load {where['load']}, "
        f"revision {where['revision']}, {where['date']}",
    ]
    return "\n".join(lines)


def verdict(figures: Sequence[Figure], *, check: bool) -> int:
    """0, or 1 if limits are to be kept and one is not; each one missed is named."""
    missed = [figure for figure in figures if figure.is_over]
    for figure in missed:
        print(f"missed: {figure.step} costs {figure.ratio:.3f}, the limit is {figure.limit}", file=sys.stderr)
    return 1 if check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
