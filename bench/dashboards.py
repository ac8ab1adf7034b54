"""What dashboards cost the node that they look at: fifty of them open, and none, in turns, while messages pass.

The node is a devnet in a process of its own, the dashboard another, and this one plays the browsers: streams that are read,
overviews that are fetched again. Messages belong to the phase in which they were sent; latencies come from the signed
receipts, not from anybody's impression.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

from bench.whole_path import Reading
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status_records import StatusRecord, read_record
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.trace import trace_of
from stagepost.trace.drawing import draw_trace
from stagepost.trace.reading import topic_records
from stagepost.web.figures import quantile

DASHBOARDS = 50
OVERVIEWS = 10
"""Of them; they fetch their tiles again every two seconds, all others follow the stream of everything."""
RATE = 100
VALIDATORS = 4
PHASE_S = 5.0
PAIRS = 3
WARM_UP_S = 6.0
RATIO_MAX = 1.25
HELP_MS_MAX = 500
OVERVIEW_EVERY_S = 2.0
STARTS = 5

ROOT = Path(__file__).parents[1]
COMMAND = (sys.executable, "-m", "stagepost.cli.main")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def measure(
    rate: int = RATE, pairs: int = PAIRS, phase_s: float = PHASE_S
) -> tuple[list[Reading], list[str]]:
    """Readings, and a sentence for each limit that was missed."""
    readings, missed = [], []
    started_ms = help_time_ms()
    readings.append(Reading("stagepost --help, best of five", started_ms, "ms"))
    if started_ms > HELP_MS_MAX:
        missed.append(f"missed: stagepost --help takes {started_ms:.0f} ms, the limit is {HELP_MS_MAX}")
    readings.append(Reading("drawing of 21 validators, 2,000 receipts", drawing_ms(), "ms"))
    try:
        import uvicorn  # noqa: F401  # only whether it is there
    except ModuleNotFoundError:
        return readings, missed
    watched = asyncio.run(_watch(rate, pairs, phase_s))
    readings += watched.readings()
    if watched.ratio > RATIO_MAX:
        missed.append(
            f"missed: with {DASHBOARDS} dashboards p99 to final is {watched.ratio:.2f} times as long, the limit is {RATIO_MAX}"
        )
    return readings, missed


def help_time_ms() -> float:
    times = []
    for _ in range(STARTS):
        begin = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - begin)
    return 1_000 * min(times)


def drawing_ms() -> float:
    """Without reading and checking: the drawing alone, in processor time."""
    from rigs.dashboard_world import DashboardWorld, message_id

    with tempfile.TemporaryDirectory() as folder:
        world = DashboardWorld(Path(folder) / "data", 1_800_000_000_000)
        world.largest()
        world.close()
        records = list(topic_records(world.data))
        trace = trace_of(
            message_id("largest"), records, ValidatorSets.load(world.data / "validator-sets.json"), None
        )
    begin = time.process_time()
    draw_trace(trace, within_page=True)
    return 1_000 * (time.process_time() - begin)


class Watched:
    """What the receipts say of each phase, and what the dashboard took."""

    def __init__(self) -> None:
        self.phases: list[tuple[float, float, bool]] = []
        self.final_ms: dict[bool, list[int]] = defaultdict(list)
        self.first_ms: dict[bool, list[int]] = defaultdict(list)
        self.memory_before_kib = self.memory_after_kib = 0
        self.processor_s = 0.0
        self.node_s: dict[bool, float] = defaultdict(float)
        """Processor time of the node, in seconds, in phases with and without dashboards."""
        self.streamed_bytes = 0
        self.open_s = 0.0

    def sort(self, records: list[StatusRecord]) -> None:
        times: dict[bytes, dict[str, int]] = defaultdict(dict)
        for record in records:
            receipt = read_record(record)
            if isinstance(receipt, Receipt):
                of_message = times[receipt.message_id]
                name = receipt.kind.name
                of_message[name] = min(receipt.timestamp_ms, of_message.get(name, receipt.timestamp_ms))
        for of_message in times.values():
            begin_ms = min(of_message.values())
            for since, until, is_watched in self.phases:
                if since * 1_000 <= begin_ms < until * 1_000 and "Finalized" in of_message:
                    self.final_ms[is_watched].append(of_message["Finalized"] - begin_ms)
                    if "SentToValidators" in of_message:
                        self.first_ms[is_watched].append(of_message["SentToValidators"] - begin_ms)

    def p99(self, of: dict[bool, list[int]], is_watched: bool) -> float:
        return float(quantile(of[is_watched], 0.99) or 0)

    @property
    def ratio(self) -> float:
        return self.p99(self.final_ms, True) / max(1.0, self.p99(self.final_ms, False))

    @property
    def node_ratio(self) -> float:
        """Return the node's processor time for a message with dashboards over that without: other work on the machine does not
        spoil it as it spoils latencies."""
        per_message = {key: self.node_s[key] / max(1, len(self.final_ms[key])) for key in (False, True)}
        return per_message[True] / (per_message[False] or 1.0)

    def readings(self) -> list[Reading]:
        return [
            Reading("messages measured without dashboards", len(self.final_ms[False]), ""),
            Reading(f"messages measured with {DASHBOARDS} dashboards", len(self.final_ms[True]), ""),
            Reading("to final, p99, without dashboards", self.p99(self.final_ms, False), "ms"),
            Reading(f"to final, p99, with {DASHBOARDS} dashboards", self.p99(self.final_ms, True), "ms"),
            Reading("the second over the first", self.ratio, "times"),
            Reading("node: processor time a message, with over without", self.node_ratio, "times"),
            Reading("dashboard: memory before", self.memory_before_kib / 1_024, "MiB"),
            Reading("dashboard: memory after", self.memory_after_kib / 1_024, "MiB"),
            Reading(
                "dashboard: processor per second of watching", self.processor_s / max(0.1, self.open_s), "s"
            ),
            Reading(
                "dashboard: sent per second of watching",
                self.streamed_bytes / max(0.1, self.open_s) / 1_024,
                "KiB",
            ),
        ]


async def _watch(rate: int, pairs: int, phase_s: float) -> Watched:
    watched = Watched()
    with ExitStack() as parts:
        data = Path(parts.enter_context(tempfile.TemporaryDirectory())) / "devnet"
        count = int(rate * (WARM_UP_S + 2 * pairs * phase_s + 3))
        node = parts.enter_context(_process(
            "devnet", "--one-process", "--validators", str(VALIDATORS), "--data", str(data), "--messages", str(count),
            "--rate", str(rate),
        ))  # fmt: skip
        while not (data / "topics").exists():
            assert node.poll() is None, "the devnet has ended before it began"
            await asyncio.sleep(0.2)
        server = parts.enter_context(_process("serve", "--data", str(data), "--port", "0", is_heard=True))
        host, port = await _address(server)
        await asyncio.sleep(WARM_UP_S)
        watched.memory_before_kib = _memory_kib(server.pid)
        for _ in range(pairs):
            await _phase(watched, False, phase_s, (host, port), server.pid, node.pid)
            await _phase(watched, True, phase_s, (host, port), server.pid, node.pid)
        watched.memory_after_kib = _memory_kib(server.pid)
        await asyncio.to_thread(node.wait)
        watched.sort(list(topic_records(data)))
    return watched


async def _phase(
    watched: Watched, is_watched: bool, phase_s: float, address: tuple[str, int], server: int, node: int
) -> None:
    host, port = address
    begin, processor, of_node = time.time(), _processor_s(server), _processor_s(node)
    browsers = []
    if is_watched:
        browsers = [
            asyncio.create_task(_overview(host, port) if number < OVERVIEWS else _follow(host, port, watched))
            for number in range(DASHBOARDS)
        ]
    await asyncio.sleep(phase_s)
    if is_watched:
        watched.processor_s += _processor_s(server) - processor
        watched.open_s += time.time() - begin
    watched.phases.append((begin, time.time(), is_watched))
    watched.node_s[is_watched] += _processor_s(node) - of_node
    for task in browsers:
        task.cancel()
    outcomes = await asyncio.gather(*browsers, return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    if failures:
        raise failures[0]


async def _ask(host: str, port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nX-Fragment: 1\r\nConnection: close\r\n\r\n".encode()
    )
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    return reader, writer


async def _follow(host: str, port: int, watched: Watched) -> None:
    reader, writer = await _ask(host, port, "/api/v1/stream?max_rows=100")
    try:
        while part := await reader.read(65_536):
            watched.streamed_bytes += len(part)
        raise ConnectionError("a stream has ended")
    finally:
        writer.close()


async def _overview(host: str, port: int) -> None:
    while True:
        reader, writer = await _ask(host, port, "/")
        await reader.read()
        writer.close()
        await asyncio.sleep(OVERVIEW_EVERY_S)


class _process:
    """One of our commands, ended by its id when it is left."""

    def __init__(self, *arguments: str, is_heard: bool = False) -> None:
        self._arguments = arguments
        self._errors = subprocess.PIPE if is_heard else subprocess.DEVNULL

    def __enter__(self) -> subprocess.Popen[str]:
        self._running = subprocess.Popen(
            [*COMMAND, *self._arguments],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            text=True,
        )
        return self._running

    def __exit__(self, *_: object) -> None:
        self._running.terminate()
        try:
            self._running.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.communicate()


async def _address(server: subprocess.Popen[str]) -> tuple[str, int]:
    assert server.stderr is not None
    line = await asyncio.to_thread(server.stderr.readline)
    found = re.search(r"http://([0-9.]+):(\d+)", line)
    assert found is not None, line
    host, port = found[1], int(found[2])
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.1)
            continue
        writer.close()
        return host, port


def _memory_kib(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+)", text)
    assert found is not None
    return int(found[1])


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
