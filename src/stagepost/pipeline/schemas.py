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
    DoubleType,
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
_double = DoubleType()

STAGES = tuple(stage.value for stage in Stage)
"""Stages of a message's life, in order; each has a column `<stage>_ms`."""


def _schema(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind, nullable=True) for name, kind in columns.items()])


_stages: dict[str, DataType] = {f"{stage}_ms": _long for stage in STAGES}
_proved: dict[str, DataType] = {"proof": _text, "proof_block": _long, "executed_as": _text}

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
    signed_hash=_text,
    raw_hash=_text,
    source_id=_text,
    timestamp_ms=_long,
)
RECORDS = StructType([*RAW.fields, *_checked.fields])
"""A record with the result of its checks: `reason` is null for one that passes. Hashes are the first sixteen
bytes of SHA-256, in hexadecimal digits.
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
    signed_hashes=ArrayType(_text),
    **_proved,
)
"""The kept content of receipts: maxima, minima and sets, so that a join of two states is free of order and
may be repeated.

`last` is the greatest (time, level, rank) as one number, 64 · time + 8 · level + rank: Spark's quick way of
grouping takes the maximum of numbers, and not of structures. A validator's row has its last status and its
time; a message has one row more for all validators together and one for all full nodes, without a source,
with stages, ids and hashes. For quarantined records it has another row, in which `signed_hashes` are those of
the raw values. Each proof that holds is a row, too, with the end that it shows.
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
    **_proved,
)
_life = _schema(
    verdict_alive=_text, verdict_over=_text, first_seen_ms=_long, days=ArrayType(_text), ends=ArrayType(_text)
)
MESSAGE_ROWS = StructType([*MESSAGES.fields, *_life.fields, *_schema(open_since_ms=_long).fields])
"""The table `messages` as it is stored: with the verdict while the message lives, the verdict when its life is over, and
the time from which that is counted, so that it can be shown for another moment. `days` are the days on which its receipts
arrived, the first of which is that of the message. `ends` are the different ends that proofs show: more than one is a
contradiction. `open_since_ms` is `first_seen_ms` until the end of the life has been entered, where that changes the verdict or
leaves a Finalized without a proof, and null otherwise: the list of what is due.
"""

LIVES = StructType(
    [
        *(field for field in MESSAGES.fields if field.name != "verdict"),
        *_life.fields,
        *_schema(receipts_before=_long, day=_text, day_before=_text).fields,
    ]
)
"""`messages` without the moment, as it is evaluated. `receipts_before` were known to the batches before, under the day
`day_before`.
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
    signed_hash=_text,
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
PROOFS = _schema(
    message_id=_text,
    **_proved,
    refusal=_text,
    time_ms=_long,
    master_block=_text,
    signers=_int,
    validators=_int,
    signed_hash=_text,
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
POOL_STAKES = _schema(
    network_magic=_long,
    epoch=_long,
    era=_int,
    from_ms=_long,
    to_ms=_long,
    taken_ms=_long,
    kes_evolutions_max=_int,
    digest=_text,
    part=_int,
    parts=_int,
    pools=_long,
    total_stake=_long,
    quorum=_long,
    indexes_drawn=_long,
    phi_f=_double,
    quorum_share=_double,
    pool_id=_text,
    stake=_long,
)
MITHRIL_SIGNATURES = _schema(
    dmq_id=_text,
    pool_id=_text,
    received_ms=_long,
    epoch=_long,
    variant=_int,
    beacon=_text,
    entity=_text,
    entity_before=_text,
    timeout_ms=_long,
    form=_text,
    sigma=_text,
    body_hash=_text,
    signer_index=_long,
    indexes=_ints,
    certificate_number=_long,
    start_kes_period=_long,
    kes_period=_long,
)
MITHRIL_BEACONS = _schema(
    epoch=_long,
    variant=_int,
    beacon=_text,
    entity=_text,
    entity_before=_text,
    first_ms=_long,
    last_ms=_long,
    pools=_long,
    stake=_long,
    total_stake=_long,
    adoption_percent=_double,
    unstaked_pools=_long,
    unknown_pools=_long,
    indexes=_long,
    quorum=_long,
    quorum_percent=_double,
    expected_percent=_double,
    half_ms=_long,
    quorum_ms=_long,
    late=_long,
    repeats=_long,
    reencoded=_long,
    equivocating=_long,
    other_epoch=_long,
)
MITHRIL_POOLS = _schema(
    epoch=_long,
    pool_id=_text,
    stake=_long,
    share_percent=_double,
    signed=_long,
    silent=_long,
    median_late_ms=_long,
    p95_late_ms=_long,
    late=_long,
    repeats=_long,
    reencoded=_long,
    equivocations=_long,
    other_epoch=_long,
    certificate_number=_long,
    certificates=_long,
    kes_periods_left=_long,
    forms=_text,
)

TABLES = {
    "messages": MESSAGES,
    "receipts": RECEIPTS,
    "quarantine": QUARANTINE,
    "proofs": PROOFS,
    "validators": VALIDATORS,
    "stage_latency": STAGE_LATENCY,
    "rejections": REJECTIONS,
    "replays": REPLAYS,
    "complaints": COMPLAINTS,
    "alerts": ALERTS,
    "dmq_messages": DMQ_MESSAGES,
    "delivery_events": DELIVERY_EVENTS,
    "pool_stakes": POOL_STAKES,
    "mithril_signatures": MITHRIL_SIGNATURES,
    "mithril_beacons": MITHRIL_BEACONS,
    "mithril_pools": MITHRIL_POOLS,
}
"""Schemas of the tables that people read, by name."""

STORED = {**TABLES, "messages": MESSAGE_ROWS, "records": RECORDS, "state": STATE}
"""Schemas of the tables that are stored, by name, without the column `day` that each of them has as its last."""


def with_day(schema: StructType) -> StructType:
    """Return a stored table's schema as it is read: with the day as text."""
    return StructType([*schema.fields, StructField("day", _text, nullable=True)])


def expect(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the same frame; raise at once if its columns are not those of `schema`."""
    found = [(field.name, field.dataType) for field in frame.schema.fields]
    wanted = [(field.name, field.dataType) for field in schema.fields]
    if found != wanted:
        odd = sorted({str(item) for item in set(map(str, found)) ^ set(map(str, wanted))})
        raise LocalProtocolError(f"a step was handed other columns than it takes: {', '.join(odd)}")
    return frame
