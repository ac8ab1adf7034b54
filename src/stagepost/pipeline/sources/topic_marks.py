"""Marks of topics in a stream's offsets: a stream goes on in the very topic that it has read, or not at all.

A topic that was begun anew has other records under the same offsets. So the offsets of a batch hold, for each partition,
the hash of the last record before the offset, and the record that stands there is compared before anything behind it is
read. Records are read through the place itself, so this holds for files, for nodes that serve topics, and for topics of
every release. Offsets that an earlier release wrote have no marks; for them only a topic that is too short is noticed. Where
retention has removed the record that a mark is of, a topic that begins exactly there is taken for the same one: a topic
that was begun anew begins at 0. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path
from shlex import quote

from stagepost.errors import ConfigError
from stagepost.pipeline.sources.checkpoint_fit import Marked, planned_offsets
from stagepost.pipeline.sources.topic_places import TopicPlace, place_of, topics_of
from stagepost.pipeline.sources.topic_ranges import Offsets, Range
from stagepost.pipeline.tables.store import TableStore
from stagepost.topics.batch import Read
from stagepost.topics.topic import KNOWN

MARK_DIGITS = 32
PUT_BACK = "put the former topic back (after a power cut, start its node first)"


class TopicBegunAnew(ConfigError):
    """The topic is not the one that the stream has read: `topic` names it."""

    def __init__(self, topic: str, text: str) -> None:
        super().__init__(
            f"{text}: topic {topic} was begun anew, and records would be passed over",
            advice=f"{PUT_BACK}, or make new tables with another --out",
            found=topic,
        )
        self.topic = topic


def content_of(topic: str, partition: int, read: Read) -> bytes:
    """Return the record with its place, as bytes to hash."""
    fields = read.key, read.value, sorted(read.headers.items()), read.timestamp_ms
    return repr((topic, partition, read.offset, *fields)).encode()


def offsets_of(marked: Marked) -> Offsets:
    """Return the offsets alone."""
    return {
        topic: {one: entry if isinstance(entry, int) else entry[0] for one, entry in partitions.items()}
        for topic, partitions in marked.items()
    }


def with_marks(place: TopicPlace, before: Marked, end: Offsets) -> Marked:
    """Return `end` with a mark for each partition that has moved on since `before`; the others keep their entries."""
    reached = offsets_of(before)
    return {
        topic: {
            one: before[topic][one]
            if reached.get(topic, {}).get(one) == offset
            else (offset, mark_at(place, topic, int(one), offset))
            if offset
            else offset
            for one, offset in partitions.items()
        }
        for topic, partitions in end.items()
    }


def mark_at(place: TopicPlace, topic: str, partition: int, offset: int) -> str:
    """Return the mark of a partition up to `offset`, which is above 0: the hash of the record before it."""
    for reads in place.reads(Range(topic, partition, offset - 1, offset)):
        for read in reads:
            return sha256(content_of(topic, partition, read)).hexdigest()[:MARK_DIGITS]
    raise ConfigError(f"partition {partition} of {topic} gives no record for offset {offset - 1}")


def require_same_topics(place: TopicPlace, marked: Marked, names: Collection[str] | None = None) -> None:
    """Raise `TopicBegunAnew` if a topic among `names` (those of the pipeline if None) is not the one that was read."""
    oldest, newest = place.bounds()
    wanted = set(KNOWN if names is None else names)
    for topic in sorted(wanted & marked.keys()):
        for one, entry in marked[topic].items():
            offset, mark = (entry, None) if isinstance(entry, int) else entry
            if not offset:
                continue
            end = newest.get(topic, {}).get(one)
            if end is None or end < offset:
                there = "is not there" if end is None else f"ends at {end}"
                raise TopicBegunAnew(
                    topic,
                    f"the stream has read partition {one} of {topic} up to offset {offset}, and it {there}",
                )
            if mark is None or offset <= oldest[topic][one]:
                continue
            if mark_at(place, topic, int(one), offset) != mark:
                raise TopicBegunAnew(
                    topic,
                    f"the stream has read partition {one} of {topic} up to offset {offset}, "
                    f"and the record with offset {offset - 1} is another one now",
                )


def require_going_on(
    options: Mapping[str, str], sets_path: Path, out: TableStore | Path, checkpoint: Path
) -> None:
    """Raise `TopicBegunAnew`, with commands that go on, if the checkpoint has read other topics than are there.

    `options` are those of `format("stagepost")`.
    """
    marked = planned_offsets(checkpoint)
    if not marked:
        return
    try:
        require_same_topics(place_of(options), marked, topics_of(options))
    except TopicBegunAnew as error:
        tables = out.address if isinstance(out, TableStore) else str(out)
        where, sets = _flags(options), f"--validator-sets {quote(str(sets_path))}"
        topic = "" if "topic" in options else f" --topic {error.topic}"
        error.advice = (
            f"{PUT_BACK}; or follow the new one into new tables: "
            f"`stagepost pipeline run {where} {sets} --tables {quote(f'{tables}-2')}`; or add what it holds to these tables: "
            f"`stagepost pipeline backfill {where}{topic} {sets} --tables {quote(tables)}`"
        )
        raise


def _flags(options: Mapping[str, str]) -> str:
    """Return the options of the source as the command line has them. A token stays in the environment."""
    names = {"path": "data", "network_magic": "network-magic"}
    given = [
        f"--{names.get(name, name)} {quote(options[name])}"
        for name in ("path", "address", "socket", "network_magic", "retained", "profile")
        if options.get(name)
    ]
    given += [f"--topic {quote(name)}" for name in options.get("topic", "").split(",") if name]
    return " ".join(given)
