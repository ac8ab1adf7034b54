"""Runs with a real broker that tests and long runs share: a full node and its broker, one of which goes away now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from rigs.kafka_world import Seen, WorldBroker, seen_by_another_library
from stagepost.devnet.devnet import Devnet, DevnetPlan, devnet
from stagepost.devnet.messages import DevnetMessages, StatusBook
from stagepost.pipeline.tables.store import TableStore
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.topics.kafka.admin import KafkaSettings
from stagepost.topics.log.file_topic import open_topic

WITHIN_S = 120.0
PLACES = ("partition", "offset")
PLAN = DevnetPlan(validators=1, seed=11)


def local_records(data: Path) -> list[Seen]:
    """The full node's own topic, in its one order."""
    reader = open_topic(data, STATUSES_TOPIC).reader()
    return [
        Seen(0, one.offset, one.key, one.value, dict(one.headers), one.timestamp_ms)
        for batch in reader.batches(0, reader.start_offset(0))
        for one in batch
    ]


def differences(data: Path, broker: WorldBroker, settings: KafkaSettings) -> list[str]:
    """Between the local topic and the broker's, as another library reads it: nothing lost, nothing twice, each key in order."""
    wanted = local_records(data)
    found = seen_by_another_library(broker.access.bootstrap, settings.statuses.name, len(wanted))
    faults = []
    if len(found) != len(wanted):
        faults.append(f"{len(found)} records at the broker, {len(wanted)} in the local topic")
    by_partition: dict[int, list[tuple[object, ...]]] = {}
    for one in found:
        by_partition.setdefault(one.partition, []).append(one[2:])
    place_of = {one.key: one.partition for one in found}
    for partition, there in by_partition.items():
        here = [one[2:] for one in wanted if place_of.get(one.key) == partition]
        if here != there:
            faults.append(f"partition {partition} holds other records, or in another order")
    return faults


def table_rows(folder: TableStore | Path, table: str) -> list[str]:
    """As texts that can be sorted. Where a record stood is the one thing that differs between two homes of a topic."""
    from stagepost.pipeline.tables.reader import Reader

    reader = Reader(folder)
    try:
        return sorted(
            repr({name: value for name, value in row.items() if name not in PLACES})
            for row in reader.table(table)
        )
    finally:
        reader.close()


async def send(network: Devnet, book: StatusBook, count: int) -> None:
    """So many messages, each to its end."""
    messages = DevnetMessages(network, book, count)
    await messages.send(50.0)
    async with asyncio.timeout(WITHIN_S):
        await messages.ends(lambda ended: None)


async def drained(network: Devnet) -> None:
    assert network.node.kafka is not None
    async with asyncio.timeout(WITHIN_S):
        await network.node.kafka.spool.drained()


async def outages(
    data: Path,
    broker: WorldBroker,
    settings: KafkaSettings,
    kills: int,
    when_ready: Callable[[], None] = lambda: None,
) -> list[str]:
    """A broker that is killed again and again while messages are under way, and once more before the full node ends: that one
    comes back while there is none. What is wrong in the end."""
    book = StatusBook()
    async with devnet(PLAN, data, on_status=book, kafka=settings) as network:
        await network.ready()
        when_ready()
        for _ in range(kills):
            sending = asyncio.create_task(send(network, book, 4))
            await asyncio.to_thread(broker.kill)
            await sending
            await asyncio.to_thread(broker.start)
            await drained(network)
        await asyncio.to_thread(broker.kill)
        await send(network, book, 2)
    try:
        book = StatusBook()
        async with devnet(PLAN, data, on_status=book, kafka=settings) as network:
            await network.ready()
            await send(network, book, 2)
            assert network.node.kafka is not None
            was_waiting = network.node.kafka.spool.waiting
            await asyncio.to_thread(broker.start)
            await drained(network)
    except BaseException:
        broker.stop()
        broker.start()
        raise
    faults = differences(data, broker, settings)
    return faults if was_waiting else [*faults, "nothing had to wait for the broker"]
