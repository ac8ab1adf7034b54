"""Receipt chains in a whole network: what all full nodes hold together proves nothing against an honest validator, through
session switches, forwards, crashes and lost frames; and a validator whose chains are not kept is found."""

from __future__ import annotations

from typing import Any

import pytest

from stagepost.validator.receipt_chains import ReceiptChains
from stagepost.validator.receipts import Statements
from tests.simulation.test_remp_crashes import in_world, undecided
from tests.worlds.remp.primes_runs import PrimesPlan, run_primes

SEEDS = 3
PLAN = PrimesPlan(accounts=3, messages=8, crashes=3, cuts=1)


@pytest.mark.parametrize("number", range(SEEDS))
def test_no_honest_validator_is_ever_convicted(number: int, run_seed: int) -> None:
    """`run_primes` looks at every pair of neighbouring links on the topics of all full nodes."""
    seed = run_seed + number
    print(f"seed {seed}")
    outcome = run_primes(seed, PLAN)
    assert outcome.switches >= 2


# The runs can tell


def test_a_validator_that_forgets_its_chains_in_a_crash_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Statements.__init__

    def forget(self: Statements, *arguments: Any) -> None:
        read(self, *arguments)
        self.chains = ReceiptChains()

    monkeypatch.setattr(Statements, "__init__", forget)
    with pytest.raises(AssertionError, match="equivocation"):
        in_world(undecided)
