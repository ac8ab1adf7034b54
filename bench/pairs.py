"""Compare two revisions: the same part of the benchmark in both, in turns, and the ratios of each pair.

    python -m bench.pairs ../before --only network                     five pairs, every figure that both revisions give
    python -m bench.pairs ../before --only network --most 1.15 --named gross    and exit with 1 where a median is above
    python -m bench.pairs ../before --now ../after --only delivery     neither of both is this revision

`../before` and `../after` are clones of this repository at other revisions, each with its own virtual environment
(`make bench` makes it). The part is one of bench/run.py, or `delivery`, where only our own systems are measured.
Both revisions measure within the same minutes, so a ratio says more than two figures of different days do. A pair begins
with the revision that came second in the pair before it. A ratio above 1 says that the later revision costs more: rates are
turned round. Figures whose name has "processor time" or "per core", and the ratios of the part `path`, are measured in
processor time; neighbours disturb them less than they disturb times by the clock.
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
DELIVERY = "delivery"
OWN_SYSTEMS = "stagepost"
RATES = frozenset(["/s", "messages/s"])
"""Units of figures of which more is better."""

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
    parser.add_argument("before", type=Path, help="a clone at the earlier revision")
    parser.add_argument(
        "--now", type=Path, default=ROOT, help="a clone at the later revision; unless told, this one"
    )
    parser.add_argument(
        "--only", required=True, metavar="PART", help=f"a part of bench/run.py, or {DELIVERY}"
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help=f"{PAIRS} unless told")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds of each step, where the part has any")
    parser.add_argument("--named", default="", metavar="TEXT", help="figures whose name contains this text")
    parser.add_argument("--most", type=float, metavar="R", help="fail when a median ratio is above")
    options = parser.parse_args(arguments)
    rounds = [] if options.rounds is None else ["--rounds", str(options.rounds)]
    runs = measure_in_turns(options.before, options.now, options.only, options.pairs, rounds)
    found = ratios(runs, options.named)
    print(table(found))
    if not found:
        print(f"no figure of both revisions has {options.named!r} in its name", file=sys.stderr)
        return 2
    above = [one for one in found if options.most is not None and one.middle > options.most]
    for one in above:
        print(f"missed: {one.name} is {one.middle:.3f} times the one before, the limit is {options.most}")
    return int(bool(above))


def measure_in_turns(
    before: Path, now: Path, part: str, pairs: int, rounds: Sequence[str] = ()
) -> list[tuple[Figures, Figures]]:
    """Return the figures of both folders, `before` first, for each pair."""
    found: list[tuple[Figures, Figures]] = []
    for number in range(pairs):
        turn = (before, now) if number % 2 == 0 else (now, before)
        figures = {folder: run_part(folder, part, rounds) for folder in turn}
        found.append((figures[before], figures[now]))
        print(f"pair {number + 1} of {pairs}", file=sys.stderr, flush=True)
    return found


def run_part(folder: Path, part: str, rounds: Sequence[str] = ()) -> Figures:
    """Run one part in `folder` with the Python of that folder, and return the figures that it wrote. `rounds` is an option of
    bench/run.py.
    """
    is_delivery = part == DELIVERY
    lines = folder / "results" / ("bench-delivery.jsonl" if is_delivery else "bench.jsonl")
    written = lines.stat().st_size if lines.exists() else 0
    program = [str(folder.resolve() / ".venv" / "bin" / "python")]
    program += (
        ["-m", "bench.delivery.beside", "--only", OWN_SYSTEMS]
        if is_delivery
        else ["bench/run.py", "--only", part, *rounds]
    )
    subprocess.run(program, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    with lines.open("rb") as file:
        file.seek(written)
        return read_figures(file.read().decode())


def read_figures(text: str) -> Figures:
    """Return the cost of each line by its name: the ratio of a step, the value of a reading, the times of a system.

    Of a rate it is the inverse.
    """
    found: dict[str, float] = {}
    for row in map(json.loads, text.splitlines()):
        if "step" in row:
            found[row["step"]] = row["ratio"]
        elif "name" in row:
            is_rate = row.get("unit") in RATES and row["value"]
            found[row["name"]] = 1 / row["value"] if is_rate else row["value"]
        elif "system" in row:
            name = f"{row['system']}, window {row['window']}"
            found[f"{name}: processor time of a message, ms"] = row["processor_s_per_1000"]
            found[f"{name}: time of a message, ms"] = 1e3 / row["per_s"]
    return found


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
    lines = [f"{'figure':74} {'before':>10} {'now':>10} {'ratio':>7}   of the pairs"]
    lines += [
        f"{one.name:74} {one.before:>10.4g} {one.now:>10.4g} {one.middle:>7.3f}   "
        f"{min(one.ratios):.3f} to {max(one.ratios):.3f}"
        for one in found
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
