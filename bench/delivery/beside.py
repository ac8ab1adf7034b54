"""Reliable publishing beside what people use today, in one run: `make bench PART=delivery`.

Systems that promise the same stand in one table. Repetitions are interleaved: every system is measured once before any
is measured a second time, so that a slow minute of the machine is everybody's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.delivery.drive import Figures, Run, figures, run
from bench.delivery.mqtt_systems import Mosquitto, MosquittoReply
from bench.delivery.nats_systems import JetStream, NatsRequest
from bench.delivery.own_systems import DRAINED, Acked, Queued, drain_s
from bench.delivery.redis_systems import RedisReply, RedisStream
from bench.delivery.signed_systems import SignedAcked
from bench.delivery.systems import NotAvailable, Promise, System
from bench.latency import fsyncs_per_s

WARM_UP_S = 1.0
DRAIN_WITHIN_S = 2.0


@dataclass(frozen=True)
class Plan:
    """How much is measured: `make bench` in minutes, `make bench-full` the whole matrix."""

    payload_bytes: Sequence[int] = (256,)
    windows: Sequence[int] = (1, 256)
    repetitions: int = 3
    seconds: float = 2.0


QUICK = Plan()
FULL = Plan((100, 256, 1_000), (1, 20, 256), 5, 20.0)


@dataclass(frozen=True)
class Target:
    """One system against another, at a window: at least this ratio of their rates."""

    ours: str
    theirs: str
    window: int
    ratio: float


TARGETS = (
    Target("stagepost publish_with_ack, unsigned, 1 critical", "NATS request/reply", 1, 0.7),
    Target("stagepost publish_with_ack, unsigned, 1 critical", "NATS request/reply", 256, 0.7),
    Target("stagepost publish_queued, disk", "NATS JetStream, sync always", 256, 1.0),
)


def everybody() -> list[Callable[[], System]]:
    return [
        lambda: Queued(on_disk=False),
        lambda: JetStream(sync_always=False),
        Mosquitto,
        lambda: RedisStream(sync_always=False),
        lambda: Queued(on_disk=True),
        lambda: JetStream(sync_always=True),
        lambda: RedisStream(sync_always=True),
        lambda: Acked(1, require_all=False),
        lambda: Acked(3, require_all=False),
        lambda: Acked(3, require_all=True),
        NatsRequest,
        RedisReply,
        MosquittoReply,
        lambda: SignedAcked(1, require_all=False),
        lambda: SignedAcked(3, require_all=True),
    ]


@dataclass(frozen=True)
class Outcome:
    figures: list[Figures]
    not_run: dict[str, str]
    fsyncs_per_s: list[float]


async def measure(plan: Plan, systems: Iterable[Callable[[], System]]) -> Outcome:
    not_run: dict[str, str] = {}
    found: list[Figures] = []
    fsync_rates: list[float] = []
    with TemporaryDirectory() as name:
        async with AsyncExitStack() as running:
            ready: list[System] = []
            for number, make in enumerate(systems):
                system = make()
                folder = Path(name) / str(number)
                folder.mkdir()
                running.push_async_callback(system.stop)
                try:
                    await system.start(folder)
                except NotAvailable as missing:
                    not_run[system.name] = str(missing)
                    continue
                ready.append(system)
            for size in plan.payload_bytes:
                for window in plan.windows:
                    found += await _interleaved(ready, window, bytes(size), plan, fsync_rates)
    return Outcome(found, not_run, fsync_rates)


async def _interleaved(
    systems: Sequence[System], window: int, payload: bytes, plan: Plan, fsync_rates: list[float]
) -> list[Figures]:
    runs: dict[str, list[Run]] = defaultdict(list)
    for system in systems:
        await run(system, window, payload, WARM_UP_S)
    for _ in range(plan.repetitions):
        fsync_rates.append(fsyncs_per_s())
        for system in systems:
            runs[system.name].append(await run(system, window, payload, plan.seconds))
    return [figures(system, window, payload, runs[system.name]) for system in systems]


def tables(outcome: Outcome) -> str:
    lines: list[str] = []
    for promise in Promise:
        rows = [row for row in outcome.figures if row.promise == promise.name]
        if not rows:
            continue
        lines += ["", f"{promise.value}:"]
        lines.append(
            f"  {'':50} {'window':>6} {'rate/s':>8} {'(range)':>15} {'p50 ms':>8} {'p99 ms':>8} {'CPU s/1000':>10} {'MB':>5}"
        )
        for row in rows:
            spread = f"{row.per_s_lowest:.0f}–{row.per_s_highest:.0f}"
            lines.append(
                f"  {row.system:50} {row.window:>6} {row.per_s:>8.0f} {spread:>15} {row.p50_ms:>8.2f} "
                f"{row.p99_ms:>8.2f} {row.processor_s_per_1000:>10.3f} {row.peak_mb:>5.0f}"
            )
    lines += ["", *(f"not run: {name}: {why}" for name, why in outcome.not_run.items())]
    if outcome.fsyncs_per_s:
        lowest, highest = min(outcome.fsyncs_per_s), max(outcome.fsyncs_per_s)
        lines.append(f"this disk's fsyncs per second, before each repetition: {lowest:.0f} to {highest:.0f}")
    return "\n".join(lines)


def against_targets(found: Sequence[Figures]) -> tuple[list[str], bool]:
    """One line for each target, and whether all that could be judged are met."""
    rates = {(row.system, row.window): row.per_s for row in found}
    lines: list[str] = []
    is_met = True
    for target in TARGETS:
        ours, theirs = rates.get((target.ours, target.window)), rates.get((target.theirs, target.window))
        what = f"{target.ours} / {target.theirs}, window {target.window}"
        if ours is None or theirs is None:
            lines.append(f"{what}: not run")
            continue
        ratio = ours / theirs
        is_met &= ratio >= target.ratio
        state = "ok" if ratio >= target.ratio else "missed"
        lines.append(f"{what}: {ratio:.2f} (target {target.ratio:.2f}) {state}")
    return lines, is_met


def drains() -> list[str]:
    """How long our own queue takes to empty after somebody has come; at most so long."""
    lines: list[str] = []
    for on_disk in (False, True):
        with TemporaryDirectory() as name:
            taken_s = asyncio.run(drain_s(Path(name), on_disk=on_disk, payload=bytes(256)))
        where = "disk" if on_disk else "memory"
        state = "ok" if taken_s <= DRAIN_WITHIN_S else "missed"
        lines.append(
            f"{DRAINED} entries drained from {where}: {taken_s:.2f} s (target {DRAIN_WITHIN_S:g} s) {state}"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="beside.py", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every payload, window and second")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    parser.add_argument("--only", action="append", help="systems whose name contains this; may be repeated")
    parser.add_argument("--window", type=int, action="append", help="only so many at once; may be repeated")
    options = parser.parse_args(arguments)
    chosen = [
        make
        for make in everybody()
        if options.only is None or any(part in make().name for part in options.only)
    ]
    plan = FULL if options.full else QUICK
    if options.window is not None:
        plan = replace(plan, windows=tuple(options.window))
    outcome = asyncio.run(measure(plan, chosen))
    lines, is_met = against_targets(outcome.figures)
    if options.only is None:
        drained = drains()
        is_met &= not any(line.endswith("missed") for line in drained)
        lines += drained
    print(tables(outcome))
    print("\n".join(["", *lines]))
    _write(outcome, options.full)
    return 1 if options.check and not is_met else 0


def _write(outcome: Outcome, full: bool) -> None:
    from rigs.results import write_lines

    command = f"python -m bench.delivery.beside{' --full' if full else ''}"
    write_lines("bench-delivery", command, [asdict(row) for row in outcome.figures])


if __name__ == "__main__":
    sys.exit(main())
