"""A month of sessions at one full node with production limits: files and memory bounded, records exact, a quick restart."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rigs.results import Result, result_of
from tests.soak.runs import Run
from tests.worlds.full_node.month_world import MonthOfSessions

SWITCHES = 10_400
"""250 seconds each: thirty days."""
RESTART_S_MAX = 10.0
MACHINE_S_MAX = 1_800.0
GROWN_BYTES_MAX = 128 * 1024 * 1024
"""Growth of memory after the first twentieth: 100,000 final messages are remembered, and a day of sessions twice."""
DISK_BYTES_PER_SWITCH_MAX = 64 * 1024


async def play(data: Path, seed: int, switches: int) -> tuple[dict[str, object], list[str]]:
    faults: list[str] = []
    month = MonthOfSessions(data, seed)
    month.begin()
    began = time.process_time()
    first = max(1, switches // 20)
    await month.play(first)
    base = month.resident_bytes
    await month.play(switches - first)
    counts, grown, machine_s = month.counts, month.resident_bytes - base, time.process_time() - began
    await month.end()
    restart_s = month.begin()
    replayed = month.replayed()
    await month.play(1)
    await month.end()
    inexact = month.inexact()
    disk = month.bytes_by_part
    faults += [f"{len(inexact)} records are not exact, such as {inexact[0]}"] if inexact else []
    faults += [f"{len(replayed)} replays were taken"] if replayed else []
    for what, found, most in (
        ("seconds of restart", restart_s, RESTART_S_MAX),
        ("seconds of the machine", machine_s, MACHINE_S_MAX),
        ("bytes of memory grown", grown, GROWN_BYTES_MAX),
        ("bytes on disk", sum(disk.values()), (switches + 32) * DISK_BYTES_PER_SWITCH_MAX),
    ):
        if found > most:
            faults.append(f"{found:,.0f} {what}, at most {most:,.0f} are allowed")
    return {
        "promise": "O1",
        "target": "a month of sessions at a full node",
        "switches": month.switches,
        "messages": len(month.sent),
        "machine_s": round(machine_s, 1),
        "grown_mb": round(grown / 2**20, 1),
        "restart_s": round(restart_s, 2),
        **counts,
        **{f"disk {name} mb": round(size / 2**20, 1) for name, size in disk.items() if size > 2**20},
        "failures": len(faults),
    }, faults


def month(run: Run) -> Iterator[Result]:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name:
        figure, faults = asyncio.run(play(Path(name), run.seed, run.inputs or SWITCHES))
    yield result_of({**figure, "seed": run.seed}, "tests/soak/month_runs.py", faults)
