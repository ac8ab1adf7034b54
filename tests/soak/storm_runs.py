"""Storms on a real node at full scale: how many connections, for how long, and what honest programs may notice of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from rigs.results import Result, result_of
from tests.hostile.crowd import gathering
from tests.hostile.floods import forging, stalling
from tests.hostile.pool_flood import flooding
from tests.hostile.storms import Figure, Storm, dripping, holding_much, play
from tests.hostile.trial import Cast
from tests.hostile.victim import Victim
from tests.soak.runs import Run

FLOOD_S = 60.0
ATTACKERS_PRIORITY = 10
CALM_CHECKS = 300
PROGRAMS, PEERS = 8_000, 2_000


@dataclass(frozen=True)
class Weather:
    """`slower_max` is how many times its calm 99th percentile an honest program may have to wait; None: not promised."""

    name: str
    storm: Storm
    slower_max: float | None = None


def from_elsewhere(storm: Storm) -> Storm:
    """An attacker computes on a machine of his own: here he must not take the processor from those whom he attacks."""

    async def storm_elsewhere(victim: Victim, cast: Cast) -> tuple[Figure, list[str]]:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, ATTACKERS_PRIORITY)
        try:
            return await storm(victim, cast)
        finally:
            with suppress(PermissionError):  # only root may take it back, and nobody else minds
                os.setpriority(os.PRIO_PROCESS, 0, before)

    return storm_elsewhere


def storms(run: Run) -> Iterator[Result]:
    """N3, N4, N5 and N8, with an honest program beside each; then N6 and N7."""
    every = (
        Weather("500 connections with large, slow and unfinished frames", holding_much(connections=500)),
        Weather("1,000 connections at a byte a second", dripping(connections=1_000), slower_max=2.0),
        Weather("forged signatures at full speed", from_elsewhere(forging(seconds=FLOOD_S)), slower_max=3.0),
        Weather("100 consumers of which 10 do not read", stalling(consumers=100, stalled=10, messages=1_000)),
    )
    for one in every:
        run.say(one.name)
        figure, faults = play(one.storm, calm_checks=CALM_CHECKS)
        yield result_of(figure, f"tests/hostile: {one.name}", faults + late(figure, one.slower_max))
    run.say("a valid flood by one pool")
    figure, faults = flooding(FLOOD_S)
    yield result_of(figure, "tests/hostile: a hundred times what one pool may send", faults)
    run.say(f"{PROGRAMS + PEERS:,} open connections")
    figure, faults = gathering(PROGRAMS, PEERS)
    yield result_of(
        figure, "tests/hostile: programs on the local socket and peers from many addresses", faults
    )


def late(figure: Figure, slower_max: float | None) -> list[str]:
    """Times are judged here and nowhere in `make test`: they need a machine that does nothing else."""
    faults: list[str] = []
    if figure.get("late"):
        faults.append(f"{figure['late']} connections were closed later than a second after their deadline")
    before, during = figure["honest_p99_ms_before"], figure["honest_p99_ms"]
    if slower_max is not None and isinstance(before, float) and isinstance(during, float):
        figure["honest_p99_times"] = round(during / before, 2)
        if during > slower_max * before:
            faults.append(
                f"honest programs waited {during:g} ms, {slower_max:g} times {before:g} ms are allowed"
            )
    return faults
