"""Lives of messages: what files of batches that wait for it change in `messages` and `receipts`, and the commit of that.

Only the messages that the waiting files touch are evaluated, together with what earlier batches have of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from stagepost.pipeline import schemas
from stagepost.pipeline.schemas import arrow_schema
from stagepost.pipeline.steps.messages import LIVES_QUERY, Moment, at_moment, of_moment, show_state
from stagepost.pipeline.steps.sql_engines import engine_for
from stagepost.pipeline.tables.delta import Commit, DataFile
from stagepost.pipeline.tables.look_up import ROWS_PER_FETCH, queries, quoted_list, rows_of, touched
from stagepost.pipeline.tables.manifest import MESSAGES, RECEIPTS, STATE, Manifest, Reports, changed
from stagepost.pipeline.tables.tables import ROWS_HERE_MAX, DayWriter, Tables
from stagepost.remp.validator_sets import ValidatorSets


class _Lives(NamedTuple):
    """Lives of touched messages: their rows here, or files of `messages` if they are many and all new."""

    rows: pa.Table | None
    files: list[DataFile]
    counted: int


class LivesChange(NamedTuple):
    """Result of evaluating the waiting batches: their state, receipts, lives, and files that no table needs."""

    state: list[DataFile]
    receipts: list[DataFile]
    hints: pa.Table | None
    lives: _Lives
    unneeded: list[DataFile]


class MessageLives:
    """Evaluation of the messages of one set of tables."""

    def __init__(self, spark: SparkSession, tables: Tables) -> None:
        self._spark, self._tables = spark, tables

    def evaluated(
        self,
        waiting: Sequence[DataFile],
        passing: int,
        sets: ValidatorSets,
        moment: Moment,
        *,
        is_whole: bool = False,
    ) -> LivesChange:
        """Return what the waiting files change. `is_whole`: they are everything, and nothing before them counts."""
        state = [file for file in waiting if file.table == STATE]
        receipts = [file for file in waiting if file.table == RECEIPTS]
        if not state:
            return LivesChange([], receipts, None, _Lives(None, [], 0), [])
        known = None if is_whole else self._known(state)
        evaluated = self._lives(state, known, passing, sets, moment)
        self._tables.at_point("after messages")
        if evaluated.counted == passing:
            return LivesChange(state, receipts, None, evaluated, [])
        before = None
        if evaluated.rows is not None:
            before = evaluated.rows.filter(pc.greater(evaluated.rows["receipts_before"], 0))
        known_ids = [] if before is None else before["message_id"].to_pylist()
        distinct, hints = self._distinct(receipts, known_ids)
        return LivesChange(state, distinct, hints, evaluated, receipts)

    def _lives(
        self,
        fresh: Sequence[DataFile],
        known: pa.Table | None,
        passing: int,
        sets: ValidatorSets,
        moment: Moment,
    ) -> _Lives:
        """Return the lives of the messages of files of state; `known` are the rows that earlier batches have of them."""
        near = _sets_near(sets, fresh, known)
        with engine_for(self._spark, self._tables, passing) as engine:
            given = show_state(engine, [file.path for file in fresh], known, near)
            shares = engine.divided("given", given, passing)
            if known is None and passing > ROWS_HERE_MAX:
                step = of_moment(moment)
                files = [file for _ in shares for file in engine.write(MESSAGES, LIVES_QUERY, step)]
                return _Lives(None, files, self._summed(files))
            rows = pa.concat_tables([engine.rows(LIVES_QUERY, schemas.LIVES) for _ in shares])
        counted = pc.sum(pc.subtract(rows["receipts"], rows["receipts_before"])).as_py() or 0
        return _Lives(rows, [], counted)

    def _known(self, fresh: Sequence[DataFile]) -> pa.Table | None:
        """Return the state rows that earlier batches have of the messages that `fresh` files touch; None if there are none."""
        table = self._tables.table(STATE)
        if not table.held():
            return None
        rows = rows_of(
            table.require(), touched(self._tables.store, fresh), arrow_schema(schemas.with_day(schemas.STATE))
        )
        return rows if len(rows) else None

    def _summed(self, files: Sequence[DataFile]) -> int:
        """Return the number of receipts of messages in new files."""
        if not files:
            return 0
        with queries(self._tables.store, {"new": (MESSAGES, [file.path for file in files])}) as connection:
            (found,) = connection.execute("SELECT coalesce(sum(receipts), 0)::BIGINT FROM new").fetchall()
        return int(found[0])

    def _distinct(
        self, files: Sequence[DataFile], known_ids: Sequence[str]
    ) -> tuple[list[DataFile], pa.Table | None]:
        """Return new files with each receipt once that is not in the table yet, and the rows of the table whose hint
        has to be replaced by a lesser one.
        """
        schema = arrow_schema(schemas.with_day(schemas.RECEIPTS))
        table = self._tables.table(RECEIPTS)
        held = schema.empty_table() if not known_ids else rows_of(table.require(), known_ids, schema)
        writer = DayWriter(self._tables.store, RECEIPTS, self._tables.mark)
        with queries(self._tables.store, {"given": (RECEIPTS, [file.path for file in files])}) as connection:
            connection.register("held", held)
            connection.execute(_ONCE.format(columns=_first_of(schemas.RECEIPTS.fieldNames())))
            for rows in connection.sql(_NEW).to_arrow_reader(ROWS_PER_FETCH):
                if len(rows):
                    writer.take(pa.Table.from_batches([rows]))
            hints = connection.sql(_LESSER_HINTS).to_arrow_table()
        return writer.close(), hints if len(hints) else None

    def entered(self, manifest: Manifest, change: LivesChange, moment: Moment) -> Manifest:
        """Commit receipts and messages, and return the manifest with everything evaluated as of the moment."""
        days: set[str] = set()
        self._tables.commit(STATE, Commit(adds=tuple(change.state)))
        self._tables.commit(RECEIPTS, Commit(adds=tuple(change.receipts)))
        if change.hints is not None:
            self._replace_hints(change.hints)
        if change.lives.files:
            self._tables.commit(MESSAGES, Commit(adds=tuple(change.lives.files)))
        rows = change.lives.rows
        if rows is not None and len(rows):
            days = {one for name in ("day", "day_before") for one in rows[name].unique().to_pylist() if one}
            self.merge(rows, moment)
        was = manifest.reports
        days |= self._move(None if was is None else Moment(was.as_of_ms, was.message_timeout_ms), moment)
        total = manifest.total
        return msgspec.structs.replace(
            manifest,
            total=msgspec.structs.replace(total, counted=total.counted + change.lives.counted),
            waiting=[],
            waiting_passing=0,
            changed_days=changed(manifest, days),
            reports=Reports(moment.as_of_ms, moment.message_timeout_ms, was is not None and was.are_all_made),
        )

    def merge(self, rows: pa.Table, moment: Moment) -> None:
        """Commit lives: new rows, and rows in place of those that their messages have."""
        stored = at_moment(rows, moment)
        before = [one for one in rows["day_before"].unique().to_pylist() if one is not None]
        if not before:
            self._tables.commit(MESSAGES, Commit(adds=tuple(self._tables.write_rows(stored, MESSAGES))))
            return
        days = quoted_list(before)

        def merge(table: Any, how: dict[str, Any]) -> None:
            same = f"t.message_id = s.message_id AND t.day IN ({days})"
            merger = table.merge(stored, same, source_alias="s", target_alias="t", **how)
            merger.when_matched_update_all().when_not_matched_insert_all().execute()

        self._tables.change(MESSAGES, merge)

    def _move(self, was: Moment | None, moment: Moment) -> set[str]:
        """Bring the verdicts of lives that have ended up to date. Return the days of which some may have changed."""
        table = self._tables.table(MESSAGES)
        over_before_ms = moment.over_before_ms
        if was is not None and over_before_ms < was.over_before_ms:
            # An earlier moment, or more patience: verdicts go back.
            self._tables.change(MESSAGES, lambda found, how: found.update(_shown(over_before_ms), **how))
            return {one.day for one in table.held()}
        due = table.least("open_since_ms")
        days = {day for day, least in due if least is not None and least < over_before_ms}
        if days:
            self._tables.change(
                MESSAGES,
                lambda found, how: found.update(_OVER, predicate=f"open_since_ms < {over_before_ms}", **how),
            )
        return days

    def _replace_hints(self, hints: pa.Table) -> None:
        days = quoted_list(hints["day"].unique().to_pylist())

        def merge(table: Any, how: dict[str, Any]) -> None:
            same = f"t.message_id = s.message_id AND t.signed_hash = s.signed_hash AND t.day IN ({days})"
            given = hints.select(["message_id", "signed_hash", "session_hint"])
            merger = table.merge(given, same, source_alias="s", target_alias="t", **how)
            merger.when_matched_update({"session_hint": "s.session_hint"}).execute()

        self._tables.change(RECEIPTS, merge)


def _sets_near(sets: ValidatorSets, fresh: Sequence[DataFile], known: pa.Table | None) -> ValidatorSets:
    """Return the sets without sessions whose windows meet none of the times in these state rows: years of sessions
    need not be laid out for the messages of a minute.
    """
    firsts = [file.least["first_ms"] for file in fresh if "first_ms" in file.least]
    lasts = [file.greatest["last_ms"] for file in fresh if "last_ms" in file.greatest]
    if known is not None:
        firsts += [one for one in [pc.min(known["first_ms"]).as_py()] if one is not None]
        lasts += [one for one in [pc.max(known["last_ms"]).as_py()] if one is not None]
    return sets.near(min(firsts), max(lasts)) if firsts and lasts else sets


_ONCE = """
    CREATE TABLE once AS SELECT message_id, signed_hash, {columns}, min(session_hint) AS session_hint,
      min(day)::VARCHAR AS day FROM given GROUP BY message_id, signed_hash
