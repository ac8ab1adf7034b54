"""Compare this revision with another one: the same part of the benchmark in both, in turns, and the ratios of each pair.

    python -m bench.pairs ../before --only network                     five pairs, every figure that both revisions give
    python -m bench.pairs ../before --only network --most 1.15 --named gross    and exit with 1 where a median is above

`../before` is a clone of this repository at the other revision, with its own virtual environment (`make bench` makes it).
Both revisions measure within the same minutes, so a ratio says more than two figures of different days do. A pair begins
with the revision that came second in the pair before it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
PAIRS = 5
LINES = Path("results") / "bench.jsonl"

Figures = Mapping[str, float]


@dataclass(frozen=True)
class Ratio:
    """One figure in both revisions: its medians, and the ratio of each pair."""

    name: str
    before: float
    now: float
    ratios: tuple[float, ...]

    @property
    def middle(self) -> float:
        return median(self.ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="pairs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="a clone at the other revision")
    parser.add_argument("--only", required=True, metavar="PART", help="the part of bench/run.py")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help=f"{PAIRS} unless told")
    parser.add_argument("--named", default="", metavar="TEXT", help="figures whose name contains this text")
    parser.add_argument("--most", type=float, metavar="R", help="fail when a median ratio is above")
    options = parser.parse_args(arguments)
    found = ratios(measure_in_turns(options.before, ROOT, options.only, options.pairs), options.named)
    print(table(found))
    if not found:
        print(f"no figure of both revisions has {options.named!r} in its name", file=sys.stderr)
        return 2
    above = [one for one in found if options.most is not None and one.middle > options.most]
    for one in above:
        print(f"missed: {one.name} is {one.middle:.3f} times the one before, the limit is {options.most}")
    return int(bool(above))


def measure_in_turns(before: Path, now: Path, part: str, pairs: int) -> list[tuple[Figures, Figures]]:
    """Return the figures of both folders, `before` first, for each pair."""
    found: list[tuple[Figures, Figures]] = []
    for number in range(pairs):
        turn = (before, now) if number % 2 == 0 else (now, before)
        figures = {folder: run_part(folder, part) for folder in turn}
        found.append((figures[before], figures[now]))
        print(f"pair {number + 1} of {pairs}", file=sys.stderr, flush=True)
    return found


def run_part(folder: Path, part: str) -> Figures:
    """Run one part in `folder` with the Python of that folder, and return the figures that it wrote."""
    lines = folder / LINES
    written = lines.stat().st_size if lines.exists() else 0
    program = folder.resolve() / ".venv" / "bin" / "python"
    command = [str(program), "bench/run.py", "--only", part]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with lines.open("rb") as file:
        file.seek(written)
        return read_figures(file.read().decode())


def read_figures(text: str) -> Figures:
    """Return the value of each line by its name: the ratio of a step, or the value of a reading."""
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["step"]: row["ratio"] for row in rows if "step" in row} | {
        row["name"]: row["value"] for row in rows if "name" in row
    }


def ratios(pairs: Sequence[tuple[Figures, Figures]], named: str = "") -> list[Ratio]:
    """Return the ratios of the figures that every run gave, and none of which is 0."""
    names = [
        name
        for name in (pairs[0][1] if pairs else {})
        if named in name and all(before.get(name) and now.get(name) for before, now in pairs)
    ]
    return [
        Ratio(
            name,
            median(before[name] for before, _ in pairs),
            median(now[name] for _, now in pairs),
            tuple(now[name] / before[name] for before, now in pairs),
        )
        for name in names
    ]


def table(found: Sequence[Ratio]) -> str:
    lines = [f"{'figure':62} {'before':>10} {'now':>10} {'ratio':>7}   of the pairs"]
    lines += [
        f"{one.name:62} {one.before:>10,.2f} {one.now:>10,.2f} {one.middle:>7.3f}   "
        f"{min(one.ratios):.3f} to {max(one.ratios):.3f}"
        for one in found
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
