"""Reading of traces: from the topic of statuses in a data folder, or a dump of it, to the trace of one
message and its JSON.

The command line, programs and the pages of a browser share these functions.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stagepost.errors import ErrorCode, StagepostError, StorageError
from stagepost.remp.receipts.receipt import Quarantined
from stagepost.remp.receipts.status_records import (
    LINE_BYTES_MAX,
    STATUSES_TOPIC,
    StatusRecord,
    read_dump_line,
    read_record,
)
from stagepost.remp.validator_sets import SETS_FILE, ValidatorSets
from stagepost.remp.verdict.trace import Point, Trace, trace_of
from stagepost.remp.verdict.words import end_words
from stagepost.topics.batch import Read
from stagepost.topics.log.file_topic import TOPIC_FILE, TOPICS_FOLDER, open_topic
from stagepost.topics.topic import partition_of
from stagepost.trace.index import MATCHES_MAX, PREFIX_DIGITS_MIN, MessageIndex, has_topics
from stagepost.trace.indexed_records import ID_DIGITS, MessageIds, RecordSpan
from stagepost.trace.kept_proofs import proved_end
from stagepost.trace.reasons import why
from stagepost.trace.session_records import SetsFolder, load_sets
from stagepost.trace.way import read_way, span_records

RECORDS_MAX = 100_000
"""Records of one message, at most: far more than all its validators send in its life."""

_PREFIX = re.compile(rf"[0-9a-f]{{{PREFIX_DIGITS_MIN},{ID_DIGITS}}}")


class NotOneMessage(StagepostError):
    """No message id begins with the prefix, or several do; `message_ids` names them, with the number of their
    records.
    """

    default_code = ErrorCode.MSG_BAD_ID

    def __init__(self, text: str, message_ids: dict[str, int], *, advice: str) -> None:
        super().__init__(text, advice=advice)
        self.message_ids = message_ids


class NotAMessageId(NotOneMessage):
    """The text cannot begin a message id."""

    def __init__(self, text: str, *, digits: str) -> None:
        super().__init__(f"{text[: ID_DIGITS + 1]!r} is not a message id", {}, advice=f"give {digits}")


class NoSuchKey(NotAMessageId):
    """The text cannot begin a message id, and no message has it as its idempotency key."""

    def __init__(self, text: str, data: Path) -> None:
        NotOneMessage.__init__(
            self,
            f"no message in {data} has the idempotency key {text[: ID_DIGITS + 1]!r}",
            {},
            advice=f"check the key and the data folder, or give at least {PREFIX_DIGITS_MIN} of the first digits of an id",
        )


def read_trace(data: Path, text: str, as_of_ms: int, outbox: Path | None = None) -> Trace:
    """Return the trace of the one message that `text` names: by any of its ids, at least eight of the first digits of
    one, or its idempotency key. `NotOneMessage` if there is none, or more than one.

    `outbox` is the folder of a publisher whose topic of delivery events lies outside of the data folder.
    """
    if data.is_dir() and not has_topics(data, outbox):
        raise NotOneMessage(
            f"there are no topics of messages in {data if outbox is None else f'{data} and {outbox}'}",
            {},
            advice="give the data folder of a node with --data, or the outbox of a program with --outbox",
        )
    with MessageIndex(data, outbox) as index:
        index.catch_up()
        found = index.find(text)
        if len(found) > 1:
            raise _ambiguous(found, text, index)
        if not found and _PREFIX.fullmatch(text.lower()) is None:
            raise not_found(text, data)
        if not found:
            return _read_by_content(data, text.lower(), as_of_ms)
        ids = found[0].led_by(text)
        spans = list(index.spans(ids))
    return _trace_of(ids, spans, data, as_of_ms)


def external_id(data: Path, text: str) -> str | None:
    """Return the external message id of the one message that `text` names as for `read_trace`; None if no external message of
    the folder has that name. `NotOneMessage` if there are several.
    """
    if not data.is_dir() or not has_topics(data):
        return None
    with MessageIndex(data) as index:
        index.catch_up()
        found = index.find(text)
        if len(found) > 1:
            raise _ambiguous(found, text, index)
    return found[0].led_by(text).message_ids[0] if found and found[0].message_ids else None


def _ambiguous(found: list[MessageIds], text: str, index: MessageIndex) -> NotOneMessage:
    counts = {one.main: sum(1 for span in index.spans(one) for _ in span_records(span)) for one in found}
    more = "at least " if len(found) >= MATCHES_MAX else ""
    return NotOneMessage(
        f"{more}{len(found)} messages begin with {text}", counts, advice="give more digits of the id"
    )


def _trace_of(ids: MessageIds, spans: list[RecordSpan], data: Path, as_of_ms: int) -> Trace:
    statuses = [span for span in spans if span.topic == STATUSES_TOPIC and span.key in ids.message_ids[:1]]
    folder = next((span.folder for span in statuses if span.folder == data), None)
    folder = folder or next((span.folder for span in statuses), data)
    records = [
        status_record(one, span.partition)
        for span in statuses
        if span.folder == folder
        for one in span_records(span)
    ]
    if len(records) > RECORDS_MAX:
        raise StorageError(
            f"more than {RECORDS_MAX} records are of message {ids.main}",
            advice="read the topic",
            limit=RECORDS_MAX,
        )
    identifier = bytes.fromhex(ids.main)
    has_receipts = bool(records) or SetsFolder(folder / SETS_FILE).is_there
    sets = load_sets(folder) if has_receipts else ValidatorSets({})
    proved = proved_end(folder, identifier) if ids.message_ids else None
    trace = trace_of(identifier, records, sets, as_of_ms, proved=proved)
    way = read_way(ids, spans, data)
    return msgspec.structs.replace(
        trace,
        way=way,
        dmq_id=trace.dmq_id or next(iter(ids.dmq_ids), None),
        delivery_id=trace.delivery_id or next(iter(ids.delivery_ids), None),
    )


def _read_by_content(data: Path, prefix: str, as_of_ms: int) -> Trace:
    """Return the trace of a message whose id stands inside records that are filed under another key."""
    if not (data / TOPICS_FOLDER / STATUSES_TOPIC / TOPIC_FILE).exists():
        raise nothing_found(prefix, str(data))
    sets = load_sets(data)
    message_id, found = only_one(matching(topic_records(data), prefix), prefix, str(data))
    identifier = bytes.fromhex(message_id)
    return trace_of(identifier, found, sets, as_of_ms, proved=proved_end(data, identifier))


def require_prefix(prefix: str) -> str:
    """Return the prefix in small letters; refuse a text that cannot begin an id."""
    if _PREFIX.fullmatch(prefix.lower()) is None:
        digits = f"{PREFIX_DIGITS_MIN} to {ID_DIGITS} of its hexadecimal digits, the first ones"
        raise NotAMessageId(prefix, digits=digits)
    return prefix.lower()


def not_found(text: str, data: Path) -> NotOneMessage:
    """Return the error for a text that names no message of the folder, neither as an id nor as a key."""
    if _PREFIX.fullmatch(text.lower()) is not None:
        return nothing_found(text.lower(), str(data))
    return NoSuchKey(text, data)


def nothing_found(prefix: str, source: str) -> NotOneMessage:
    return NotOneMessage(
        f"no record in {source} is of a message that begins with {prefix}",
        {},
        advice="check the id and the data folder; if the message was just sent, try again",
    )


def only_one(
    found: dict[str, list[StatusRecord]], prefix: str, source: str
) -> tuple[str, list[StatusRecord]]:
    if not found:
        raise nothing_found(prefix, source)
    if len(found) > 1:
        raise NotOneMessage(
            f"{len(found)} messages begin with {prefix}",
            {message_id: len(records) for message_id, records in sorted(found.items())},
            advice="give more digits of the id",
        )
    ((message_id, records),) = found.items()
    return message_id, records


def matching(records: Iterable[StatusRecord], prefix: str) -> dict[str, list[StatusRecord]]:
    """Return the records of all messages whose ids begin with `prefix`, by id. `prefix` is in small letters."""
    found: dict[str, list[StatusRecord]] = {}
    wanted = prefix.encode()
    count = 0
    for record in records:
        key = (record.key or "").lower()
        if not key.startswith(prefix) and (record.value is None or wanted not in record.value.lower()):
            continue
        receipt = read_record(record)
        message_id = key if isinstance(receipt, Quarantined) else receipt.message_id.hex()
        if not message_id.startswith(prefix) or len(message_id) != ID_DIGITS:
            continue
        count += 1
        if count > RECORDS_MAX:
            raise StorageError(
                f"more than {RECORDS_MAX} records begin with {prefix}",
                advice="give more digits of the id",
                limit=RECORDS_MAX,
            )
        found.setdefault(message_id, []).append(record)
    return found


class TraceTail:
    """The trace of one message as its topics grow. `text` names it as for `read_trace`."""

    def __init__(self, data: Path, text: str, outbox: Path | None = None) -> None:
        self._data = data
        self._text = text
        self._outbox = outbox

    def trace(self, as_of_ms: int) -> Trace | None:
        """Return the trace so far; None while there is no record of the message. `NotOneMessage` if several
        messages match.
        """
        try:
            return read_trace(self._data, self._text, as_of_ms, self._outbox)
        except NotOneMessage as error:
            if error.message_ids or isinstance(error, NotAMessageId):
                raise
            return None


# The records


def topic_records(data: Path) -> Iterator[StatusRecord]:
    """Yield the status records of a data folder, as far as they are durable now; its node may write
    meanwhile.
    """
    reader = open_topic(data, STATUSES_TOPIC).reader()
    for partition in range(reader.partitions):
        for batch in reader.batches(partition, reader.start_offset(partition)):
            for one in batch:
                yield status_record(one, partition)


def records_of_key(data: Path, message_id: str) -> Iterator[StatusRecord]:
    """Yield the records of one message, from the one partition that its key belongs to: nodes write every
    status under its message's id.

    Of a batch without any record of the message, only the keys are looked at.
    """
    key = message_id.encode()
    reader = open_topic(data, STATUSES_TOPIC).reader()
    partition = partition_of(key, reader.partitions)
    for batch in reader.batches(partition, reader.start_offset(partition)):
        if key in batch.keys:
            yield from (status_record(one, partition) for one in batch if one.key == key)


def status_record(one: Read, partition: int) -> StatusRecord:
    key = None if one.key is None else one.key.decode(errors="replace")
    return StatusRecord(
        one.value, key, STATUSES_TOPIC, one.timestamp_ms, one.headers, f"{partition}:{one.offset}"
    )


def dump_records(source: str) -> Iterator[StatusRecord]:
    """Yield the status records of a dump, one per line, and hold no more than a line in memory. `-` is the
    standard input.
    """
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


# As JSON


def trace_object(trace: Trace) -> dict[str, Any]:
    """Return the row of `messages`, and all receipts with their lanes, for JSON."""
    row = {} if trace.verdict is None else msgspec.to_builtins(trace.verdict)
    bad = sum(point.refused is not None for point in trace.points) + len(trace.unreadable)
    return {
        "message_id": trace.message_id.hex(),
        **row,
        "delivery_id": trace.delivery_id,
        "dmq_id": trace.dmq_id,
        "words": trace.words,
        "why": why(trace),
        "topic": trace.way.topic,
        "ids": [{"layer": layer, "id": one} for layer, one in trace.way.names],
        "steps": [
            {
                "lane": lane.name,
                "mark": step.mark.name.lower(),
                "words": step.label,
                "at_ms": step.timestamp_ms,
            }
            for lane in trace.way.lanes
            for step in lane.points
        ],
        "receipts_bad": bad,
        "as_of_ms": trace.as_of_ms,
        "end": end_words(trace.verdict),
        "all_receipts": [
            {"lane": lane.name, **_receipt_object(point)} for lane in trace.lanes for point in lane.points
        ],
    }


def _receipt_object(point: Point) -> dict[str, Any]:
    refused = point.refused
    return {
        **json.loads(point.receipt.to_json()),
        "counts": refused is None,
        "refused": None if refused is None else str(refused.reason),
        "signed_bytes": point.receipt.signed_bytes.hex(),
        "position": point.position,
    }
