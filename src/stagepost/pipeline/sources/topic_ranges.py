"""Offsets of a stream in each partition of each topic, and their division into batches and tasks.

Plain values that become JSON in Spark's checkpoint: {topic: {partition: offset of the next record}}.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

ROWS_PER_TASK = 10_000

Offsets = dict[str, dict[str, int]]


class Range(NamedTuple):
    topic: str
    partition: int
    start: int
    end: int


def ranges(start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> list[Range]:
    """Return the ranges between two offsets, in a fixed order. A topic that `start` does not have has begun
    since: it is read from its first record.
    """
    return [
        Range(topic, int(partition), start.get(topic, {}).get(partition, 0), last)
        for topic, partitions in sorted(end.items())
        for partition, last in sorted(partitions.items(), key=lambda item: int(item[0]))
        if start.get(topic, {}).get(partition, 0) < last
    ]


def runs(offsets: Iterable[int], whole: Range) -> Iterator[Range]:
    """Yield the ranges of offsets that follow one another, within `whole`."""
    begin = end = None
    for offset in offsets:
        if offset != end:
            if begin is not None and end is not None:
                yield whole._replace(start=begin, end=end)
            begin = offset
        end = offset + 1
    if begin is not None and end is not None:
        yield whole._replace(start=begin, end=end)


def at_most(start: Offsets, end: Offsets, rows_max: int) -> Offsets:
    """Return the end of a batch with at most `rows_max` records, of which every partition has its share."""
    waiting = ranges(start, end)
    found: Offsets = {topic: dict(partitions) for topic, partitions in end.items()}
    left = max(rows_max, 1)
    # The shortest first: a share that one partition does not use goes to those after it.
    for number, one in enumerate(sorted(waiting, key=lambda one: (one.end - one.start, one))):
        share = -(-left // (len(waiting) - number))
        taken = min(one.end - one.start, share, left)
        found[one.topic][str(one.partition)] = one.start + taken
        left -= taken
    return found


def tasks(start: Offsets, end: Offsets, rows: int = ROWS_PER_TASK) -> Iterator[Range]:
    return divided(ranges(start, end), rows)


def divided(whole: Iterable[Range], rows: int = ROWS_PER_TASK) -> Iterator[Range]:
    for one in whole:
        for begin in range(one.start, one.end, rows):
            yield one._replace(start=begin, end=min(begin + rows, one.end))
