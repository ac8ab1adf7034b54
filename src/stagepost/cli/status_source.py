"""Where `trace` and `verify` find receipts: the topic of statuses in a data folder, a dump of it, or a file of receipts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stagepost.errors import StorageError
from stagepost.remp.status_records import LINE_BYTES_MAX, STATUSES_TOPIC, StatusRecord, read_dump_line


def dump_records(source: str) -> Iterator[StatusRecord]:
    """The status records of a dump, one per line, without ever holding more than a line. `-` is the standard input."""
    if source == "-":
        yield from _of_file(sys.stdin.buffer, "standard input")
        return
    try:
        with Path(source).open("rb") as file:
            yield from _of_file(file, source)
    except OSError as error:
        raise StorageError(
            f"{source} cannot be read: {error.strerror}",
            advice="give a dump of topics (JSON lines, as `stagepost topic dump` writes) or a file of receipts",
        ) from error


def topic_records(data: Path) -> Iterator[StatusRecord]:
    """The status records of a data folder, as far as they are durable now; beside the node that writes them."""
    from stagepost.bus.file_topic import open_topic

    reader = open_topic(data, STATUSES_TOPIC).reader()
    for partition in range(reader.partitions):
        for batch in reader.batches(partition, reader.start_offset(partition)):
            for one in batch:
                key = None if one.key is None else one.key.decode(errors="replace")
                position = f"{partition}:{one.offset}"
                yield StatusRecord(one.value, key, STATUSES_TOPIC, one.timestamp_ms, one.headers, position)


def _of_file(file: BinaryIO, name: str) -> Iterator[StatusRecord]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise StorageError(
                f"{name}: line {number} has more than {LINE_BYTES_MAX} bytes",
                advice="a dump has one record on each line",
                limit=LINE_BYTES_MAX,
            )
        if line.strip():
            record = read_dump_line(line.rstrip(b"\r\n"), f"line {number}")
            if record.topic == STATUSES_TOPIC:
                yield record
