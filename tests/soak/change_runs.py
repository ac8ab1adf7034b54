"""Networks whose set, shards and release change while twenty messages a second flow: in virtual time, and by processes."""

from __future__ import annotations

import logging
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rigs.results import ROOT, Result, result
from stagepost.ground.loop.virtual_time import VirtualTimeStuck
from tests.soak.runs import Run
from tests.worlds.network.operators import play_changes
from tests.worlds.remp.primes_runs import CHANGES_PLAN, PrimesOutcome, run_primes

SIMULATED_BY_SCALE = {"commit": 20, "release": 200}
LIVE_BY_SCALE = {"commit": 3, "release": 20}
SEEDS_APART = 1_000_000
WHERE_SIMULATED = "tests/simulation/test_changed_sets.py"
WHERE_LIVE = "tests/e2e/test_operated_network.py"


def play_simulated(seed: int) -> PrimesOutcome | str:
    """Return the outcome of a network, or what did not hold, with the seed in it."""
    logging.disable(logging.CRITICAL)
    try:
        return run_primes(seed, CHANGES_PLAN)
    except (AssertionError, VirtualTimeStuck) as failed:
        return f"seed {seed}: {failed}"


def changes(run: Run) -> Iterator[Result]:
    """Four founders, three more, a replaced key, two that leave, a split and a merge, with kills at random moments."""
    first, tries = run.seed % SEEDS_APART, run.tries(SIMULATED_BY_SCALE)
    played: list[PrimesOutcome | str] = []
    with ProcessPoolExecutor(run.processes) as pool:
        for outcome in pool.map(play_simulated, (first + number for number in tries)):
            played.append(outcome)
            run.say(f"{len(played)} of {len(tries)} changed networks done")
    whole = [one for one in played if isinstance(one, PrimesOutcome)]
    shares = run.rows_of_all_shares(
        "changes",
        {
            "faults": [one for one in played if isinstance(one, str)],
            "executed": sum(one.proved["executed"] for one in whole),
            "kills": sum(one.crashes for one in whole),
        },
    )
    if not shares:
        return
    faults = [fault for share in shares for fault in share["faults"]]
    figure = (
        f"{run.count(SIMULATED_BY_SCALE)} networks from seed {first} in virtual time, "
        f"{sum(share['executed'] for share in shares):,} messages proved executed across three changes of the set each, "
        f"{sum(share['kills'] for share in shares):,} kills; {len(faults)} broken"
    )
    yield result("B10", WHERE_SIMULATED, figure, faults=faults, seed=run.seed)


def live_changes(run: Run) -> Iterator[Result]:
    """The same by processes and public commands; the last network is founded with the revision before, and upgraded."""
    first, count = run.seed % SEEDS_APART, run.count(LIVE_BY_SCALE)
    found: list[str] = []
    told: list[str] = []
    for number in run.tries(LIVE_BY_SCALE):
        with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
            inner = Path(folder)
            is_upgraded = number == count - 1
            earlier = earlier_sources(inner / "earlier") if is_upgraded else None
            (inner / "network").mkdir()
            broken, said = play_changes(first + number, inner / "network", earlier)
        if is_upgraded:
            said += " after an upgrade" if earlier else "; the upgrade was skipped, for there is no history"
        found += broken
        told.append(said)
        run.say(f"{number + 1} of {count} networks of processes done: {said}; {len(broken)} faults")
    shares = run.rows_of_all_shares("live-changes", {"faults": found, "told": told})
    if not shares:
        return
    faults = [fault for share in shares for fault in share["faults"]]
    said_of_all = "; ".join(said for share in shares for said in share["told"])
    figure = f"{count} networks of processes from seed {first}: {said_of_all}; {len(faults)} faults"
    yield result("B10", WHERE_LIVE, figure, faults=faults, seed=run.seed)


def earlier_sources(folder: Path) -> Path | None:
    """Write the sources of the revision before the last change of them; None where that history is missing."""
    asked = _git("log", "--max-count=2", "--format=%H", "--", "src")
    revisions = asked.stdout.decode().split()
    if asked.returncode or len(revisions) < 2:
        return None
    archived = _git("archive", f"{revisions[0]}^", "src")
    if archived.returncode:
        return None
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archived.stdout, check=True)
    return folder / "src"


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
