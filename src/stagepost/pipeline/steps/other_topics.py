"""The tables `dmq_messages` and `delivery_events`: the same messages in the layers before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from stagepost.dmq.message import DmqMessage
from stagepost.errors import DecodeError, StagepostError
from stagepost.pipeline.schemas import DELIVERY_EVENTS, DMQ_MESSAGES, with_day
from stagepost.pipeline.steps.columns import arrow_schema, batch_of
from stagepost.pipeline.steps.other_checks import INT64_MAX, PROFILE
from stagepost.topics import names as topics


def dmq_messages(records: DataFrame) -> DataFrame:
    """Return a row for each id, content and day, with its first arrival.

    `valid`: the message passed its checks; one that did not is in `quarantine` as well, with the reason. A
    value that is not a message at all has only its key.
    """
    found = records.where(F.col("topic") == topics.DMQ_MESSAGES)
    once = found.groupBy("day", "key", "value").agg(
        F.min("arrived_ms").alias("received_ms"), F.min("reason").alias("reason")
    )
    return once.mapInArrow(_described, with_day(DMQ_MESSAGES))


def _described(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(with_day(DMQ_MESSAGES))
    for batch in batches:
        columns = (
            batch.column(name).to_pylist() for name in ("key", "value", "received_ms", "reason", "day")
        )
        rows = [(*_describe(*row), day) for *row, day in zip(*columns, strict=True)]
        yield batch_of(rows, schema)


def _describe(
    key: str | None, value: bytes | None, received_ms: int | None, reason: str | None
) -> tuple[Any, ...]:
    try:
        if value is None:
            raise DecodeError("no value")
        message = DmqMessage.decode(value, profile=PROFILE)
    except StagepostError:
        return key, None, None, None, received_ms, None if value is None else len(value), False
    return (
        message.message_id.hex(),
        message.pool_id.hex(),
        min(message.kes_period, INT64_MAX),
        message.expires_at,
        received_ms,
        len(message.body),
        reason is None,
    )


def delivery_events(records: DataFrame) -> DataFrame:
    """Return the events of the topic, each once a day; a value that is not an event is in `quarantine` alone."""
    found = records.where((F.col("topic") == topics.DELIVERY_EVENTS) & F.col("reason").isNull()).select(
        F.col("value").cast("string").alias("event"), "day"
    )
    columns = [
        F.get_json_object("event", f"$.{field.name}").try_cast(field.dataType).alias(field.name)
        for field in DELIVERY_EVENTS.fields
    ]
    return found.select(*columns, "day").distinct()
