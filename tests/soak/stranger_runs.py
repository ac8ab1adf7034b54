"""Strangers at every listener at full count: connections that prove nothing, or exchange nothing, or withhold what they announce, with honest ones beside them; and one submitter that floods."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rigs.results import Result, result_of
from tests.hostile.devnet_process import devnet_process
from tests.hostile.storms import Figure
from tests.hostile.strangers import (
    SLOW_BODY,
    STREAM,
    half_requests_to_dashboard,
    half_requests_to_intake,
    half_requests_to_metrics,
    idle_peers,
    silent_peers,
    silent_readers,
)
from tests.hostile.submitters import BACKLOG_S_MAX, costly_messages, silent_links
from tests.hostile.withholders import DELAY_S_MAX, MISDEEDS, withholding
from tests.soak.runs import Run

STRANGERS = 512
"""32 addresses with 16 connections each."""
COSTLY = 1_500
WITHHOLDERS = 320
SIEGES: tuple[tuple[str, Callable[[int], tuple[Figure, list[str]]]], ...] = (
    ("connections to a DMQ node that send nothing", silent_peers),
    ("peers of a DMQ node that keep alive and exchange nothing", idle_peers),
    (
        "peers of a DMQ node that keep alive and bring nothing",
        partial(idle_peers, initiator_only=False),
    ),
    ("connections to served topics that send nothing", silent_readers),
    ("unfinished heads at the dashboard", half_requests_to_dashboard),
    ("streams of the dashboard", partial(half_requests_to_dashboard, opening=STREAM)),
    ("unfinished heads at the metrics of a node", half_requests_to_metrics),
)


def strangers(run: Run) -> Iterator[Result]:
    for name, siege in SIEGES:
        run.say(f"{STRANGERS} {name}")
        figure, faults = siege(STRANGERS)
        yield result_of(figure, f"tests/hostile/strangers.py: {name}", faults)
    for misdeed in MISDEEDS:
        run.say(f"{WITHHOLDERS} peers that announce a message and {misdeed}")
        figure, faults = withholding(WITHHOLDERS, misdeed)
        if float(str(figure["longest_s"])) > DELAY_S_MAX:
            faults.append(f"a message took {figure['longest_s']} s, at most {DELAY_S_MAX} are allowed")
        yield result_of(figure, f"tests/hostile/withholders.py: {misdeed}", faults)
    run.say(f"{STRANGERS} unfinished heads, and {COSTLY} costly messages of one submitter, at a full node")
    with tempfile.TemporaryDirectory() as name, devnet_process(Path(name) / "data") as devnet:
        figure, faults = half_requests_to_intake(devnet.http, devnet.process.pid, STRANGERS)
        yield result_of(figure, "tests/hostile/strangers.py: unfinished heads at the HTTP intake", faults)
        figure, faults = half_requests_to_intake(devnet.http, devnet.process.pid, STRANGERS, SLOW_BODY)
        yield result_of(
            figure, "tests/hostile/strangers.py: bodies that never end at the HTTP intake", faults
        )
        figure, faults = silent_links(devnet, STRANGERS)
        yield result_of(figure, "tests/hostile/submitters.py: silent connections to a validator", faults)
        figure, faults = asyncio.run(costly_messages(devnet.http, devnet.data, COSTLY))
        slowest = max(float(str(figure[name])) for name in ("longest_s", "after_s"))
        if slowest > BACKLOG_S_MAX:
            faults.append(f"an honest message took {slowest} s, at most {BACKLOG_S_MAX} are allowed")
        yield result_of(figure, "tests/hostile/submitters.py: costly messages of one submitter", faults)
