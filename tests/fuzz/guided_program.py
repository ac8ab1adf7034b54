"""The process in which atheris guides: `python -m tests.fuzz.guided_program TARGET FOLDER [LIBFUZZER OPTIONS]`.

Half of the changes are libFuzzer's, which follow comparisons; half are ours, which know CBOR.
"""

from __future__ import annotations

import sys
import warnings
from random import Random

import atheris

# What is instrumented guides: the decoders, and a planted defect, but not the checks around them.
with atheris.instrument_imports(include=["stagepost"], enable_loader_override=False):
    from tests.fuzz.targets import target
with atheris.instrument_imports(include=["tests"], enable_loader_override=False):
    from tests.fuzz.planted import PLANTED

from tests.fuzz.harness import (
    MEASURED_EVERY,
    MEASURED_IN_A_ROW,
    Mismatch,
    Outcome,
    Target,
    tried,
)
from tests.fuzz.mutate import mutated

INPUT_BYTES_MAX = 16_384
"""Long inputs are slow and rarely reach further; the limits on length have inputs of their own in `kept_inputs`."""
OUR_SHARE = 0.5


class Guided:
    def __init__(self, chosen: Target) -> None:
        self._target = chosen
        self._outcome = Outcome(chosen.name, 0)

    def try_one(self, data: bytes) -> None:
        """Raises what the check raises: libFuzzer then keeps the input and ends the run."""
        measured = self._outcome.inputs % MEASURED_EVERY < MEASURED_IN_A_ROW
        fault = tried(self._target, data, self._outcome, measured=measured)
        if fault:
            self._target.check(data)
            raise Mismatch(fault)

    def change(self, data: bytes, bytes_max: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < OUR_SHARE:
            return mutated(random, data, self._target.samples)[:bytes_max]
        changed: bytes = atheris.Mutate(data, bytes_max)
        return changed


def main(name: str, options: list[str]) -> None:
    warnings.simplefilter("ignore")  # cbor2 compiles regular expressions that it meets
    guided = Guided(PLANTED[name]() if name in PLANTED else target(name))
    given = [sys.argv[0], *options, f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1", "-timeout=120"]
    atheris.Setup(given, guided.try_one, custom_mutator=guided.change)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
