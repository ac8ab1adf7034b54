"""Ten questions to the tables, each in Spark SQL, in DuckDB and in pandas: the three give the same rows.

    python examples/table_queries.py tables

answers all of them by DuckDB, without Spark. `tables` is a folder, or an address such as s3://lake/tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from stagepost.pipeline.tables.query import TableQuery
from stagepost.pipeline.tables.store import TableStore

Frames = Mapping[str, pd.DataFrame]


class Question(NamedTuple):
    """A question and its three answers. `tables` are those that the pandas answer needs, as frames by name."""

    title: str
    tables: tuple[str, ...]
    duckdb: str
    spark: str
    pandas: Callable[[Frames], pd.DataFrame]


def verdicts_by_day(frames: Frames) -> pd.DataFrame:
    found = frames["messages"].groupby(["day", "verdict"]).size().reset_index(name="messages")
    return found.sort_values(["day", "verdict"])


def time_to_finality(frames: Frames) -> pd.DataFrame:
    final = frames["messages"].dropna(subset=["finalized_ms", "sent_ms"])
    took = final.assign(took_ms=final["finalized_ms"] - final["sent_ms"])
    return took.groupby("day")["took_ms"].agg(["count", "min", "max"]).reset_index()


def slowest(frames: Frames) -> pd.DataFrame:
    final = frames["messages"].dropna(subset=["finalized_ms", "sent_ms"])
    took = final.assign(took_ms=final["finalized_ms"] - final["sent_ms"])
    return took.sort_values(["took_ms", "message_id"], ascending=[False, True])[
        ["message_id", "took_ms"]
    ].head(5)


def open_messages(frames: Frames) -> pd.DataFrame:
    rows = frames["messages"]
    found = rows[rows["verdict"].isin(["sent", "queued", "included"])]
    return found.sort_values("message_id")[["message_id", "verdict", "receipts"]]


def silent_members(frames: Frames) -> pd.DataFrame:
    rows = frames["messages"][["session_id", "silent"]].explode("silent").dropna()
    found = rows.groupby(["session_id", "silent"]).size().reset_index(name="messages")
    return found.rename(columns={"silent": "validator"}).sort_values(["session_id", "validator"])


def queue_times(frames: Frames) -> pd.DataFrame:
    found = frames["validators"].dropna(subset=["p95_queue_ms"])
    columns = ["session_id", "validator", "median_queue_ms", "p95_queue_ms"]
    return found.sort_values(["p95_queue_ms", "session_id", "validator"], ascending=[False, True, True])[
        columns
    ].head(5)


def slow_minutes(frames: Frames) -> pd.DataFrame:
    rows = frames["stage_latency"]
    found = rows[rows["stage"] == "finalized"].sort_values(["p95_ms", "bucket_ms"], ascending=[False, True])
    return found[["bucket_ms", "count", "p95_ms"]].head(5)


def reasons(frames: Frames) -> pd.DataFrame:
    found = frames["quarantine"].groupby("reason").size().reset_index(name="records")
    return found.sort_values(["records", "reason"], ascending=[False, True])


def rejection_texts(frames: Frames) -> pd.DataFrame:
    rows = frames["rejections"]
    found = rows.groupby(["level", "error"])["message_id"].nunique().reset_index(name="messages")
    return found.sort_values(["messages", "level", "error"], ascending=[False, True, True])


def receipts_by_kind(frames: Frames) -> pd.DataFrame:
    joined = frames["receipts"].merge(frames["messages"][["message_id", "verdict"]], on="message_id")
    found = (
        joined[joined["verdict"] == "finalized"].groupby(["role", "kind"]).size().reset_index(name="receipts")
    )
    return found.sort_values(["role", "kind"])


_VERDICTS = (
    "SELECT day, verdict, count(*) AS messages FROM messages GROUP BY day, verdict ORDER BY day, verdict"
)
_FINALITY = """
    SELECT day, count(*) AS count, min(finalized_ms - sent_ms) AS min, max(finalized_ms - sent_ms) AS max
    FROM messages WHERE finalized_ms IS NOT NULL AND sent_ms IS NOT NULL GROUP BY day ORDER BY day
"""
_SLOWEST = """
    SELECT message_id, finalized_ms - sent_ms AS took_ms FROM messages
    WHERE finalized_ms IS NOT NULL AND sent_ms IS NOT NULL ORDER BY took_ms DESC, message_id LIMIT 5
"""
_OPEN = """
    SELECT message_id, verdict, receipts FROM messages
    WHERE verdict IN ('sent', 'queued', 'included') ORDER BY message_id
"""
_QUEUE = """
    SELECT session_id, validator, median_queue_ms, p95_queue_ms FROM validators
    WHERE p95_queue_ms IS NOT NULL ORDER BY p95_queue_ms DESC, session_id, validator LIMIT 5
"""
_MINUTES = """
    SELECT bucket_ms, count, p95_ms FROM stage_latency WHERE stage = 'finalized'
    ORDER BY p95_ms DESC, bucket_ms LIMIT 5
"""
_REASONS = "SELECT reason, count(*) AS records FROM quarantine GROUP BY reason ORDER BY records DESC, reason"
_REJECTIONS = """
    SELECT level, error, count(DISTINCT message_id) AS messages FROM rejections WHERE error IS NOT NULL
    GROUP BY level, error ORDER BY messages DESC, level, error
"""
_KINDS = """
    SELECT role, kind, count(*) AS receipts FROM receipts JOIN messages USING (message_id)
    WHERE verdict = 'finalized' GROUP BY role, kind ORDER BY role, kind
"""
_SILENT_DUCKDB = """
    SELECT session_id, validator, count(*) AS messages
    FROM (SELECT session_id, unnest(silent) AS validator FROM messages)
    WHERE session_id IS NOT NULL GROUP BY session_id, validator ORDER BY session_id, validator
"""
_SILENT_SPARK = """
    SELECT session_id, validator, count(*) AS messages
    FROM messages LATERAL VIEW explode(silent) AS validator
    WHERE session_id IS NOT NULL GROUP BY session_id, validator ORDER BY session_id, validator
"""

QUESTIONS = (
    Question("Verdicts by day", ("messages",), _VERDICTS, _VERDICTS, verdicts_by_day),
    Question("Time to finality by day, ms", ("messages",), _FINALITY, _FINALITY, time_to_finality),
    Question("The five slowest messages", ("messages",), _SLOWEST, _SLOWEST, slowest),
    Question("Messages whose way is not at its end", ("messages",), _OPEN, _OPEN, open_messages),
    Question("Silent members", ("messages",), _SILENT_DUCKDB, _SILENT_SPARK, silent_members),
    Question("The five slowest queues", ("validators",), _QUEUE, _QUEUE, queue_times),
    Question("The five slowest minutes", ("stage_latency",), _MINUTES, _MINUTES, slow_minutes),
    Question("Reasons of the quarantine", ("quarantine",), _REASONS, _REASONS, reasons),
    Question("Texts of rejections", ("rejections",), _REJECTIONS, _REJECTIONS, rejection_texts),
    Question("Receipts of finalized messages", ("receipts", "messages"), _KINDS, _KINDS, receipts_by_kind),
)


def answer(store: TableStore, question: Question) -> list[tuple[Any, ...]]:
    """Answer a question by DuckDB."""
    with TableQuery(store, question.duckdb) as found:
        return list(found.rows())


def main() -> None:
    store = TableStore.at(sys.argv[1])
    for question in QUESTIONS:
        print(question.title)
        for row in answer(store, question):
            print("  ", *row)


if __name__ == "__main__":
    main()
