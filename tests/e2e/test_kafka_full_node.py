"""A full node with a real broker: messages from there, statuses to there, whoever goes away meanwhile."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rigs.chain_messages import address, expires_soon_s
from rigs.kafka_world import WorldBroker, seen_by_another_library
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.messages import CanonicalMessage, read_message
from stagepost.devnet.devnet import devnet
from stagepost.devnet.messages import StatusBook
from stagepost.remp.receipts.receipt import Receipt
from stagepost.topics.kafka.topic import KafkaTopic
from stagepost.topics.topic import Record
from tests.worlds.topics.kafka_runs import PLAN, WITHIN_S, differences, drained, local_records, outages

pytestmark = pytest.mark.xdist_group("kafka")

KILLS = 2
MESSAGES = [
    CanonicalMessage(address(ContractKind.SUM_OF_PRIMES, 1), primes_body(number), expires_soon_s()).encode()
    for number in range(2, 8)
]


def committed_by(topic: KafkaTopic, group: str) -> dict[int, int]:
    positions = topic.positions(group)
    try:
        return dict(positions.committed)
    finally:
        positions.close()


def test_messages_from_the_broker_come_back_as_statuses_that_another_library_reads(
    kafka_broker: WorldBroker, tmp_path: Path
) -> None:
    settings, book = kafka_broker.settings(), StatusBook()
    ids = [read_message(data, takes_cells=False).external.message_id for data in MESSAGES]

    async def scene() -> tuple[dict[int, int], str]:
        async with devnet(PLAN, tmp_path, on_status=book, kafka=settings) as network:
            await network.ready()
            topic = KafkaTopic(kafka_broker.access, settings.messages.name, settings.messages.partitions)
            writer = topic.writer()
            odd = [Record(None, b"no key"), Record(ids[0].hex().encode(), None)]
            keyed = [Record(one.hex().encode(), data) for one, data in zip(ids, MESSAGES, strict=True)]
            places = await writer.append([*odd, *keyed])
            await writer.close()
            ends = {one: 0 for one in range(topic.partitions)}
            for place in places:
                ends[place.partition] = max(ends[place.partition], place.offset + 1)
            async with asyncio.timeout(WITHIN_S):
                while not book.final >= set(ids):
                    await asyncio.sleep(0.05)
                while (committed := await asyncio.to_thread(committed_by, topic, settings.group)) != ends:
                    await asyncio.sleep(0.1)
            await drained(network)
            assert network.node.kafka is not None
            return committed, network.node.kafka.metrics().decode()

    committed, metrics = asyncio.run(scene())

    assert sum(committed.values()) == len(MESSAGES) + 2, "handled, whatever became of them"
    records = local_records(tmp_path)
    seen = seen_by_another_library(kafka_broker.access.bootstrap, settings.statuses.name, len(records))
    assert differences(tmp_path, kafka_broker, settings) == []
    assert {one.key for one in seen} == {one.hex().encode() for one in ids}
    for one in seen:
        receipt = Receipt.from_json(one.value or b"")
        assert receipt.message_id.hex().encode() == one.key
        assert json.loads(one.value or b"")["kind"] == receipt.kind.name
        assert set(one.headers) <= {"session", "dmq_id", "delivery_id", "link"}
    assert any(len(one.headers.get("session", "")) == 64 for one in seen)
    assert f"stagepost_kafka_published_total {len(records)}.0" in metrics
    assert "stagepost_kafka_spool_records 0.0" in metrics
    assert "stagepost_kafka_messages_lag_records 0.0" in metrics


def test_nothing_is_lost_or_doubled_when_the_broker_is_killed_and_the_full_node_restarts_without_it(
    kafka_broker: WorldBroker, tmp_path: Path
) -> None:
    settings = kafka_broker.settings(access=kafka_broker.secure)

    assert asyncio.run(outages(tmp_path, kafka_broker, settings, KILLS)) == []
