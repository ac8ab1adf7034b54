"""Records as a Kafka client hands them over, into batches as a local topic gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stagepost.topics.batch import Batch
from stagepost.topics.log import block

_write_headers = msgspec.json.Encoder().encode


def batches_of(partition: int, messages: Sequence[Any]) -> Iterator[Batch]:
    """In their order. A batch has no gaps; Kafka's offsets may have some."""
    run: list[block.Row] = []
    first = content_bytes = 0
    for message in messages:
        row = row_of_message(message)
        is_next = run and message.offset() == first + len(run)
        fits = len(run) < block.RECORDS_MAX and content_bytes + row.content_bytes <= block.CONTENT_BYTES_MAX
        if run and not (is_next and fits):
            yield _batch(partition, first, run)
            run = []
        if not run:
            first, content_bytes = message.offset(), 0
        run.append(row)
        content_bytes += row.content_bytes
    if run:
        yield _batch(partition, first, run)


def row_of_message(message: Any) -> block.Row:
    """A key or value larger than a local topic takes becomes null, and headers that are too large are left out: whoever
    reads them refuses such a record, as it must be refused."""
    key, value, (_, timestamp_ms) = message.key(), message.value(), message.timestamp()
    headers = {str(name): _text(content) for name, content in message.headers() or ()}
    written = _write_headers(headers) if headers else b""
    return block.Row(
        None if key is None or len(key) > block.KEY_BYTES_MAX else key,
        None if value is None or len(value) > block.VALUE_BYTES_MAX else value,
        written if len(written) <= block.HEADERS_BYTES_MAX else b"",
        max(timestamp_ms, 0),
    )


def _text(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")


def _batch(partition: int, first: int, rows: Sequence[block.Row]) -> Batch:
    written = block.write_block(rows, first, 0, block.NO_DIGEST)
    return Batch(partition, first, block.read_columns(written[block.HEADER_BYTES :], len(rows)), 0, len(rows))
