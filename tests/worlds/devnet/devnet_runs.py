"""`stagepost devnet` as a process that tests look at from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
WITHIN_S = 300
COMMAND = (sys.executable, "-m", "stagepost.cli.main")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def devnet(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "devnet", "--data", str(data), *options],
        cwd=data.parent,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
