"""Make the folders that this revision's stores leave on disk, each with `expected.json` beside it.

PYTHONPATH=src:. python -m tests.vectors.stores.make_stores VERSION

Run it once for a release, from the released revision, and keep what it writes: tests of later revisions open these folders.
A version that is there already is refused. Needs Java for the tables.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from stagepost.chain.contracts import ContractKind
from stagepost.delivery.config import ReliablePublisherConfig
from stagepost.delivery.errors import DeliveryError
from stagepost.delivery.shell.publisher import ReliablePublisher
from stagepost.delivery.stores.inbox_stores import SqliteInbox
from stagepost.delivery.transports.memory import MemoryNetwork
from stagepost.devnet.devnet import Devnet, devnet
from stagepost.devnet.messages import StatusBook
from stagepost.dmq.mempool import MempoolEntry
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Accepted
from stagepost.full_node.from_topic import GROUP, MESSAGES_TOPIC
from stagepost.ground.identifiers import DELIVERY_EVENTS_TOPIC, DMQ_MESSAGES_TOPIC
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.consumer import Consumer
from stagepost.topics.log.file_topic import FileTopicWriter, create_topic
from stagepost.topics.log.positions import read_positions
from stagepost.topics.topic import Record, Retention
from stagepost.trace.layer_topics import DeliveryEventsTopic, DmqMessagesTopic
from tests.e2e.stored_contents import (
    DATA,
    EXPECTED,
    VECTORS,
    Values,
    delivery_contents,
    devnet_contents,
    dmq_contents,
    private_copy,
    tables_contents,
    topics_contents,
)
from tests.e2e.stored_worlds import (
    CALLS,
    HANGING,
    LAST_LIFE_S,
    LISTENER,
    ORDERS,
    PLAN,
    PUBLISHER,
    RECEIVER,
    REFUSED,
    SECOND_LIFE_S,
    TOPIC,
    TOPIC_GROUP,
    UNFINISHED,
    HandledMessages,
    brief_message,
    delivery_clock,
    expired_messages,
    external_message,
    kept_messages,
    node_at,
    publisher_over,
)
from tests.worlds.dmq.node_processes import NodeProcess, ending
from tests.worlds.dmq.pool_signers import NOW

ROOT = Path(__file__).parents[3]
WITHIN_S = 120.0
LOOK_EVERY_S = 0.05
SNAPSHOT_AT_CATCHAIN = 4
"""Catchain of the masterchain under which validators have given a snapshot to their stores."""
SHORT_ACK_S, LONG_ACK_S = 0.3, 60.0
TOPIC_PARTITIONS, TOPIC_SEGMENT_BYTES, TOPIC_KEPT_BYTES = 3, 2_048, 12_000
PASSING = ("log", "node.json", "dmq.topology.json", "*.socket", "*.lock")
"""Files that are no part of a store: the log, notes of running processes, and locks, which name processes and machines."""

Facts = Callable[[Path], Values]


def keep(part: Path, made: Path, facts: Facts) -> None:
    """Keep the folder `made` as it is, and what the stores of this revision read from a copy of it."""
    shutil.copytree(made, part / DATA, ignore=shutil.ignore_patterns(*PASSING))
    with tempfile.TemporaryDirectory() as folder:
        values = facts(private_copy(part / DATA, Path(folder) / DATA))
    (part / EXPECTED).write_text(json.dumps(values, indent=1, sort_keys=True) + "\n", encoding="utf-8")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():
            await asyncio.sleep(LOOK_EVERY_S)


# DMQ node


def make_dmq(parts: Path, work: Path) -> None:
    """Run one node process three times: expired messages, then a brief one and 20 that stay and `kill -9`, then an orderly end."""
    data, pools_file = work / "dmq", work / "pools.json"
    first = node_at(NOW, data, pools_file)
    second = node_at(SECOND_LIFE_S, data, pools_file)
    third = node_at(LAST_LIFE_S, data, pools_file)
    with ending([first, second, third]):
        first.start()
        asyncio.run(_submit_all(first, expired_messages()))
        assert first.terminate() == 0
        second.start()
        asyncio.run(_submit_all(second, [brief_message(), *kept_messages()]))
        second.kill()
        keep(parts / "dmq-killed", data, dmq_contents)
        third.start()
        assert third.terminate() == 0
    keep(parts / "dmq", data, dmq_contents)


async def _submit_all(node: NodeProcess, messages: Sequence[DmqMessage]) -> None:
    async with node.client() as client:
        for message in messages:
            assert await client.submit(message) == Accepted()


# Reliable delivery


def make_delivery(parts: Path, work: Path) -> None:
    data = work / "delivery"
    data.mkdir(mode=0o700)
    asyncio.run(_deliver(data))
    keep(parts / "delivery", data, delivery_contents)


async def _deliver(data: Path) -> None:
    network, clock = MemoryNetwork(seed=1), delivery_clock()
    network.join(LISTENER)
    inbox = SqliteInbox(data / "inbox", clock=clock)
    handled = HandledMessages(inbox)
    async with handled.receiver(network.join(RECEIVER), clock):
        async with publisher_over(network.join(PUBLISHER), data / "outbox", clock, SHORT_ACK_S) as publisher:
            await publisher.publish_with_ack(ORDERS, b"acknowledged")
            await publisher.publish_with_ack(ORDERS, b"acknowledged with a key", key="order 1")
            await publisher.publish_with_ack(CALLS, b"claimed by its handler", key="call 1")
            await publisher.publish_queued(ORDERS, b"sent, and nobody was asked", key="order 2")
            await _fails(publisher.publish_with_ack(REFUSED, b"refused"))
            await _fails(publisher.publish_with_ack(REFUSED, b"refused with a key", key="refused 1"))
            await _fails(publisher.publish_with_ack(HANGING, b"never answered"))
            await until(lambda: not publisher.stats()["queue_len"] and not publisher.stats()["in_flight"])
            network.cut(RECEIVER)
            await _fails(publisher.publish_with_ack(ORDERS, b"never heard", key="unheard 1"))
        async with publisher_over(network.join(PUBLISHER), data / "outbox", clock, LONG_ACK_S) as publisher:
            await publisher.publish_queued(ORDERS, b"in flight", require_ack=True)
            await publisher.publish_queued(CALLS, b"in flight with a key", key="call 2", require_ack=True)
            await until(lambda: publisher.stats()["in_flight"] == 2)
            network.cut(LISTENER)
            await publisher.publish_queued(ORDERS, b"queued")
            await publisher.publish_queued(ORDERS, b"queued with a key", key="order 3")
            await publisher.publish_queued(CALLS, b"queued for an acknowledgement", require_ack=True)


async def _fails(call: Coroutine[Any, Any, object]) -> None:
    with suppress(DeliveryError):
        raise AssertionError(f"{await call} was to fail")


# Validators and a full node


def make_devnet(parts: Path, work: Path) -> Path:
    data = work / "devnet"
    asyncio.run(_run_devnet(data))
    keep(parts / "devnet", data, devnet_contents)
    return data


async def _run_devnet(data: Path) -> None:
    """Send messages in every way that a full node takes; rotate sessions until validators have kept a snapshot; send more."""
    book = StatusBook()
    async with devnet(PLAN, data, on_status=book) as network:
        await network.ready()
        node = network.node
        node.read_messages()
        carried = MemoryNetwork(seed=2)
        await node.take_deliveries(carried.join("full-node"))
        config = ReliablePublisherConfig(enable_ack=True, critical_peers=("full-node",))
        events = DeliveryEventsTopic(create_topic(data, DELIVERY_EVENTS_TOPIC).writer())
        async with ReliablePublisher(carried.join(PUBLISHER), config, events=events) as publisher:
            topic = create_topic(data, MESSAGES_TOPIC)
            writer = topic.writer()
            await _send_in_all_ways(network, book, publisher, writer, 0)
            await until(lambda: network.ledger.master.catchain_seqno > SNAPSHOT_AT_CATCHAIN)
            await _send_in_all_ways(network, book, publisher, writer, 10)
            await writer.close()
            await until(lambda: _committed(topic.folder) == topic.reader().end_offset(0))
            await node.stop_deliveries()
        await events.close()
        await _write_accepted(data)
        for validator in network.validators[1:]:
            await validator.close()
        unfinished = network.full_node.submit(external_message(UNFINISHED))
        await until(lambda: unfinished in book.receipts)


async def _write_accepted(data: Path) -> None:
    """Write the topic of a DMQ node beside a full node: each message that the node has accepted."""
    topic = DmqMessagesTopic(create_topic(data, DMQ_MESSAGES_TOPIC).writer())
    for index, message in enumerate(kept_messages()[:5], start=1):
        topic.accepted(MempoolEntry(index, message, SECOND_LIFE_S * 1_000 + index, "local"))
    await topic.close()


async def _send_in_all_ways(
    network: Devnet, book: StatusBook, publisher: ReliablePublisher, writer: FileTopicWriter, first: int
) -> None:
    sent = {network.full_node.submit(external_message(first + number)) for number in range(2)}
    refused = network.full_node.submit(external_message(first, ContractKind.ALWAYS_REJECTS))
    by_topic, by_delivery = external_message(first + 2), external_message(first + 3)
    sent |= {sha256(by_topic).digest(), sha256(by_delivery).digest()}
    await writer.append([Record(sha256(by_topic).hexdigest().encode(), by_topic)])
    await publisher.publish_with_ack(MESSAGES_TOPIC, by_delivery, timeout=WITHIN_S)
    await until(lambda: book.final >= sent and refused in book.receipts)


def _committed(folder: Path) -> int:
    return read_positions(folder, GROUP).get(0, 0)


# Topics


def make_topics(parts: Path, work: Path) -> None:
    data = work / "topics"
    asyncio.run(_write_topic(data))
    keep(parts / "topics", data, topics_contents)


async def _write_topic(data: Path) -> None:
    """Several segments in each of three partitions, the oldest removed by retention; one group that has read a part."""
    topic = create_topic(data, TOPIC, TOPIC_PARTITIONS)
    writer = topic.writer(
        retention=Retention(bytes_max=TOPIC_KEPT_BYTES),
        segment_bytes=TOPIC_SEGMENT_BYTES,
        now_ms=lambda: NOW * 1_000,
    )
    for number in range(150):
        key = None if number % 10 == 0 else f"key {number % 7}".encode()
        value = None if number % 25 == 0 else bytes([number % 251]) * (40 + number)
        await writer.append([Record(key, value, {"number": str(number)}, NOW * 1_000 + number)])
    await writer.close()
    positions = topic.positions(TOPIC_GROUP)
    consumer = Consumer(topic.reader(), positions, skip_gone=True)
    read = 0
    async for batch in consumer.batches():
        await consumer.commit(batch)
        read += 1
        if read == 30:
            break
    positions.close()


# Tables


def make_tables(parts: Path, work: Path, full_node: Path) -> None:
    out = work / "tables"
    subprocess.run(
        [
            *(sys.executable, "-m", "stagepost.cli.main", "pipeline", "run", "--once"),
            *("--data", str(full_node), "--validator-sets", str(full_node / SETS_FILE)),
            *("--out", str(out), "--max-rows", "60", "--master", "local[1]"),
        ],
        check=True,
        cwd=work,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    keep(parts / "tables", out, tables_contents)
    for log in (parts / "tables" / DATA).rglob("_delta_log/*.json"):
        # The first entry says where the table was made: a folder of the machine, which nobody reads.
        log.write_bytes(log.read_bytes().replace(bytes(out), b"/data/tables"))


def make(version: str) -> None:
    parts = VECTORS / version
    if parts.exists():
        sys.exit(f"{parts} is there already: folders of a release never change")
    os.umask(0o077)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        make_dmq(parts, work)
        make_delivery(parts, work)
        make_topics(parts, work)
        make_tables(parts, work, make_devnet(parts, work))


if __name__ == "__main__":
    make(sys.argv[1])
