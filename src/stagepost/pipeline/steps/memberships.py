"""The validator sets as small tables to join with.

Sessions are numbered by their age while they are worked with: numbers are compared, grouped and moved at a fraction of
what their ids cost.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from stagepost.pipeline.steps.small_tables import small_table
from stagepost.remp.validator_sets import Session, ValidatorSets

_MEMBERSHIPS = (
    "source_id string, memberships array<struct<session int, session_id string, validator int, size int, wc int, "
    "shard string, from_ms bigint, to_ms bigint>>"
)
_SESSIONS = "session int, session_id string, session_wc int, session_shard string"
_MEMBERS = "session int, session_id string, validator int, source_id string"

_Membership = dict[str, int | str | None]


def by_age(sets: ValidatorSets) -> list[Session]:
    """The place in this list is the session's number: the greater, the newer."""
    return sorted(sets.sessions.values(), key=lambda session: session.age_key)


def memberships(spark: SparkSession, sets: ValidatorSets) -> DataFrame:
    """By key id, the sessions that a validator belongs to. Shards are sixteen hexadecimal digits."""
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


def members(spark: SparkSession, sets: ValidatorSets) -> DataFrame:
    """Every member of every session."""
    rows = [
        (number, session.session_id.hex(), validator.index, validator.key_id.hex())
        for number, session in enumerate(by_age(sets))
        for validator in session.validators
    ]
    return small_table(spark, rows, _MEMBERS)
