"""Sources on a small Spark: a node's address, a DMQ node's socket, and topics other than that of statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stagepost.cli.main import run
from stagepost.pipeline.tables.reader import Reader
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import DELIVERY_EVENTS, DMQ_MESSAGES, KNOWN, STATUSES, Record
from tests.worlds.dmq.background_node import node_in_background
from tests.worlds.dmq.small_node import MAGIC
from tests.worlds.ground.waiting import wait_until
from tests.worlds.pipeline.pipeline_oracle import recompute
from tests.worlds.pipeline.pipeline_others import EVENT, GOOD, broken
from tests.worlds.pipeline.pipeline_spark import small_spark
from tests.worlds.pipeline.pipeline_topics import a_topic
from tests.worlds.pipeline.pipeline_world import a_dump, sets_bytes, world_sets
from tests.worlds.topics.topic_records import a_writer, append_now
from tests.worlds.topics.topic_serving import served_at

pytestmark = pytest.mark.xdist_group("pipeline")  # one Spark for all of them

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return small_spark()


def test_topics_of_a_running_node_are_a_source_that_gives_what_its_files_hold(
    spark: SparkSession, tmp_path: Path, run_seed: int
) -> None:
    from stagepost.pipeline.sources.topic_source import FORMAT, register

    lines = a_topic(tmp_path / "data", a_dump(3, run_seed), partitions=2).read_bytes().splitlines()
    register(spark)
    with served_at(tmp_path / "data", token="a token of many letters") as address:
        reading = (
            spark.read.format(FORMAT).option("address", address).option("token", "a token of many letters")
        )
        found = reading.option("topic", STATUSES).load().collect()
    here = spark.read.format(FORMAT).load(str(tmp_path / "data")).collect()

    assert len(found) == len(lines)
    assert sorted(map(str, found)) == sorted(map(str, here))


def test_what_a_dmq_node_tells_and_all_other_topics_go_through_one_stream_with_every_row_accounted_for(
    spark: SparkSession, tmp_path: Path, run_seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    data, sets, out = tmp_path / "data", tmp_path / "sets.json", tmp_path / "tables"
    lines = a_topic(data, a_dump(3, run_seed)).read_bytes().splitlines()
    sets.write_bytes(sets_bytes())
    _append(data, DMQ_MESSAGES, [Record(b"none", b"\xff"), Record(b"00" * 32, GOOD[1].encode())])
    event = json.dumps(EVENT).encode()
    # A repeated member, of which the check takes the last; the table must not show another one.
    other = json.dumps({**EVENT, "status": "Failed"}).encode().replace(b"{", b'{"topic": "another", ', 1)
    key = EVENT["delivery_id"].encode()
    events = [
        Record(key, event),
        Record(None, event),
        Record(key, other),
        Record(key, b"{"),
        Record(b"x", event),
    ]
    _append(data, DELIVERY_EVENTS, events)
    arguments = [
        "--socket",
        str(tmp_path / "node.socket"),
        "--network-magic",
        str(MAGIC),
        "--retained",
        str(data),
    ]
    arguments += [part for topic in KNOWN for part in ("--topic", topic)]
    arguments += ["--validator-sets", str(sets), "--out", str(out), "--once", "--json"]

    with node_in_background(tmp_path / "node.socket", messages=[*GOOD, broken()]):
        capsys.readouterr()
        assert run(["pipeline", "run", *arguments]) == 0

    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    expected = recompute(lines, world_sets())
    assert (told["rows"], told["counted"], told["repeated"]) == (
        len(lines),
        expected.counted,
        expected.repeated,
    )
    # Three good ones and the broken one were told; another key and no message at all were there before.
    assert told["topics"][DMQ_MESSAGES] == {
        "rows": 6,
        "counted": 3,
        "repeated": 0,
        "quarantined": 3,
        "reasons": {"CBOR_INVALID": 1, "KES_SIGNATURE": 1, "MSG_BAD_ID": 1},
    }
    assert told["topics"][DELIVERY_EVENTS] == {
        "rows": 5,
        "counted": 2,
        "repeated": 1,
        "quarantined": 2,
        "reasons": {"RECEIPT_FORMAT": 2},
    }
    reader = Reader(out)
    try:
        assert {row["message_id"]: row for row in reader.table("messages")} == expected.messages
        bad = [row for row in reader.table("quarantine") if row["topic"] == DMQ_MESSAGES]
        assert {(row["reason"], row["partition"], row["raw"]) for row in bad} == {
            ("CBOR_INVALID", 0, b"\xff"),
            ("MSG_BAD_ID", 0, GOOD[1].encode()),
            ("KES_SIGNATURE", 0, broken().encode()),
        }
        assert len({row["offset"] for row in bad}) == 3
        valid = {row["dmq_id"] for row in reader.table("dmq_messages") if row["valid"]}
        assert valid == {message.message_id.hex() for message in GOOD}
        found = {row["status"]: row for row in reader.table("delivery_events")}
        assert found.keys() == {"Acked", "Failed"}
        assert (found["Acked"]["attempt"], found["Acked"]["acked_by"]) == (2, '["relay"]')
        assert found["Failed"]["topic"] == EVENT["topic"]
    finally:
        reader.close()


def test_a_stream_follows_a_dmq_node_also_over_its_restart(spark: SparkSession, tmp_path: Path) -> None:
    from stagepost.pipeline.sources.topic_source import FORMAT, register

    register(spark)
    socket, told = tmp_path / "node.socket", list(GOOD[:2])
    options = {"socket": str(socket), "network_magic": str(MAGIC), "retained": str(tmp_path / "kept")}
    reading = spark.readStream.format(FORMAT).options(**options).load()
    query = reading.writeStream.format("memory").queryName("told").trigger(processingTime="100 milliseconds")

    def shown() -> list[str]:
        assert running.isActive, running.exception()
        return sorted(row["key"] for row in spark.table("told").select("key").collect())

    running = query.start()
    try:
        for _ in range(2):
            with node_in_background(socket, messages=told[:]):
                wait_until(lambda: shown() == sorted(one.message_id.hex() for one in told))
            told.append(GOOD[2])
    finally:
        running.stop()


def _append(data: Path, topic: str, records: list[Record]) -> None:
    writer = a_writer(create_topic(data, topic))
    append_now(writer, records)
    writer.close_now()
