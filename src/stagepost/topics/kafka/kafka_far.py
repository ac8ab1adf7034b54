"""The far end of a spool: the broker's topic, made if need be, and what of the spool stands at its end already."""

from __future__ import annotations

from collections import Counter

from stagepost.errors import StorageError
from stagepost.topics.batch import Read
from stagepost.topics.kafka.access import KafkaAccess
from stagepost.topics.kafka.admin import BrokerDesk, TopicPlan
from stagepost.topics.kafka.spool import digest_of
from stagepost.topics.kafka.topic import KafkaTopic, KafkaTopicWriter, range_consumer

LOOKED_AT_MAX = 500_000
"""Records at the end of the topic. Beyond them nothing is looked for: then some may come twice."""

PATIENCE_S = 10.0


class KafkaFar:
    """Asks the broker for the topic as soon as it is made; `StagepostError` if there is none."""

    def __init__(self, access: KafkaAccess, plan: TopicPlan, *, may_create: bool) -> None:
        self._topic = KafkaTopic(access, plan.name, BrokerDesk(access).require(plan, may_create=may_create))

    def writer(self) -> KafkaTopicWriter:
        return self._topic.writer()

    def present(self, candidates: list[Read]) -> Counter[bytes]:
        """Looks at what arrived since the oldest of the candidates did."""
        wanted = {digest_of(one) for one in candidates}
        since_ms = min(one.timestamp_ms for one in candidates)
        found: Counter[bytes] = Counter()
        for partition, (start, end) in self._ranges(since_ms).items():
            for read in self._reads(partition, start, end):
                digest = digest_of(read)
                if digest in wanted:
                    found[digest] += 1
        return found

    def _ranges(self, since_ms: int) -> dict[int, tuple[int, int]]:
        from confluent_kafka import KafkaException, TopicPartition

        name, partitions = self._topic.name, self._topic.partitions
        bounds = BrokerDesk(self._topic.access).bounds(name, partitions)
        consumer = range_consumer(self._topic.access)
        try:
            asked = [TopicPartition(name, one, since_ms) for one in range(partitions)]
            answers = consumer.offsets_for_times(asked, timeout=PATIENCE_S)
        except KafkaException as error:
            raise StorageError(f"the Kafka broker does not tell where {name} stood: {error}") from error
        finally:
            consumer.close()
        share = LOOKED_AT_MAX // partitions
        ranges = {}
        for answer in answers:
            oldest, end = bounds[answer.partition]
            start = end if answer.offset < 0 else max(oldest, answer.offset, end - share)
            ranges[answer.partition] = (start, end)
        return ranges

    def _reads(self, partition: int, start: int, end: int) -> list[Read]:
        if start >= end:
            return []
        return [read for batch in self._topic.reader().batches(partition, start, end) for read in batch]
