"""A real hour of a network of processes with sessions of 2.5 seconds and 20 messages a second: memory and files bounded,
sums exact, and a quick start afterwards.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rigs.results import Result, result_of
from tests.hostile.devnet_process import devnet_process
from tests.soak.runs import Run
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT

SECONDS = 3_600
PER_S = 20
SESSION = "2.5s"
LOOK_EVERY_S = 5.0
RESTART_S_MAX = 10.0
GROWN_BYTES_MAX = 96 * 1024 * 1024
"""Growth of one process in the second half: what remembers a number of messages or sessions may still fill up."""
DISK_BYTES_PER_MESSAGE_MAX = 64 * 1024
"""Bytes that all five members together write for one message, with its share of blocks and sessions."""


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _disk(data: Path) -> int:
    total = 0
    for path in data.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:
            continue  # it went meanwhile
    return total


def play(data: Path, seconds: int, seed: int) -> tuple[dict[str, object], list[str]]:
    messages = seconds * PER_S
    options = ("--validators", "4", "--session-lifetime", SESSION, "--seed", str(seed), "--data", str(data))
    command = [*COMMAND, "devnet", *options, "--rate", str(PER_S), "--messages", str(messages)]
    most: dict[int, int] = {}
    half: dict[int, int] = {}
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=said, stderr=said, text=True)
        try:
            while process.poll() is None:
                time.sleep(LOOK_EVERY_S)
                for pid in [process.pid, *_children(process.pid)]:
                    most[pid] = max(most.get(pid, 0), _resident(pid))
                if not half and time.monotonic() - began > seconds / 2:
                    half = dict(most)
        finally:
            process.kill()
            process.wait()
        said.seek(0)
        output = said.read()
    took_s = time.monotonic() - began
    faults = (
        [] if process.returncode == 0 else [f"the network ended with {process.returncode}: {output[-2_000:]}"]
    )
    grown = max((most[pid] - size for pid, size in half.items()), default=0)
    disk = _disk(data)
    began = time.monotonic()
    with devnet_process(data, *options[:6]):
        restart_s = time.monotonic() - began
    for what, found, limit in (
        ("seconds until the network was ready again", restart_s, RESTART_S_MAX),
        ("bytes of memory grown in the second half", grown, GROWN_BYTES_MAX),
        ("bytes on disk", disk, messages * DISK_BYTES_PER_MESSAGE_MAX + 2**26),
    ):
        if found > limit:
            faults.append(f"{found:,.1f} {what}, at most {limit:,.0f} are allowed")
    return {
        "promise": "O1",
        "target": "a network of processes with short sessions",
        "seconds": round(took_s),
        "messages": messages,
        "largest_mb": round(max(most.values(), default=0) / 2**20, 1),
        "grown_mb": round(grown / 2**20, 1),
        "disk_mb": round(disk / 2**20, 1),
        "restart_s": round(restart_s, 2),
        "failures": len(faults),
    }, faults


def hour(run: Run) -> Iterator[Result]:
    seconds = int(run.seconds or SECONDS)
    run.say(f"a network with sessions of {SESSION} and {PER_S} messages a second, for {seconds} s")
    with tempfile.TemporaryDirectory() as name:
        figure, faults = play(Path(name) / "data", seconds, run.seed % 1_000_000)
    yield result_of({**figure, "seed": run.seed}, "tests/soak/hour_runs.py", faults)
