"""One driver for every system: a closed loop with a given number of messages on their way at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from bench.delivery.processes import peak_megabytes, processor_s
from bench.delivery.systems import System

MESSAGES_MIN = 20
"""Below this many a run says nothing about its 99th percentile, and little about its rate."""


@dataclass(frozen=True)
class Run:
    """One repetition."""

    messages: int
    taken_s: float
    times_s: Sequence[float]
    processor_s: float

    @property
    def per_s(self) -> float:
        return self.messages / self.taken_s


@dataclass(frozen=True)
class Figures:
    """Of one system at one window, over all repetitions: medians, and the range of the rate."""

    system: str
    promise: str
    window: int
    payload_bytes: int
    per_s: float
    per_s_lowest: float
    per_s_highest: float
    p50_ms: float
    p99_ms: float
    processor_s_per_1000: float
    peak_mb: float


async def run(system: System, window: int, payload: bytes, seconds: float) -> Run:
    times_s: list[float] = []
    ends_at = time.perf_counter() + seconds

    async def one_after_another() -> None:
        while True:
            began = time.perf_counter()
            if began >= ends_at:
                return
            await system.send(payload)
            times_s.append(time.perf_counter() - began)

    everybody = [os.getpid(), *system.process_ids()]
    used_s = processor_s(everybody)
    began = time.perf_counter()
    async with asyncio.TaskGroup() as senders:
        for _ in range(window):
            senders.create_task(one_after_another())
    taken_s = time.perf_counter() - began
    # What is still to be done for these messages is part of their cost, and nobody else's.
    await system.settle()
    return Run(len(times_s), taken_s, times_s, processor_s(everybody) - used_s)


def figures(system: System, window: int, payload: bytes, runs: Sequence[Run]) -> Figures:
    steps = [
        quantiles(run.times_s, n=100, method="inclusive") for run in runs if run.messages >= MESSAGES_MIN
    ]
    rates = [run.per_s for run in runs]
    return Figures(
        system=system.name,
        promise=system.promise.name,
        window=window,
        payload_bytes=len(payload),
        per_s=median(rates),
        per_s_lowest=min(rates),
        per_s_highest=max(rates),
        p50_ms=median(step[49] for step in steps) * 1e3 if steps else float("nan"),
        p99_ms=median(step[98] for step in steps) * 1e3 if steps else float("nan"),
        processor_s_per_1000=median(run.processor_s * 1e3 / run.messages for run in runs if run.messages),
        peak_mb=peak_megabytes([os.getpid(), *system.process_ids()]),
    )
