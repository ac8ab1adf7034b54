"""The whole path of a message through a node, as rows of the bench: each a run of `node_under_load` in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.measure import Figure
from bench.node_under_load import ROOT

PEERS = 20
"""Who supply at the same time, as many as a node exchanges messages with unless told otherwise; each one waits until
what it brought is judged."""
MESSAGES_PER_ROUND = 400
MESSAGES_PER_LONG_ROUND = 4_000
MESSAGES_IN_MEMORY = 45_000
RUN_WITHIN_S = 300
SCALING_TURNS = 3
SCALING_TARGET = 1.7


@dataclass(frozen=True)
class Reading:
    """A figure that depends on the machine and is printed without a limit."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class PathStep:
    """`sockets`: peers and programs in another process; without, their bytes come and go in memory.

    The node has one core, as the unit has; `all_cores` leaves it whatever there is.
    """

    name: str
    per_reply: int
    durable: bool
    limit: float | None
    sockets: bool = False
    all_cores: bool = False
    peers: int = PEERS

    def run(self, rounds: int) -> tuple[Figure, list[Reading]]:
        arguments = ["--per-reply", str(self.per_reply), "--suppliers", str(self.peers)]
        arguments += ["--per-round", str(MESSAGES_PER_ROUND), "--rounds", str(rounds)]
        arguments += ["--durable"] * self.durable + ["--sockets"] * self.sockets
        result = run_node(*arguments, *([] if self.all_cores else on_one_core(self.sockets)))
        readings = []
        if self.durable:
            readings = [
                Reading(f"{self.name}: fsync wait per message", result["fsync_ms_per_message"], "ms"),
                Reading(f"{self.name}: messages per fsync", result["messages_per_fsync"], ""),
            ]
        return Figure(self.name, result["ratio"], self.limit, result["unit_us"]), readings


PATH_STEPS = (
    PathStep("path, replies of 10", 10, durable=False, limit=1.5),
    PathStep("path, replies of 10, durable", 10, durable=True, limit=2.1),
    PathStep("path, one by one", 1, durable=False, limit=2.3),
    PathStep("path, one by one, durable", 1, durable=True, limit=2.9),
    PathStep("same over sockets, replies of 10", 10, durable=False, limit=None, sockets=True),
    PathStep("same over sockets, one by one", 1, durable=False, limit=None, sockets=True),
    PathStep("same from a single peer, replies of 10", 10, durable=False, limit=None, peers=1),
    PathStep("same from a single peer, one by one", 1, durable=False, limit=None, peers=1),
    PathStep("same on all cores, replies of 10", 10, durable=False, limit=None, all_cores=True),
    PathStep("same on all cores, one by one", 1, durable=False, limit=None, all_cores=True),
)


def on_one_core(has_peers_elsewhere: bool = False) -> list[str]:
    """Options that keep the node on one core, and its peers off it where there is another."""
    cores = sorted(os.sched_getaffinity(0))
    options = ["--processor", str(cores[0])]
    if has_peers_elsewhere and len(cores) > 1:
        options += ["--peers-processor", str(cores[1])]
    return options


def scaling(rounds: int) -> Iterator[Reading]:
    """The same node on one core and on all of them, in turns, with peers that take hardly any time themselves."""
    # Long rounds: at the end of each one everybody waits for the last ring of the bell, on two cores as long as on one.
    load = ["--per-reply", "10", "--suppliers", str(PEERS)]
    load += ["--per-round", str(MESSAGES_PER_LONG_ROUND), "--rounds", str(max(1, rounds // 8))]
    one, many = [], []
    for _ in range(SCALING_TURNS):
        one.append(run_node(*load, *on_one_core())["per_s"])
        many.append(run_node(*load)["per_s"])
    cores = len(os.sched_getaffinity(0))
    yield Reading("path, replies of 10, on one core", median(one), "messages/s")
    yield Reading(f"path, replies of 10, on {cores} cores", median(many), "messages/s")
    if cores > 1:
        unit = f"x (target {SCALING_TARGET} for two cores, if nothing else runs)"
        yield Reading(f"{cores} cores over one", median(many) / median(one), unit)


def measure_paths(rounds: int) -> tuple[list[Figure], list[Reading]]:
    figures: list[Figure] = []
    readings: list[Reading] = []
    for step in PATH_STEPS:
        figure, more = step.run(rounds)
        figures.append(figure)
        readings += more
    return figures, [*readings, *scaling(rounds)]


def throughput_and_memory(messages: int = MESSAGES_IN_MEMORY) -> Iterator[Reading]:
    """A durable node with ten programs, over sockets: alone on one core, then sharing all of them with its peers."""
    per_round = messages // 15
    load = ["--durable", "--sockets", "--per-reply", "33", "--suppliers", str(PEERS)]
    load += ["--warm-up", "0", "--rounds", "15", "--per-round", str(per_round)]
    cores = len(os.sched_getaffinity(0))
    if cores > 1:
        pinned = on_one_core(has_peers_elsewhere=True)
        yield Reading("node on one core, peers on another", run_node(*load, *pinned)["per_s"], "messages/s")
    result = run_node(*load)
    yield Reading(f"node and peers on {cores} cores", result["per_s"], "messages/s")
    yield Reading(f"memory for {per_round * 15:,} messages of 1.5 kB", result["resident_mb"], "MB")


def run_node(*arguments: str) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, "-m", "bench.node_under_load", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=RUN_WITHIN_S,
        check=True,
    )
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result
