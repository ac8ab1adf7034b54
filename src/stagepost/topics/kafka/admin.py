"""Questions to a broker before anything starts: does it answer, does it accept us, do the topics exist, may
we make them?"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from stagepost.errors import ConfigError, TransportError
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.topic import Retention, require_partitions

ANSWERS_WITHIN_S = 10.0
DOWN_WITHIN_S = 1.0
"""Seconds to wait for another answer after every address has refused."""

LOOK_EVERY_S = 0.1
MADE_WITHIN_S = 15.0
BROKERS_CHOICE = -1
"""Replication factor that stands for the broker's own default."""


class TopicPlan(msgspec.Struct, frozen=True):
    """Settings with which to make a missing topic. An existing topic stays as it is."""

    name: str
    partitions: int
    replication: int = BROKERS_CHOICE
    retention: Retention = Retention()

    def settings(self) -> dict[str, str]:
        """Return Kafka's settings. Times are those of arrival at the full node, not the broker's; -1 means
        kept for ever."""
        kept_ms, kept_bytes = self.retention.age_ms_max, self.retention.bytes_max
        return {
            "message.timestamp.type": "CreateTime",
            "cleanup.policy": "delete",
            "retention.ms": str(-1 if kept_ms is None else kept_ms),
            "retention.bytes": str(-1 if kept_bytes is None else kept_bytes),
        }


class KafkaSettings(msgspec.Struct, frozen=True):
    """Brokers, the two topics of a full node, and the group in which it reads."""

    access: KafkaAccess
    statuses: TopicPlan
    messages: TopicPlan
    group: str
    may_create: bool


def require_client() -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise ConfigError(
            "Kafka needs confluent-kafka, which this Python does not have",
            advice="pip install 'stagepost[kafka]'",
        )


class Unreachable(TransportError):
    """Failure of a broker to answer; one that is only away for a while looks the same."""


