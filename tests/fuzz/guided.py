"""Coverage-guided fuzzing of the targets: inputs that reach new code are kept and changed further.

Atheris (libFuzzer for Python) does the guiding, in a process of its own: it rewrites the bytecode of what it watches
while that is imported, and ends the process when it is done. Where it cannot be installed, nothing is guided and
`missing_reason` says why; the inputs of `mutate` need nothing.

    python -m tests.fuzz.guided --seconds 60                 every decoder
    python -m tests.fuzz.guided --seconds 60 --keep          and keep in the corpus what reaches further than before
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rigs.results import ROOT
from tests.fuzz.harness import Target
from tests.fuzz.kept_inputs import keep_reached, kept_for
from tests.fuzz.targets import TARGET_NAMES, target

PROGRAM = "tests.fuzz.guided_program"
STARTED_WITHIN_S = 120
OUTPUT_SHOWN_CHARACTERS = 4_000
RUNS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
COVERAGE = re.compile(r"cov: (\d+) ft: (\d+)")


@dataclass(frozen=True)
class GuidedOutcome:
    """What one run has found. `reached` counts branches of ours; `failure` is empty, or says what broke by which bytes."""

    target: str
    inputs: int
    reached: int
    features: int
    failure: str
    failing_input: bytes | None = None

    def __str__(self) -> str:
        text = f"{self.target}: {self.inputs:,} inputs, {self.reached:,} branches, {self.features:,} features"
        return f"{text}, failed" if self.failure else text


def missing_reason() -> str:
    """Empty if guided fuzzing can be run here."""
    if importlib.util.find_spec("atheris") is None:
        return "atheris is not installed; it is to be had for Linux on x86-64 (requirements/fuzz.txt)"
    return ""


def run_guided(
    chosen: Target, *, seed: int, seconds: float | None = None, runs: int | None = None, keep: bool = False
) -> GuidedOutcome:
    """One target, until the time or the count of inputs is over or something broke."""
    name = chosen.name
    with tempfile.TemporaryDirectory(prefix="stagepost-fuzz-") as folder:
        found, artifacts = Path(folder) / "found", Path(folder) / "artifacts"
        found.mkdir()
        artifacts.mkdir()
        for number, data in enumerate([*chosen.samples, *kept_for(name)]):
            (found / f"given-{number}").write_bytes(data)
        limits = [f"-max_total_time={seconds:.0f}"] if seconds else []
        limits += [f"-runs={runs}"] if runs is not None else []
        command = [sys.executable, "-m", PROGRAM, name, str(found)]
        command += [f"-artifact_prefix={artifacts}/", f"-seed={seed % 2**31 or 1}", *limits]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=None if runs is not None and not seconds else (seconds or 0) * 2 + STARTED_WITHIN_S,
            check=False,
        )
        outcome = _outcome(name, ended.returncode, ended.stdout.decode(errors="replace"), artifacts)
        if keep and not outcome.failure:
            keep_reached(chosen, [path.read_bytes() for path in sorted(found.iterdir())])
        return outcome


def _outcome(name: str, code: int, said: str, artifacts: Path) -> GuidedOutcome:
    runs, coverage = RUNS.search(said), COVERAGE.findall(said)
    inputs = int(runs[1]) if runs else 0
    reached, features = map(int, coverage[-1]) if coverage else (0, 0)
    broken = next(iter(sorted(artifacts.iterdir())), None)
    if not code and broken is None:
        return GuidedOutcome(name, inputs, reached, features, "")
    data = broken.read_bytes() if broken else None
    shown = "the program ended without an input" if data is None else _to_keep(name, data)
    failure = f"{name}, coverage-guided: {_traceback_of(said)}\n{shown}"
    return GuidedOutcome(name, inputs, reached, features, failure, data)


def _traceback_of(said: str) -> str:
    """What Python said; libFuzzer's own lines before and after it are of no interest."""
    text = said.split("=== Uncaught Python exception: ===")[-1]
    return text.split("==", 1)[0].strip()[-OUTPUT_SHOWN_CHARACTERS:]


def _to_keep(name: str, data: bytes) -> str:
    return f"the input, to be saved as tests/fuzz/corpus/{name}/….hex and then replayed by the tests:\n{data.hex()}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="guided.py", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--target", choices=TARGET_NAMES, help="one decoder alone")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N", help="for each; 60 unless told")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--keep", action="store_true", help="keep the inputs that reach further")
    options = parser.parse_args(arguments)
    reason = missing_reason()
    if reason:
        print(f"not run: {reason}", file=sys.stderr)
        return 2
    broken = 0
    for name in [options.target] if options.target else TARGET_NAMES:
        outcome = run_guided(target(name), seed=options.seed, seconds=options.seconds, keep=options.keep)
        print(outcome.failure or outcome, flush=True)
        broken += bool(outcome.failure)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
