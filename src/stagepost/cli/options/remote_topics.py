"""Topics of a node elsewhere, for `topic ls` and `topic dump`: read over its address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from stagepost.errors import ConfigError
from stagepost.ground.net.network import parse_address
from stagepost.topics.dump import dump_line
from stagepost.topics.remote.client import RemoteTopics
from stagepost.topics.remote.protocol import TOKEN_VARIABLE

PATIENCE_S = 3.0
"""Whoever types a command wants to hear soon that nobody is there."""


def remote_facts(address: str) -> list[dict[str, Any]]:
    """In the shape of `topic_facts`; who reads there, and how much disk it takes, is not told."""
    with _topics(address) as topics:
        return [
            {
                "topic": one.topic,
                "partition": one.partition,
                "start_offset": one.start,
                "end_offset": one.end,
                "records": one.end - one.start,
                "bytes": None,
                "readers": {},
            }
            for one in topics.bounds()
        ]


def remote_lines(address: str, name: str, partition: int | None, start: int | None) -> Iterator[bytes]:
    """Up to what is there when it begins."""
    with _topics(address) as topics:
        bounds = topics.bounds()
        wanted = [one for one in bounds if one.topic == name and partition in (None, one.partition)]
        if not wanted:
            names = sorted({one.topic for one in bounds})
            which = name if partition is None else f"{name} with a partition {partition}"
            raise ConfigError(
                f"there is no topic {which} at {address}",
                advice=f"topics there: {', '.join(names) or 'none'}",
            )
        for one in wanted:
            first = one.start if start is None else start
            for reads in topics.records(name, one.partition, first, one.end):
                for read in reads:
                    yield dump_line(name, one.partition, read)


def _topics(address: str) -> RemoteTopics:
    return RemoteTopics(parse_address(address), os.environ.get(TOKEN_VARIABLE) or None, patience_s=PATIENCE_S)
