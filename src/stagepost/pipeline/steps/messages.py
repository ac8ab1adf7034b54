"""A row for the life of each message, evaluated from state and sets by one query; and the rows of `messages`, which add the
moment.

Everything in the state is a maximum, a minimum or a set, so order, repetition and the splitting into batches change nothing.
Only the verdict depends on when it is asked for, and only through one question: is the message's life over? So both answers are
worked out once, and the moment chooses between them. The rules are those that `remp.verdict` states in plain Python; a
property test compares the two, by each engine.

Sessions are numbered by their age: numbers are compared, grouped and moved at a fraction of the cost of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stagepost.ground.identifiers import INT64_MAX
from stagepost.pipeline.schemas import LIVES, MESSAGE_ROWS, STAGES, arrow_schema
from stagepost.pipeline.steps.partial_state import FULL_NODES, OF_MESSAGES, PROOF, QUARANTINE, VALIDATORS
from stagepost.pipeline.steps.sql_engines import Engine, Step
from stagepost.pipeline.tables.delta import DAY
from stagepost.pipeline.tables.manifest import STATE
from stagepost.remp.receipts.status import KINDS, Kind, Level, Status, is_closed
from stagepost.remp.validator_sets import Session, ValidatorSets
from stagepost.remp.verdict.verdict import NO_PROOF, Conclusion

_MEMBERSHIPS = (
    "source_id string, session int, session_id string, validator int, validators int, wc int, shard string, "
    "from_ms long, to_ms long"
)
_VALIDATORS_KINDS = tuple(kind for kind in KINDS if kind.level is not Level.FULLNODE)


def by_age(sets: ValidatorSets) -> list[Session]:
    """Return the sessions by age. The place in this list is the session's number: the greater, the newer."""
    return sorted(sets.sessions.values(), key=lambda session: session.age_key)


def show_sessions(engine: Engine, sets: ValidatorSets) -> None:
    """Show the tables `sessions` and `memberships`. Shards are sixteen hexadecimal digits; a window without an end has no `to_ms`."""
    sessions = [(one, one.session_id.hex(), f"{one.shard:016x}") for one in by_age(sets)]
    members = [
        (
            *(member.key_id.hex(), number, session_id, member.index, one.size),
            *(one.workchain, shard, one.from_ms or 0, one.to_ms),
        )
        for number, (one, session_id, shard) in enumerate(sessions)
        for member in one.validators
    ]
    engine.small("memberships", members, _MEMBERSHIPS)
    places = [
        (number, session_id, one.workchain, shard) for number, (one, session_id, shard) in enumerate(sessions)
    ]
    engine.small("sessions", places, "session int, session_id string, wc int, shard string")


def codes(is_meant: Callable[[Kind], bool]) -> str:
    """Return the list for SQL of the codes, 8 · level + rank, of the kinds for which `is_meant` holds."""
    return ", ".join(str(8 * int(kind.level) + kind.rank) for kind in _VALIDATORS_KINDS if is_meant(kind))


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


_LISTS = ("queued_at", "rejected_by", "silent", "ends")
"""Columns of `messages` that are empty lists for a message without a session, or without a proof."""


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
        return min(max(self.as_of_ms - self.message_timeout_ms, 0), INT64_MAX)


def _members(condition: str) -> str:
    return f"array_sort(array_agg(validator) FILTER (WHERE {condition}))"


def _distinct(condition: str) -> str:
    hashes = f"array_agg(signed_hashes) FILTER (WHERE {condition})"
    return f"CAST(coalesce(size(array_distinct(flatten({hashes}))), 0) AS BIGINT)"


def _verdict(is_over: str) -> str:
    """Return the verdict of the first rule that holds: proofs come before all claims. A rule that needs the size of a
    session does not hold without one.
    """
    do_most_reject = "coalesce(3 * rejecting >= 2 * validators, false)"
    is_closed_or_over = f"(coalesce(closed = validators, false) OR {is_over})"
    rules = (
        (Conclusion.FINALIZED, "proof_kind = 'executed'"),
        (Conclusion.EXECUTED_AS, "proof_kind = 'executed_as'"),
        (Conclusion.REJECTED, f"proof_kind = 'never' AND {do_most_reject}"),
        (Conclusion.EXPIRED, "proof_kind = 'never'"),
        (Conclusion.FINALIZED, "finalized_by_full_node_ms IS NOT NULL OR is_finalized"),
        (Conclusion.ACCEPTED, "3 * accepting > validators"),
        (
            Conclusion.REJECTED_BY_FULLNODE,
            "rejected_by_full_node_ms IS NOT NULL AND sent_ms IS NULL AND NOT has_validators",
        ),
        (Conclusion.REJECTED, f"{do_most_reject} AND {is_closed_or_over}"),
        (Conclusion.EXPIRED, is_closed_or_over),
        (Conclusion.LIKELY_REJECTED, do_most_reject),
        (Conclusion.INCLUDED, "including + accepting > 0"),
        (Conclusion.QUEUED, "has_validators"),
    )
    cases = " ".join(f"WHEN {holds} THEN '{conclusion.value}'" for conclusion, holds in rules)
    return f"CASE {cases} ELSE '{Conclusion.SENT.value}' END"


