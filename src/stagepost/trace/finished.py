"""The messages of a data folder whose record is whole, each once, as the topics grow: for writers that hand records on.

    finished = FinishedMessages(data, "telemetry")
    for trace in finished.read(now_ms): …
    finished.commit()                                # after the traces were handed on

A group of readers has its positions in the topics; what was read and not handed on is read again after a restart, so that
each message is given at least once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from stagepost.remp.verdict.trace import Trace
from stagepost.topics.log.file_topic import TOPIC_FILE, TOPICS_FOLDER, FileTopicReader, open_topic
from stagepost.topics.log.positions import FilePositions
from stagepost.topics.topic import OffsetGone
from stagepost.trace.index import MessageIndex, topic_folders
from stagepost.trace.indexed_records import INDEXED_TOPICS, NameKind, RecordNames, names_in
from stagepost.trace.kept_proofs import keeps_proofs
from stagepost.trace.reading import NotOneMessage, read_trace
from stagepost.trace.spans import has_ended

SETTLE_MS = 2_000
"""Milliseconds without a new record before the record of an ended message counts as whole."""
PROOF_WAIT_MS = 120_000
"""Milliseconds, at most, that a message whose end is claimed waits for the proof of it."""
OPEN_MS_MAX = 3_600_000
"""Milliseconds without a new record after which a message is given as it is, open."""
LOOK_AGAIN_MS = 1_000
"""Milliseconds between two looks at a message whose record does not change."""
PENDING_MAX = 10_000
"""Messages, at most, that are followed at once; above it the oldest are given as they are."""
GIVEN_MAX = 10_000
"""Messages, at most, that are remembered as given; later records of them are ignored."""
RECORDS_AT_ONCE = 5_000
"""Records, about at most, of one partition that one call of `read` takes."""

_ORDER = (NameKind.MESSAGE, NameKind.DELIVERY, NameKind.DMQ)


class _TopicPlace(NamedTuple):
    folder: Path
    topic: str


@dataclass(slots=True)
class _OpenTopic:
    reader: FileTopicReader
    positions: FilePositions
    next: dict[int, int]


@dataclass(slots=True)
class _Followed:
    changed_ms: int
    look_ms: int
    first: dict[tuple[_TopicPlace, int], int] = field(default_factory=dict)
    """Offset of the first record that was read of the message, by source and partition."""


class FinishedMessages:
    """Reader of whole records; one process for each group. `from_now` leaves out what the topics held at the start."""

    def __init__(
        self,
        data: Path,
        group: str,
        *,
        outbox: Path | None = None,
        from_now: bool = False,
        settle_ms: int = SETTLE_MS,
    ) -> None:
        self.skipped = 0
        """Records that retention removed before they were read."""
        self._data = data
        self._group = group
        self._outbox = outbox
        self._from_now = from_now
        self._settle_ms = settle_ms
        self._topics: dict[_TopicPlace, _OpenTopic] = {}
        self._pending: OrderedDict[str, _Followed] = OrderedDict()
        self._given: OrderedDict[str, None] = OrderedDict()
        with MessageIndex(data, outbox) as index:
            index.catch_up()  # says what is wrong with the folder before anything is begun
        self._open_topics()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def read(self, now_ms: int, *, is_last: bool = False) -> list[Trace]:
        """Read what the topics have gained; return the messages whose record is whole. `is_last`: nobody reads later, so
        that ended messages are given without a wait for further records.
        """
        self._open_topics()
        with MessageIndex(self._data, self._outbox) as index:
            index.catch_up()
            for source, topic in self._topics.items():
                for partition in range(topic.reader.partitions):
                    self._read_partition(index, source, topic, partition, now_ms)
        found: list[Trace] = []
        overfull = len(self._pending) - PENDING_MAX
        for place, (message_id, one) in enumerate(list(self._pending.items())):
            must_go = place < overfull
            if not must_go and now_ms < one.look_ms:
                continue
            one.look_ms = now_ms + LOOK_AGAIN_MS
            trace = self._trace(message_id, now_ms)
            if (
                trace is None
                or must_go
                or self._is_whole(trace, OPEN_MS_MAX - 1 if is_last else now_ms - one.changed_ms)
            ):
                del self._pending[message_id]
                self._given[message_id] = None
                if len(self._given) > GIVEN_MAX:
                    self._given.popitem(last=False)
                if trace is not None:
                    found.append(trace)
        return found

    def commit(self) -> None:
        """Note that everything that was given was handed on."""
        for source, topic in self._topics.items():
            offsets = dict(topic.next)
            for one in self._pending.values():
                for (of, partition), first in one.first.items():
                    if of == source:
                        offsets[partition] = min(offsets[partition], first)
            if offsets != topic.positions.committed:
                topic.positions.commit_now(offsets)

    def close(self) -> None:
        for topic in self._topics.values():
            topic.positions.close()
        self._topics = {}

    def _open_topics(self) -> None:
        """Open the topics that have appeared since the last look."""
        for folder in topic_folders(self._data, self._outbox):
            for name in INDEXED_TOPICS:
                source = _TopicPlace(folder, name)
                if source in self._topics or not (folder / TOPICS_FOLDER / name / TOPIC_FILE).exists():
                    continue
                topic = open_topic(folder, name)
                reader, positions = topic.reader(), topic.positions(self._group)
                begin = reader.end_offset if self._from_now else reader.start_offset
                committed = positions.committed
                self._topics[source] = _OpenTopic(
                    reader,
                    positions,
                    {part: committed.get(part, begin(part)) for part in range(reader.partitions)},
                )
        self._from_now = False

    def _read_partition(
        self, index: MessageIndex, source: _TopicPlace, topic: _OpenTopic, partition: int, now_ms: int
    ) -> None:
        count = 0
        try:
            for batch in topic.reader.batches(partition, topic.next[partition]):
                for record in batch:
                    for names in names_in(source.topic, record):
                        self._touch(index, names, source, partition, record.offset, now_ms)
                    count += 1
                topic.next[partition] = batch.next_offset
                if count >= RECORDS_AT_ONCE:
                    return
        except OffsetGone as gone:
            self.skipped += gone.first_kept - topic.next[partition]
            topic.next[partition] = gone.first_kept

    def _touch(
        self,
        index: MessageIndex,
        names: RecordNames,
        source: _TopicPlace,
        partition: int,
        offset: int,
        now_ms: int,
    ) -> None:
        named = dict(reversed(names.names))
        identifier = next((named[kind] for kind in _ORDER if kind in named), None)
        matches = [] if identifier is None else index.find(identifier.hex())
        if len(matches) != 1 or matches[0].main in self._given:
            return
        one = self._pending.setdefault(matches[0].main, _Followed(now_ms, now_ms))
        one.changed_ms = one.look_ms = now_ms
        one.first.setdefault((source, partition), offset)

    def _trace(self, message_id: str, now_ms: int) -> Trace | None:
        try:
            return read_trace(self._data, message_id, now_ms, self._outbox)
        except NotOneMessage:
            return None  # retention has removed it meanwhile

    def _is_whole(self, trace: Trace, unchanged_ms: int) -> bool:
        if not has_ended(trace):
            return unchanged_ms >= OPEN_MS_MAX
        may_be_proved = trace.verdict is not None and trace.proved is None and keeps_proofs(self._data)
        return unchanged_ms >= (PROOF_WAIT_MS if may_be_proved else self._settle_ms)