class BrokerDesk:
    """Short-lived connection for questions. It raises `ConfigError` if the broker refuses us, `Unreachable`
    if it is silent."""

    def __init__(self, access: KafkaAccess, within_s: float = ANSWERS_WITHIN_S) -> None:
        require_client()
        from confluent_kafka.admin import AdminClient

        self._access = access.check()
        self._within_s = within_s
        self._errors: list[Any] = []
        try:
            self._client = AdminClient(
                {**access.client_settings(), "error_cb": self._errors.append, "log_level": 0}
            )
        except Exception as error:
            raise ConfigError(
                f"the Kafka client refuses these settings: {_said(error)}",
                advice="correct the section [kafka] of the settings file",
            ) from error

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of each topic that we may see."""
        from confluent_kafka import KafkaException

        ends = time.monotonic() + self._within_s
        while True:
            try:
                found = self._client.list_topics(timeout=min(1.0, self._within_s))
                return {
                    name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None
                }
            except KafkaException as error:
                self._client.poll(0)
                refusal = self._refusal()
                if refusal is not None:
                    raise refusal from error
                if self._are_all_down():
                    ends = min(ends, time.monotonic() + DOWN_WITHIN_S)
                if time.monotonic() > ends:
                    raise Unreachable(
                        f"no Kafka broker answers at {self._access.bootstrap}{self._heard()}",
                        advice="start one with `stagepost kafka start`, or correct the address",
                        peer=self._access.bootstrap,
                    ) from error

    def _are_all_down(self) -> bool:
        from confluent_kafka import KafkaError

        return any(one.code() == KafkaError._ALL_BROKERS_DOWN for one in self._errors)

    def cluster_id(self) -> str:
        """Return the id by which a cluster is known again, whatever its addresses are."""
        self.partitions()
        return str(self._client.list_topics(timeout=self._within_s).cluster_id)

    def _heard(self) -> str:
        """Return the client's last report about the connection itself, in brackets, or ""."""
        from confluent_kafka import KafkaError

        said = [_last(one.str()) for one in self._errors if one.code() != KafkaError._ALL_BROKERS_DOWN]
        return f" ({said[-1]})" if said else ""

    def _refusal(self) -> ConfigError | None:
        from confluent_kafka import KafkaError

        for error in self._errors:
            if error.code() == KafkaError._AUTHENTICATION:
                return ConfigError(
                    f"the Kafka broker at {self._access.bootstrap} does not accept user {self._access.username} "
                    f"with {self._access.sasl_mechanism}",
                    advice="correct kafka.username, kafka.sasl_mechanism or STAGEPOST_KAFKA_PASSWORD",
                    peer=self._access.bootstrap,
                )
            if error.code() == KafkaError._SSL:
                return ConfigError(
                    f"no TLS connection with the Kafka broker at {self._access.bootstrap}: {_last(error.str())}",
                    advice="check kafka.security_protocol, kafka.ca_file and the broker's certificate",
                    peer=self._access.bootstrap,
                )
        return None

    def require(self, plan: TopicPlan, *, may_create: bool) -> int:
        """Return the number of the topic's partitions, once it exists; make the topic if `may_create`."""
        known = self.partitions()
        if plan.name in known:
            return known[plan.name]
        if not may_create:
            raise self._no_topic(plan.name, "and kafka.create_topics is false")
        self._create(plan)
        ends = time.monotonic() + MADE_WITHIN_S
        while (known := self.partitions()).get(plan.name, 0) == 0:
            if time.monotonic() > ends:
                raise self._no_topic(plan.name, "although it was made just now")
            time.sleep(LOOK_EVERY_S)
        return known[plan.name]

    def _create(self, plan: TopicPlan) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        require_partitions(plan.partitions)
        wanted = NewTopic(plan.name, plan.partitions, plan.replication, config=plan.settings())
        try:
            for made in self._client.create_topics([wanted], request_timeout=self._within_s).values():
                made.result()
        except KafkaException as error:
            found = error.args[0]
            if found.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            raise self._no_topic(plan.name, f"and it cannot be made: {_last(found.str())}") from error

    def _no_topic(self, name: str, why: str) -> ConfigError:
        return ConfigError(
            f"the Kafka broker at {self._access.bootstrap} shows no topic {name}, {why}",
            advice="create the topic, or give this user the right to; docs/kafka.md lists the rights",
            found=name,
        )

    def bounds(self, name: str, partitions: int) -> Mapping[int, tuple[int, int]]:
        """Return the oldest kept offset and the next offset of each partition."""
        from confluent_kafka import KafkaException

        ends = time.monotonic() + self._within_s
        while True:
            try:
                oldest, newest = (self._offsets(name, partitions, at) for at in ("earliest", "latest"))
                return {one: (oldest[one], newest[one]) for one in range(partitions)}
            except KafkaException as error:
                # A partition that was made just now, or whose broker has just come back, has no leader for a moment.
                if time.monotonic() > ends:
                    raise Unreachable(
                        f"the Kafka broker at {self._access.bootstrap} does not tell the bounds of {name}: "
                        f"{_last(_said(error))}",
                        advice="try again when all partitions have a leader",
                    ) from error
                time.sleep(LOOK_EVERY_S)

    def _offsets(self, name: str, partitions: int, at: str) -> dict[int, int]:
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {TopicPartition(name, one): getattr(OffsetSpec, at)() for one in range(partitions)}
        asked = self._client.list_offsets(wanted, request_timeout=self._within_s)
        return {place.partition: answer.result().offset for place, answer in asked.items()}


def _said(error: Exception) -> str:
    found = error.args[0] if error.args else error
    return str(found.str()) if hasattr(found, "str") else str(found)


def _last(text: str) -> str:
    """Return the client's text without the address in front of it and the circumstances after it."""
    said = text.rsplit("]: ", 1)[-1].rsplit("/bootstrap: ", 1)[-1]
    return said.split(" (after ", 1)[0].strip()
