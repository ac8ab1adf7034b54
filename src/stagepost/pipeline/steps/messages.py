"""A row for the life of each message, evaluated from merged state and sets; and the rows of `messages`, which
add the moment.

Only the verdict depends on when it is asked for, and only through one question: is the message's life over?
So both answers are worked out once, and the moment chooses between them. No row has to be evaluated again
because time has passed.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from stagepost.pipeline.schemas import LIVES, MESSAGE_ROWS, STAGES, STATE, expect, with_day
from stagepost.pipeline.steps.columns import arrow_schema, built_once
from stagepost.pipeline.steps.partial_state import FULL_NODES, OF_MESSAGES, PROOF, QUARANTINE, VALIDATORS
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
from stagepost.remp.verdict.verdict import NO_PROOF, Conclusion


class Moment(msgspec.Struct, frozen=True):
    """The time and the message time-out by which a verdict is reached. `as_of_ms` None: a message never
    expires. `awaits_proofs`: proofs can be checked, so a Finalized that has none when the life is over is reported.
    """

    as_of_ms: int | None
    message_timeout_ms: int
    awaits_proofs: bool = False

    @property
    def over_before_ms(self) -> int:
        """Return the time before which a message must have been first seen for its life to be over."""
        if self.as_of_ms is None:
            return 0
        return min(max(self.as_of_ms - self.message_timeout_ms, 0), TIME_MS_MAX)


TIME_MS_MAX = (1 << 63) - 1


def lives(
    state: DataFrame,
    known: DataFrame | None,
    sets: ValidatorSets,
    *,
    parts: int | None = None,
) -> DataFrame:
    """Return the lives of messages from `state`, in any number of pieces, and the rows `known` of the same
    messages from earlier commits, if any.

    `parts` is the number of parts into which the messages are divided, one after another in each core's
    memory; None: as Spark is set.
    """
    whole = expect(state, with_day(STATE))
    if known is not None:
        whole = whole.withColumn("is_known", F.lit(False)).unionByName(
            expect(known, with_day(STATE)).withColumn("is_known", F.lit(True))
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
    return found.select(*_columns())


def at_moment(rows: pa.Table, moment: Moment) -> pa.Table:
    """Return rows of `messages` as they are stored, with `day`, from lives."""
    first_seen = rows["first_seen_ms"]
    is_over = pc.fill_null(pc.less(first_seen, moment.over_before_ms), False)
    alive, over = rows["verdict_alive"], rows["verdict_over"]
    is_due = pc.not_equal(alive, over)
    if moment.awaits_proofs:
        is_unproved = pc.and_(pc.is_valid(rows["finalized_ms"]), pc.equal(rows["proof"], NO_PROOF))
        is_due = pc.or_(is_due, is_unproved)
    is_open = pc.and_(pc.invert(is_over), is_due)
    added = {
        "verdict": pc.if_else(is_over, over, alive),
        "open_since_ms": pc.if_else(is_open, first_seen, pa.scalar(None, pa.int64())),
        "day": pc.cast(rows["day"], pa.date32()),
    }
    schema = arrow_schema(MESSAGE_ROWS).append(pa.field("day", pa.date32()))
    found = [added.get(name, rows[name] if name in rows.column_names else None) for name in schema.names]
    return pa.Table.from_arrays(found, names=schema.names).cast(schema)


def message_facts(state: DataFrame, *, has_known: bool) -> DataFrame:
    """Return the facts that do not depend on sessions: stages, statuses of full nodes, ids of other layers,
    distinct receipts.

    A message of which all receipts are quarantined has no row.
    """
    facts = _facts()
    before = facts.known if has_known else facts.none_known
    found = state.where(facts.is_of_messages).groupBy("message_id").agg(*facts.joined, *before)
    return found.where(facts.has_receipts)


class _Facts(NamedTuple):
    is_of_messages: Column
    joined: tuple[Column, ...]
    known: tuple[Column, ...]
    none_known: tuple[Column, ...]
    has_receipts: Column


@built_once
def _facts() -> _Facts:
    of_full_node = F.col("role") == FULL_NODES
    is_bad = F.col("role") == QUARANTINE
    is_receipt = F.col("role").isin(FULL_NODES, VALIDATORS)
    is_proof = F.col("role") == PROOF
    # By name, an execution is the least of the ends: order and repetition of proofs change nothing.
    end = F.struct("proof", "proof_block", "executed_as")
    joined = (
        *(F.min(f"{stage}_ms").alias(f"{stage}_ms") for stage in STAGES),
        F.min(F.when(of_full_node, F.col("rejected_ms"))).alias("rejected_by_full_node_ms"),
        F.min(F.when(of_full_node, F.col("finalized_ms"))).alias("finalized_by_full_node_ms"),
        F.max("total_validators").alias("total_validators"),
        F.bool_or(F.col("role") == VALIDATORS).alias("has_validators"),
        F.min("delivery_id").alias("delivery_id"),
        F.min("dmq_id").alias("dmq_id"),
        _distinct(is_receipt).alias("receipts"),
        _distinct(is_bad).alias("receipts_bad"),
        F.min(F.when(is_receipt, F.col("day"))).alias("day"),
        F.array_sort(F.collect_set(F.when(is_receipt, F.col("day")))).alias("days"),
        F.min(F.when(is_proof, end)).alias("proved"),
        F.array_sort(F.collect_set(F.when(is_proof, F.concat_ws(" ", "proof", "executed_as")))).alias("ends"),
    )
    return _Facts(
        F.col("role").isin(*OF_MESSAGES),
        joined,
        (
            _distinct(is_receipt & F.col("is_known")).alias("receipts_before"),
            F.min(F.when(is_receipt & F.col("is_known"), F.col("day"))).alias("day_before"),
        ),
        (
            F.lit(0).cast("bigint").alias("receipts_before"),
            F.lit(None).cast("string").alias("day_before"),
        ),
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


def verdict(is_over: Column) -> Column:
    """Return the verdict of the first rule that holds: proofs come before all claims. A rule that needs the size of a
    session does not hold without one.
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
    proof = F.col("proved.proof")
    rules = (
        (Conclusion.FINALIZED, proof == "executed"),
        (Conclusion.EXECUTED_AS, proof == "executed_as"),
        (Conclusion.REJECTED, (proof == "never") & do_most_reject),
        (Conclusion.EXPIRED, proof == "never"),
        (Conclusion.FINALIZED, is_finalized),
        (Conclusion.ACCEPTED, (accepting > 0) & (3 * accepting > size)),
        (Conclusion.REJECTED_BY_FULLNODE, was_refused & ~F.col("has_validators")),
        (Conclusion.REJECTED, do_most_reject & (are_all_closed | is_over)),
        (Conclusion.EXPIRED, are_all_closed | is_over),
        (Conclusion.LIKELY_REJECTED, do_most_reject),
        (Conclusion.INCLUDED, including + accepting > 0),
        (Conclusion.QUEUED, F.col("has_validators")),
    )
    found = F
    for conclusion, holds in rules:
        found = found.when(holds, conclusion.value)
    return found.otherwise(Conclusion.SENT.value)


@built_once
def _columns() -> list[Column]:
    """Return the columns in the order of `LIVES`."""
    empty = F.array().cast("array<int>")
    members = F.sequence(F.lit(0), F.col("decided.size") - 1)
    computed = {
        "verdict_alive": verdict(F.lit(False)),
        "verdict_over": verdict(F.lit(True)),
        "first_seen_ms": first_seen(),
        "proof": F.coalesce(F.col("proved.proof"), F.lit(NO_PROOF)),
        "proof_block": F.col("proved.proof_block"),
        "executed_as": F.col("proved.executed_as"),
        "validators": F.col("decided.size"),
        "queued_at": F.coalesce(F.col("decided.queued_at"), empty),
        "rejected_by": F.coalesce(F.col("decided.rejected_by"), empty),
        "silent": F.coalesce(F.array_except(members, F.col("decided.heard")), empty),
    }
    return [computed.get(name, F.col(name)).alias(name) for name in LIVES.fieldNames()]
