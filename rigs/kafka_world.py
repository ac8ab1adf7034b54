"""A real broker for tests: one node, with a door for anybody on loopback and one for users over TLS. And its records, plainly read."""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rigs.optional import require
from rigs.ports import free_ports
from stagepost.devnet.demo.kafka_broker import (
    Broker,
    BrokerPlan,
    has_ended,
    read_note,
    start_broker,
    stop_broker,
)
from stagepost.errors import ConfigError
from stagepost.pipeline.spark import cache_folder, find_java_home
from stagepost.topics.kafka.access import KafkaAccess, Secret
from stagepost.topics.kafka.admin import BrokerDesk, KafkaSettings, TopicPlan, require_client
from stagepost.topics.kafka.jars import OF_KAFKA, Artifacts, default_folder, fetch_jars

USER, PASSWORD = "alice", "open sesame"
WEAK_USER, WEAK_PASSWORD = "mallory", "let me in"
"""Known to the broker, and allowed nothing."""

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class Tools(NamedTuple):
    java: Path
    jars: list[Path]


def broker_tools() -> Tools:
    """What a broker needs on this machine; tests skip with the reason where it cannot be had."""
    try:
        require_client()
        java = find_java_home(os.environ, cache_folder()) / "bin" / "java"
        for artifacts in OF_KAFKA:
            fetch_jars(artifacts, default_folder(os.environ), os.environ)
        return Tools(java, fetch_jars(Artifacts.BROKER, default_folder(os.environ), os.environ))
    except ConfigError as error:
        require("kafka", error.text)


class WorldBroker:
    """`access` is the door for anybody, `secure` that of USER; both stay where they are when it is killed and started again."""

    def __init__(self, data: Path, tools: Tools) -> None:
        self.data = data
        self.ca_file = data / "ca.pem"
        self._tools = tools
        self._port, self._secure_port = free_ports(2)
        data.mkdir(mode=0o700, exist_ok=True)
        self._keys = _make_certificate(data, self.ca_file)
        self._made = 0

    @property
    def access(self) -> KafkaAccess:
        return KafkaAccess(f"127.0.0.1:{self._port}")

    @property
    def secure(self) -> KafkaAccess:
        return self.access_of(USER, PASSWORD)

    def access_of(self, user: str, password: str, ca_file: Path | None = None) -> KafkaAccess:
        return KafkaAccess(
            f"127.0.0.1:{self._secure_port}",
            "sasl_ssl",
            "PLAIN",
            user,
            Secret(password),
            ca_file or self.ca_file,
        )

    def start(self) -> Broker:
        plan = BrokerPlan(self.data, self._port, self._properties())
        return start_broker(plan, self._tools.java, self._tools.jars)

    def kill(self) -> None:
        broker = read_note(self.data)
        assert broker is not None
        os.kill(broker.pid, signal.SIGKILL)
        assert has_ended(broker)

    def stop(self) -> None:
        stop_broker(self.data)

    def fresh_name(self, what: str) -> str:
        """Of a topic that no other test uses."""
        self._made += 1
        return f"{what}.{self._made}"

    def fresh_topic(self, what: str, partitions: int = 3) -> str:
        name = self.fresh_name(what)
        BrokerDesk(self.access).require(TopicPlan(name, partitions), may_create=True)
        return name

    def settings(self, **changes: Any) -> KafkaSettings:
        """Of a full node, with topics of its own."""
        plans = (TopicPlan(self.fresh_name("statuses"), 3), TopicPlan(self.fresh_name("messages"), 2))
        return KafkaSettings(changes.get("access", self.access), *plans, "full-node", may_create=True)

    def _properties(self) -> dict[str, str]:
        doors = f"PLAINTEXT://127.0.0.1:{{port}},SASL_SSL://127.0.0.1:{self._secure_port}"
        users = "".join(
            f' user_{one}="{word}"' for one, word in ((USER, PASSWORD), (WEAK_USER, WEAK_PASSWORD))
        )
        return {
            "listeners": f"{doors},CONTROLLER://127.0.0.1:{{controller}}",
            "advertised.listeners": doors,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._keys),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{_LOGIN}{users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER}",
        }


@contextmanager
def world_broker() -> Iterator[WorldBroker]:
    tools = broker_tools()
    with TemporaryDirectory() as name:
        broker = WorldBroker(Path(name) / "broker", tools)
        broker.start()
        try:
            yield broker
        finally:
            broker.stop()


def _make_certificate(data: Path, ca_file: Path) -> Path:
    """Signed by itself; the file of the broker holds the key as well."""
    key, both = data / "key.pem", data / "broker.pem"
    command = (
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "30",
        "-subj",
        "/CN=localhost",
    )
    names = ("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    try:
        subprocess.run([*command, *names, "-keyout", key, "-out", ca_file], check=True, capture_output=True)
    except OSError as error:
        require("kafka", f"no certificate can be made for its broker: {error}")
    both.write_text(key.read_text() + ca_file.read_text())
    return both


class Seen(NamedTuple):
    """A record as another client library shows it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    timestamp_ms: int


def seen_by_another_library(bootstrap: str, topic: str, count: int, within_s: float = 30.0) -> list[Seen]:
    """All records of a topic, read by kafka-python; fewer than `count` if no more come in time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own imports; ours are looked at everywhere else
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        places = [TopicPartition(topic, one) for one in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        found: list[Seen] = []
        for _ in range(int(within_s * 10)):
            for records in consumer.poll(timeout_ms=100).values():
                found += [
                    Seen(
                        one.partition,
                        one.offset,
                        one.key,
                        one.value,
                        {name: value.decode() for name, value in one.headers},
                        one.timestamp,
                    )
                    for one in records
                ]
            if len(found) >= count and all(consumer.position(one) >= ends[one] for one in places):
                break
        return sorted(found)
    finally:
        consumer.close()
