"""Upkeep of the tables of one driver: compaction of crowded days, and the dropping of days that are no longer kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
from stagepost.pipeline.schemas import LIVES, MESSAGE_ROWS, STORED, arrow_schema, with_day
from stagepost.pipeline.schemas import STATE as STATE_SCHEMA
from stagepost.pipeline.steps.messages import LIVES_QUERY, Moment, show_state
from stagepost.pipeline.steps.sql_engines import engine_for
from stagepost.pipeline.tables.delta import Commit, day_of
from stagepost.pipeline.tables.look_up import beside_receipts, held_account, late_messages, rows_of
from stagepost.pipeline.tables.manifest import (
    MESSAGES,
    PROOFS,
    QUARANTINE,
    RECEIPTS,
    RECORDS,
    STATE,
    changed,
    joined,
    without,
)

FILES_PER_DAY_MAX = 25
"""Files of one day and table below `FILE_BYTES_AIM`, at most, before they are compacted while a stream runs."""
FILE_BYTES_AIM = 64 * 1024 * 1024
"""Bytes of a file after compaction, about: so much is written again when a late receipt opens it."""


class Upkeep:
    """Upkeep beside the batches of `driver`, in the same thread as they."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.tables = driver, driver.tables

    def tidy(self, *, files_max: int = FILES_PER_DAY_MAX) -> bool:
        """Compact the days of which a table has more than `files_max` small files. Return whether there were any."""
        crowded = {}
        for name in STORED:
            counts: dict[str, int] = {}
            for one in self.tables.table(name).held():
                if one.size < FILE_BYTES_AIM:
                    counts[one.day] = counts.get(one.day, 0) + 1
            if days := sorted(day for day, count in counts.items() if count > files_max):
                crowded[name] = days
        if not crowded or self.tables.manifest.waiting:
            return False
        with self.tables.changing():
            for name, days in crowded.items():
                for day in days:
                    self.tables.change(name, partial(_compact, day=day))
            self.tables.at_point("during compaction")
            self.tables.publish(lambda current: current)
            for name in crowded:
                self.tables.table(name).remove_dead()
        return True

    def compact(self, evaluation: Evaluation, *, keep_ms: int | None = None) -> int:
        """Compact every day. With `keep_ms`, drop the days before that of so many milliseconds ago. Return the
        number of records forgotten.
        """
        self.driver.refresh(msgspec.structs.replace(evaluation, what=Evaluated.MESSAGES))
        removed = 0 if keep_ms is None else self.forget(keep_ms, evaluation)
        self.tidy(files_max=1)
        return removed

    def forget(self, keep_ms: int, evaluation: Evaluation) -> int:
        """Drop the days before that of `keep_ms` before the moment, and what came of their messages later. Return the
        number of records dropped.

        The present bounds that moment: records whose arrival lies in the future make no other ones old.
        """
        manifest = self.tables.manifest
        as_of_ms = self.driver.moment(manifest.total, evaluation).as_of_ms
        first = None if as_of_ms is None else day_of(min(as_of_ms, self.tables.now_ms) - keep_ms)
        if first is None or manifest.waiting:
            return 0
        old = {one.day for name in STORED for one in self.tables.table(name).held() if one.day < first}
        if not old:
            return 0
        records, receipts = self.tables.table(RECORDS).require(), self.tables.table(RECEIPTS).require()
        later = late_messages(self.tables.store, self.tables.table(MESSAGES).held(old), first)
        gone = held_account(self.tables.store, records, receipts, old)
        gone = joined(
            [gone, held_account(self.tables.store, records, receipts, later.days, later.message_ids)]
        )
        removed = gone.rows + gone.other_rows
        beside = beside_receipts(self.tables.store, self.tables.table(STATE).held(old))
        with self.tables.changing():
            for name in STORED:
                self.tables.commit(name, Commit(removes=tuple(self.tables.table(name).held(old))))
            if later.message_ids:
                for name in (RECORDS, STATE, RECEIPTS, QUARANTINE, PROOFS):
                    self.tables.delete(name, later.condition)
            self._evaluate_again(beside, self.driver.moment(manifest.total, evaluation))
            self.tables.publish(
                lambda current: msgspec.structs.replace(
                    current,
                    total=without(current.total, gone),
                    removed_rows=current.removed_rows + removed,
                    changed_days={
                        day: changed
                        for day, changed in changed(current, later.days).items()
                        if day not in old
                    },
                )
            )
            for name in STORED:
                self.tables.table(name).remove_dead()
        return removed

    def _evaluate_again(self, message_ids: Sequence[str], moment: Moment) -> None:
        """Commit the rows of messages that stay, after something of them was dropped that was no receipt that counts."""
        schema = arrow_schema(with_day(MESSAGE_ROWS))
        staying = rows_of(self.tables.table(MESSAGES).require(), message_ids, schema)[
            "message_id"
        ].to_pylist()
        if staying:
            state = rows_of(self.tables.table(STATE).require(), staying, arrow_schema(with_day(STATE_SCHEMA)))
            with engine_for(self.driver.spark, self.tables, 0) as engine:
                engine.view("given", show_state(engine, [], state, self.driver.sets))
                self.driver.lives.merge(engine.rows(LIVES_QUERY, LIVES), moment)


def _compact(table: Any, how: dict[str, Any], *, day: str) -> None:
    table.optimize.compact(partition_filters=[("day", "=", day)], target_size=FILE_BYTES_AIM, **how)
