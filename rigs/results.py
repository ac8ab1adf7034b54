"""Where long runs leave their figures: JSON lines, each with all that is needed to read or repeat it.

A part of `make soak` gives results: dicts that say which `promise` was put to the test, by which `test`, with which
`figure` (words and numbers for people), and whether it `passed`. `faults` are texts for whoever reads the run; every
other key is a detail that stays in results/soak.jsonl. One line per promise goes to results/promises.jsonl.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
OWN_COUNT = "sample"
"""The scale of a run whose counts were chosen by hand: a try, and no proof of a promise."""

Result = dict[str, object]


def result(promise: str, test: str, figure: str, *, faults: Sequence[str] = (), **details: object) -> Result:
    """Passed if there are no faults."""
    return {
        "promise": promise,
        "test": test,
        "figure": figure,
        "passed": not faults,
        "faults": list(faults),
        **details,
    }


def result_of(figure: Mapping[str, object], test: str, faults: Sequence[str]) -> Result:
    """From a loose dict of measurements, which becomes the figure: each name with its value."""
    details = {name: value for name, value in figure.items() if name not in ("promise", "failures")}
    measured = {name: value for name, value in details.items() if name not in ("target", "seed")}
    shown = ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in measured.items())
    return result(str(figure["promise"]), test, shown, faults=faults, **details)


def by_promise(results: Sequence[Mapping[str, object]]) -> list[Result]:
    """One for each promise, in the order of their first results. It passed if all of them did."""
    found: list[Result] = []
    for promise in dict.fromkeys(str(one["promise"]) for one in results):
        ours = [one for one in results if one["promise"] == promise]
        joined: Result = {
            "promise": promise,
            "test": "; ".join(dict.fromkeys(str(one["test"]) for one in ours if one["test"])),
            "figure": "; ".join(str(one["figure"]) for one in ours),
            "passed": all(one["passed"] for one in ours),
        }
        seeds = [one["seed"] for one in ours if one.get("seed") is not None]
        found.append({**joined, "seed": seeds[0] if seeds else None})
    return found


def circumstances(command: str) -> dict[str, object]:
    """A figure means something only with its machine, load, command, revision and date."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "command": command,
        "processors": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def write_lines(name: str, command: str, figures: Iterable[Mapping[str, object]]) -> Path:
    """Append one line per figure to `results/<name>.jsonl`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.jsonl"
    shared = circumstances(command)
    with path.open("a") as file:
        for figure in figures:
            file.write(json.dumps({**figure, **shared}, ensure_ascii=False) + "\n")
    return path


def revision() -> str:
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
