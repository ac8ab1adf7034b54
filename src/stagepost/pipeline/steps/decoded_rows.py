"""Rows of tables that are read out of records' bytes: messages of DMQ, events of delivery, signatures of Mithril, parts of a
stake distribution. Plain Python, run in the driver or in Spark's workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from stagepost.delivery.effects import DeliveryEvent
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.mithril.body import decode_body
from stagepost.dmq.mithril.observatory import Sighting, entity_names
from stagepost.dmq.mithril.stake_parts import decode_stake_part
from stagepost.errors import DecodeError, StagepostError
from stagepost.ground.identifiers import INT64_MAX
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.pipeline.schemas import TABLES, arrow_schema, batch_of, with_day
from stagepost.pipeline.steps.other_checks import PROFILE

Rows = Iterable[tuple[Any, ...]]


def _step(
    rows_of: Callable[..., Rows], schema: StructType
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step over rows of `day`, `value`, `received_ms` and more, for each of which `rows_of` returns rows without `day`."""

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = arrow_schema(with_day(schema))
        for batch in batches:
            given = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            yield batch_of([(*row, day) for day, *rest in given for row in rows_of(*rest)], wanted)

    return step


def _dmq_rows(value: bytes | None, received_ms: int | None, key: str | None, reason: str | None) -> Rows:
    try:
        if value is None:
            raise DecodeError("no value")
        message = DmqMessage.decode(value, profile=PROFILE)
    except StagepostError:
        return [(key, None, None, None, received_ms, None if value is None else len(value), False)]
    period = min(message.kes_period, INT64_MAX)
    named = message.message_id.hex(), message.pool_id.hex(), period, message.expires_at
    return [(*named, received_ms, len(message.body), reason is None)]


def _event_rows(value: bytes) -> Rows:
    event = decode_foreign(value, DeliveryEvent)
    acked_by = msgspec.json.encode(event.acked_by).decode() if event.acked_by else None
    said = event.delivery_id, event.status.value, event.tier.value, event.topic, event.timestamp_ms
    return [(*said, event.attempt, event.dmq_id, event.error, acked_by)]


def _stake_rows(value: bytes, _: int | None) -> Rows:
    part = decode_stake_part(value)
    share = None if part.parameters is None else part.parameters.quorum_share
    whole = (
        *(part.network_magic, part.epoch, part.era, part.from_ms, part.to_ms, part.taken_ms),
        *(part.kes_evolutions_max, part.digest, part.part, part.parts, part.pools, part.total_stake),
        *(part.k, part.m, part.phi_f, share),
    )
    return [(*whole, pool_id, stake) for pool_id, stake in part.stakes.items()]


def _signature_rows(value: bytes, received_ms: int | None) -> Rows:
    message = DmqMessage.decode(value, profile=PROFILE)
    try:
        body = decode_body(message.body)
    except DecodeError:
        return []  # of another program: the table `dmq_messages` has it
    seen, entity = Sighting.of(message, body, 0), body.entity
    return [
        (
            *(
                seen.dmq_id.hex(),
                seen.pool_id.hex(),
                received_ms,
                entity.epoch,
                entity.variant,
                entity.beacon,
            ),
            *entity_names(entity),
            *(entity.timeout_ms, body.form.value, body.sigma.hex(), seen.body_hash.hex(), body.signer_index),
            *(list(body.indexes), seen.issue_number, seen.start_kes_period, seen.kes_period),
        )
    ]


dmq_rows = _step(_dmq_rows, TABLES["dmq_messages"])
event_rows = _step(_event_rows, TABLES["delivery_events"])
stake_rows = _step(_stake_rows, TABLES["pool_stakes"])
signature_rows = _step(_signature_rows, TABLES["mithril_signatures"])
