"""S8: a process that evolves a KES key is killed at each of its steps; one usable key is left, which never goes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stagepost.crypto import kes
from stagepost.errors import SigningError
from stagepost.runtime import key_files
from tests.hostile.storms import Figure
from tests.unit.runtime.test_key_files import MESSAGE, STEPS_MAX, FaultyOs, a_kes_key

ROOT = Path(__file__).parents[2]
LAST_PERIOD = 63


def evolve_and_die(path: Path, orders: Sequence[int]) -> None:
    """The life of the process that is killed: parent and child by turns, so that Python is started once."""
    for _ in orders:
        step = int(sys.stdin.readline())
        child = os.fork()
        if child == 0:
            vars(key_files)["os"] = FaultyOs(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
            key_files.evolve(path)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def evolving(periods: Sequence[int]) -> tuple[Figure, list[str]]:
    faults: list[str] = []
    kills = 0
    for period in periods:
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "kes.skey"
            kills += _kill_at_each_step(path, period, faults)
    figure: Figure = {
        "promise": "S8",
        "target": "kill -9 at each step of evolution",
        "kills": kills,
        "periods": len(periods),
        "failures": len(faults),
    }
    return figure, faults


def _kill_at_each_step(path: Path, period: int, faults: list[str]) -> int:
    orders = range(STEPS_MAX)
    code = (
        "from pathlib import Path; from tests.hostile.key_evolution import evolve_and_die; "
        f"evolve_and_die(Path({str(path)!r}), range({len(orders)}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for step in range(1, STEPS_MAX):
            key_files.save(path, a_kes_key(period), replace=True)
            process.stdin.write(f"{step}\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            faults += [f"period {period}, step {step}: {text}" for text in _look(path, period)]
            if status != -signal.SIGKILL:
                if status != 0 or key_files.load_as(kes.SigningKey, path).period != period + 2:
                    faults.append(f"period {period}: evolution without a kill ended with {status}")
                return step - 1
        faults.append(f"period {period}: evolution never came to its end")
        return STEPS_MAX
    finally:
        process.kill()
        process.communicate()


def _look(path: Path, period: int) -> list[str]:
    """The key is at the old or the new period, signs for that one alone, goes on, and does not go back."""
    key = key_files.load_as(kes.SigningKey, path)
    if key.period not in (period, period + 1):
        return [f"the key is at {key.period}"]
    found: list[str] = []
    signature, public = key.sign(MESSAGE), a_kes_key().verification_key
    good_for = [at for at in range(LAST_PERIOD + 1) if kes.verify(public, at, MESSAGE, signature)]
    if good_for != [key.period]:
        found.append(f"the key at {key.period} signs for {good_for}")
    if key_files.evolve(path, period + 2).period != period + 2:
        found.append("the key that was left does not evolve")
    try:
        key_files.evolve(path, period)
        found.append("the key went back")
    except SigningError:
        pass
    left = [other.name for other in path.parent.iterdir() if other != path]
    return found + ([f"{left} were left behind"] if left else [])
