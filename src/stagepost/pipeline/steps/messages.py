"""A row for the life of each message, evaluated from merged state and sets; and the table `messages`, which
adds the moment.

Only the verdict depends on when it is asked for, and only through one question: is the message's life over?
So both answers are worked out once, and the moment chooses between them when the table is read. No row has to
be evaluated again because time has passed.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from stagepost.pipeline.schemas import LIVES, MESSAGES, STAGES, STATE, expect
from stagepost.pipeline.steps.columns import built_once
from stagepost.pipeline.steps.partial_state import FULL_NODES, OF_MESSAGES, QUARANTINE, VALIDATORS
from stagepost.pipeline.steps.sessions import (
    deciding_session,
    members_said,
    sessions_by_number,
    sessions_of_messages,
    sessions_said,
    with_holding_sessions,
)
from stagepost.pipeline.steps.state import merged
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.verdict import Conclusion


class Moment(msgspec.Struct, frozen=True):
    """The time and the message time-out by which a verdict is reached. `as_of_ms` None: a message never
    expires.
    """

    as_of_ms: int | None
    message_timeout_ms: int


GENERATION_DIGITS = 16


def lives(
    state: DataFrame,
    known: DataFrame | None,
    sets: ValidatorSets,
    generation: int,
    *,
    parts: int | None = None,
) -> DataFrame:
    """Return the lives of messages from `state`, in any number of pieces, and the rows `known` of the same
    messages from earlier commits, if any.

    `parts` is the number of parts into which the messages are divided, one after another in each core's
    memory; None: as Spark is set.
    """
    whole = expect(state, STATE)
    if known is not None:
        whole = whole.withColumn("is_known", F.lit(False)).unionByName(
            expect(known, STATE).withColumn("is_known", F.lit(True))
        )
    # Once by message: all that follows groups by it, so no row has to move again.
    near = whole.repartition("message_id") if parts is None else whole.repartition(parts, "message_id")
    heard = sessions_of_messages(sessions_said(members_said(with_holding_sessions(merged(near), sets))))
    facts = message_facts(near, has_known=known is not None)
    # Both sides are small for each message and already in place: a table of one side, and no sorting of both.
    found = facts.join(heard.hint("shuffle_hash"), on="message_id", how="left")
    found = found.withColumn("decided", deciding_session())
    names = F.broadcast(sessions_by_number(state.sparkSession, sets))
    found = found.join(names, on=F.col("decided.number") == names["session"], how="left")
    return found.select(*_columns(generation))


def newest(rows: DataFrame) -> DataFrame:
    """Return the last of several evaluations of each message, with the columns of `LIVES`."""
    of_message = Window.partitionBy("message_id").orderBy(F.col("generation").desc())
    return rows.withColumn("place", F.row_number().over(of_message)).where("place = 1").drop("place")


def messages(rows: DataFrame, moment: Moment) -> DataFrame:
    """Return the table, from lives of which each message has one."""
    shown = rows.withColumn(
        "verdict",
        F.when(is_life_over(moment), F.col("verdict_over")).otherwise(F.col("verdict_alive")),
    )
    return shown.select(*MESSAGES.fieldNames())


def message_facts(state: DataFrame, *, has_known: bool) -> DataFrame:
    """Return the facts that do not depend on sessions: stages, statuses of full nodes, ids of other layers,
    distinct receipts.

    A message of which all receipts are quarantined has no row.
    """
    facts = _facts()
    before = facts.known if has_known else facts.none_known
    found = state.where(facts.is_of_messages).groupBy("message_id").agg(*facts.joined, before)
    return found.where(facts.has_receipts)


class _Facts(NamedTuple):
    is_of_messages: Column
    joined: tuple[Column, ...]
    known: Column
    none_known: Column
    has_receipts: Column


@built_once
def _facts() -> _Facts:
    of_full_node = F.col("role") == FULL_NODES
    is_bad = F.col("role") == QUARANTINE
    joined = (
        *(F.min(f"{stage}_ms").alias(f"{stage}_ms") for stage in STAGES),
        F.min(F.when(of_full_node, F.col("rejected_ms"))).alias("rejected_by_full_node_ms"),
        F.min(F.when(of_full_node, F.col("finalized_ms"))).alias("finalized_by_full_node_ms"),
        F.max("total_validators").alias("total_validators"),
        F.bool_or(F.col("role") == VALIDATORS).alias("has_validators"),
        F.min("delivery_id").alias("delivery_id"),
        F.min("dmq_id").alias("dmq_id"),
        _distinct(~is_bad).alias("receipts"),
        _distinct(is_bad).alias("receipts_bad"),
    )
    return _Facts(
        F.col("role").isin(*OF_MESSAGES),
        joined,
        _distinct(~is_bad & F.col("is_known")).alias("receipts_before"),
        F.lit(0).cast("bigint").alias("receipts_before"),
        F.col("receipts") > 0,
    )


def _distinct(condition: Column) -> Column:
    hashes = F.collect_list(F.when(condition, F.col("signed_hashes")))
    return F.size(F.array_distinct(F.flatten(hashes))).cast("bigint")


def first_seen() -> Column:
    """Return the time at which a full node sent the message; else that at which more than a third of the
    deciding session had it.
    """
    times = F.col("decided.first_times")
    place = F.least(F.floor(F.col("decided.size") / 3), F.size(times) - 1).cast("int")
    return F.coalesce(F.col("sent_ms"), F.when(F.size(times) > 0, F.get(times, place)))


def is_life_over(moment: Moment) -> Column:
    if moment.as_of_ms is None:
        return F.lit(False)
    age = F.lit(moment.as_of_ms).cast("decimal(20,0)") - F.col("first_seen_ms")
    return F.coalesce(age > moment.message_timeout_ms, F.lit(False))


def verdict(is_over: Column) -> Column:
    """Return the verdict of the first rule that holds. A rule that needs the size of a session does not hold
    without one.
    """
    size = F.coalesce(F.col("decided.size"), F.lit(0))
    has_session = size > 0
    accepting, rejecting, closed, including = (
        F.coalesce(F.col(f"decided.{name}"), F.lit(0))
        for name in ("accepting", "rejecting", "closed", "including")
    )
    is_finalized = F.col("finalized_by_full_node_ms").isNotNull() | F.coalesce(
        F.col("is_finalized_by_validators"), F.lit(False)
    )
    was_refused = F.col("rejected_by_full_node_ms").isNotNull() & F.col("sent_ms").isNull()
    do_most_reject = has_session & (3 * rejecting >= 2 * size)
    are_all_closed = has_session & (closed == size)
    rules = (
        (Conclusion.FINALIZED, is_finalized),
        (Conclusion.ACCEPTED, (accepting > 0) & (~is_over | (3 * accepting > size))),
        (Conclusion.REJECTED_BY_FULLNODE, was_refused & ~F.col("has_validators")),
        (Conclusion.REJECTED, do_most_reject & (are_all_closed | is_over)),
        (Conclusion.EXPIRED, are_all_closed | is_over),
        (Conclusion.LIKELY_REJECTED, do_most_reject),
        (Conclusion.INCLUDED, including > 0),
        (Conclusion.QUEUED, F.col("has_validators")),
    )
    found = F
    for conclusion, holds in rules:
        found = found.when(holds, conclusion.value)
    return found.otherwise(Conclusion.SENT.value)


def _columns(generation: int) -> list[Column]:
    present = F.lit(f"{generation:0{GENERATION_DIGITS}d}").alias("generation")
    return [present if column is None else column for column in _columns_but_generation()]


@built_once
def _columns_but_generation() -> list[Column | None]:
    """Return the columns in the order of `LIVES`; None where the generation stands."""
    empty = F.array().cast("array<int>")
    members = F.sequence(F.lit(0), F.col("decided.size") - 1)
    computed = {
        "verdict_alive": verdict(F.lit(False)),
        "verdict_over": verdict(F.lit(True)),
        "first_seen_ms": first_seen(),
        "validators": F.col("decided.size"),
        "queued_at": F.coalesce(F.col("decided.queued_at"), empty),
        "rejected_by": F.coalesce(F.col("decided.rejected_by"), empty),
        "silent": F.coalesce(F.array_except(members, F.col("decided.heard")), empty),
    }
    return [
        None if name == "generation" else computed.get(name, F.col(name)).alias(name)
        for name in LIVES.fieldNames()
    ]
