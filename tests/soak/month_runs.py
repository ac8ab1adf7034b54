"""A month of sessions at one full node with production limits, and the sessions of five years: files and memory bounded, records exact, a quick restart."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rigs.results import Result, result_of
from stagepost.full_node.known_sets import KEPT_MS
from stagepost.ground.identifiers import SESSIONS_TOPIC
from stagepost.ground.wire.tl import key_id
from stagepost.remp.validator_sets import MESSAGE_TIMEOUT_MS, Session, SetMember
from stagepost.topics.log.file_topic import create_topic
from stagepost.trace.session_records import session_record
from tests.soak.runs import Run
from tests.worlds.chain.chain_world import START_MS
from tests.worlds.full_node.month_world import SESSION_MS, MonthOfSessions

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


SESSIONS = 5 * 365 * 24 * 3_600 // 250
"""Sessions of five years with one shard."""
VALIDATORS = 7
LOAD_S_MAX = 5.0
LOAD_BYTES_MAX = 200 * 1024 * 1024
WRITTEN_AT_ONCE = 400
LOADER = """
import resource, sys, time
from pathlib import Path
from stagepost.trace.session_records import load_sets
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
sets = load_sets(Path(sys.argv[1]), int(sys.argv[2]) or None)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
print(len(sets.sessions), time.process_time() - began, grown * 1024)
"""


async def write_sessions(data: Path, count: int) -> int:
    """Write the records of `count` sessions as a full node does; return the time at which the last one ends."""
    keys = [number.to_bytes(32, "big") for number in range(1, VALIDATORS + 1)]
    members = tuple(SetMember(index, key, key_id(key)) for index, key in enumerate(keys))
    data.mkdir(mode=0o700)
    writer = create_topic(data, SESSIONS_TOPIC).writer()
    for first in range(0, count, WRITTEN_AT_ONCE):
        records = []
        for number in range(first, min(count, first + WRITTEN_AT_ONCE)):
            from_ms = START_MS + number * SESSION_MS
            begun = Session(number.to_bytes(32, "big"), 0, 1 << 63, number, members, from_ms)
            ended = msgspec.structs.replace(begun, to_ms=from_ms + SESSION_MS + MESSAGE_TIMEOUT_MS)
            records += [session_record(begun, {}), session_record(ended, {})]
        await writer.append(records)
    await writer.close()
    return START_MS + count * SESSION_MS


def five_years(run: Run) -> Iterator[Result]:
    """Load the sessions of five years in a new process: those that a node needs at its start, and all of them."""
    count = run.inputs or SESSIONS
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        run.say(f"{count:,} sessions of {VALIDATORS} validators")
        end_ms = asyncio.run(write_sessions(data, count))
        for what, since_ms in (("at the start of a full node", end_ms - KEPT_MS), ("all", 0)):
            command = [sys.executable, "-c", LOADER, str(data), str(since_ms)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found, load_s, grown = done.stdout.split()
            faults = []
            if not since_ms and int(found) != count:
                faults.append(f"{found} sessions were loaded, {count} were written")
            if float(load_s) > LOAD_S_MAX:
                faults.append(f"{load_s} s of processor time, at most {LOAD_S_MAX} are allowed")
            if int(grown) > LOAD_BYTES_MAX:
                faults.append(f"{grown} bytes of memory, at most {LOAD_BYTES_MAX} are allowed")
            figure = {
                "promise": "O1",
                "target": f"sessions of five years, {what}",
                "sessions": count,
                "loaded": int(found),
                "processor_s": round(float(load_s), 2),
                "grown_mb": round(int(grown) / 2**20, 1),
            }
            yield result_of(figure, f"tests/soak/month_runs.py: sessions of five years, {what}", faults)
