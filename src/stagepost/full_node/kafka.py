"""Bridge of a full node to Kafka: statuses go to the broker, and messages that others write there come to the node.

    stagepost.remp.statuses (local) ─ KafkaSpool ─ broker ─ KafkaFeed ─ MessageIntake ─ full node

The node writes the local topic first, whatever the broker does, and reads it after a restart. The first start needs a
broker that answers; later starts go on without one, for the broker may be back at any time.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from stagepost.errors import StagepostError, StorageError
from stagepost.full_node.from_topic import MessageIntake
from stagepost.full_node.full_node import FullNode
from stagepost.ground.files.data_folder import FILE_MODE
from stagepost.ground.files.small_files import replace_file
from stagepost.ground.telemetry.metrics import DeclaredSamples, Kind, MetricDeclaration
from stagepost.topics.kafka.admin import BrokerDesk, KafkaSettings, Unreachable, require_client
from stagepost.topics.kafka.feed import KafkaFeed
from stagepost.topics.kafka.positions import KafkaPositions
from stagepost.topics.kafka.spool import GROUP, KafkaFarTopic, KafkaSpool, SpoolCounters
from stagepost.topics.kafka.topic import KafkaTopic
from stagepost.topics.log.file_topic import FileTopic

KAFKA_SPOOL_RECORDS = MetricDeclaration(
    "stagepost_kafka_spool_records",
    Kind.GAUGE,
    "Statuses of a full node with --kafka that the broker has not confirmed yet.",
)
KAFKA_MESSAGES_LAG = MetricDeclaration(
    "stagepost_kafka_messages_lag_records",
    Kind.GAUGE,
    "Messages that the broker holds and a full node with --kafka has not taken yet.",
)
KAFKA_PUBLISHED = MetricDeclaration(
    "stagepost_kafka_published_total",
    Kind.COUNTER,
    "Statuses that the broker has confirmed.",
)
KAFKA_FAULTS = MetricDeclaration(
    "stagepost_kafka_faults_total",
    Kind.COUNTER,
    "Faults after which the full node connected to the broker again.",
)
KAFKA_METRICS = (KAFKA_SPOOL_RECORDS, KAFKA_MESSAGES_LAG, KAFKA_PUBLISHED, KAFKA_FAULTS)
"""Metrics that a full node with --kafka serves beside its own."""


class KafkaMetrics:
    """Metrics of the bridge. Counters follow those of the spool; gauges are as of the moment of rendering."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._waiting = KAFKA_SPOOL_RECORDS.gauge(self._registry)
        self._lag = KAFKA_MESSAGES_LAG.gauge(self._registry)
        self._published = KAFKA_PUBLISHED.counter(self._registry)
        self._faults = KAFKA_FAULTS.counter(self._registry)
        self._told = SpoolCounters()

    def render(self, waiting: int, lag: int, counters: SpoolCounters) -> bytes:
        self._waiting.set(waiting)
        self._lag.set(lag)
        self._published.inc(counters.published - self._told.published)
        self._faults.inc(counters.faults - self._told.faults)
        self._told = SpoolCounters(counters.published, counters.found_there, counters.faults)
        return generate_latest(DeclaredSamples(self._registry))


log = logging.getLogger(__name__)

NOTE_FILE = "kafka.json"
AGAIN_S = 2.0
"""Seconds to the next try to open the topic of messages."""
DRAIN_WITHIN_S = 2.0
"""Seconds at the end in which the broker may still take statuses."""


def require_kafka(settings: KafkaSettings, data: Path) -> None:
    """Check, before anything starts, that both topics exist; create them if allowed. A broker that does not answer is
    accepted if both topics were seen before."""
    require_client()
    desk = BrokerDesk(settings.access)
    plans = (settings.statuses, settings.messages)
    try:
        partitions = {plan.name: desk.require(plan, may_create=settings.may_create) for plan in plans}
    except Unreachable:
        if not _were_seen(data, [plan.name for plan in plans]):
            raise
        log.warning(
            "the broker does not answer; statuses wait in the local topic",
            extra={"peer": settings.access.bootstrap},
        )
        return
    note = {"bootstrap": settings.access.bootstrap, "topics": partitions}
    try:
        replace_file(data / NOTE_FILE, json.dumps(note).encode() + b"\n", FILE_MODE)
    except OSError as error:
        raise StorageError(f"{data / NOTE_FILE} cannot be written: {error.strerror}") from error


def _were_seen(data: Path, names: list[str]) -> bool:
    try:
        known = json.loads((data / NOTE_FILE).read_bytes())["topics"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return all(name in known for name in names)


class KafkaBridge:
    """Bridge of one full node, whose local topic is `statuses`."""

    def __init__(self, settings: KafkaSettings, statuses: FileTopic, full_node: FullNode) -> None:
        self._settings = settings
        self._full_node = full_node
        self.spool = KafkaSpool(statuses.reader(), statuses.positions(GROUP), self._far)
        self.feed: KafkaFeed | None = None
        self.intake: MessageIntake | None = None
        self._metrics = KafkaMetrics()
        self._positions: KafkaPositions | None = None
        self._taking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.spool.start()
        self._taking = asyncio.create_task(self._take())

    def metrics(self) -> bytes:
        """Return the metrics in the text format that Prometheus reads."""
        lag = 0 if self.feed is None else self.feed.lag()
        return self._metrics.render(self.spool.waiting, lag, self.spool.counters)

    async def stop_taking(self) -> None:
        """Take no further messages; statuses may still come."""
        taking, self._taking = self._taking, None
        if taking is not None:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        intake, self.intake = self.intake, None
        if intake is not None:
            # A broker that is away gets no position; the messages come again, and the node knows them by their ids.
            with suppress(StorageError):
                await intake.close()
        positions, self._positions = self._positions, None
        if positions is not None:
            await asyncio.to_thread(positions.close)
        feed, self.feed = self.feed, None
        if feed is not None:
            await feed.close()

    async def close(self) -> None:
        """Send what the broker takes at once, after the last status was written; the rest waits for the next start."""
        await self.stop_taking()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_WITHIN_S):
                await self.spool.drained()
        await self.spool.close()

    def _far(self) -> KafkaFarTopic:
        return KafkaFarTopic(
            self._settings.access, self._settings.statuses, may_create=self._settings.may_create
        )

    async def _take(self) -> None:
        """Read messages as soon as the broker answers."""
        while True:
            try:
                topic, positions = await asyncio.to_thread(self._opened)
                break
            except StagepostError as error:
                log.warning("messages cannot be read from the broker yet", extra={"reason": error.text})
            await asyncio.sleep(AGAIN_S)
        self._positions = positions
        self.feed = KafkaFeed(topic, positions)
        self.intake = MessageIntake(self.feed, positions, self._full_node)
        self.intake.start()

    def _opened(self) -> tuple[KafkaTopic, KafkaPositions]:
        access, plan = self._settings.access, self._settings.messages
        partitions = BrokerDesk(access).require(plan, may_create=self._settings.may_create)
        topic = KafkaTopic(access, plan.name, partitions)
        return topic, topic.positions(self._settings.group)
