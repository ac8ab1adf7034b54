"""O3 and O4: starts with a full store, and stops in the midst of work; S3 across those stops."""

from __future__ import annotations

from collections.abc import Iterator

from rigs.results import Result, result, result_of
from tests.hostile.big_store import restarting
from tests.hostile.stops import stopping
from tests.soak.runs import Run

STOPS_BY_SCALE = {"commit": 100, "release": 1_000}
RECORDS = 1_000_000
RECORDS_BY_DEFAULT = 50_000


def stops(run: Run) -> Iterator[Result]:
    count = run.count(STOPS_BY_SCALE)
    run.say(f"{count} stops under load")
    figure, faults = stopping(count, run.seed)
    yield result_of(figure, "tests/hostile/stops.py: SIGTERM under load", faults)
    replays = figure["replays_after_restart"]
    passed = [fault for fault in faults if "replays" in fault]
    text = f"{replays:,} replays to real nodes after {count} restarts, {len(passed)} accepted"
    yield result("S3", "tests/hostile/stops.py: replays after a restart", text, faults=passed, seed=run.seed)


def starts(run: Run) -> Iterator[Result]:
    """With the limits raised to a million messages; and with as many as the limits allow that nobody raised."""
    for records in (run.inputs,) if run.inputs else (RECORDS_BY_DEFAULT, RECORDS):
        run.say(f"a start with {records:,} stored messages")
        figure, faults = restarting(records, run.say)
        yield result_of(figure, f"tests/hostile/big_store.py: {records:,} unexpired messages", faults)