_IS_RECEIPT = f"role IN ('{FULL_NODES}', '{VALIDATORS}')"
# More than a third, so that an honest validator is among them; if fewer have spoken, the latest of those.
_FIRST_SEEN = "coalesce(sent_ms, try_element_at(first_times, CAST(least(floor(validators / 3), size(first_times) - 1) AS INT) + 1))"
_COMPUTED = {
    "verdict_alive": _verdict("false"),
    "verdict_over": _verdict("true"),
    "first_seen_ms": _FIRST_SEEN,
    "proof": f"coalesce(proof_kind, '{NO_PROOF}')",
    "proof_block": "CAST(split_part(proved, ' ', 2) AS BIGINT)",
    "executed_as": "nullif(split_part(proved, ' ', 3), '')",
    "silent": "array_except(sequence(0, validators - 1), heard)",
}
_PLACED_FACTS = (
    *(f"{stage}_ms" for stage in STAGES),
    *("rejected_by_full_node_ms", "finalized_by_full_node_ms", "total_validators", "has_validators"),
    *("delivery_id", "dmq_id", "receipts", "receipts_bad", "receipts_before", "day", "day_before", "days"),
    *("proved", "ends"),
)
# `merged`: what each validator said with one hint and one named shard. `judged`: the same for each session that holds the row, with
# whether it is a candidate: the session of the hint, else those of the shard, else all. `said`: the last statuses of the members of
# each session. `placed`: the session comes first that more than a third of its members named, the newest among those; else the one
# with most speakers, then the one whose size a full node counted, then the newest. By name, an execution is the least of the ends.
LIVES_QUERY = f"""
    WITH merged AS (
      SELECT message_id, source_id, session_hint, wc, shard, max(last) AS last, max(last_ms) AS last_ms,
        min(first_ms) AS first_ms, bool_or(has_finalized) AS has_finalized
      FROM given WHERE role = 'validator' GROUP BY message_id, source_id, session_hint, wc, shard
    ), held AS (
      SELECT r.message_id, r.source_id, r.session_hint, r.wc, r.shard, r.last, r.last_ms, r.first_ms, r.has_finalized,
        m.session, m.validator, m.validators, coalesce(m.session_id = r.session_hint, false) AS is_hinted,
        coalesce(m.wc = r.wc AND m.shard = r.shard, false) AS is_of_shard
      FROM merged r JOIN memberships m ON m.source_id = r.source_id AND m.from_ms <= r.last_ms
        AND (m.to_ms IS NULL OR r.first_ms < m.to_ms)
    ), judged AS (
      SELECT *, CASE WHEN bool_or(is_hinted) OVER of_row THEN is_hinted
        WHEN bool_or(is_of_shard) OVER of_row THEN is_of_shard ELSE true END AS is_candidate
      FROM held WINDOW of_row AS (PARTITION BY message_id, source_id, session_hint, wc, shard)
    ), members AS (
      SELECT message_id, session, validator, validators, first_ms, is_hinted, has_finalized,
        CAST(last - CAST(last_ms AS DECIMAL(19, 0)) * 64 AS INT) AS code
      FROM (
        SELECT message_id, session, validator, max(validators) AS validators,
          max(CASE WHEN is_candidate THEN last END) AS last, max(CASE WHEN is_candidate THEN last_ms END) AS last_ms,
          min(CASE WHEN is_candidate THEN first_ms END) AS first_ms, bool_or(is_hinted) AS is_hinted,
          bool_or(has_finalized) AS has_finalized
        FROM judged GROUP BY message_id, session, validator
      )
    ), said AS (
      SELECT message_id, session, max(validators) AS validators, count(code) AS speakers,
        count(CASE WHEN is_hinted THEN 1 END) AS hinted, count(CASE WHEN has_finalized THEN 1 END) AS finalizing,
        count(CASE WHEN code IN ({codes(is_in_accepted_block)}) THEN 1 END) AS accepting,
        count(CASE WHEN code IN ({codes(is_rejecting)}) THEN 1 END) AS rejecting,
        count(CASE WHEN code IN ({codes(lambda kind: is_closed(kind.status))}) THEN 1 END) AS closed,
        count(CASE WHEN code IN ({codes(is_included)}) THEN 1 END) AS including,
        array_sort(array_agg(first_ms) FILTER (WHERE first_ms IS NOT NULL)) AS first_times,
        {_members(f"code IN ({codes(is_queued)})")} AS queued_at,
        {_members(f"code IN ({codes(is_rejecting)})")} AS rejected_by, {_members("code IS NOT NULL")} AS heard
      FROM members GROUP BY message_id, session
    ), facts AS (
      SELECT message_id, {", ".join(f"min({stage}_ms) AS {stage}_ms" for stage in STAGES)},
        min(CASE WHEN role = '{FULL_NODES}' THEN rejected_ms END) AS rejected_by_full_node_ms,
        min(CASE WHEN role = '{FULL_NODES}' THEN finalized_ms END) AS finalized_by_full_node_ms,
        max(total_validators) AS total_validators, bool_or(role = '{VALIDATORS}') AS has_validators,
        min(delivery_id) AS delivery_id, min(dmq_id) AS dmq_id, {_distinct(_IS_RECEIPT)} AS receipts,
        {_distinct(f"role = '{QUARANTINE}'")} AS receipts_bad, {_distinct(f"{_IS_RECEIPT} AND is_known")} AS receipts_before,
        min(CASE WHEN {_IS_RECEIPT} THEN day END) AS day, min(CASE WHEN {_IS_RECEIPT} AND is_known THEN day END) AS day_before,
        array_sort(array_agg(DISTINCT day) FILTER (WHERE {_IS_RECEIPT})) AS days,
        min(CASE WHEN role = '{PROOF}' THEN concat(proof, ' ', lpad(CAST(proof_block AS STRING), 20, '0'), ' ',
          coalesce(executed_as, '')) END) AS proved,
        array_sort(array_agg(DISTINCT concat_ws(' ', proof, executed_as)) FILTER (WHERE role = '{PROOF}')) AS ends
      FROM given WHERE role IN ({", ".join(f"'{role}'" for role in OF_MESSAGES)}) GROUP BY message_id
    ), placed AS (
      SELECT f.message_id, {", ".join(f"f.{name}" for name in _PLACED_FACTS)}, split_part(f.proved, ' ', 1) AS proof_kind,
        s.session, s.validators, s.accepting, s.rejecting, s.closed, s.including, s.first_times, s.queued_at,
        s.rejected_by, s.heard,
        coalesce(bool_or(3 * s.finalizing > s.validators) OVER (PARTITION BY f.message_id), false) AS is_finalized,
        row_number() OVER (PARTITION BY f.message_id ORDER BY s.speakers > 0 DESC, 3 * s.hinted > s.validators DESC,
          CASE WHEN 3 * s.hinted > s.validators THEN 0 ELSE s.speakers END DESC,
          CASE WHEN 3 * s.hinted <= s.validators AND s.validators = f.total_validators THEN 1 ELSE 0 END DESC,
          s.session DESC) AS place
      FROM facts f LEFT JOIN said s ON s.message_id = f.message_id WHERE f.receipts > 0
    )
    SELECT {", ".join(f"{_COMPUTED.get(name, name)} AS {name}" for name in LIVES.fieldNames())}
    FROM placed LEFT JOIN (SELECT session, session_id FROM sessions) USING (session) WHERE place = 1
"""
"""Query of the rows of `LIVES` from `given`: state in any number of pieces, with `day` and `is_known`."""


