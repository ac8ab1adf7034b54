"""A range of topics for a backfill: by offsets or by times of arrival, and known by its content, as a dump
is.

Needs no Spark: the range is read once before Spark starts, so a range that is not there in full is reported
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from stagepost.errors import ConfigError
from stagepost.ground.files.durations import parse_moment
from stagepost.pipeline.sources.dumps import Record
from stagepost.pipeline.sources.topic_marks import content_of
from stagepost.pipeline.sources.topic_places import TopicPlace
from stagepost.pipeline.sources.topic_ranges import Range, divided, runs
from stagepost.pipeline.tables.manifest import RECORDS
from stagepost.pipeline.tables.store import TableStore
from stagepost.topics.topic import KNOWN

_Update = Callable[[bytes], None]


class Bound(NamedTuple):
    """Either an offset or a time of arrival in Unix milliseconds."""

    offset: int | None = None
    time_ms: int | None = None


ROWS_COMPARED = 100_000
"""Records that are compared with those of the tables at a time."""

_RANGE = 'topic = ? AND partition = ? AND "offset" >= ? AND "offset" < ?'
_LEAST = f'SELECT min("offset") FROM {RECORDS} WHERE {_RANGE}'
_HELD = f'SELECT "offset", arrived_ms, key, sha256(value) FROM {RECORDS} WHERE {_RANGE}'

OPEN = Bound()
"""The bound at the end of the log."""


class Surveyed(NamedTuple):
    """`digest` names the records themselves: it does not depend on where and when they were read."""

    ranges: tuple[Range, ...]
    rows: int
    digest: str


def parse_bound(name: str, text: str, now_unix_s: float) -> Bound:
    """Return the bound that `text` names: digits are an offset; anything else is ISO 8601, or a length of
    time before now.
    """
    if text.isascii() and text.isdigit():
        if len(text) > len(str(1 << 63)):
            raise ConfigError(f"{name} {text} is no offset", advice="offsets are below 2^63")
        return Bound(offset=int(text))
    try:
        return Bound(time_ms=round(parse_moment(text, now_unix_s) * 1_000))
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(
            f"{name}: {error}", advice="write an offset, as in 1000, or 2026-01-31T12:00:00Z, or 10m"
        ) from None


def survey_topics(
    place: TopicPlace,
    topics: tuple[str, ...] | None,
    *,
    partition: int | None = None,
    first: Bound = OPEN,
    last: Bound = OPEN,
) -> Surveyed:
    """Survey the records from `first` on, up to and not including `last`. Offsets need one partition: each
    has its own.
    """
    place.catch_up()
    oldest, newest = place.bounds()
    names = _names(topics, newest)
    hashing = sha256(b"a range of topics\0")
    found: list[Range] = []
    rows = 0
    for name in names:
        partitions = sorted(map(int, newest[name]))
        if partition is not None and partition not in partitions:
            raise ConfigError(f"{name} has partitions 0 to {partitions[-1]}, not {partition}")
        has_offset = first.offset is not None or last.offset is not None
        if has_offset and (len(names) > 1 or (partition is None and len(partitions) > 1)):
            raise ConfigError(
                "an offset belongs to one partition of one topic",
                advice="name them with --topic and --partition, or give times",
            )
        for one in partitions if partition is None else [partition]:
            begin = oldest[name][str(one)] if first.offset is None else first.offset
            end = newest[name][str(one)] if last.offset is None else last.offset
            for part in _runs(
                place, Range(name, one, begin, end), first.time_ms, last.time_ms, hashing.update
            ):
                found.append(part)
                rows += part.end - part.start
    return Surveyed(tuple(found), rows, hashing.hexdigest())


def _names(topics: tuple[str, ...] | None, newest: dict[str, dict[str, int]]) -> list[str]:
    if topics is None:
        return [name for name in KNOWN if name in newest]
    for name in topics:
        if name not in newest:
            raise ConfigError(
                f"there is no topic {name} there",
                advice=f"topics there: {', '.join(sorted(newest)) or 'none'}",
            )
    return list(topics)


def _runs(
    place: TopicPlace, whole: Range, first_ms: int | None, last_ms: int | None, update: _Update
) -> Iterator[Range]:
    """Yield ranges of records that follow one another and arrived in the time; a clock that stepped back
    makes several.
    """
    if whole.start >= whole.end:
        return

    def wanted() -> Iterator[int]:
        for reads in place.reads(whole):
            for read in reads:
                if (first_ms is None or read.timestamp_ms >= first_ms) and (
                    last_ms is None or read.timestamp_ms < last_ms
                ):
                    update(content_of(whole.topic, whole.partition, read))
                    yield read.offset

    yield from runs(wanted(), whole)


def not_held(
    place: TopicPlace, ranges: Iterable[Range], where: TableStore, paths: Sequence[str]
) -> Iterator[Range]:
    """Yield the parts of ranges whose records the tables do not hold: the same place, arrival, key and value.

    `paths` are the files of `records`. A topic that was begun anew has other records under the same offsets; all of them are new.
    """
    if not paths:
        yield from ranges
        return
    from stagepost.pipeline.sources.topic_source import range_records
    from stagepost.pipeline.tables.look_up import queries

    with queries(where, {RECORDS: (RECORDS, paths)}) as connection:
        for whole in ranges:
            ((least,),) = connection.execute(_LEAST, whole).fetchall()
            if least is None:
                yield whole
                continue
            for part in divided([whole], ROWS_COMPARED):
                held = set(connection.execute(_HELD, part).fetchall())
                yield from runs(
                    (
                        one.offset
                        for one in range_records(place, part)
                        if one.offset is not None and _same(one) not in held
                    ),
                    part,
                )


def _same(record: Record) -> tuple[object, ...]:
    value = None if record.value is None else sha256(record.value).hexdigest()
    return record.offset, record.arrived_ms, record.key, value
