"""Strangers at every listener at full count: connections that prove nothing, or exchange nothing, with honest ones beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rigs.results import Result, result_of
from tests.hostile.storms import Figure
from tests.hostile.strangers import half_requests_to_dashboard, idle_peers, silent_peers, silent_readers
from tests.soak.runs import Run

STRANGERS = 512
"""32 addresses with 16 connections each."""
SIEGES: tuple[tuple[str, Callable[[int], tuple[Figure, list[str]]]], ...] = (
    ("connections to a DMQ node that send nothing", silent_peers),
    ("peers of a DMQ node that keep alive and exchange nothing", idle_peers),
    ("connections to served topics that send nothing", silent_readers),
    ("unfinished heads at the dashboard", half_requests_to_dashboard),
)


def strangers(run: Run) -> Iterator[Result]:
    for name, siege in SIEGES:
        run.say(f"{STRANGERS} {name}")
        figure, faults = siege(STRANGERS)
        yield result_of(figure, f"tests/hostile/strangers.py: {name}", faults)