"""
_NEW = """
    SELECT o.* FROM once o ANTI JOIN held h ON o.message_id = h.message_id AND o.signed_hash = h.signed_hash
"""
_LESSER_HINTS = """
    SELECT h.message_id, h.signed_hash, o.session_hint, h.day FROM held h
    JOIN once o ON o.message_id = h.message_id AND o.signed_hash = h.signed_hash
    WHERE o.session_hint < h.session_hint OR (h.session_hint IS NULL AND o.session_hint IS NOT NULL)
"""


_OVER = {"verdict": "verdict_over", "open_since_ms": "CAST(NULL AS BIGINT)"}
"""Changes of a row of `messages` whose life has ended."""


def _first_of(names: Iterable[str]) -> str:
    kept = (name for name in names if name not in ("message_id", "signed_hash", "session_hint"))
    return ", ".join(f'any_value("{name}") AS "{name}"' for name in kept)


def _shown(over_before_ms: int) -> dict[str, str]:
    """Return what sets the columns of the moment anew, whatever they were."""
    is_over = f"coalesce(first_seen_ms < {over_before_ms}, false)"
    is_open = f"NOT {is_over} AND verdict_alive <> verdict_over"
    return {
        "verdict": f"CASE WHEN {is_over} THEN verdict_over ELSE verdict_alive END",
        "open_since_ms": f"CASE WHEN {is_open} THEN first_seen_ms ELSE CAST(NULL AS BIGINT) END",
    }
