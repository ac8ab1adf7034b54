"""The tables `dmq_messages` and `delivery_events`: the same messages in the layers before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.proof import check_proof
from stagepost.errors import DecodeError, StagepostError
from stagepost.pipeline import topics
from stagepost.pipeline.arrow_columns import arrow_schema, batch_of
from stagepost.pipeline.schemas import DELIVERY_EVENTS, DMQ_MESSAGES


def dmq_messages(records: DataFrame) -> DataFrame:
    """One row for each id, first arrival first. `valid`: id, certificate, period and KES signature hold; what only a
    clock and a list of pools can tell is not looked at. What is no message at all has only its key.
    """
    found = records.where(F.col("topic") == topics.DMQ_MESSAGES).select("key", "value", "arrived_ms")
    once = found.groupBy("key", "value").agg(F.min("arrived_ms").alias("received_ms"))
    return once.mapInArrow(_judged, DMQ_MESSAGES)


def _judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(DMQ_MESSAGES)
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("key", "value", "received_ms"))
        yield batch_of([_judge(*row) for row in zip(*columns, strict=True)], schema)


def _judge(key: str | None, value: bytes | None, received_ms: int | None) -> tuple[Any, ...]:
    try:
        if value is None:
            raise DecodeError("no value")
        message = DmqMessage.decode(value, profile="seed")
        is_valid = check_proof(message) is None
    except StagepostError:
        return key, None, None, None, received_ms, None if value is None else len(value), False
    return (
        message.message_id.hex(),
        message.pool_id.hex(),
        message.kes_period,
        message.expires_at,
        received_ms,
        len(message.body),
        is_valid,
    )


def delivery_events(records: DataFrame) -> DataFrame:
    """As the topic has them, each once; what is no JSON object has its key and nothing else."""
    found = records.where(F.col("topic") == topics.DELIVERY_EVENTS).select(
        "key", F.col("value").cast("string").alias("event")
    )
    columns = [
        F.get_json_object("event", f"$.{field.name}").try_cast(field.dataType).alias(field.name)
        for field in DELIVERY_EVENTS.fields
        if field.name != "delivery_id"
    ]
    said = F.coalesce(F.get_json_object("event", "$.delivery_id"), F.col("key")).alias("delivery_id")
    return found.select(said, *columns).distinct().select(*DELIVERY_EVENTS.fieldNames())
