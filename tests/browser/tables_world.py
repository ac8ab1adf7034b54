"""A folder of tables as the pipeline leaves it, from a few rows: real Parquet files and a real manifest, without Spark."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from rigs.dashboard_world import message_id
from rigs.remp_world import session_name, source_of
from stagepost.pipeline.tables.manifest import (
    MESSAGES,
    QUARANTINE,
    RECEIPTS,
    RECORDS,
    Batch,
    Manifest,
    Reports,
)
from tests.worlds.dmq.mithril_traffic import Traffic
from tests.worlds.pipeline.observatory_oracle import observatory_tables
from tests.worlds.pipeline.written_tables import write_lake

_MESSAGE = (
    "message_id", "verdict", "sent_ms", "queued_ms", "included_ms", "accepted_ms", "finalized_ms", "rejected_ms",
    "timeout_ms", "session_id", "validators", "queued_at", "rejected_by", "silent", "delivery_id", "dmq_id",
    "receipts", "receipts_bad",
)  # fmt: skip
_RECORD = (
    "topic", "partition", "offset", "arrived_ms", "session_hint", "reason", "message_id", "signed_hash", "kind", "timestamp_ms",
    "source_id", "role", "error", "block_id", "block_seqno", "shard", "wc", "mc_block_id", "mc_block_seqno", "value",
)  # fmt: skip


def write_tables(folder: Path, now_ms: int, count: int = 240, seed: int = 3) -> list[dict[str, Any]]:
    """The rows of `messages` that it holds."""
    folder.mkdir(parents=True, exist_ok=True)
    random = Random(seed)
    session = session_name(1).hex()
    messages, records, rejections = [], [], []
    for number in range(count):
        sent = now_ms - 3_600_000 + 3_500_000 * number // count
        is_bad = random.random() < 0.08
        identifier = message_id(f"table {number}").hex()
        row = dict.fromkeys(_MESSAGE)
        row |= {
            "message_id": identifier, "verdict": "rejected" if is_bad else "finalized", "sent_ms": sent,
            "queued_ms": sent + random.randrange(20, 90), "session_id": session, "validators": 7, "queued_at": [],
            "rejected_by": list(range(7)) if is_bad else [], "silent": [], "receipts": 23, "receipts_bad": 0,
        }  # fmt: skip
        if is_bad:
            row["rejected_ms"] = sent + 300
            error = random.choice(["contract error 52", "no funds", "account is frozen"])
            rejections.append(
                {
                    "message_id": identifier,
                    "source_id": source_of(2).hex(),
                    "level": 2,
                    "error": error,
                    "timestamp_ms": sent + 300,
                }
            )
        else:
            row |= {
                "included_ms": sent + 240,
                "accepted_ms": sent + 530,
                "finalized_ms": sent + random.randrange(1_000, 2_400),
            }
        messages.append(row)
        for who in range(3):
            record = dict.fromkeys(_RECORD)
            record |= {
                "topic": "stagepost.remp.statuses", "partition": 0, "offset": 3 * number + who, "arrived_ms": sent + 40,
                "message_id": identifier, "signed_hash": f"{3 * number + who:032x}", "kind": "PutIntoQueue", "timestamp_ms": sent + 30 + who,
                "source_id": source_of(who).hex(), "role": "validator",
                "reason": "RECEIPT_SIGNATURE" if random.random() < 0.01 else None,
            }  # fmt: skip
            records.append(record)
    validators = [
        {
            "session_id": session, "validator": who, "source_id": source_of(who).hex(), "messages": count, "queued_first": 12,
            "median_queue_ms": 40 + 9 * who, "p95_queue_ms": 90 + 31 * who, "silent": 2 * (who == 3),
            "contradictions": int(who == 5), "bad_signatures": 3 * (who == 5), "open_new": 0,
        }
        for who in range(7)
    ]  # fmt: skip
    buckets = [now_ms - 3_600_000 + 300_000 * step for step in range(12)]
    stages = [
        {"stage": stage, "wc": 0, "shard": "3800000000000000", "bucket_ms": at, "count": 20, "p50_ms": p50 + random.randrange(40),
         "p95_ms": 2 * p50 + random.randrange(90), "p99_ms": 3 * p50}
        for at in buckets
        for stage, p50 in (("queued", 44), ("included", 240), ("accepted", 530), ("finalized", 1_230))
    ]  # fmt: skip
    bad = [record for record in records if record["reason"] is not None]
    passing = [record for record in records if record["reason"] is None]
    total = Batch(
        rows=len(records),
        passing=len(passing),
        quarantined={"RECEIPT_SIGNATURE": len(bad)},
        greatest_arrival_ms=now_ms,
        counted=len(passing),
    )
    lives = [
        row
        | {"verdict_alive": row["verdict"], "verdict_over": row["verdict"], "first_seen_ms": row["sent_ms"]}
        for row in messages
    ]
    rows = {
        RECORDS: _with_columns(RECORDS, records),
        RECEIPTS: _with_columns(RECEIPTS, passing),
        QUARANTINE: _with_columns(QUARANTINE, bad),
        MESSAGES: lives,
        "validators": validators,
        "stage_latency": stages,
        "rejections": rejections,
        **observatory_tables(Traffic(40, 8, seed)),
    }
    write_lake(folder, rows, Manifest(total=total, reports=Reports(now_ms, 240_000, are_all_made=True)))
    return messages


def _with_columns(table: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without what the table has no column for."""
    from stagepost.pipeline.schemas import STORED

    names = STORED[table].fieldNames()
    return [{name: value for name, value in row.items() if name in names} for row in rows]
