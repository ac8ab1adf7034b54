"""The whole path of a message through a node, as rows of the bench: each a run of `node_under_load` in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.measure import Figure
from bench.node_under_load import ROOT

PEERS = 4
"""Who supply at the same time; each one waits until what it brought is judged."""
MESSAGES_IN_MEMORY = 45_000
RUN_WITHIN_S = 300


@dataclass(frozen=True)
class Reading:
    """A figure that depends on the machine and is printed without a limit."""

    name: str
    value: float
    unit: str


@dataclass(frozen=True)
class PathStep:
    """`sockets`: peers and programs in another process; without, their bytes come and go in memory."""

    name: str
    per_reply: int
    durable: bool
    limit: float | None
    sockets: bool = False

    def run(self, rounds: int) -> tuple[Figure, list[Reading]]:
        arguments = ["--per-reply", str(self.per_reply), "--suppliers", str(PEERS), "--rounds", str(rounds)]
        arguments += ["--durable"] * self.durable + ["--sockets"] * self.sockets
        result = run_node(*arguments)
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
)


def measure_paths(rounds: int) -> tuple[list[Figure], list[Reading]]:
    figures: list[Figure] = []
    readings: list[Reading] = []
    for step in PATH_STEPS:
        figure, more = step.run(rounds)
        figures.append(figure)
        readings += more
    return figures, readings


def throughput_and_memory(messages: int = MESSAGES_IN_MEMORY) -> Iterator[Reading]:
    """A durable node with ten programs, over sockets: alone on one core, then sharing all of them with its peers."""
    per_round = messages // 15
    load = ["--durable", "--sockets", "--per-reply", "33", "--suppliers", str(PEERS)]
    load += ["--warm-up", "0", "--rounds", "15", "--per-round", str(per_round)]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        pinned = ["--processor", str(cores[0]), "--peers-processor", str(cores[1])]
        yield Reading("node on one core, peers on another", run_node(*load, *pinned)["per_s"], "messages/s")
    result = run_node(*load)
    yield Reading(f"node and peers on {len(cores)} cores", result["per_s"], "messages/s")
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
