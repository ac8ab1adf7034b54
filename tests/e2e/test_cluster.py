"""The pipeline on a real Spark cluster: what the workers need is shipped to them, and what is killed changes nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rigs.kafka_world import WorldBroker
from rigs.object_storage import object_storage
from rigs.spark_cluster import STARTS_WITHIN_S, SparkCluster, small_cluster
from stagepost.pipeline.cluster.pack import pack
from stagepost.pipeline.sources.checkpoint_fit import STREAM
from stagepost.pipeline.tables.manifest import Manifest, counts, read_manifest
from stagepost.pipeline.tables.reader import Reader
from stagepost.pipeline.tables.store import TableStore
from stagepost.topics.kafka.topic import KafkaTopic
from stagepost.topics.log.file_topic import open_topic
from stagepost.topics.topic import STATUSES, Record
from tests.worlds.pipeline.cluster_driver_process import BATCHES, rows_per_batch, run_driver
from tests.worlds.pipeline.pipeline_driver_process import KILLED
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_topics import a_topic
from tests.worlds.pipeline.pipeline_world import a_dump, sets_bytes, world_sets
from tests.worlds.pipeline.written_tables import require_named_files

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster")]  # one cluster for all of them

MESSAGES = 8
PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster() -> SparkCluster:
    return small_cluster(2)


@pytest.fixture(scope="module")
def archive(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("archive") / "stagepost.zip").path


COMMAND = (sys.executable, "-m", "stagepost.cli.main", "pipeline", "submit")


def submitted(*arguments: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`stagepost pipeline submit …` as people run it, in a process of its own."""
    whole = {**os.environ, **environment}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, env=whole)


def require_equal(out: TableStore, lines: list[bytes]) -> Manifest:
    """The tables are what plain recomputation of the lines gives: nothing lost, nothing twice, nothing left over."""
    manifest = read_manifest(out)
    assert manifest is not None
    expected = recompute(lines, world_sets())
    found = counts(manifest)
    assert found["rows"] == len(lines)
    assert (found["counted"], found["repeated"]) == (expected.counted, expected.repeated)
    reader = Reader(out)
    assert {row["message_id"]: row for row in reader.table("messages")} == expected.messages
    assert len(reader.table("receipts")) == expected.counted
    reader.close()
    if out.is_local:
        require_named_files(out.folder, manifest)
        assert not list(out.folder.glob(".seen-by-*"))
    return manifest


def copied_to(broker: WorldBroker, data: Path) -> str:
    """A topic at the broker that holds what the local one holds, each record in the same partition and order."""
    name, local = broker.fresh_topic("cluster", PARTITIONS), open_topic(data, STATUSES).reader()

    async def copy() -> None:
        writer = KafkaTopic(broker.access, name, PARTITIONS).writer()
        for partition in range(PARTITIONS):
            for batch in local.batches(partition, 0):
                await writer.append(
                    [Record(one.key, one.value, one.headers, one.timestamp_ms) for one in batch]
                )
        await writer.close()

    asyncio.run(copy())
    return name


def require_clear_refusals(said: str, master: str) -> None:
    """One sentence with its code for each thing that was wrong, before anything was right again."""
    host = socket.gethostname()
    for line in (
        f"another folder: STORAGE_UNAVAILABLE the worker on {host} cannot write into "
        "/proc/self/cwd/only-here: the driver's file is not in it",
        f"an input that is not there: STORAGE_UNAVAILABLE the worker on {host} cannot read "
        "/proc/self/cwd/tests: no such file or directory",
        "another version: CONFIG_INVALID the Python of the workers is not that of the driver: ",
        f"no Python: CONFIG_INVALID the workers of {master} have no program no-such-python",
        f"no worker: NO_CONNECTED_PEERS no worker of {master} finished a first task within 0.5 s",
        "all in order: nothing",
    ):
        assert f"\n{line}" in f"\n{said}", said


def backfill(cluster: SparkCluster, archive: Path, folder: Path, seed: int) -> list[str]:
    """Return the arguments of a backfill from a dump, both in `folder`."""
    dump, sets = folder / "dump.jsonl", folder / "sets.json"
    dump.write_bytes(b"".join(line + b"\n" for line in a_dump(MESSAGES, seed)))
    sets.write_bytes(sets_bytes())
    given = ["--input", str(dump), "--validator-sets", str(sets), "--out", str(folder / "tables")]
    return [*cluster.options(archive), "backfill", *given]


