"""Small Delta tables with every column of the dictionary, written without Spark: for readers, queries and commands."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from random import Random
from typing import Any

import msgspec
import pyarrow as pa

from stagepost.pipeline.dictionary import BY_NAME, TableEntry, commented
from stagepost.pipeline.tables.delta import Commit, DataFile, DayFile, LakeTable
from stagepost.pipeline.tables.manifest import COMMITS, RECORDS, Batch, Manifest, Reports
from stagepost.pipeline.tables.store import TableStore

SEED = 22
MESSAGES = 60
MEMBERS = 4
DAYS = ("2026-01-30", "2026-01-31", "2026-02-01")
DAY_MS = 86_400_000
FIRST_MS = 1_769_731_200_000
"""Unix ms: the beginning of the first of `DAYS`."""

VERDICTS = ("finalized", "finalized", "finalized", "accepted", "queued", "sent", "rejected", "expired")
TYPES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "array<integer>": pa.list_(pa.int32()),
    "date": pa.date32(),
}

Rows = dict[str, list[dict[str, Any]]]


def schema_of(entry: TableEntry) -> pa.Schema:
    return commented(entry.name, pa.schema([(one.name, TYPES[one.type]) for one in entry.columns]))


def name_of(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def small_rows(seed: int = SEED) -> Rows:
    """Return the rows of every table; each has a key `day`."""
    choices = Random(seed)
    rows: Rows = defaultdict(list)
    for number in range(MESSAGES):
        _enter_message(rows, number, choices)
    for session in range(2):
        for validator in range(MEMBERS):
            rows["validators"].append(
                {
                    "session_id": name_of("session", session),
                    "validator": validator,
                    "source_id": name_of("member", validator),
                    "messages": choices.randrange(50),
                    "queued_first": choices.randrange(20),
                    "median_queue_ms": choices.choice([None, choices.randrange(100)]),
                    "p95_queue_ms": choices.choice([None, choices.randrange(100, 900)]),
                    "silent": choices.randrange(9),
                    "contradictions": choices.randrange(2),
                    "bad_signatures": 0,
                    "open_new": choices.randrange(3),
                    "day": DAYS[session],
                }
            )
    rows["alerts"].append(
        {
            "alert_id": name_of("alert"),
            "kind": "expired",
            "subject": name_of("message", 7),
            "since_ms": FIRST_MS,
            "detail": "=1+1, a text that a spreadsheet would take for a formula",
            "day": DAYS[0],
        }
    )
    return rows


def _enter_message(rows: Rows, number: int, choices: Random) -> None:
    place = choices.randrange(len(DAYS))
    day, verdict = DAYS[place], choices.choice(VERDICTS)
    sent_ms = FIRST_MS + place * DAY_MS + choices.randrange(DAY_MS)
    message_id, session = name_of("message", number), name_of("session", number % 2)
    silent = sorted(choices.sample(range(MEMBERS), choices.randrange(MEMBERS)))
    has_session = verdict != "sent"
    final_ms = sent_ms + choices.randrange(400, 5_000) if verdict == "finalized" else None
    message = dict.fromkeys((column.name for column in BY_NAME["messages"].columns), None) | {
        "message_id": message_id,
        "verdict": verdict,
        "sent_ms": sent_ms,
        "finalized_ms": final_ms,
        "session_id": session if has_session else None,
        "validators": MEMBERS if has_session else None,
        "queued_at": [],
        "rejected_by": [0, 1, 2] if verdict == "rejected" else [],
        "silent": silent if has_session else [],
        "receipts": 1 + MEMBERS - len(silent),
        "receipts_bad": 0,
        "proof": "none",
        "day": day,
    }
    rows["messages"].append(message)
    for member in range(-1, MEMBERS):
        if member in silent:
            continue
        kind = "SentToValidators" if member < 0 else choices.choice(["PutIntoQueue", "IncludedIntoBlock"])
        receipt = dict.fromkeys((column.name for column in BY_NAME["receipts"].columns), None) | {
            "message_id": message_id,
            "kind": kind,
            "level": 0 if member < 0 else 1,
            "status": "SentToValidators" if member < 0 else "New",
            "timestamp_ms": sent_ms + 10 * (member + 1),
            "source_id": name_of("member", member),
            "role": "full node" if member < 0 else "validator",
            "day": day,
        }
        rows["receipts"].append(receipt)
    if verdict == "rejected":
        for member in range(3):
            rows["rejections"].append(
                {
                    "message_id": message_id,
                    "source_id": name_of("member", member),
                    "level": 2,
                    "error": choices.choice(["contract error 52", "too old"]),
                    "timestamp_ms": sent_ms + 300,
                    "day": day,
                }
            )
    if final_ms is not None:
        rows["stage_latency"].append(
            {
                "stage": "finalized",
                "wc": 0,
                "shard": "8000000000000000",
                "bucket_ms": sent_ms - sent_ms % 60_000,
                "count": 1,
                **{f"p{share}_ms": final_ms - sent_ms for share in (50, 95, 99)},
                "day": day,
            }
        )
    if choices.random() < 0.3:
        rows["quarantine"].append(
            {
                "reason": choices.choice(["RECEIPT_SIGNATURE", "RECEIPT_FORMAT", "RECEIPT_SOURCE"]),
                "topic": "stagepost.remp.statuses",
                "partition": 0,
                "offset": number,
                "arrived_ms": sent_ms,
                "message_id": message_id,
                "raw": b"\x00\xff" + bytes([number]),
                "day": day,
            }
        )


def write_small_lake(store: TableStore, seed: int = SEED) -> Rows:
    """Write every table of the dictionary into `store`, `messages` in two commits; return the rows."""
    rows = small_rows(seed)
    for name, entry in BY_NAME.items():
        table = LakeTable(store, name, schema_of(entry))
        table.make()
        halves = (rows[name][::2], rows[name][1::2]) if name == "messages" else (rows[name],)
        for number, some in enumerate(halves):
            files = _files(store, name, schema_of(entry), some)
            if files:
                table.commit(Commit(files, transactions={"small": number}))
    return rows


LIFE = pa.schema(
    [
        ("verdict_alive", pa.string()),
        ("verdict_over", pa.string()),
        ("first_seen_ms", pa.int64()),
        ("days", pa.list_(pa.string())),
        ("ends", pa.list_(pa.string())),
        ("open_since_ms", pa.int64()),
    ]
)
"""Columns of the stored `messages` that the dictionary does not show."""


def write_published_lake(store: TableStore, seed: int = SEED) -> Rows:
    """Write the tables as a driver leaves them: with the columns of lives, without records, and with a manifest."""
    rows = small_rows(seed)
    for row in rows["messages"]:
        row |= {"verdict_alive": row["verdict"], "verdict_over": row["verdict"], "days": [row["day"]]}
        row |= {"ends": []}
        row |= {"first_seen_ms": row["sent_ms"], "open_since_ms": None}
    versions = {}
    commits = LakeTable(store, COMMITS, pa.schema([("generation", pa.int64())]))
    commits.make()
    for name, entry in (*BY_NAME.items(), (RECORDS, None)):
        schema = pa.schema([("topic", pa.string())]) if entry is None else schema_of(entry)
        whole = pa.unify_schemas([schema, LIFE]) if name == "messages" else schema
        table = LakeTable(store, name, whole)
        table.make()
        if rows[name]:
            table.commit(Commit(_files(store, name, whole, rows[name])))
        versions[name] = table.version
    total = Batch(rows=len(rows["receipts"]) + len(rows["quarantine"]), passing=len(rows["receipts"]))
    manifest = Manifest(
        generation=1, total=total, reports=Reports(None, 240_000, are_all_made=True), versions=versions
    )
    commits.commit(Commit(account=msgspec.to_builtins(manifest)))
    return rows


def _files(
    store: TableStore, name: str, schema: pa.Schema, rows: list[dict[str, Any]]
) -> tuple[DataFile, ...]:
    found = []
    for day in sorted({row["day"] for row in rows}):
        file = DayFile(store, name, day, schema)
        some = [
            {key: value for key, value in row.items() if key != "day"} for row in rows if row["day"] == day
        ]
        file.write(pa.Table.from_pylist(some, schema))
        found.append(file.close())
    return tuple(found)
