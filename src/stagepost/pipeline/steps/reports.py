"""All evaluated tables of some days, as queries in the order in which they build on one another.

A row belongs to the day of its message, or, where it is of no message, to the day on which its record arrived. So only days
that have changed are evaluated again: from their messages, and from the rows of these messages on all days on which some
arrived. The queries are of the SQL that Spark and DuckDB share (`sql_engines`): rows are evaluated in the driver, and many of
them by the workers of a cluster, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import INT64_MAX
from stagepost.pipeline.schemas import STAGES
from stagepost.pipeline.steps.decoded_rows import dmq_rows, event_rows, signature_rows, stake_rows
from stagepost.pipeline.steps.messages import Moment, codes, is_queued, show_sessions
from stagepost.pipeline.steps.mithril import write_epochs
from stagepost.pipeline.steps.sql_engines import Engine, engine_for, percentiles
from stagepost.pipeline.tables.delta import DAY_MS, DataFile, day_begin_ms
from stagepost.pipeline.tables.manifest import MESSAGES, RECEIPTS, RECORDS, STATE
from stagepost.pipeline.tables.tables import Tables
from stagepost.remp.receipts.status import FIRST_KINDS, KINDS, LEGAL_STEPS, Status, is_finally_accepted
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.verdict import NO_PROOF, Conclusion
from stagepost.topics import topic as topics

BUCKET_MS = 60_000
SILENT_SHARE = 0.5
SILENT_MESSAGES_MIN = 5
"""Messages, at least, from which on a validator that is silent on `SILENT_SHARE` of them is reported."""

CONTRADICTION, UNANSWERED = "contradiction", "unanswered"
OBSERVED = {"pool_stakes": topics.STAKE, "mithril_signatures": topics.DMQ_MESSAGES}
"""Tables of the observatory whose rows are of one day, with their topics; those by epoch are made from them."""

_STAGES = [stage for stage in STAGES if stage != "sent"]
_PASSING = f"topic = '{topics.STATUSES}' AND reason IS NULL"
_IS_QUEUED = f"code IN ({codes(is_queued)})"

_REJECTIONS = f"""
    SELECT message_id, source_id, level, error, timestamp_ms, day FROM receipts_of
    WHERE status = '{Status.REJECTED.value}'
"""
# Receipts that came more than once, and messages that were finalized in more than one block.
_REPLAYS = f"""
    SELECT message_id, 'statuses', sum(copies - 1), min(first_ms), max(last_ms), day FROM (
      SELECT message_id, day, count(*) AS copies, min(arrived_ms) AS first_ms, max(arrived_ms) AS last_ms
      FROM records_of WHERE {_PASSING} GROUP BY message_id, day, signed_hash
    ) WHERE copies > 1 GROUP BY message_id, day
    UNION ALL
    SELECT message_id, 'blocks', count(DISTINCT block_id) - 1, min(timestamp_ms), max(timestamp_ms), day
    FROM receipts_of JOIN kinds USING (kind) WHERE is_final AND block_id IS NOT NULL
    GROUP BY message_id, day HAVING count(DISTINCT block_id) > 1
"""
# The bucket is the minute in which the message was sent.
_STAGE_LATENCY = f"""
    SELECT stage, wc, shard, bucket_ms, count(*), {{percentiles}}, day FROM (
      SELECT stage, wc, shard, day, sent_ms - sent_ms % {BUCKET_MS} AS bucket_ms,
        CASE stage {" ".join(f"WHEN '{stage}' THEN {stage}_ms" for stage in _STAGES)} END - sent_ms AS took_ms
      FROM verdicts LEFT JOIN sessions USING (session_id) CROSS JOIN stages WHERE sent_ms IS NOT NULL
    ) WHERE took_ms IS NOT NULL GROUP BY day, stage, wc, shard, bucket_ms
