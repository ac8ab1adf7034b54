"""Records to and from a Kafka broker beside the local log, and the pipeline on both: `make bench PART=kafka`.

Figures are per second of processor time, so that they say the same on a busy machine: of this process alone, and with the broker's.
Both homes get the same records, one after the other, in one run. There is no target: a broker is for those who want one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from _pytest.outcomes import Skipped

from bench.pipeline_processes import used_by
from bench.receipts import SETS, receipts
from bench.whole_path import Reading
from rigs.kafka_world import WorldBroker, world_broker
from stagepost.devnet.demo.kafka_broker import read_note
from stagepost.errors import ConfigError
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.kafka.admin import BrokerDesk, TopicPlan
from stagepost.topics.kafka.topic import KafkaTopic
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import STATUSES, Record, TopicReader, TopicWriter

RECORDS = 100_000
RECEIPTS = 40_000
WARM_UP = 4_000
RECORDS_PER_APPEND = 500
LANES = 8
PARTITIONS = 4
CORES = 2


def measure(records: int = RECORDS, count: int = RECEIPTS) -> tuple[list[Reading], list[str]]:
    """Readings, and no targets."""
    try:
        with world_broker() as broker, TemporaryDirectory() as name:
            return [*_topics(Path(name), broker, records), *_tables(Path(name), broker, count)], []
    except (ConfigError, Skipped) as error:
        print(f"kafka: not run: {error}", file=sys.stderr)
        return [], []


class Spent:
    """Processor time, ours and the broker's, from when it is made."""

    def __init__(self, broker: WorldBroker) -> None:
        note = read_note(broker.data)
        assert note is not None
        self._pid = note.pid
        self._ours, self._its = time.process_time(), self._of_broker()

    def so_far(self) -> tuple[float, float]:
        return time.process_time() - self._ours, self._of_broker() - self._its

    def _of_broker(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _topics(folder: Path, broker: WorldBroker, count: int) -> Iterator[Reading]:
    headers = {"session": os.urandom(32).hex()}
    records = [
        Record(os.urandom(32).hex().encode(), os.urandom(300).hex().encode(), headers) for _ in range(count)
    ]
    local = create_topic(folder / "topics", "bench", PARTITIONS)
    far = _kafka_topic(broker.access, "bench")

    def written(writer: Callable[[], TopicWriter]) -> tuple[float, float]:
        spent = Spent(broker)
        asyncio.run(_append(writer, records))
        return spent.so_far()

    def read(reader: TopicReader) -> tuple[float, float]:
        spent = Spent(broker)
        found = sum(
            len(one.value or b"") > 0
            for partition in range(PARTITIONS)
            for batch in reader.batches(partition, 0)
            for one in batch
        )
        assert found == count
        return spent.so_far()

    log_written, kafka_written = written(local.writer), written(far.writer)
    log_read, kafka_read = read(local.reader()), read(far.reader())
    for what, log, kafka in (("written", log_written, kafka_written), ("read", log_read, kafka_read)):
        yield Reading(f"kafka: records {what}, local log, per core", count / log[0], "/s")
        yield Reading(f"kafka: records {what}, Kafka, per core of ours", count / kafka[0], "/s")
        yield Reading(
            f"kafka: records {what}, Kafka, per core, the broker's share counted", count / sum(kafka), "/s"
        )
        yield Reading(
            f"kafka: processor time of a record {what}, Kafka's with its broker over the log's",
            sum(kafka) / log[0],
            "x",
        )


def _kafka_topic(access: KafkaAccess, name: str) -> KafkaTopic:
    plan = TopicPlan(name, PARTITIONS)
    return KafkaTopic(access, name, BrokerDesk(access).require(plan, may_create=True))


async def _append(open_writer: Callable[[], TopicWriter], records: Sequence[Record]) -> None:
    writer = open_writer()
    groups = iter(
        [records[at : at + RECORDS_PER_APPEND] for at in range(0, len(records), RECORDS_PER_APPEND)]
    )

    async def lane() -> None:
        for group in groups:
            await writer.append(group)

    lanes: list[Awaitable[None]] = [lane() for _ in range(LANES)]
    await asyncio.gather(*lanes)
    await writer.close()


def _tables(folder: Path, broker: WorldBroker, count: int) -> Iterator[Reading]:
    from stagepost.pipeline.sources.kafka import KafkaRecords, connector_settings
    from stagepost.pipeline.spark import start_session
    from stagepost.pipeline.stream import StreamOptions, follow
    from stagepost.topics.kafka.jars import default_folder

    sets = folder / "sets.json"
    sets.write_bytes(SETS)
    settings = connector_settings(default_folder(os.environ))
    spark = start_session("bench", master=f"local[{CORES}]", settings=settings)
    try:
        costs: dict[str, float] = {}
        # The first round warms up; the second one's figures count.
        for turn, number, first in (("warm", WARM_UP, 10**6), ("whole", count, 0)):
            data, name = folder / f"data-{turn}", f"statuses-{turn}"
            records = [
                Record(
                    one.message_id.hex().encode(), one.to_json().encode(), {"session": hint}, one.timestamp_ms
                )
                for one, hint in receipts(number, first)
            ]
            asyncio.run(_append(create_topic(data, STATUSES, PARTITIONS).writer, records))
            asyncio.run(_append(_kafka_topic(broker.access, name).writer, records))
            source = KafkaRecords(broker.access, (name,))
            for home, options in (
                ("log", StreamOptions(data, sets, folder / f"log-{turn}", is_once=True)),
                ("kafka", StreamOptions(None, sets, folder / f"kafka-{turn}", is_once=True, source=source)),
            ):
                # The broker is a child of this process, and counted with it; what it does beside the log is not.
                before, spent = used_by(os.getpid()).cpu_s, Spent(broker)
                follow(spark, options)
                beside = spent.so_far()[1] if home == "log" else 0.0
                costs[home] = used_by(os.getpid()).cpu_s - before - beside
    finally:
        spark.stop()
    log, kafka = costs["log"], costs["kafka"]
    yield Reading(f"kafka: {count:,} receipts to tables from the local log, per core", count / log, "/s")
    yield Reading(
        f"kafka: {count:,} receipts to tables from Kafka, per core, the broker's share counted",
        count / kafka,
        "/s",
    )
    yield Reading(
        "kafka: processor time of a receipt to tables, from Kafka over from the log", kafka / log, "x"
    )
