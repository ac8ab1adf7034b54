"""Measures what a message costs, step by step and on its whole path, in units of one signature check, against limits.

    make bench               measure and print
    make bench CHECK=1       exit with 1 if a limit is missed, and name it

Rates, latencies and memory follow without limits. The tables go to stdout, one JSON line per row to
results/bench.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import (
    beside_gouroboros,
    chain,
    cluster,
    dashboards,
    dmq_scale,
    kafka_beside_log,
    latency,
    pipeline_freshness,
    receipt_tables,
    remp_end_to_end,
    remp_queue,
    table_batches,
    topic_log,
    whole_path,
)
from bench.measure import ROUNDS, Figure, measure
from bench.steps import steps, unit
from bench.whole_path import Reading
from rigs.results import circumstances, write_lines

PARTS = (
    "steps",
    "path",
    "node",
    "remp",
    "network",
    "chain",
    "bus",
    "pipeline",
    "freshness",
    "gouroboros",
    "cluster",
    "scale",
    "kafka",
    "web",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="run.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="fail when a limit is missed")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"{ROUNDS} unless told")
    parser.add_argument("--only", choices=PARTS, help="one part")
    options = parser.parse_args(arguments)
    figures, readings = measure_parts(options.only, options.rounds)
    missed: list[str] = []
    if options.only in (None, "remp"):
        of_queue, missed = remp_queue.measure()
        readings += of_queue
    if options.only in (None, "network"):
        of_network, late = remp_end_to_end.measure()
        readings += of_network
        missed += late
    if options.only in (None, "chain"):
        of_chain, late = chain.measure()
        readings += of_chain
        missed += late
    if options.only in (None, "bus"):
        of_topics, slow = topic_log.measure()
        readings += of_topics
        missed += slow
    if options.only in (None, "pipeline"):
        of_tables, slow = receipt_tables.measure()
        readings += of_tables
        missed += slow
        # Ten million receipts take minutes to make: only when asked for.
        sizes = table_batches.SIZES if options.only else table_batches.SIZES[:2]
        of_history, slow = table_batches.measure(sizes)
        readings += of_history
        missed += slow
    if options.only in (None, "freshness"):
        of_stream, late = pipeline_freshness.measure()
        readings += of_stream
        missed += late
    if options.only in (None, "gouroboros"):
        beside, slower = beside_gouroboros.readings()
        readings += beside
        missed += slower
    # Long, and of use to those who plan: only when asked for.
    if options.only == "cluster":
        readings += cluster.measure()[0]
    if options.only == "kafka":
        readings += kafka_beside_log.measure()[0]
    if options.only == "scale":
        readings += dmq_scale.measure()[0]
    if options.only in (None, "web"):
        of_web, slow = dashboards.measure()
        readings += of_web
        missed += slow
    command = f"python bench/run.py{' --check' if options.check else ''} --rounds {options.rounds}"
    command += f" --only {options.only}" if options.only else ""
    where = circumstances(command)
    if figures:
        print(table(figures, where))
    if readings:
        print(table_of_readings(readings))
    rows = [{**asdict(figure), "over": figure.is_over} for figure in figures]
    write_lines("bench", command, rows + [asdict(reading) for reading in readings])
    for text in missed:
        print(text, file=sys.stderr)
    return max(verdict(figures, check=options.check), int(options.check and bool(missed)))


def measure_parts(only: str | None, rounds: int) -> tuple[list[Figure], list[Reading]]:
    """`steps` one by one, their whole `path` through a node, and what a `node` does with real sockets and disk."""
    figures: list[Figure] = []
    readings: list[Reading] = []
    if only in (None, "steps"):
        figures += measure_all(rounds)
    if only in (None, "path"):
        of_paths, readings = whole_path.measure_paths(rounds)
        figures += of_paths
    if only in (None, "node"):
        readings += whole_path.throughput_and_memory()
        readings += latency_readings(asyncio.run(latency.measure()))
        readings.append(Reading("fsyncs of this disk, in this minute", latency.fsyncs_per_s(), "/s"))
    return figures, readings


def latency_readings(latencies: Sequence[latency.Latency]) -> list[Reading]:
    return [
        Reading(f"submit to notify, {measured.path}, {name}", value, "ms")
        for measured in latencies
        for name, value in (("p50", measured.p50_ms), ("p99", measured.p99_ms))
    ]


def table_of_readings(readings: Sequence[Reading]) -> str:
    lines = ["", f"{'on this machine, in this minute':58} {'value':>10}"]
    lines += [f"{reading.name:58} {reading.value:>10,.2f} {reading.unit}".rstrip() for reading in readings]
    return "\n".join(lines)


def measure_all(rounds: int = ROUNDS) -> list[Figure]:
    one_check = unit()
    with steps() as found:
        return [measure(step, one_check, rounds) for step in found]


def table(figures: Sequence[Figure], where: Mapping[str, object]) -> str:
    lines = [f"{'step':32} {'ratio':>8} {'limit':>8}"]
    for figure in figures:
        limit = "" if figure.limit is None else f"{figure.limit:.2f}"
        state = "" if figure.limit is None else "over" if figure.is_over else "ok"
        lines.append(f"{figure.step:32} {figure.ratio:>8.3f} {limit:>8} {state}".rstrip())
    fastest = min(figure.unit_us for figure in figures)
    lines += [
        "",
        f"unit: one signature check by libsodium, here {fastest:.1f} microseconds",
        f"{where['processors']} processors, {where['machine']}, Python {where['python']}, load {where['load']}, "
        f"revision {where['revision']}, {where['date']}",
    ]
    return "\n".join(lines)


def verdict(figures: Sequence[Figure], *, check: bool) -> int:
    """0, or 1 if limits are to be kept and one is not; each one missed is named."""
    missed = [figure for figure in figures if figure.is_over]
    for figure in missed:
        print(f"missed: {figure.step} costs {figure.ratio:.3f}, the limit is {figure.limit}", file=sys.stderr)
    return 1 if check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