"""
# The last status of each member in the session that decides. A row of state counts for this session if its hint names it and
# holds; else, where a session that holds the row is of its shard, if this one is; else if this one holds the row.
_MEMBERS = """
    SELECT r.message_id, r.session_id, e.validator, r.source_id, r.sent_ms, r.verdict, r.day, r.queued_ms,
      r.last - CAST(r.last_ms AS DECIMAL(19, 0)) * 64 AS code
    FROM (
      SELECT message_id, source_id, session_id, sent_ms, verdict, day,
        max(last) AS last, max(last_ms) AS last_ms, min(queued_ms) AS queued_ms
      FROM (
        SELECT r.message_id, r.source_id, r.session_hint, r.wc, r.shard, r.session_id, r.sent_ms, r.verdict, r.day,
          max(r.last) AS last, max(r.last_ms) AS last_ms, min(r.queued_ms) AS queued_ms,
          CASE WHEN bool_or(m.session_id = r.session_hint) THEN bool_or(m.session_id = r.session_hint AND m.session_id = r.session_id)
            WHEN bool_or(m.wc = r.wc AND m.shard = r.shard) THEN bool_or(m.wc = r.wc AND m.shard = r.shard AND m.session_id = r.session_id)
            ELSE bool_or(m.session_id = r.session_id) END AS is_candidate
        FROM (
          SELECT message_id, source_id, session_hint, wc, shard, session_id, sent_ms, verdict, day,
            max(last) AS last, max(last_ms) AS last_ms, min(first_ms) AS first_ms, min(queued_ms) AS queued_ms
          FROM state_of WHERE role = 'validator' AND session_id IS NOT NULL
          GROUP BY message_id, source_id, session_hint, wc, shard, session_id, sent_ms, verdict, day
        ) r JOIN memberships m ON m.source_id = r.source_id AND m.from_ms <= r.last_ms
          AND (m.to_ms IS NULL OR r.first_ms < m.to_ms)
        GROUP BY r.message_id, r.source_id, r.session_hint, r.wc, r.shard, r.session_id, r.sent_ms, r.verdict, r.day
      ) WHERE is_candidate GROUP BY message_id, source_id, session_id, sent_ms, verdict, day
    ) r JOIN memberships e ON e.session_id = r.session_id AND e.source_id = r.source_id
"""
# Steps that no validator may take, under the newest session of the source at the time that it gave.
_ILLEGAL = """
    SELECT s.message_id, s.source_id, s.day, max_by(m.session_id, m.session) AS session_id,
      max_by(m.validator, m.session) AS validator
    FROM (
      SELECT *, coalesce(lag(kind) OVER (PARTITION BY message_id, source_id ORDER BY timestamp_ms, level, rank), '') AS before
      FROM receipts_of JOIN kinds USING (kind) WHERE role = 'validator'
    ) s
    ANTI JOIN legal_steps l ON l.before = s.before AND l.kind = s.kind
    JOIN memberships m ON m.source_id = s.source_id AND m.from_ms <= s.timestamp_ms
      AND (m.to_ms IS NULL OR s.timestamp_ms < m.to_ms)
    WHERE s.before <> s.kind GROUP BY s.message_id, s.source_id, s.day, s.timestamp_ms, s.before, s.kind