@pytest.fixture(scope="module")
def stranger(
    cluster: SparkCluster, archive: Path, tmp_path_factory: pytest.TempPathFactory, run_seed: int
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A driver without the secret, and the folder of its tables. Spark tries for a minute, beside the drivers of the tests."""
    folder = tmp_path_factory.mktemp("strange")
    command = [*COMMAND, *backfill(cluster, archive, folder, run_seed)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    yield running, folder / "tables"
    running.kill()
    running.communicate()


@pytest.mark.usefixtures("stranger")
def test_a_backfill_runs_on_workers_that_have_nothing_but_what_is_shipped(
    cluster: SparkCluster, archive: Path, tmp_path: Path, run_seed: int
) -> None:
    ended = submitted(*backfill(cluster, archive, tmp_path, run_seed), environment=cluster.environment)

    assert ended.returncode == 0, ended.stderr[-3_000:]
    lines = a_dump(MESSAGES, run_seed)
    assert ended.stdout.startswith(f"{len(lines)} records: ")
    require_equal(TableStore.at(tmp_path / "tables"), lines)


def test_a_topic_of_a_broker_is_read_by_workers_that_are_sent_the_connector(
    cluster: SparkCluster, archive: Path, kafka_broker: WorldBroker, tmp_path: Path, run_seed: int
) -> None:
    data, sets, out = tmp_path / "data", tmp_path / "sets.json", tmp_path / "tables"
    lines = a_topic(data, a_dump(MESSAGES, run_seed), PARTITIONS).read_bytes().splitlines()
    sets.write_bytes(sets_bytes())

    ended = submitted(
        *cluster.options(archive),
        *("run", "--once", "--kafka", kafka_broker.access.bootstrap),
        *("--topic", copied_to(kafka_broker, data), "--validator-sets", str(sets), "--out", str(out)),
        environment=cluster.environment,
    )

    assert ended.returncode == 0, ended.stderr[-3_000:]
    require_equal(TableStore.at(out), lines)


def test_an_executor_a_worker_the_driver_and_the_storage_are_killed_and_the_tables_are_the_same(
    cluster: SparkCluster, archive: Path, tmp_path: Path, run_seed: int
) -> None:
    """On object storage, which driver and workers reach by the address and the settings that travel with it."""
    data, sets = tmp_path / "data", tmp_path / "sets.json"
    lines = a_topic(data, a_dump(MESSAGES, run_seed)).read_bytes().splitlines()
    sets.write_bytes(sets_bytes())
    rows = rows_per_batch(len(lines))

    with object_storage() as storage:
        out = TableStore.at(storage.address("tables"), storage.options)
        ended = run_driver(cluster, archive, data, sets, tmp_path / "shared", rows, out)

        assert ended.returncode == KILLED, ended.stdout + ended.stderr[-3_000:]
        assert ended.stdout.count("killed in mid-job") == 2, ended.stdout
        require_clear_refusals(ended.stdout, cluster.master)
        assert cluster.workers[1].process.wait(60) == KILLED
        storage.kill()
        storage.start()
        manifest = read_manifest(out)
        assert manifest is not None
        assert manifest.stream_batches == {STREAM: 1}

        # The worker that is left goes on alone, from the last commit: no checkpoint lies beside these tables.
        resumed = submitted(
            *cluster.options(archive),
            *("run", "--once", "--data", str(data), "--validator-sets", str(sets), "--out", out.address),
            *("--max-rows", str(rows)),
            environment={**cluster.environment, **storage.options},
        )

        assert resumed.returncode == 0, resumed.stderr[-3_000:]
        assert require_equal(out, lines).stream_batches == {STREAM: BATCHES - 1}


def test_a_driver_without_the_secret_is_not_let_in(stranger: tuple[subprocess.Popen[str], Path]) -> None:
    running, tables = stranger
    said = running.communicate(timeout=STARTS_WITHIN_S)[1]

    assert running.returncode not in (0, None), "a driver without the secret was let in"
    assert "has not registered this program within a minute" in said, said[-3_000:]
    assert not tables.exists()
