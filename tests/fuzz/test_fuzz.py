"""Random and mutated input into every decoder: only refusals of our own kind come out, and memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.harness import resident_bytes_peak, run_for, run_inputs
from tests.fuzz.kept_inputs import at_the_limits, corpus, lying_lengths, read_kept
from tests.fuzz.targets import TARGET_NAMES, target

FUZZ_SECONDS = 20
"""Seconds of mutated input for each decoder. With the run that coverage guides, a decoder gets about thirty."""

# What a whole run may add to the memory of the process: caches of the tests themselves, and nothing that grows.
RESIDENT_GROWTH_BYTES_MAX = 64 * 1024 * 1024


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("name", TARGET_NAMES)
def test_decoder_refuses_in_order_whatever_comes(
    name: str, run_seed: int, record_property: Callable[[str, object], None]
) -> None:
    chosen = target(name)
    resident_before = resident_bytes_peak()

    outcome = run_for(chosen, run_seed, FUZZ_SECONDS)

    rate = f"{outcome.inputs} inputs, {outcome.inputs_per_second:.0f} each second, {outcome.agreed} compared"
    record_property("fuzz", f"{name}: {rate}")
    print(f"{name}: {rate}, seed {run_seed}")
    assert not outcome.failures, "\n".join(["", *map(str, outcome.failures)])
    assert 0 < outcome.accepted < outcome.inputs, "inputs of one kind only prove nothing"
    assert resident_bytes_peak() - resident_before < RESIDENT_GROWTH_BYTES_MAX


@pytest.mark.parametrize("name", TARGET_NAMES)
def test_declared_lengths_and_counts_cost_no_memory(name: str) -> None:
    chosen = target(name)

    faults = run_inputs(chosen, [*lying_lengths(chosen.samples), *at_the_limits()])

    assert not faults, "\n".join(["", *faults[:5]])


@pytest.mark.parametrize("name", TARGET_NAMES)
def test_decoder_accepts_some_of_its_samples(name: str) -> None:
    chosen = target(name)

    assert any(chosen.check(sample) for sample in chosen.samples)


@pytest.mark.parametrize(("name", "path"), corpus(), ids=lambda value: getattr(value, "stem", value))
def test_kept_input_is_still_answered_in_order(name: str, path: Path) -> None:
    faults = run_inputs(target(name), [read_kept(path)])

    assert not faults, "\n".join(["", *faults])