"""
# Every member of every session whose window meets the day or that has to do with its messages, also one that sent nothing.
_VALIDATORS = f"""
    WITH spoken AS (
      SELECT day, session_id, validator, count(*) AS messages,
        count(CASE WHEN place = 1 AND queued_ms IS NOT NULL THEN 1 END) AS queued_first,
        {{median}} AS median_queue_ms, {{p95}} AS p95_queue_ms, count(CASE WHEN {_IS_QUEUED} THEN 1 END) AS open_new
      FROM (
        SELECT *, queued_ms - sent_ms AS queue_ms,
          row_number() OVER (PARTITION BY message_id ORDER BY queued_ms ASC NULLS LAST, validator) AS place
        FROM members
      ) GROUP BY day, session_id, validator
    ), quiet AS (
      SELECT v.day, v.session_id, m.validator, count(*) AS silent FROM verdicts v
      JOIN memberships m ON m.session_id = v.session_id WHERE array_contains(v.silent, m.validator) GROUP BY ALL
    ), wrong AS (
      SELECT day, session_id, validator, count(*) AS contradictions FROM illegal GROUP BY ALL
    ), forged AS (
      SELECT day, session_id, validator, count(*) AS bad_signatures FROM (
        SELECT a.day, max_by(m.session_id, m.session) AS session_id, max_by(m.validator, m.session) AS validator
        FROM arrived a
        JOIN memberships m ON m.source_id = a.source_id AND m.from_ms <= a.timestamp_ms
          AND (m.to_ms IS NULL OR a.timestamp_ms < m.to_ms)
        WHERE a.reason = '{ErrorCode.RECEIPT_SIGNATURE}' GROUP BY a.day, a.source_id, a.timestamp_ms, a.raw_hash
      ) GROUP BY ALL
    ), shown AS (
      SELECT day, session_id FROM open_sessions UNION SELECT day, session_id FROM spoken
      UNION SELECT day, session_id FROM quiet UNION SELECT day, session_id FROM wrong UNION SELECT day, session_id FROM forged
    )
    SELECT e.session_id, e.validator, e.source_id, coalesce(messages, 0), coalesce(queued_first, 0), median_queue_ms,
      p95_queue_ms, coalesce(silent, 0), coalesce(contradictions, 0), coalesce(bad_signatures, 0), coalesce(open_new, 0), day
    FROM shown JOIN memberships e USING (session_id) LEFT JOIN spoken USING (day, session_id, validator)
    LEFT JOIN quiet USING (day, session_id, validator) LEFT JOIN wrong USING (day, session_id, validator)
    LEFT JOIN forged USING (day, session_id, validator)
"""
# The evidence is all that the validator signed about the message, as it came: anybody can check it.
_COMPLAINTS = f"""
    SELECT sha2(concat_ws('|', f.kind, f.message_id, f.source_id, f.session_id), 256), f.kind, f.message_id, f.source_id,
      f.session_id, to_json(array_sort(array_agg(DISTINCT string(r.value)))), f.day
    FROM (
      SELECT '{UNANSWERED}' AS kind, message_id, source_id, session_id, day FROM members
      WHERE verdict = '{Conclusion.EXPIRED.value}' AND {_IS_QUEUED}
      UNION SELECT '{CONTRADICTION}', message_id, source_id, session_id, day FROM illegal
    ) f JOIN records_of r ON r.message_id = f.message_id AND r.source_id = f.source_id
    WHERE {_PASSING} GROUP BY f.kind, f.message_id, f.source_id, f.session_id, f.day
