"""The tables `validators` and `complaints`: how each member of each session performed, and the evidence
against it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from stagepost.errors import ErrorCode
from stagepost.pipeline.schemas import COMPLAINTS, VALIDATORS
from stagepost.pipeline.steps.columns import small_table
from stagepost.pipeline.steps.record_checks import passing, quarantined
from stagepost.pipeline.steps.sessions import (
    is_queued,
    members,
    members_said,
    memberships,
    said,
    with_holding_sessions,
)
from stagepost.pipeline.steps.state import merged
from stagepost.pipeline.tables.delta import DAY_MS, day_begin_ms
from stagepost.remp.receipts.status import FIRST_KINDS, LEGAL_STEPS
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.verdict import Conclusion

MEMBER = ("day", "session_id", "validator")
BEFORE_ANYTHING = ""
CONTRADICTION, UNANSWERED = "contradiction", "unanswered"


def members_of_deciding_sessions(state: DataFrame, messages: DataFrame, sets: ValidatorSets) -> DataFrame:
    """Return the last status of each member in the session that decides, with `sent_ms` of the message."""
    spoken = members_said(with_holding_sessions(merged(state), sets)).where(F.col("last").isNotNull())
    everyone = F.broadcast(members(state.sparkSession, sets))
    named = spoken.join(everyone, on=["session", "validator"], how="inner")
    decided = messages.select("message_id", "session_id", "sent_ms", "verdict", "day")
    return named.join(decided, on=["message_id", "session_id"], how="inner")


def with_session_then(rows: DataFrame, sets: ValidatorSets) -> DataFrame:
    """Add `session_id` and `validator`: the newest session of the source at the time that it gave; rows
    without one are dropped.
    """
    table = F.broadcast(memberships(rows.sparkSession, sets))
    held = rows.join(table, on="source_id", how="inner").withColumn("held", F.filter("memberships", _is_then))
    newest = F.array_max(F.transform("held", _by_age))
    return (
        held.withColumn("then", newest)
        .where(F.col("then").isNotNull())
        .select(*rows.columns, "then.session_id", "then.validator")
    )


def _is_then(session: Column) -> Column:
    time = F.col("timestamp_ms")
    return (session["from_ms"].isNull() | (session["from_ms"] <= time)) & (
        session["to_ms"].isNull() | (time < session["to_ms"])
    )


def _by_age(session: Column) -> Column:
    return F.struct(*(session[name].alias(name) for name in ("session", "session_id", "validator")))


def contradictions(distinct: DataFrame, sets: ValidatorSets) -> DataFrame:
    """Return the steps that no validator may take, one row each: `kind` reported after `before` by one source
    about one message.
    """
    spoken = distinct.where(F.col("role") == "validator")
    one_voice = Window.partitionBy("message_id", "source_id").orderBy("timestamp_ms", "level", "rank")
    steps = spoken.withColumn("before", F.coalesce(F.lag("kind").over(one_voice), F.lit(BEFORE_ANYTHING)))
    legal = F.broadcast(_legal_steps(distinct.sparkSession))
    illegal = steps.where(F.col("before") != F.col("kind")).join(
        legal, on=["before", "kind"], how="left_anti"
    )
    return with_session_then(
        illegal.select("message_id", "source_id", "timestamp_ms", "before", "kind", "day"), sets
    )


def _legal_steps(spark: SparkSession) -> DataFrame:
    steps = [(BEFORE_ANYTHING, kind) for kind in sorted(FIRST_KINDS)]
    steps += [(before, kind) for before, following in LEGAL_STEPS.items() for kind in sorted(following)]
    return small_table(spark, steps, "before string, kind string")


def validators(
    spoken: DataFrame,
    messages: DataFrame,
    arrived: DataFrame,
    illegal: DataFrame,
    sets: ValidatorSets,
    days: Sequence[str],
) -> DataFrame:
    """Return, for each day, every member of every session whose window meets it or that has to do with its messages,
    also one that sent nothing. `arrived` are the records of these days.
    """
    first = Window.partitionBy("message_id").orderBy(F.col("queued_ms").asc_nulls_last(), "validator")
    heard = spoken.withColumn("is_first", (F.row_number().over(first) == 1) & F.col("queued_ms").isNotNull())
    heard = heard.withColumn("queue_ms", F.col("queued_ms") - F.col("sent_ms"))
    of_member = heard.groupBy(*MEMBER).agg(
        F.count("*").alias("messages"),
        F.count_if("is_first").alias("queued_first"),
        _percentile("queue_ms", 0.5).alias("median_queue_ms"),
        _percentile("queue_ms", 0.95).alias("p95_queue_ms"),
        F.count_if(said(is_queued)).alias("open_new"),
    )
    silent = (
        messages.select("day", "session_id", F.explode("silent").alias("validator"))
        .groupBy(*MEMBER)
        .agg(F.count("*").alias("silent"))
    )
    forged = quarantined(arrived).where(F.col("reason") == str(ErrorCode.RECEIPT_SIGNATURE))
    forged = with_session_then(forged.select("day", "source_id", "timestamp_ms", "raw_hash").distinct(), sets)
    counts = {
        "bad_signatures": forged.groupBy(*MEMBER).agg(F.count("*").alias("bad_signatures")),
        "contradictions": illegal.groupBy(*MEMBER).agg(F.count("*").alias("contradictions")),
        "silent": silent,
        "messages": of_member,
    }
    spark = messages.sparkSession
    shown = small_table(spark, _open_on(sets, days), "day string, session_id string")
    for table in counts.values():
        shown = shown.unionByName(table.select("day", "session_id"))
    everyone = F.broadcast(members(spark, sets).drop("session"))
    found = shown.distinct().join(everyone, on="session_id", how="inner")
    for table in counts.values():
        found = found.join(table, on=list(MEMBER), how="left")
    numbers = ("messages", "queued_first", "silent", "contradictions", "bad_signatures", "open_new")
    return found.fillna(0, subset=list(numbers)).select(*VALIDATORS.fieldNames(), "day")


def _open_on(sets: ValidatorSets, days: Sequence[str]) -> list[tuple[str, str]]:
    """Return days with the sessions whose windows meet them."""
    begins = {day: day_begin_ms(day) for day in days}
    return [
        (day, session.session_id.hex())
        for day, begin_ms in begins.items()
        for session in sets.sessions.values()
        if (session.from_ms is None or session.from_ms < begin_ms + DAY_MS)
        and (session.to_ms is None or session.to_ms > begin_ms)
    ]


def _percentile(column: str, share: float) -> Column:
    """Return the percentile among the values themselves; none is interpolated between two of them."""
    return F.expr(f"percentile_disc({share}) WITHIN GROUP (ORDER BY {column})").cast("bigint")


def complaints(spoken: DataFrame, illegal: DataFrame, records: DataFrame) -> DataFrame:
    """Return contradictions, and messages that expired although a validator had them and never closed them.

    The evidence is all that the validator signed about the message, as it came: anybody can check it.
    """
    open_at_end = spoken.where((F.col("verdict") == Conclusion.EXPIRED.value) & said(is_queued))
    unanswered = open_at_end.select(
        F.lit(UNANSWERED).alias("kind"), "message_id", "source_id", "session_id", "day"
    )
    contradicting = illegal.select(
        F.lit(CONTRADICTION).alias("kind"), "message_id", "source_id", "session_id", "day"
    )
    found = unanswered.unionByName(contradicting).distinct()
    named = ("kind", "message_id", "source_id", "session_id")
    proofs = passing(records).select(
        "message_id", "source_id", F.col("value").cast("string").alias("receipt")
    )
    proven = (
        found.join(proofs, on=["message_id", "source_id"], how="inner")
        .groupBy(*named, "day")
        .agg(F.to_json(F.array_sort(F.collect_set("receipt"))).alias("evidence"))
    )
    return proven.withColumn("complaint_id", F.sha2(F.concat_ws("|", *named), 256)).select(
        *COMPLAINTS.fieldNames(), "day"
    )
