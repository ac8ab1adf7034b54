"""Runs a fuzz target over many inputs, watches what it raises and what memory it takes, and says how to replay."""

from __future__ import annotations

import resource
import signal
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import FrameType
from typing import TypeVar

from stagepost.errors import RemoteProtocolError, StagepostError
from tests.fuzz.mutate import input_for

# A value decoded from one byte of input costs at most an object and its place in a list. What lies beyond that and
# a fixed amount (one multiplexer buffer, one error with its traceback) was allocated on the input's word alone.
MEMORY_PER_INPUT_BYTE_MAX = 64
MEMORY_FIXED_BYTES_MAX = 256 * 1024

# Measuring memory costs several times what decoding does, so it is done for a share of the inputs.
MEASURED_EVERY = 1_000
MEASURED_IN_A_ROW = 40

# Processor time, so that a busy machine is no defect. The slowest honest input takes a fiftieth of it.
INPUT_SECONDS_MAX = 10

FAILURES_KEPT_MAX = 5
REPLAY = "python tests/soak/run.py --only fuzz --target {target} --seed {seed} --index {index}"

Decoded = TypeVar("Decoded")


class Verdict(IntEnum):
    """What became of an input, the best outcome last."""

    REFUSED = 0
    ACCEPTED = 1
    AGREED = 2  # accepted, and the independent decoder read the same


class Mismatch(AssertionError):
    """A decoder accepted something and then broke a promise about it."""


class NeverEnding(AssertionError):
    """A decoder was still busy with one input when its time was over."""


@dataclass(frozen=True)
class Target:
    """One decoder, or a few small ones. Whatever leaves `check` as an exception is a failure of the decoder."""

    name: str
    samples: tuple[bytes, ...]
    check: Callable[[bytes], Verdict]


@dataclass(frozen=True)
class Failure:
    target: str
    seed: int
    index: int
    text: str
    input: bytes

    @property
    def replay(self) -> str:
        return REPLAY.format(target=self.target, seed=self.seed, index=self.index)

    def __str__(self) -> str:
        shown = self.input.hex() if len(self.input) <= 200 else self.input[:200].hex() + "…"
        return (
            f"{self.target}: {self.text}\n  input ({len(self.input)} bytes): {shown}\n  replay: {self.replay}"
        )


@dataclass
class Outcome:
    """What a run over one target, or a part of one, has found."""

    target: str
    seed: int
    inputs: int = 0
    accepted: int = 0
    agreed: int = 0
    failed: int = 0
    seconds: float = 0.0
    memory_peak_bytes: int = 0
    failures: list[Failure] = field(default_factory=list)

    @property
    def inputs_per_second(self) -> float:
        return self.inputs / self.seconds if self.seconds else 0.0

    def add(self, other: Outcome) -> None:
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.agreed += other.agreed
        self.failed += other.failed
        self.seconds += other.seconds
        self.memory_peak_bytes = max(self.memory_peak_bytes, other.memory_peak_bytes)
        self.failures = (self.failures + other.failures)[:FAILURES_KEPT_MAX]


def require(claim: bool, text: str) -> None:
    if not claim:
        raise Mismatch(text)


def attempt(
    decode: Callable[[], Decoded],
    input_bytes: int,
    refusals: type[StagepostError] = RemoteProtocolError,
) -> Decoded | None:
    """What `decode` returns, or None for a refusal that is one of ours and points into the input."""
    try:
        return decode()
    except refusals as error:
        require(bool(error.text), f"{type(error).__name__} without a text")
        inside = error.offset is None or 0 <= error.offset <= input_bytes
        require(inside, f"the fault's offset {error.offset} lies outside of {input_bytes} bytes: {error}")
        return None


def run_for(target: Target, seed: int, seconds: float, start: int = 0) -> Outcome:
    """As many inputs as fit into `seconds`."""
    deadline = time.monotonic() + seconds
    outcome = Outcome(target.name, seed)
    while time.monotonic() < deadline and len(outcome.failures) < FAILURES_KEPT_MAX:
        outcome.add(run_range(target, seed, start + outcome.inputs, 200))
    return outcome


def run_range(target: Target, seed: int, start: int, count: int) -> Outcome:
    """The inputs of `seed` from index `start` on."""
    outcome = Outcome(target.name, seed)
    began = time.monotonic()
    for index in range(start, start + count):
        data = input_for(target.samples, seed, index)
        measured = index % MEASURED_EVERY < MEASURED_IN_A_ROW
        text = tried(target, data, outcome, measured=measured)
        if text:
            outcome.failed += 1
            if len(outcome.failures) < FAILURES_KEPT_MAX:
                outcome.failures.append(Failure(target.name, seed, index, text, data))
    tracemalloc.stop()
    outcome.seconds = time.monotonic() - began
    return outcome


def run_inputs(target: Target, inputs: Iterable[bytes]) -> list[str]:
    """Given inputs, each with its memory measured; the faults."""
    outcome = Outcome(target.name, 0)
    found = []
    for data in inputs:
        text = tried(target, data, outcome, measured=True)
        if text:
            found.append(f"{target.name}: {text}\n  input ({len(data)} bytes): {data[:200].hex()}")
    tracemalloc.stop()
    return found


def tried(target: Target, data: bytes, outcome: Outcome, *, measured: bool) -> str:
    """Run one input and count it; a text if it failed."""
    outcome.inputs += 1
    before = 0
    if measured != tracemalloc.is_tracing():
        tracemalloc.start() if measured else tracemalloc.stop()
    if measured:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
    try:
        with _TimeLimit():
            verdict = target.check(data)
    except Exception as error:
        return "".join(traceback.format_exception_only(error)).strip()
    if measured:
        used = tracemalloc.get_traced_memory()[1] - before
        outcome.memory_peak_bytes = max(outcome.memory_peak_bytes, used)
        allowed = MEMORY_FIXED_BYTES_MAX + MEMORY_PER_INPUT_BYTE_MAX * len(data)
        if used > allowed:
            return f"{used} bytes of memory were taken for {len(data)} bytes of input; the bound is {allowed}"
    outcome.accepted += verdict >= Verdict.ACCEPTED
    outcome.agreed += verdict >= Verdict.AGREED
    return ""


class _TimeLimit:
    """Raises `NeverEnding` in the code under it."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGVTALRM, _time_is_over)
        signal.setitimer(signal.ITIMER_VIRTUAL, INPUT_SECONDS_MAX)

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._before)


def _time_is_over(number: int, frame: FrameType | None) -> None:
    raise NeverEnding(f"not done after {INPUT_SECONDS_MAX} s")


def resident_bytes_peak() -> int:
    """The most memory this process has ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def pieces(data: bytes, count: int) -> Sequence[bytes]:
    """`data` cut into about `count` pieces of one size."""
    size = len(data) // count + 1
    return [data[at : at + size] for at in range(0, len(data), size)]