"""
_CLAIMED = "finalized_ms IS NOT NULL"
_ALERTS = f"""
    SELECT sha2(concat_ws('|', kind, subject, day), 256), kind, subject, since_ms, detail, day FROM (
      SELECT 'unproved_finality' AS kind, message_id AS subject, {{over_ms}} AS since_ms,
        concat('Finalized at ', finalized_ms, ' ms is signed, and no proof that holds is known') AS detail, day
      FROM verdicts WHERE {{awaits_proofs}} AND {_CLAIMED} AND proof = '{NO_PROOF}' AND first_seen_ms < {{over_before_ms}}
      UNION ALL
      SELECT 'end_contradicted', message_id, CAST(NULL AS BIGINT),
        concat('proved: ', array_join(ends, ', '), ', first by block ', proof_block, '; against it: ',
          CASE WHEN size(ends) > 1 THEN 'each other' WHEN proof = 'executed'
          THEN concat('rejections of ', size(rejected_by), ' of ', validators, ' validators') ELSE 'a signed Finalized' END), day
      FROM verdicts WHERE size(ends) > 1 OR ({_CLAIMED} AND proof IN ('never', 'executed_as'))
        OR (proof = 'executed' AND coalesce(3 * size(rejected_by) >= 2 * validators, false))
      UNION ALL
      SELECT 'expired', message_id, {{sent_over_ms}}, concat(receipts, ' receipts, silent: ', to_json(silent)), day
      FROM verdicts WHERE verdict = '{Conclusion.EXPIRED.value}'
      UNION ALL
      SELECT 'no_quorum', message_id, sent_ms, concat('heard by ', validators - size(silent), ' of ', validators, ' validators'), day
      FROM verdicts WHERE verdict IN ('{Conclusion.SENT.value}', '{Conclusion.QUEUED.value}')
        AND 3 * (validators - size(silent)) <= validators
      UNION ALL
      SELECT 'silent_validator', {{member}}, CAST(NULL AS BIGINT),
        concat('silent in ', silent, ' of ', messages + silent, ' messages'), day FROM validators
      WHERE messages + silent >= {SILENT_MESSAGES_MIN} AND silent >= {SILENT_SHARE} * (messages + silent)
      UNION ALL
      SELECT 'contradicting_validator', {{member}}, CAST(NULL AS BIGINT),
        concat(contradictions, ' steps that no validator may take'), day FROM validators WHERE contradictions > 0
      UNION ALL
      SELECT 'bad_signatures', {{member}}, CAST(NULL AS BIGINT),
        concat(bad_signatures, ' receipts in its name with a signature that does not hold'), day FROM validators
      WHERE bad_signatures > 0
      UNION ALL
      SELECT 'replay', message_id, first_ms, concat('finalized in ', copies + 1, ' blocks'), day FROM replays
      WHERE place = 'blocks'
    )
"""
_MEMBER = "concat(session_id, ':V', validator + 1)"
_REPLAY_NAMES = ("message_id", "place", "copies", "first_ms", "last_ms", "day")
# A value that is not a message at all has only its key; one that is not an event is in `quarantine` alone.
_DMQ_MESSAGES = f"""
    SELECT day, value, min(arrived_ms) AS received_ms, key, min(reason) AS reason FROM arrived
    WHERE topic = '{topics.DMQ_MESSAGES}' GROUP BY day, key, value
"""
_OBSERVED = """
    SELECT day, value, min(arrived_ms) AS received_ms FROM arrived
    WHERE topic = '{topic}' AND reason IS NULL AND value IS NOT NULL GROUP BY day, value
"""
# Copies of an event have the same hash, however their fields are written.
_DELIVERY_EVENTS = f"""
    SELECT day, min(value) AS value FROM arrived
    WHERE topic = '{topics.DELIVERY_EVENTS}' AND reason IS NULL GROUP BY day, signed_hash
