"""The sessions that a message's state rows belong to, the last statuses of their members, and the session
that decides.

Column expressions of the rules that `remp.verdict` states in plain Python; a property test compares the two.
The validator sets become small tables to join with. Sessions are numbered by their age: numbers are compared,
grouped and moved at a fraction of the cost of ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.pipeline.steps.columns import built_once, small_table
from stagepost.pipeline.steps.state import code
from stagepost.remp.receipts.status import KINDS, Kind, Level, Status, is_closed
from stagepost.remp.validator_sets import Session, ValidatorSets

_MEMBERSHIPS = (
    "source_id string, memberships array<struct<session int, session_id string, validator int, size int, wc int, "
    "shard string, from_ms bigint, to_ms bigint>>"
)
_SESSIONS = "session int, session_id string, session_wc int, session_shard string"

_Membership = dict[str, int | str | None]


def by_age(sets: ValidatorSets) -> list[Session]:
    """Return the sessions by age. The place in this list is the session's number: the greater, the newer."""
    return sorted(sets.sessions.values(), key=lambda session: session.age_key)


def memberships(spark: SparkSession, sets: ValidatorSets) -> DataFrame:
    """Return the sessions that a validator belongs to, by key id. Shards are sixteen hexadecimal digits."""
    by_source: dict[str, list[_Membership]] = {}
    for number, session in enumerate(by_age(sets)):
        for validator in session.validators:
            by_source.setdefault(validator.key_id.hex(), []).append(
                {
                    "session": number,
                    "session_id": session.session_id.hex(),
                    "validator": validator.index,
                    "size": session.size,
                    "wc": session.workchain,
                    "shard": f"{session.shard:016x}",
                    "from_ms": session.from_ms,
                    "to_ms": session.to_ms,
                }
            )
    return small_table(spark, list(by_source.items()), _MEMBERSHIPS)


def sessions_by_number(spark: SparkSession, sets: ValidatorSets) -> DataFrame:
    rows = [
        (number, session.session_id.hex(), session.workchain, f"{session.shard:016x}")
        for number, session in enumerate(by_age(sets))
    ]
    return small_table(spark, rows, _SESSIONS)


_VALIDATORS_KINDS = tuple(kind for kind in KINDS if kind.level is not Level.FULLNODE)


def with_holding_sessions(state: DataFrame, sets: ValidatorSets) -> DataFrame:
    """Add `holding` to the rows of validators: sessions with the validator as a member whose window meets the
    row's times, each with `is_candidate` and `is_hinted`.
    """
    table = F.broadcast(memberships(state.sparkSession, sets))
    holding = _holding()
    rows = state.where(holding.is_of_validator).join(table, on="source_id", how="inner")
    rows = rows.withColumn("held", holding.held).withColumns(holding.has)
    return rows.select(*state.columns, holding.judged)


class _Holding(NamedTuple):
    is_of_validator: Column
    held: Column
    has: dict[str, Column]
    judged: Column


@built_once
def _holding() -> _Holding:
    return _Holding(
        F.col("role") == "validator",
        F.filter("memberships", _meets),
        {"has_hinted": F.exists("held", _is_hinted), "has_of_shard": F.exists("held", _is_of_shard)},
        F.transform("held", _judged).alias("holding"),
    )


def _meets(session: Column) -> Column:
    starts_before = session["from_ms"].isNull() | (session["from_ms"] <= F.col("last_ms"))
    ends_after = session["to_ms"].isNull() | (F.col("first_ms") < session["to_ms"])
    return starts_before & ends_after


def _is_hinted(session: Column) -> Column:
    return F.coalesce(session["session_id"] == F.col("session_hint"), F.lit(False))


def _is_of_shard(session: Column) -> Column:
    return F.coalesce(
        (session["wc"] == F.col("wc")) & (session["shard"] == F.col("shard")),
        F.lit(False),
    )


def _judged(session: Column) -> Column:
    is_candidate = (
        F.when(F.col("has_hinted"), _is_hinted(session))
        .when(F.col("has_of_shard"), _is_of_shard(session))
        .otherwise(F.lit(True))
    )
    return F.struct(
        session["session"].alias("session"),
        session["validator"].alias("validator"),
        session["size"].alias("size"),
        is_candidate.alias("is_candidate"),
        _is_hinted(session).alias("is_hinted"),
    )


def members_said(rows: DataFrame) -> DataFrame:
    """Return a row for each message, session and member: its rows there, joined. `last` is null where none is
    a candidate.
    """
    spoken = _spoken()
    each = rows.select(*spoken.columns).where(spoken.has_session)
    joined = each.groupBy("message_id", "session", "validator").agg(*spoken.joined)
    return joined.withColumn("code", code())


class _Spoken(NamedTuple):
    columns: tuple[Column | str, ...]
    has_session: Column
    joined: tuple[Column, ...]


