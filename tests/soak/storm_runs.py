"""Storms on a real node at full scale: how many connections, for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.hostile.floods import forging, stalling
from tests.hostile.storms import Figure, Storm, dripping, holding_much, play

FLOOD_S_BY_SCALE = {"commit": 20.0, "release": 60.0}


def storms(scale: str, say: Callable[[str], None]) -> Iterator[tuple[Figure, list[str]]]:
    """N3, N4, N5 and N8; one figure each."""
    every: dict[str, Storm] = {
        "500 connections with large, slow and unfinished frames": holding_much(connections=500),
        "1,000 connections at a byte a second": dripping(connections=1_000),
        "forged signatures at full speed": forging(seconds=FLOOD_S_BY_SCALE[scale]),
        "100 consumers of which 10 do not read": stalling(consumers=100, stalled=10, messages=1_000),
    }
    for name, storm in every.items():
        say(name)
        figure, faults = play(storm)
        yield figure, [f"{figure['promise']}: {fault}" for fault in faults]