"""


class Inputs(NamedTuple):
    """The tables and days that reports are made from, as of a moment."""

    spark: Any
    tables: Tables
    days: Sequence[str]
    sets: ValidatorSets
    moment: Moment


def write_others(inputs: Inputs, made: dict[str, list[DataFile]], after_each: Callable[[], None]) -> set[int]:
    """Write every table but `messages`, and enter their files into `made`. Return the epochs whose rows in tables by epoch
    are written anew.

    `after_each` is called between pieces of work, none of which is long.
    """
    tables, days = inputs.tables, inputs.days
    rows = sum(one.rows for one in tables.table(RECORDS).held(days))
    with engine_for(inputs.spark, tables, rows) as engine:

        def make(name: str, query: str, step: Any = None) -> None:
            made[name] = engine.write(name, query, step)
            after_each()

        _show_sets(engine, inputs)
        _show_rows(engine, inputs)
        make("rejections", _REJECTIONS)
        make("replays", _REPLAYS)
        make("stage_latency", _STAGE_LATENCY.format(percentiles=percentiles("took_ms", 0.5, 0.95, 0.99)))
        for name, query in (("members", _MEMBERS), ("illegal", _ILLEGAL)):
            engine.keep(name, query)
            after_each()
        median, p95 = percentiles("queue_ms", 0.5), percentiles("queue_ms", 0.95)
        make("validators", _VALIDATORS.format(median=median, p95=p95))
        make("complaints", _COMPLAINTS)
        engine.show("validators", "validators", [file.path for file in made["validators"]])
        engine.show("replays", "replays", [file.path for file in made["replays"]], _REPLAY_NAMES)
        make("alerts", _alerts(inputs.moment))
        make("dmq_messages", _DMQ_MESSAGES, dmq_rows)
        make("delivery_events", _DELIVERY_EVENTS, event_rows)
        seen = set(engine.distinct(RECORDS, [one.path for one in tables.table(RECORDS).held(days)], "topic"))
        for name, step in (("pool_stakes", stake_rows), ("mithril_signatures", signature_rows)):
            if OBSERVED[name] in seen or tables.table(name).held(days):
                make(name, _OBSERVED.format(topic=OBSERVED[name]), step)
        return write_epochs(engine, tables, set(days), made, after_each)


def _show_rows(engine: Engine, inputs: Inputs) -> None:
    """Show messages and arrived records of the days, and under the day of its message every row of these messages."""
    tables, days = inputs.tables, inputs.days
    paths = [one.path for one in tables.table(MESSAGES).held(days)]
    spread = sorted({*days, *engine.distinct(MESSAGES, paths, "explode(days)")})
    engine.show("verdicts", MESSAGES, paths, is_kept=True)
    engine.show("arrived", RECORDS, [one.path for one in tables.table(RECORDS).held(days)])
    more = {RECORDS: "", RECEIPTS: "", STATE: ", v.session_id, v.sent_ms, v.verdict"}
    left_out = {STATE: {"sent_ms"}}
    for name, columns in more.items():
        engine.show(f"stored_{name}", name, [one.path for one in tables.table(name).held(spread)])
        own = [one for one in tables.table(name).schema.names if one not in {"day", *left_out.get(name, ())}]
        listed = ", ".join(f"s.{one}" for one in own)
        engine.view(
            f"{name}_of",
            f"SELECT {listed}{columns}, v.day FROM stored_{name} s JOIN verdicts v ON v.message_id = s.message_id",
        )


def _show_sets(engine: Engine, inputs: Inputs) -> None:
    """Show the sets and the meaning of kinds as small tables."""
    show_sessions(engine, inputs.sets)
    begins = {day: day_begin_ms(day) for day in inputs.days}
    opened = [
        (day, one.session_id.hex())
        for day, begin_ms in begins.items()
        for one in inputs.sets.sessions.values()
        if (one.from_ms is None or one.from_ms < begin_ms + DAY_MS)
        and (one.to_ms is None or one.to_ms > begin_ms)
    ]
    engine.small("open_sessions", opened, "day string, session_id string")
    kinds = [(kind.name, kind.rank, is_finally_accepted(kind)) for kind in KINDS]
    engine.small("kinds", kinds, "kind string, rank int, is_final boolean")
    steps = [("", kind) for kind in sorted(FIRST_KINDS)]
    steps += [(before, kind) for before, following in LEGAL_STEPS.items() for kind in sorted(following)]
    engine.small("legal_steps", steps, "before string, kind string")
    engine.small("stages", [(stage,) for stage in _STAGES], "stage string")


def _alerts(moment: Moment) -> str:
    def later(column: str) -> str:
        """Return the moment at which the patience ends that began at `column`; null beyond all numbers."""
        timeout_ms = min(moment.message_timeout_ms, INT64_MAX)
        return f"CASE WHEN {column} <= {INT64_MAX - timeout_ms} THEN {column} + {timeout_ms} END"

    return _ALERTS.format(
        over_ms=later("first_seen_ms"),
        sent_over_ms=later("sent_ms"),
        awaits_proofs=str(moment.awaits_proofs).lower(),
        over_before_ms=moment.over_before_ms,
        member=_MEMBER,
    )
