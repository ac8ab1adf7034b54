"""Long runs of the decoders: hostile inputs by the million, coverage-guided ones, and every bit of three messages."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict

from rigs.results import Result, result
from tests.fuzz.guided import GuidedOutcome, missing_reason, run_guided
from tests.fuzz.harness import Failure, Outcome, run_for, run_range
from tests.fuzz.signed_bits import flip_every_bit, sample_messages
from tests.fuzz.targets import COMPARED_TARGETS, TARGET_NAMES, target
from tests.soak.runs import Run

INPUTS_BY_SCALE = {"commit": 1_000_000, "release": 50_000_000}
GUIDED_S_BY_SCALE = {"commit": 60, "release": 3_600}
"""For each decoder. Guided inputs come on top of the counted ones: they are fewer, and each was chosen."""
INPUTS_IN_A_TASK = 10_000
PROGRESS_EVERY_S = 10

MUTATED = "tests/fuzz: random and mutated input into every decoder"
GUIDED = "tests/fuzz/guided.py: coverage-guided input into every decoder (atheris)"
BITS = "tests/fuzz/signed_bits.py: each bit of three messages flipped"


def fuzz(run: Run) -> Iterator[Result]:
    """N1: only refusals of our own kind come out. N2: what we accept, cbor2 reads alike."""
    outcomes = mutated_outcomes(run)
    if run.share != (1, 1):
        outcomes = _of_all_shares(run, outcomes)
        if not outcomes:
            return
    faults = [str(failure) for outcome in outcomes for failure in outcome.failures]
    inputs = sum(outcome.inputs for outcome in outcomes)
    figure = f"{inputs:,} inputs into {len(outcomes)} decoders, {sum(outcome.failed for outcome in outcomes)} failures"
    details = {outcome.target: _details(outcome) for outcome in outcomes}
    yield result("N1", MUTATED, figure, faults=faults, seed=run.seed, targets=details)
    compared = [outcome for outcome in outcomes if outcome.target in COMPARED_TARGETS]
    if compared:
        agreed = sum(outcome.agreed for outcome in compared)
        inputs = sum(outcome.inputs for outcome in compared)
        different = sum(outcome.failed for outcome in compared)
        figure = f"{inputs:,} inputs into {len(compared)} decoders, {agreed:,} accepted by both, {different} differences"
        faults = [str(failure) for outcome in compared for failure in outcome.failures]
        yield result("N2", MUTATED, figure, faults=faults, seed=run.seed)


def guided(run: Run) -> Iterator[Result]:
    """N1 and N2 once more, by inputs that are kept and changed for reaching new code. Without atheris: no result."""
    reason = missing_reason()
    if reason:
        run.say(f"guided fuzzing was not run: {reason}")
        return
    seconds = run.seconds or GUIDED_S_BY_SCALE[run.scale]
    outcomes: list[GuidedOutcome] = []
    for name in _names(run):
        outcomes.append(run_guided(target(name), seed=run.seed, seconds=seconds))
        run.say(f"guided: {outcomes[-1]}")
    faults = [outcome.failure for outcome in outcomes if outcome.failure]
    inputs = sum(outcome.inputs for outcome in outcomes)
    figure = f"{inputs:,} coverage-guided inputs into {len(outcomes)} decoders, {len(faults)} failures"
    details = {outcome.target: str(outcome) for outcome in outcomes}
    yield result("N1", GUIDED, figure, faults=faults, seed=run.seed, targets=details)


def signed_bits(run: Run) -> Iterator[Result]:
    """S1, the part of it that is about bits: none of them is without meaning."""
    bits = 0
    faults: list[str] = []
    for sample in sample_messages():
        found = flip_every_bit(sample)
        bits += found.bits
        faults += [f"{sample.name}: bit {bit} makes no difference" for bit in found.accepted]
        run.say(f"signed bits: {sample.name} done")
    yield result("S1", BITS, f"{bits:,} altered messages, {len(faults)} accepted", faults=faults)


def mutated_outcomes(run: Run) -> list[Outcome]:
    """One per target."""
    names = _names(run)
    inputs = run.tries(INPUTS_BY_SCALE)
    whole = {name: Outcome(name, run.seed) for name in names}
    said_at = time.monotonic()
    with ProcessPoolExecutor(run.processes, initializer=_quiet) as pool:
        tasks: list[Future[Outcome]] = []
        for name in names:
            if run.seconds is not None:
                tasks.append(pool.submit(_for_seconds, name, run.seed, run.seconds))
                continue
            for start in inputs[::INPUTS_IN_A_TASK]:
                count = min(INPUTS_IN_A_TASK, inputs.stop - start)
                tasks.append(pool.submit(_for_range, name, run.seed, start, count))
        for done, task in enumerate(as_completed(tasks), start=1):
            part = task.result()
            whole[part.target].add(part)
            for failure in part.failures:
                run.say(str(failure))
            if time.monotonic() - said_at > PROGRESS_EVERY_S or done == len(tasks):
                said_at = time.monotonic()
                run.say(f"{done} of {len(tasks)} tasks done, now {part.target}")
    return list(whole.values())


def _of_all_shares(run: Run, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Keep the outcomes of this share; return those of all shares, or nothing while some are missing."""
    kept = [{**asdict(one), "failures": [_row_of(two) for two in one.failures]} for one in outcomes]
    whole: dict[str, Outcome] = {}
    for share in run.rows_of_all_shares("fuzz", {"outcomes": kept}):
        for row in share["outcomes"]:
            failures = [
                Failure(**{**one, "input": bytes.fromhex(one["input"])}) for one in row.pop("failures")
            ]
            part = Outcome(**row, failures=failures)
            whole.setdefault(part.target, Outcome(part.target, run.seed)).add(part)
    return list(whole.values())


def _row_of(failure: Failure) -> dict[str, object]:
    return {**asdict(failure), "input": failure.input.hex()}


def _names(run: Run) -> Sequence[str]:
    return [run.target] if run.target else TARGET_NAMES


def _details(outcome: Outcome) -> Result:
    return {
        "inputs": outcome.inputs,
        "accepted": outcome.accepted,
        "compared": outcome.agreed,
        "failures": outcome.failed,
        "inputs_per_second": round(outcome.inputs_per_second),
        "memory_peak_bytes": outcome.memory_peak_bytes,
    }


def _for_seconds(name: str, seed: int, seconds: float) -> Outcome:
    return run_for(target(name), seed, seconds)


def _for_range(name: str, seed: int, start: int, count: int) -> Outcome:
    return run_range(target(name), seed, start, count)


def _quiet() -> None:
    """cbor2 compiles regular expressions that it meets; what Python thinks of their style is of no interest."""
    warnings.simplefilter("ignore")