def show_state(engine: Engine, fresh: Sequence[str], known: pa.Table | None, sets: ValidatorSets) -> str:
    """Show files of state, the rows `known` of the same messages from earlier commits, and the sets. Return the query of all rows
    for `Engine.divided`.
    """
    show_sessions(engine, sets)
    engine.show("fresh", STATE, fresh)
    query = "SELECT *, false AS is_known FROM fresh"
    if known is None:
        return query
    engine.rows_here("known", known)
    return f"{query} UNION ALL SELECT *, true AS is_known FROM known"


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
        **{name: pc.coalesce(rows[name], pa.scalar([], rows[name].type)) for name in _LISTS},
    }
    schema = arrow_schema(MESSAGE_ROWS).append(pa.field(DAY, pa.date32()))
    found = [added.get(name, rows[name] if name in rows.column_names else None) for name in schema.names]
    return pa.Table.from_arrays(found, names=schema.names).cast(schema)


def of_moment(moment: Moment) -> Step:
    """Return the step that turns lives into rows of `messages`."""

    def turn(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = at_moment(pa.Table.from_batches([batch]).cast(arrow_schema(LIVES)), moment)
            text = pc.cast(rows[DAY], pa.string())
            yield from rows.set_column(rows.column_names.index(DAY), DAY, text).to_batches()

    return turn
