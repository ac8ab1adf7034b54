"""A topic as lines of JSON, one for each record: the input of `verify` and of the pipeline, readable by
people."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import msgspec

from stagepost.topics.batch import Read
from stagepost.topics.topic import TopicReader

_write = msgspec.json.Encoder().encode


def dump_lines(name: str, reader: TopicReader, partition: int, start: int | None = None) -> Iterator[bytes]:
    """Yield the lines of one partition, from `start` or the oldest record on, up to the present end."""
    first = reader.start_offset(partition) if start is None else start
    for batch in reader.batches(partition, first):
        for read in batch:
            yield dump_line(name, partition, read)


def dump_line(name: str, partition: int, read: Read) -> bytes:
    line: dict[str, Any] = {
        "topic": name,
        "partition": partition,
        "offset": read.offset,
        "timestamp_ms": read.timestamp_ms,
        "key": _key_text(read.key),
    }
    text = _text(read.value)
    if text is None and read.value is not None:
        line["value_base64"] = b64encode(read.value).decode()
    else:
        line["value"] = text
    if read.headers:
        line["headers"] = read.headers
    return _write(line) + b"\n"


def _text(content: bytes | None) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        return None


def _key_text(key: bytes | None) -> str | None:
    """Return the key as text; hex for keys that are raw bytes, such as ids."""
    if key is None:
        return None
    text = _text(key)
    return text if text is not None and text.isprintable() else key.hex()
