"""The columns of every step and table, written out. Times are Unix milliseconds, ids are hexadecimal text in
small letters.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from stagepost.errors import LocalProtocolError
from stagepost.remp.receipts.status import Stage

_text, _long, _int, _bytes, _flag = StringType(), LongType(), IntegerType(), BinaryType(), BooleanType()
_ints = ArrayType(_int)

STAGES = tuple(stage.value for stage in Stage)
"""Stages of a message's life, in order; each has a column `<stage>_ms`."""


def _schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable=True) for name, kind in columns.items()])


_stages: dict[str, DataType] = {f"{stage}_ms": _long for stage in STAGES}

RAW = _schema(
    topic=_text,
    partition=_int,
    offset=_long,
    arrived_ms=_long,
    key=_text,
    value=_bytes,
    is_fault=_flag,
    session_hint=_text,
    delivery_id=_text,
    dmq_id=_text,
    origin=_text,
)
"""A record as read. `is_fault`: the line itself was not a record, and `value` is that line. `origin`: local,
or the peer.
"""

_checked = _schema(
    reason=_text,
    message_id=_text,
    signed_hash=_long,
    raw_hash=_long,
    kind=_text,
    timestamp_ms=_long,
    source_id=_text,
    role=_text,
    total_validators=_int,
    error=_text,
    block_id=_text,
    block_seqno=_long,
    shard=_text,
    wc=_int,
    mc_block_id=_text,
    mc_block_seqno=_long,
)
RECORDS = StructType([*RAW.fields, *_checked.fields])
"""A record with the result of its checks: `reason` is null for one that passes. Hashes are the first eight
bytes of SHA-256.
"""

STATE = _schema(
    message_id=_text,
    source_id=_text,
    role=_text,
    session_hint=_text,
    wc=_int,
    shard=_text,
    last=DecimalType(21, 0),
    last_ms=_long,
    first_ms=_long,
    has_finalized=_flag,
    **_stages,
    total_validators=_int,
    delivery_id=_text,
    dmq_id=_text,
    signed_hashes=ArrayType(_long),
)
"""The kept content of receipts: maxima, minima and sets, so that a join of two states is free of order and
may be repeated.

`last` is the greatest (time, level, rank) as one number, 64 · time + 8 · level + rank: Spark's quick way of
grouping takes the maximum of numbers, and not of structures. A validator's row has its last status and its
time; a message has one row more for all validators together and one for all full nodes, without a source,
with stages, ids and hashes. For quarantined records it has another row, in which `signed_hashes` are those of
the raw values.
"""

MESSAGES = _schema(
    message_id=_text,
    verdict=_text,
    **_stages,
    session_id=_text,
    validators=_int,
    queued_at=_ints,
    rejected_by=_ints,
    silent=_ints,
    delivery_id=_text,
    dmq_id=_text,
    receipts=_long,
    receipts_bad=_long,
)
LIVES = StructType(
    [
        *(field for field in MESSAGES.fields if field.name != "verdict"),
        *_schema(
            verdict_alive=_text,
            verdict_over=_text,
            first_seen_ms=_long,
            receipts_before=_long,
            generation=_text,
        ).fields,
    ]
)
"""`messages` without the moment: the verdict while the message lives, the verdict when its life is over, and
the time from which that is counted. `generation` names the commit that evaluated the row: of several rows for
one message the greatest counts. It is a text of digits, because Spark compiles numbers into its code, and
would compile it anew for each commit. `receipts_before` were known to the commits before it.
"""

RECEIPTS = _schema(
    message_id=_text,
    kind=_text,
    level=_int,
    status=_text,
    timestamp_ms=_long,
    source_id=_text,
    role=_text,
    session_hint=_text,
    error=_text,
    block_id=_text,
    block_seqno=_long,
    shard=_text,
    wc=_int,
    mc_block_id=_text,
    mc_block_seqno=_long,
)
QUARANTINE = _schema(
    reason=_text,
    topic=_text,
    partition=_int,
    offset=_long,
    arrived_ms=_long,
    message_id=_text,
    raw=_bytes,
)
VALIDATORS = _schema(
    session_id=_text,
    validator=_int,
    source_id=_text,
    messages=_long,
    queued_first=_long,
    median_queue_ms=_long,
    p95_queue_ms=_long,
    silent=_long,
    contradictions=_long,
    bad_signatures=_long,
    open_new=_long,
)
STAGE_LATENCY = _schema(
    stage=_text, wc=_int, shard=_text, bucket_ms=_long, count=_long, p50_ms=_long, p95_ms=_long, p99_ms=_long
)
REJECTIONS = _schema(message_id=_text, source_id=_text, level=_int, error=_text, timestamp_ms=_long)
REPLAYS = _schema(message_id=_text, where=_text, count=_long, first_ms=_long, last_ms=_long)
COMPLAINTS = _schema(
    complaint_id=_text, kind=_text, message_id=_text, source_id=_text, session_id=_text, evidence=_text
)
ALERTS = _schema(alert_id=_text, kind=_text, subject=_text, since_ms=_long, detail=_text)
DMQ_MESSAGES = _schema(
    dmq_id=_text,
    pool_id=_text,
    kes_period=_long,
    expires_at=_long,
    received_ms=_long,
    body_bytes=_long,
    valid=_flag,
)
DELIVERY_EVENTS = _schema(
    delivery_id=_text,
    status=_text,
    tier=_text,
    topic=_text,
    timestamp_ms=_long,
    attempt=_long,
    dmq_id=_text,
    error=_text,
    acked_by=_text,
)

TABLES = {
    "messages": MESSAGES,
    "receipts": RECEIPTS,
    "quarantine": QUARANTINE,
    "validators": VALIDATORS,
    "stage_latency": STAGE_LATENCY,
    "rejections": REJECTIONS,
    "replays": REPLAYS,
    "complaints": COMPLAINTS,
    "alerts": ALERTS,
    "dmq_messages": DMQ_MESSAGES,
    "delivery_events": DELIVERY_EVENTS,
}
"""Schemas of the tables that people read, by name."""


def expect(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the same frame; raise at once if its columns are not those of `schema`."""
    found = [(field.name, field.dataType) for field in frame.schema.fields]
    wanted = [(field.name, field.dataType) for field in schema.fields]
    if found != wanted:
        odd = sorted({str(item) for item in set(map(str, found)) ^ set(map(str, wanted))})
        raise LocalProtocolError(f"a step was handed other columns than it takes: {', '.join(odd)}")
    return frame
