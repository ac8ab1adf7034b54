"""The pipeline on Kafka makes the tables that it makes from the local log, also when its driver is killed on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rigs.kafka_world import WorldBroker
from rigs.object_storage import object_storage
from stagepost.devnet.devnet import devnet
from stagepost.devnet.messages import StatusBook
from stagepost.errors import ConfigError
from stagepost.pipeline.schemas import TABLES
from stagepost.pipeline.sources.kafka import refuse_kafka_checkpoint
from stagepost.pipeline.tables.manifest import counts, read_manifest
from stagepost.pipeline.tables.store import TableStore
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import Record
from tests.worlds.pipeline.kafka_driver_process import KILLED, run_driver
from tests.worlds.pipeline.pipeline_spark import need_packages
from tests.worlds.pipeline.pipeline_world import a_dump
from tests.worlds.topics.kafka_runs import PLAN, drained, local_records, send, table_rows

pytestmark = pytest.mark.xdist_group("kafka")

MESSAGES = 24


def test_tables_from_the_broker_equal_those_from_the_log_row_for_row_after_a_killed_driver(
    kafka_broker: WorldBroker, tmp_path: Path, run_seed: int
) -> None:
    need_packages()
    settings = kafka_broker.settings(access=kafka_broker.secure)
    data = tmp_path / "devnet"
    odd = [line for line in a_dump(2, run_seed) if len(line) < 60_000][:60]

    async def scene() -> None:
        book = StatusBook()
        async with devnet(PLAN, data, on_status=book, kafka=settings) as network:
            await network.ready()
            await send(network, book, MESSAGES)
            await drained(network)
        # Records that are none, and receipts of strangers, behind those of the network: they end in quarantine.
        writer = create_topic(data, STATUSES_TOPIC).writer()
        headers: tuple[dict[str, str], ...] = (
            {},
            {"session": "none"},
            {"delivery_id": "ab", "dmq_id": "cd", "session": "é"},
        )
        keys = (None, b"\xff\x00", "ключ".encode(), b"a key")
        await writer.append(
            [Record(keys[at % 4], line or None, headers[at % 3]) for at, line in enumerate(odd)]
        )
        await writer.close()
        async with devnet(PLAN, data, kafka=settings) as network:
            await drained(network)

    asyncio.run(scene())
    sets = data / SETS_FILE
    access, topic = kafka_broker.secure, settings.statuses.name

    # Inside the sink of the second batch, before that counts.
    killed = run_driver(tmp_path, access, topic, sets, point="after write")
    assert killed.returncode == KILLED, killed.stderr[-2_000:]
    manifest = read_manifest(tmp_path / "kafka")
    assert manifest is not None
    taken = manifest.total.rows
    ended = run_driver(tmp_path, access, topic, sets, data=data)
    assert ended.returncode == 0, ended.stderr[-2_000:]

    manifest = read_manifest(tmp_path / "kafka")
    assert manifest is not None
    found, written = counts(manifest), len(local_records(data))
    assert 0 < taken < written == found["rows"]
    assert found["quarantined"] == len(odd)
    for table in TABLES:
        assert table_rows(tmp_path / "kafka", table) == table_rows(tmp_path / "local", table), table
    assert len(table_rows(tmp_path / "kafka", "messages")) >= MESSAGES

    # The same into object storage, where no checkpoint and no folder says what was read.
    with object_storage() as storage:
        stored = TableStore.at(storage.address("kafka"), storage.options)
        cut = run_driver(tmp_path, access, topic, sets, point="after write", out=stored)
        assert cut.returncode == KILLED, cut.stderr[-2_000:]
        whole = run_driver(tmp_path, access, topic, sets, out=stored)
        assert whole.returncode == 0, whole.stderr[-2_000:]
        for table in ("messages", "receipts", "quarantine"):
            assert table_rows(stored, table) == table_rows(tmp_path / "local", table), table
        with pytest.raises(ConfigError, match="follow topics of a Kafka broker"):
            refuse_kafka_checkpoint(stored)
