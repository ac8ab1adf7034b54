"""Where long runs leave their figures: JSON lines, each with all that is needed to read or repeat it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from tests.fuzz.harness import ROOT, revision

RESULTS = ROOT / "results"


def circumstances(command: str) -> dict[str, object]:
    """A figure means something only with its machine, load, command, revision and date."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "command": command,
        "processors": os.cpu_count(),
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
