"""S8: a process that writes an evolved KES key is killed at each of its steps; the first file is as it was, and no half key
is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from stagepost.dmq.key_texts import EvolvedSigningKey
from stagepost.dmq.keys import key_files
from stagepost.dmq.keys.pool_keys import write_evolved_key
from stagepost.errors import KeyFileError, SigningError
from stagepost.ground.crypto import kes
from tests.hostile.storms import Figure
from tests.unit.dmq.keys.test_key_files import MESSAGE, STEPS_MAX, FaultyOs, a_kes_key

ROOT = Path(__file__).parents[2]
LAST_PERIOD = 63


def evolve_and_die(path: Path, target: Path, orders: Sequence[int]) -> None:
    """The life of the process that is killed: parent and child by turns, so that Python is started once."""
    for _ in orders:
        step = int(sys.stdin.readline())
        child = os.fork()
        if child == 0:
            vars(key_files)["os"] = FaultyOs(step, lambda: os.kill(os.getpid(), signal.SIGKILL))
            write_evolved_key(path, target)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def evolving(periods: Sequence[int]) -> tuple[Figure, list[str]]:
    faults: list[str] = []
    kills = 0
    for period in periods:
        with tempfile.TemporaryDirectory() as name:
            kills += _kill_at_each_step(Path(name), period, faults)
    figure: Figure = {
        "promise": "S8",
        "target": "kill -9 at each step of evolution",
        "kills": kills,
        "periods": len(periods),
        "failures": len(faults),
    }
    return figure, faults


def _kill_at_each_step(folder: Path, period: int, faults: list[str]) -> int:
    path, target = folder / "first", folder / "evolved" / "next"
    key_files.save(path, EvolvedSigningKey(a_kes_key(period)) if period else a_kes_key())
    before = _state(path)
    code = (
        "from pathlib import Path; from tests.hostile.key_evolution import evolve_and_die; "
        f"evolve_and_die(Path({str(path)!r}), Path({str(target)!r}), range({STEPS_MAX}))"
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
            process.stdin.write(f"{step}\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            found = [] if _state(path) == before else ["the first file was changed"]
            was_whole = target.exists()
            found += _look(path, target, period)
            faults += [f"period {period}, step {step}: {text}" for text in found]
            if status != -signal.SIGKILL:
                if status != 0 or not was_whole:
                    faults.append(f"period {period}: evolution without a kill ended with {status}")
                return step - 1
            target.unlink(missing_ok=True)
        faults.append(f"period {period}: evolution never came to its end")
        return STEPS_MAX
    finally:
        process.kill()
        process.communicate()


def _state(path: Path) -> tuple[object, ...]:
    status = path.stat()
    return path.read_bytes(), status.st_mode, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _look(path: Path, target: Path, period: int) -> list[str]:
    """The new file is missing or whole; after a second attempt it is whole, signs for one period, and does not go back."""
    found: list[str] = []
    try:
        write_evolved_key(path, target)
    except KeyFileError:
        if not target.exists():
            found.append("a second attempt was refused, and there is no file")
    key = key_files.load_as(EvolvedSigningKey, target).key
    if key.period != period + 1:
        found.append(f"the key is at {key.period}")
    signature, public = key.sign(MESSAGE), a_kes_key().verification_key
    good_for = [at for at in range(LAST_PERIOD + 1) if kes.verify(public, at, MESSAGE, signature)]
    if good_for != [key.period]:
        found.append(f"the key at {key.period} signs for {good_for}")
    try:
        write_evolved_key(target, target.with_name("back"), period)
        found.append("the key went back")
    except SigningError:
        pass
    left = [other.name for other in target.parent.iterdir() if other != target]
    return found + ([f"{left} were left behind"] if left else [])
