"""A long run with a real broker, which is killed again and again in the middle of a load while a driver follows its topic.

One stream from the first kill to the last: messages never stop coming, whether the broker is there or not, and what is compared in the
end has gone through every kill. A kill comes when the broker has confirmed records and the driver has taken some since the last
one, after a number of further records that the seed says. With every fifth the full node ends as well, and
its successor begins without a broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from _pytest.outcomes import Skipped

from rigs.kafka_world import WorldBroker, world_broker
from rigs.results import Result, result
from stagepost.devnet.devnet import Devnet, devnet
from stagepost.devnet.messages import DevnetMessages, StatusBook
from stagepost.full_node.known_sets import sets_document
from stagepost.pipeline.tables.manifest import counts, read_manifest
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.dump import dump_lines
from stagepost.topics.kafka.admin import KafkaSettings
from stagepost.topics.kafka.spool import GROUP
from stagepost.topics.log.file_topic import open_topic
from stagepost.trace.session_records import load_sets
from tests.soak.runs import Run
from tests.worlds.pipeline.kafka_driver_process import run_driver
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.topics.kafka_runs import PLAN, differences, drained, local_records, table_rows

BROKER_KILLS_BY_SCALE = {"commit": 20, "release": 20}
KILLS_PER_FULL_NODE = 5
MESSAGES_PER_S = 10.0
MESSAGES_PER_LIFE_MAX = 20_000
RECORDS_BEFORE_A_KILL_MAX = 200
WAITING_BEFORE_A_START = 20
"""Statuses that the broker has not seen when it comes back, at least."""

ROWS_MAX = 200_000
HAPPENS_WITHIN_S = 300.0
LOOK_EVERY_S = 0.05
ROOT = Path(__file__).parents[2]
TEST = (
    "tests/soak/kafka_runs.py: kill -9 of a Kafka broker under load; its topic and its tables against the local ones "
    "and a plain recomputation"
)


def kill_broker(run: Run) -> Iterator[Result]:
    """P3: nothing lost, nothing twice, each key in order, and the same tables."""
    began = time.monotonic()
    try:
        with world_broker() as broker, TemporaryDirectory() as name:
            scene = Scene(Path(name), broker, run)
            faults = scene.play(run.count(BROKER_KILLS_BY_SCALE))
    except Skipped as skipped:
        # Not proved here: that is a result as well, and not a pass.
        yield result("P3", TEST, "not run", faults=[str(skipped)], seed=run.seed)
        return
    figure = (
        f"{scene.kills} kills of the broker, {scene.restarts} of them with a restart of the full node, in one stream of "
        f"{scene.records:,} statuses; {len(faults)} losses, repetitions, changes of order or differences of tables"
    )
    details = {"driver_starts": scene.follower.starts, "seconds": round(time.monotonic() - began)}
    yield result("P3", TEST, figure, faults=faults, seed=run.seed, **details)


class Follower:
    """`stagepost pipeline run` on the broker's topic; one that gives up is started again, as whoever watches over it would."""

    def __init__(self, folder: Path, broker: WorldBroker, settings: KafkaSettings) -> None:
        self.starts = 0
        self._log = folder / "driver.log"
        self._out = folder / "kafka"
        self._process: subprocess.Popen[bytes] | None = None
        command = [sys.executable, "-m", "stagepost.cli.main", "pipeline", "run", "--master", "local[2]"]
        command += ["--kafka", broker.access.bootstrap, "--topic", settings.statuses.name]
        command += ["--validator-sets", str(folder / "devnet" / SETS_FILE), "--out", str(self._out)]
        self._command = command

    def keep_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            self.starts += 1
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, cwd=self._log.parent, env=environment, stdout=log, stderr=log
                )

    @property
    def rows(self) -> int:
        """That are in the tables."""
        manifest = read_manifest(self._out)
        return 0 if manifest is None else counts(manifest)["rows"]

    def end(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(HAPPENS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Scene:
    """A network, its broker and its follower in one folder."""

    def __init__(self, folder: Path, broker: WorldBroker, run: Run) -> None:
        self.kills = self.restarts = self.records = 0
        self._run = run
        self._folder, self._data = folder, folder / "devnet"
        self._broker, self._settings = broker, broker.settings()
        self._choices = Random(run.seed)
        self._is_broker_up = True
        self._height = -1
        self.follower = Follower(folder, broker, self._settings)

    def play(self, kills: int) -> list[str]:
        """What is wrong in the end."""
        try:
            asyncio.run(self._killed(kills))
            self._run.say(f"{self.kills} brokers killed; now all of it is compared")
        finally:
            self.follower.end()
            if not self._is_broker_up:
                self._broker.start()
        self.records = len(local_records(self._data))
        faults = differences(self._data, self._broker, self._settings)
        topic, sets = self._settings.statuses.name, self._data / SETS_FILE
        ended = run_driver(self._folder, self._broker.access, topic, sets, data=self._data, rows_max=ROWS_MAX)
        if ended.returncode:
            return [*faults, f"the last driver ended with {ended.returncode}: {ended.stderr[-500:]}"]
        return [*faults, *self._differences_of_tables()]

    async def _killed(self, kills: int) -> None:
        while self.kills < kills:
            async with self._network() as network, self._load(network):
                for _ in range(min(KILLS_PER_FULL_NODE, kills - self.kills)):
                    if not self._is_broker_up:
                        await self._start_broker(network)
                    await self._kill_broker(network)
            self.restarts += 1
        async with self._network() as network, self._load(network):
            await self._start_broker(network)
        # Statuses come for as long as a full node runs, so the last few may be behind its last look at the broker.
        while self._left_behind():
            async with self._network() as network:
                await drained(network)

    @asynccontextmanager
    async def _network(self) -> AsyncIterator[Devnet]:
        """One life of the full node."""
        async with devnet(PLAN, self._data, kafka=self._settings) as network:
            await network.ready()
            yield network

    @asynccontextmanager
    async def _load(self, network: Devnet) -> AsyncIterator[None]:
        """Messages that keep coming, whatever becomes of those before."""
        # They are named by the height at which they begin, and a full node that has just begun may lag behind.
        await _until(lambda: network.front.height > self._height, "the chain goes on")
        self._height = network.front.height
        messages = DevnetMessages(network, StatusBook(), MESSAGES_PER_LIFE_MAX)
        sending = asyncio.create_task(messages.send(MESSAGES_PER_S))
        try:
            yield
            assert not sending.done(), "the load ended before its time"
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _left_behind(self) -> int:
        """Records of the local topic that the broker has not confirmed."""
        topic = open_topic(self._data, STATUSES_TOPIC)
        positions = topic.positions(GROUP)
        try:
            reader = topic.reader()
            return sum(
                reader.end_offset(one) - positions.committed.get(one, 0) for one in range(reader.partitions)
            )
        finally:
            positions.close()

    async def _start_broker(self, network: Devnet) -> None:
        assert network.node.kafka is not None
        spool = network.node.kafka.spool
        await _until(lambda: spool.waiting >= WAITING_BEFORE_A_START, "statuses wait for the broker")
        await asyncio.to_thread(self._broker.start)
        self._is_broker_up = True

    async def _kill_broker(self, network: Devnet) -> None:
        assert network.node.kafka is not None
        spool = network.node.kafka.spool
        confirmed, rows = spool.counters.published, self.follower.rows
        enough = confirmed + self._choices.randrange(1, RECORDS_BEFORE_A_KILL_MAX)

        def has_news() -> bool:
            self.follower.keep_running()
            return self.follower.rows > rows and spool.counters.published >= enough

        await _until(has_news, "the broker has confirmed statuses and the driver has taken some")
        await asyncio.to_thread(self._broker.kill)
        self._is_broker_up = False
        self.kills += 1
        self._run.say(f"{self.kills} brokers killed, {self.follower.rows:,} statuses in the tables")

    def _differences_of_tables(self) -> Iterator[str]:
        from stagepost.pipeline.schemas import TABLES
        from stagepost.pipeline.tables.reader import Reader

        kafka, local = self._folder / "kafka", self._folder / "local"
        for name in TABLES:
            if table_rows(kafka, name) != table_rows(local, name):
                yield f"table {name} differs"
        topic = open_topic(self._data, STATUSES_TOPIC).reader()
        lines = [line for one in range(topic.partitions) for line in dump_lines(STATUSES_TOPIC, topic, one)]
        expected = recompute(lines, json.loads(json.dumps(sets_document(load_sets(self._data)))))
        reader = Reader(kafka)
        try:
            if {row["message_id"]: row for row in reader.table("messages")} != expected.messages:
                yield "table messages differs from the recomputation"
            found = counts(reader.manifest)
        finally:
            reader.close()
        told = found["rows"], found["counted"], found["repeated"]
        wanted = len(lines), expected.counted, expected.repeated
        if told != wanted:
            yield f"{told} rows, counted, repeated in the tables; {wanted} expected"


async def _until(is_true: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(HAPPENS_WITHIN_S):
            while not is_true():
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise AssertionError(f"waited in vain until {what}") from None
