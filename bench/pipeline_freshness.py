"""How far the tables are behind the topic that they follow: `make bench PART=freshness`.

`stagepost pipeline run` follows a topic into which 1,000 signed receipts a second are written, and then the topic of a
network of seven validators that is sent 20 messages a second; each in processes of its own on the cores that there are.
Behind is the time from when a record stood in the topic until `messages` showed what it says.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from bench.pipeline_processes import Memory
from bench.receipts import SETS, receipts
from bench.whole_path import Reading
from stagepost.errors import ConfigError, StagepostError
from stagepost.pipeline.tables.manifest import read_manifest
from stagepost.topics.log.file_topic import create_topic, open_topic
from stagepost.topics.topic import STATUSES, Record

COMMAND = (sys.executable, "-m", "stagepost.cli.main")
RECEIPTS_PER_S = 1_000
APPENDS_PER_S = 20
PARTITIONS = 4
WARM_UP_S = 8.0
"""After the first batch: the JVM compiles what it runs often."""
MEASURED_S = 20.0
MESSAGES_PER_S = 20
NETWORK_MEASURED_S = 60.0
"""Long enough to see the other tables being made beside the batches."""
BEHIND_P99_S_MAX = 5.0
LOOK_EVERY_S = 0.05
STARTED_WITHIN_S = 90.0
CAUGHT_UP_WITHIN_S = 30.0
ENDED_WITHIN_S = 60.0


def measure() -> tuple[list[Reading], list[str]]:
    """What was read, and each target that was missed, as a sentence."""
    try:
        from stagepost.pipeline.spark import refuse_missing_packages

        refuse_missing_packages()
    except ConfigError as error:
        print(f"freshness: not run: {error.text}", file=sys.stderr)
        return [], []
    readings, _ = _beside_writer()
    beside, p99_s = _beside_network()
    missed = []
    if p99_s > BEHIND_P99_S_MAX:
        missed.append(f"freshness: messages are {p99_s:.1f} s behind (p99), target {BEHIND_P99_S_MAX}")
    return readings + beside, missed


class Behind:
    """Watches a topic and the tables that follow it, and says for each moment how long its records took."""

    def __init__(self, data: Path, tables: Path) -> None:
        self._data, self._tables = data, tables
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.appended: list[tuple[float, int]] = []
        self.shown: list[tuple[float, int]] = []

    def __enter__(self) -> Behind:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_EVERY_S):
            # The tables first: what is in them was in the topic before.
            shown, at = self._rows_shown(), time.monotonic()
            if not self.shown or shown > self.shown[-1][1]:
                self.shown.append((at, shown))
            appended = sum(open_topic_ends(self._data))
            if not self.appended or appended > self.appended[-1][1]:
                self.appended.append((time.monotonic(), appended))

    def _rows_shown(self) -> int:
        manifest = read_manifest(self._tables)
        if manifest is None or manifest.reports is None or manifest.waiting:
            return self.rows_shown
        return manifest.total.rows

    @property
    def rows_shown(self) -> int:
        return self.shown[-1][1] if self.shown else 0

    def times(self, begin: float, end: float) -> list[float]:
        """Of every record that came between two moments. A batch takes all that is there, so the count tells which."""
        found: list[float] = []
        before, place = 0, 0
        for at, count in self.appended:
            while place < len(self.shown) and self.shown[place][1] < count:
                place += 1
            if begin <= at <= end:
                took = self.shown[place][0] - at if place < len(self.shown) else float("inf")
                found += [took] * (count - before)
            before = count
        return found


def open_topic_ends(data: Path) -> list[int]:
    try:
        reader = open_topic(data, STATUSES).reader()
        return [reader.end_offset(one) for one in range(reader.partitions)]
    except (StagepostError, OSError):
        return []  # not there yet


@contextmanager
def following(data: Path, sets: Path, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = ("pipeline", "run", "--data", str(data), "--validator-sets", str(sets), "--out", str(out))
    with _running(*arguments) as process:
        yield process


@contextmanager
def _running(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _beside_writer() -> tuple[list[Reading], float]:
    seconds = STARTED_WITHIN_S + WARM_UP_S + MEASURED_S
    with TemporaryDirectory() as name:
        data, sets, out = Path(name) / "data", Path(name) / "sets.json", Path(name) / "tables"
        data.mkdir(mode=0o700)
        sets.write_bytes(SETS)
        create_topic(data, STATUSES, PARTITIONS)
        writer = _Writer(data, round(RECEIPTS_PER_S * seconds))
        began = time.monotonic()
        with (
            following(data, sets, out) as process,
            Memory(process.pid) as memory,
            Behind(data, out) as behind,
            writer,
        ):
            _until(lambda: behind.rows_shown > 0, "a first batch", STARTED_WITHIN_S, process)
            started_s = time.monotonic() - began
            time.sleep(WARM_UP_S)
            begin, end = time.monotonic(), time.monotonic() + MEASURED_S
            time.sleep(MEASURED_S)
            writer.stop()
            wanted = writer.appended
            _until(lambda: behind.rows_shown >= wanted, "the last records", CAUGHT_UP_WITHIN_S, process)
        times = behind.times(begin, end)
    p50_s, p99_s = _percentiles(times)
    rate = len(times) / MEASURED_S
    return [
        Reading("freshness: from starting the command to its first batch", started_s, "s"),
        Reading("freshness: receipts written beside it", rate, "/s"),
        Reading("freshness: from the topic to the tables, p50", p50_s, "s"),
        Reading("freshness: from the topic to the tables, p99", p99_s, "s"),
        Reading("freshness: most memory of the JVM", memory.java_bytes / 2**20, "MiB"),
        Reading("freshness: most memory of Python, driver and workers", memory.python_bytes / 2**20, "MiB"),
    ], p99_s


class _Writer:
    """Receipts at an even pace, signed as they are wanted, from a thread of its own."""

    def __init__(self, data: Path, count: int) -> None:
        self._data = data
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._write()), daemon=True)
        self._receipts = receipts(count)
        self.appended = 0

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    async def _write(self) -> None:
        writer = open_topic(self._data, STATUSES).writer()
        loop = asyncio.get_running_loop()
        begin, rounds = loop.time(), 0
        try:
            while not self._is_over.is_set():
                records = self._records(RECEIPTS_PER_S // APPENDS_PER_S)
                if not records:
                    return
                await writer.append(records)
                self.appended += len(records)
                rounds += 1
                await asyncio.sleep(max(0.0, begin + rounds / APPENDS_PER_S - loop.time()))
        finally:
            await writer.close()

    def _records(self, count: int) -> list[Record]:
        found = []
        for one, hint in self._receipts:
            key = one.message_id.hex().encode()
            found.append(Record(key, one.to_json().encode(), {"session": hint}))
            if len(found) == count:
                break
        return found


def _beside_network() -> tuple[list[Reading], float]:
    with TemporaryDirectory() as name:
        data, sets, out = Path(name) / "devnet", Path(name) / "sets.json", Path(name) / "tables"
        count = str(round(MESSAGES_PER_S * (STARTED_WITHIN_S + WARM_UP_S + NETWORK_MEASURED_S)))
        network = ("devnet", "--data", str(data), "--rate", str(MESSAGES_PER_S), "--messages", count)
        with _running(*network, "--one-process") as devnet:
            _until(lambda: sum(open_topic_ends(data)) > 0, "a first receipt", STARTED_WITHIN_S, devnet)
            exported = [*COMMAND, "sets", "export", "--data", str(data), "--out", str(sets)]
            subprocess.run(exported, check=True, capture_output=True)
            with following(data, sets, out) as process, Behind(data, out) as behind:
                _until(lambda: behind.rows_shown > 0, "a first batch", STARTED_WITHIN_S, process)
                time.sleep(WARM_UP_S)
                begin, end = time.monotonic(), time.monotonic() + NETWORK_MEASURED_S
                time.sleep(NETWORK_MEASURED_S)
                wanted = behind.appended[-1][1]
                _until(lambda: behind.rows_shown >= wanted, "the last records", CAUGHT_UP_WITHIN_S, process)
            times = behind.times(begin, end)
    p50_s, p99_s = _percentiles(times)
    return [
        Reading(
            f"freshness: receipts of a network with {MESSAGES_PER_S} messages a second",
            len(times) / NETWORK_MEASURED_S,
            "/s",
        ),
        Reading("freshness: messages behind that network, p50", p50_s, "s"),
        Reading(
            f"freshness: messages behind that network, p99 (at most {BEHIND_P99_S_MAX:.0f} s)", p99_s, "s"
        ),
    ], p99_s


def _percentiles(times: Sequence[float]) -> tuple[float, float]:
    if len(times) < 2:
        return float("inf"), float("inf")
    cuts = quantiles(times, n=100)
    return cuts[49], cuts[98]


def _until(condition: object, what: str, within_s: float, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + within_s
    while not condition():  # type: ignore[operator]
        if process.poll() is not None:
            raise RuntimeError(f"{json.dumps(process.args)} ended with {process.returncode} before {what}")
        if time.monotonic() > end:
            raise RuntimeError(f"{what} did not come within {within_s:.0f} s")
        time.sleep(LOOK_EVERY_S)