@built_once
def _spoken() -> _Spoken:
    # Outer, or Spark would look into every list a second time before, only to find out whether it is empty.
    columns = (
        "message_id",
        "last",
        "last_ms",
        "first_ms",
        "queued_ms",
        "has_finalized",
        F.inline_outer("holding"),
    )
    counting = F.col("is_candidate")
    joined = (
        F.max("size").alias("size"),
        F.max(F.when(counting, F.col("last"))).alias("last"),
        F.max(F.when(counting, F.col("last_ms"))).alias("last_ms"),
        F.min(F.when(counting, F.col("first_ms"))).alias("first_ms"),
        F.min(F.when(counting, F.col("queued_ms"))).alias("queued_ms"),
        F.bool_or("is_hinted").alias("is_hinted"),
        F.bool_or("has_finalized").alias("has_finalized"),
    )
    return _Spoken(columns, F.col("session").isNotNull(), joined)


def sessions_said(members: DataFrame) -> DataFrame:
    """Return a row for each message and session that holds a row of it: counts of its members' statuses."""
    return members.groupBy("message_id", "session").agg(*_counted())


@built_once
def _counted() -> tuple[Column, ...]:
    spoke = F.col("last").isNotNull()
    return (
        F.max("size").alias("size"),
        _count(spoke).alias("speakers"),
        _count(F.col("is_hinted")).alias("hinted"),
        _count(F.col("has_finalized")).alias("finalizing"),
        _count(said(is_in_accepted_block)).alias("accepting"),
        _count(said(is_rejecting)).alias("rejecting"),
        _count(said(lambda kind: is_closed(kind.status))).alias("closed"),
        _count(said(is_included)).alias("including"),
        F.array_sort(F.collect_list("first_ms")).alias("first_times"),
        _members(said(is_queued)).alias("queued_at"),
        _members(said(is_rejecting)).alias("rejected_by"),
        _members(spoke).alias("heard"),
    )


def _count(condition: Column) -> Column:
    return F.sum(F.when(condition, 1).otherwise(0)).cast("int")


def _members(condition: Column) -> Column:
    return F.array_sort(F.collect_list(F.when(condition, F.col("validator"))))


def said(is_meant: Callable[[Kind], bool]) -> Column:
    """Return whether the last status is of a kind for which `is_meant` holds."""
    return F.coalesce(F.col("code").isin(codes(is_meant)), F.lit(False))


def codes(is_meant: Callable[[Kind], bool]) -> list[int]:
    """Return level and rank, in one number as `state.code` has them, of the kinds for which `is_meant` holds."""
    return [8 * int(kind.level) + kind.rank for kind in _VALIDATORS_KINDS if is_meant(kind)]


def is_queued(kind: Kind) -> bool:
    return kind.status in (Status.NEW, Status.IGNORED, Status.DUPLICATE) or (
        kind.status is Status.ACCEPTED and kind.level is Level.QUEUE
    )


def is_rejecting(kind: Kind) -> bool:
    return kind.status is Status.REJECTED


def is_in_accepted_block(kind: Kind) -> bool:
    return kind.status is Status.ACCEPTED and kind.level in (Level.SHARDCHAIN, Level.MASTERCHAIN)


def is_included(kind: Kind) -> bool:
    return kind.status is Status.ACCEPTED and kind.level is Level.COLLATOR


_SUMMARY = (
    "size",
    "hinted",
    "speakers",
    "accepting",
    "rejecting",
    "closed",
    "including",
    "first_times",
    "queued_at",
    "rejected_by",
    "heard",
)


def sessions_of_messages(sessions: DataFrame) -> DataFrame:
    """Return a row for each message that a validator reported on: all its sessions, and whether one of them
    has finalized it.
    """
    return sessions.groupBy("message_id").agg(*_summed_up())


@built_once
def _summed_up() -> tuple[Column, ...]:
    summary = F.struct(F.col("session").alias("number"), *(F.col(name) for name in _SUMMARY))
    is_candidate = F.col("speakers") > 0
    return (
        F.collect_list(F.when(is_candidate, summary)).alias("sessions"),
        F.bool_or(3 * F.col("finalizing") > F.col("size")).alias("is_finalized_by_validators"),
    )


@built_once
def deciding_session() -> Column:
    """Return the session among `sessions` that decides.

    A session that more than a third of its members named by their hint comes first, the newest among those.
    Among all others the order is: most speakers, then the size that the full node counted, then the newest.
    """
    total_validators = F.col("total_validators")

    def placed(session: Column) -> Column:
        is_heard = 3 * session["hinted"] > session["size"]
        return F.struct(
            is_heard.alias("is_heard"),
            F.when(is_heard, 0).otherwise(session["speakers"]).alias("speakers"),
            (~is_heard & F.coalesce(session["size"] == total_validators, F.lit(False))).alias("has_size"),
            session["number"].alias("number"),
            session.alias("session"),
        )

    return F.array_max(F.transform("sessions", placed))["session"]
