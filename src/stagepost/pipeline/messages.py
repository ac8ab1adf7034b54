"""The table `messages`: one life line and one verdict for each message, evaluated from merged state, sets and time."""

from __future__ import annotations

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.memberships import sessions_by_number
from stagepost.pipeline.schemas import MESSAGES, STAGES, STATE, expect
from stagepost.pipeline.sessions import (
    deciding_session,
    members_said,
    sessions_of_messages,
    sessions_said,
    with_holding_sessions,
)
from stagepost.pipeline.state import merged
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict import Conclusion


class Moment(msgspec.Struct, frozen=True):
    """When and by which patience a verdict is reached. `as_of_ms` None: life is never over."""

    as_of_ms: int | None
    message_timeout_ms: int


def messages(state: DataFrame, bad: DataFrame, sets: ValidatorSets, moment: Moment) -> DataFrame:
    """`state` in any number of parts; `bad` has a row for each quarantined row: message_id and raw_hash."""
    # Once by message: all that follows groups by it, so no row has to move again.
    near = expect(state, STATE).repartition("message_id")
    heard = sessions_of_messages(sessions_said(members_said(with_holding_sessions(merged(near), sets))))
    found = message_facts(near).join(heard, on="message_id", how="left")
    found = found.withColumn("decided", deciding_session(F.col("sessions"), F.col("total_validators")))
    found = found.withColumn("is_life_over", is_life_over(moment))
    found = found.withColumn("verdict", verdict())
    names = F.broadcast(sessions_by_number(state.sparkSession, sets))
    found = found.join(names, on=F.col("decided.number") == names["session"], how="left")
    found = found.join(bad_rows(bad), on="message_id", how="left")
    return found.select(*_columns())


def message_facts(state: DataFrame) -> DataFrame:
    """What does not depend on sessions: stages, what full nodes said, ids of other layers, distinct receipts."""
    of_full_node = F.col("role") == "full_node"
    return state.groupBy("message_id").agg(
        *(F.min(f"{stage}_ms").alias(f"{stage}_ms") for stage in STAGES),
        F.min(F.when(of_full_node, F.col("rejected_ms"))).alias("rejected_by_full_node_ms"),
        F.min(F.when(of_full_node, F.col("finalized_ms"))).alias("finalized_by_full_node_ms"),
        F.max("total_validators").alias("total_validators"),
        F.bool_or(~of_full_node).alias("has_validators"),
        F.min("delivery_id").alias("delivery_id"),
        F.min("dmq_id").alias("dmq_id"),
        F.size(F.array_distinct(F.flatten(F.collect_list("signed_hashes")))).cast("bigint").alias("receipts"),
    )


def bad_rows(bad: DataFrame) -> DataFrame:
    named = bad.where(F.col("message_id").isNotNull())
    return named.groupBy("message_id").agg(F.count_distinct("raw_hash").alias("receipts_bad"))


def is_life_over(moment: Moment) -> Column:
    """First seen: when a full node sent it; else when one more than a third of the deciding session had it."""
    if moment.as_of_ms is None:
        return F.lit(False)
    times = F.col("decided.first_times")
    place = F.least(F.floor(F.col("decided.size") / 3), F.size(times) - 1).cast("int")
    by_members = F.when(F.size(times) > 0, F.get(times, place))
    first_seen = F.coalesce(F.col("sent_ms"), by_members)
    age = F.lit(moment.as_of_ms).cast("decimal(20,0)") - first_seen
    return F.coalesce(age > moment.message_timeout_ms, F.lit(False))


def verdict() -> Column:
    """The first rule that holds. Rules that need the size of a session do not hold without one."""
    size = F.coalesce(F.col("decided.size"), F.lit(0))
    has_session = size > 0
    accepting, rejecting, closed, including = (
        F.coalesce(F.col(f"decided.{name}"), F.lit(0))
        for name in ("accepting", "rejecting", "closed", "including")
    )
    is_over = F.col("is_life_over")
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


def _columns() -> list[Column]:
    empty = F.array().cast("array<int>")
    members = F.sequence(F.lit(0), F.col("decided.size") - 1)
    computed = {
        "validators": F.col("decided.size"),
        "queued_at": F.coalesce(F.col("decided.queued_at"), empty),
        "rejected_by": F.coalesce(F.col("decided.rejected_by"), empty),
        "silent": F.coalesce(F.array_except(members, F.col("decided.heard")), empty),
        "receipts_bad": F.coalesce(F.col("receipts_bad"), F.lit(0).cast("bigint")),
    }
    return [computed.get(name, F.col(name)).alias(name) for name in MESSAGES.fieldNames()]
