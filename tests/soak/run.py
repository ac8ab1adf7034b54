"""Long runs that back the promises: as many hostile inputs as a release needs, on all processors.

    make soak                    a million inputs into every decoder, every bit of three messages, 300 simulated
                                 worlds, 100 kills, storms of 500 and 1,000 hostile connections
    make soak SCALE=release      fifty million, 10,000 worlds, 1,000 kills
    make fuzz                    one minute for every decoder

Progress goes to stderr, the table to stdout, one JSON line per promise and target to results/soak.jsonl. Exit code 1
if a promise was broken; each failure is printed with the line that replays it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz.harness import Outcome, revision, run_for, run_range
from tests.fuzz.mutate import input_for
from tests.fuzz.signed_bits import flip_every_bit, sample_messages
from tests.fuzz.targets import COMPARED_TARGETS, TARGET_NAMES, target
from tests.soak.node_runs import KILLS_BY_SCALE, SEEDS_BY_SCALE, kill, simulate
from tests.soak.results import write_lines
from tests.soak.storm_runs import storms

INPUTS_BY_SCALE = {"commit": 1_000_000, "release": 50_000_000}
PARTS = ("fuzz", "signed-bits", "simulation", "kill", "storms")
INPUTS_IN_A_TASK = 10_000
PROGRESS_EVERY_S = 10
SEEDS_APART = 2**31
"""Worlds are numbered by small seeds, which are easier to type again."""

Figure = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.index is not None:
        return replay(options.target, options.seed, options.index)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    inputs = options.inputs or INPUTS_BY_SCALE[options.scale]
    names = [options.target] if options.target else list(TARGET_NAMES)
    amount = f"{options.seconds:g} s" if options.seconds else f"{inputs} inputs"
    _say(f"seed {seed} · revision {revision()} · {amount} for each of: {', '.join(names)}")
    figures: list[Figure] = []
    broken: list[str] = []
    if options.only in (None, "fuzz"):
        for outcome in fuzz(names, seed, inputs, options.seconds, options.processes):
            figures += _figures_of(outcome)
            broken += map(str, outcome.failures)
    if options.only in (None, "signed-bits") and not options.target:
        for figure, faults in signed_bits():
            figures.append(figure)
            broken += faults
    if options.only in (None, "simulation") and not options.target:
        count = options.inputs or SEEDS_BY_SCALE[options.scale]
        for figure, faults in simulate(seed % SEEDS_APART, count, options.processes, _say):
            figures.append(figure)
            broken += faults
    if options.only in (None, "kill") and not options.target:
        figure, faults = kill(seed, options.inputs or KILLS_BY_SCALE[options.scale], _say)
        figures.append(figure)
        broken += faults
    if options.only in (None, "storms") and not options.target:
        for figure, faults in storms(options.scale, _say):
            figures.append(figure)
            broken += faults
    path = write_lines("soak", " ".join(["python", "tests/soak/run.py", *_shown(options, seed)]), figures)
    print(table(figures))
    _say(f"written to {path.name} in {path.parent.name}/")
    for text in broken:
        print(f"\n{text}")
    return 1 if broken or any(figure["failures"] for figure in figures) else 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--scale", choices=sorted(INPUTS_BY_SCALE), default="commit", help="how many inputs")
    found.add_argument("--only", choices=PARTS, help="run this part alone")
    found.add_argument("--seconds", type=float, metavar="N", help="a time for each target instead of a count")
    found.add_argument("--inputs", type=int, metavar="N", help="a count of your own for each target")
    found.add_argument("--target", choices=TARGET_NAMES, help="one decoder alone")
    found.add_argument("--seed", type=int, metavar="N", help="repeat a run; a fresh one is drawn and printed")
    found.add_argument("--index", type=int, metavar="M", help="replay one input; needs --target and --seed")
    found.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N")
    return found


def replay(name: str | None, seed: int | None, index: int) -> int:
    """One input again, with its whole traceback, and ready to be kept."""
    if name is None or seed is None:
        print("--index needs --target and --seed", file=sys.stderr)
        return 2
    chosen = target(name)
    data = input_for(chosen.samples, seed, index)
    print(f"# {name}, seed {seed}, index {index}, {len(data)} bytes\n{data.hex()}")
    outcome = run_range(chosen, seed, index, 1)
    if not outcome.failures:
        print("answered in order")
        return 0
    try:
        chosen.check(data)
    except Exception:
        traceback.print_exc()
    print(
        f"{outcome.failures[0].text}\nto keep it, save the two lines above as tests/fuzz/corpus/{name}/….hex"
    )
    return 1


def fuzz(
    names: Sequence[str], seed: int, inputs: int, seconds: float | None, processes: int
) -> Iterator[Outcome]:
    """One outcome per target, in the order of `names`."""
    whole = {name: Outcome(name, seed) for name in names}
    said_at = time.monotonic()
    with ProcessPoolExecutor(processes, initializer=_quiet) as pool:
        tasks: list[Future[Outcome]] = []
        for name in names:
            if seconds is not None:
                tasks.append(pool.submit(_for_seconds, name, seed, seconds))
                continue
            for start in range(0, inputs, INPUTS_IN_A_TASK):
                tasks.append(
                    pool.submit(_for_range, name, seed, start, min(INPUTS_IN_A_TASK, inputs - start))
                )
        for done, task in enumerate(as_completed(tasks), start=1):
            part = task.result()
            whole[part.target].add(part)
            for failure in part.failures:
                _say(str(failure))
            if time.monotonic() - said_at > PROGRESS_EVERY_S or done == len(tasks):
                said_at = time.monotonic()
                _say(f"{done} of {len(tasks)} tasks done, now {part.target}")
    yield from whole.values()


def signed_bits() -> Iterator[tuple[Figure, list[str]]]:
    for sample in sample_messages():
        began = time.monotonic()
        found = flip_every_bit(sample)
        faults = [f"signed bits: {sample.name}: bit {bit} makes no difference" for bit in found.accepted]
        figure: Figure = {
            "promise": "S1",
            "target": sample.name,
            "inputs": found.bits,
            "failures": len(found.accepted),
            "seconds": round(time.monotonic() - began, 1),
            "undecodable": found.undecodable,
            "wrong_id": found.wrong_id,
            "wrong_certificate": found.wrong_certificate,
            "wrong_signature": found.wrong_signature,
        }
        yield figure, faults


def table(figures: Sequence[Figure]) -> str:
    """For people. Only what both decoders accept can be compared, so that count stands beside the inputs."""
    columns = ("promise", "target", "inputs", "compared", "messages", "inputs_per_second", "failures")
    rows = [[column.replace("_", " ") for column in columns]]
    rows += [[str(figure.get(column, "")) for column in columns] for figure in figures]
    return "\n".join(f"{row[0]:8} {row[1]:22} " + " ".join(f"{cell:>17}" for cell in row[2:]) for row in rows)


def _figures_of(outcome: Outcome) -> Iterator[Figure]:
    figure: Figure = {
        "promise": "N1",
        "target": outcome.target,
        "inputs": outcome.inputs,
        "failures": outcome.failed,
        "seed": outcome.seed,
        "seconds": round(outcome.seconds, 1),
        "inputs_per_second": round(outcome.inputs_per_second),
        "accepted": outcome.accepted,
        "memory_peak_bytes": outcome.memory_peak_bytes,
    }
    yield figure
    if outcome.target in COMPARED_TARGETS:
        yield {**figure, "promise": "N2", "compared": outcome.agreed}


def _for_seconds(name: str, seed: int, seconds: float) -> Outcome:
    return run_for(target(name), seed, seconds)


def _for_range(name: str, seed: int, start: int, count: int) -> Outcome:
    return run_range(target(name), seed, start, count)


def _quiet() -> None:
    """cbor2 compiles regular expressions that it meets; what Python thinks of their style is of no interest."""
    warnings.simplefilter("ignore")


def _shown(options: argparse.Namespace, seed: int) -> Iterator[str]:
    """The options with which this very run can be repeated."""
    given = {**vars(options), "seed": seed}
    for name, value in given.items():
        if value is not None:
            yield f"--{name} {value}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
