"""A devnet as one process of the operator's command, with an HTTP intake."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT

ENDS_WITHIN_S = 120.0


@dataclass(frozen=True)
class DevnetProcess:
    process: subprocess.Popen[str]
    data: Path
    http: str


@contextmanager
def devnet_process(data: Path, *options: str) -> Iterator[DevnetProcess]:
    command = [*COMMAND, "devnet", "--data", str(data), "--http", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        if "devnet ready" not in first:
            raise AssertionError(f"the devnet said {first!r}")
        yield DevnetProcess(process, data, process.stderr.readline().split()[-1])
        process.send_signal(signal.SIGTERM)
        if process.wait(ENDS_WITHIN_S) != 0:
            raise AssertionError(f"the devnet ended with {process.returncode}")
    finally:
        process.kill()
        process.communicate()
