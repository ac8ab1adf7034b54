"""The driver: takes records into the tables batch by batch, each exactly once, and evaluates what they changed.

Workers write the records of a batch, their receipts and their partial state into files; the driver evaluates the messages
that the batch touched, commits table by table, and publishes the batch by the commit of the manifest. Whatever ends the
process before that leaves the tables as they were, and the batch is taken again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from stagepost.errors import ConfigError, StorageError
from stagepost.pipeline import schemas
from stagepost.pipeline.message_lives import MessageLives
from stagepost.pipeline.proof_step import ProofStep
from stagepost.pipeline.schemas import arrow_schema
from stagepost.pipeline.sources.dumps import Dump, Record, records_of
from stagepost.pipeline.sources.topic_places import TopicPlace
from stagepost.pipeline.sources.topic_ranges import Range
from stagepost.pipeline.sources.topic_source import range_records
from stagepost.pipeline.steps.checked_files import ACCOUNT, Part, Target, checking_parts, checking_raw
from stagepost.pipeline.steps.messages import Moment
from stagepost.pipeline.steps.reports import Inputs, write_others
from stagepost.pipeline.tables.delta import DAY_MS, Commit, DataFile, day_begin_ms, day_of
from stagepost.pipeline.tables.look_up import LateMessages, held_account, rows_of
from stagepost.pipeline.tables.manifest import (
    MESSAGES,
    PROOFS,
    QUARANTINE,
    RECEIPTS,
    RECORDS,
    STATE,
    Batch,
    BatchName,
    Manifest,
    Reports,
    changed,
    joined,
    keep_genesis,
    keep_sets,
    kept_genesis,
    kept_sets,
    without,
)
from stagepost.pipeline.tables.reader import BY_EPOCH, REPORTS
from stagepost.pipeline.tables.sets_touch import touched_by_sets
from stagepost.pipeline.tables.tables import Tables, stored_rows
from stagepost.remp.sets_change import SetsChange, sets_change
from stagepost.remp.validator_sets import ValidatorSets, parse_validator_sets

AT_ONCE = (RECORDS, QUARANTINE, PROOFS)
"""Tables whose files are committed with their batch; those of state and receipts wait until the batch is evaluated."""
CHECKED = (RECORDS, STATE, QUARANTINE, PROOFS, RECEIPTS, MESSAGES)
"""Tables whose rows depend on the checks of one message's records."""

Write = Callable[[], Batch]
"""Function that writes the files of a batch."""


class Evaluated(Enum):
    """The reports that a commit brings up to date. People wait for `messages`; the others may follow later."""

    NOTHING = "nothing"
    MESSAGES = "messages"
    ALL = "all"


class Evaluation(msgspec.Struct, frozen=True):
    """The time and patience for which reports are evaluated. None: as the records, or the sets file, say."""

    as_of_ms: int | None = None
    message_timeout_ms: int | None = None
    what: Evaluated = Evaluated.ALL

    @classmethod
    def same(cls, reports: Reports | None) -> Evaluation:
        """Return the evaluation that made reports; where there are none, that of the records and the sets file."""
        return cls() if reports is None else cls(reports.as_of_ms, reports.message_timeout_ms)


class Driver:
    """The writer of one set of tables. `sets_file` None: the sets that the tables were made with.

    A single thread takes batches; another may do reports (`report`) meanwhile.
    """

    def __init__(
        self,
        spark: SparkSession,
        tables: Tables,
        sets_file: bytes | None,
        name: str = "sets",
        genesis: bytes | None = None,
    ) -> None:
        manifest = tables.manifest
        if sets_file is None and manifest.sets_digest is None:
            raise ConfigError(
                f"the tables in {tables.store.address} have no validator sets yet",
                advice="give a file with --validator-sets",
            )
        content = kept_sets(tables.store, manifest) if sets_file is None else sets_file
        self.spark = spark
        self.tables = tables
        self.lives = MessageLives(spark, tables)
        self.use_sets(content, name)
        known = kept_genesis(tables.store, manifest)
        if genesis is not None and known is not None and genesis != known:
            raise ConfigError(
                f"the tables in {tables.store.address} belong to another genesis than the one given",
                advice="leave --genesis out, or choose another --out for the other network",
            )
        found = known if genesis is None else genesis
        self._genesis_digest: str | None = None
        self._proofs: ProofStep | None = None
        if found is not None:
            self.use_genesis(found)
        if manifest.reports is not None and any(one not in manifest.versions for one in REPORTS):
            # Tables of a release that had fewer reports: the new ones are made of all days.
            days = {one.day for one in tables.table(RECORDS).held()}
            tables.publish(lambda held: msgspec.structs.replace(held, changed_days=changed(held, days)))

    def use_sets(self, content: bytes, name: str = "sets") -> None:
        """Use these sets from the next commit on. `ConfigFaults` for a file with faults, and then the former
        sets stay.
        """
        self.sets: ValidatorSets = parse_validator_sets(content, name)
        self._sets_file = content
        self._sets_digest = keep_sets(self.tables.store, content)

    @property
    def has_genesis(self) -> bool:
        return self._proofs is not None

    def use_genesis(self, genesis: bytes) -> None:
        """Check proofs by this genesis from the next batch or refresh on, also those that came before."""
        self._proofs = ProofStep(self.spark, self.tables, genesis)
        self._genesis_digest = keep_genesis(self.tables.store, genesis)

    # Taking records in

    def take(self, raw: DataFrame, evaluation: Evaluation, batch_name: BatchName) -> bool:
        """Take the records of one batch, with the columns of `schemas.RAW`. Return False if the batch was
        taken before.
        """
        return self._take(lambda: self._checked(raw), evaluation, batch_name)

    def take_dump(self, dump: Dump, evaluation: Evaluation, batch_name: BatchName) -> bool:
        """Take a dump as one batch; workers read, check and write its lines in one go. Return False if it was
        taken before.
        """
        return self._take(
            lambda: self._checked_parts(dump.pieces, records_of, len(dump.pieces)), evaluation, batch_name
        )

    def take_ranges(
        self, place: TopicPlace, ranges: Sequence[Range], evaluation: Evaluation, batch_name: BatchName
    ) -> bool:
        """Take ranges of topics as one batch, in the same way as a dump, in one task for each core: small parts have their price."""
        read, tasks = partial(range_records, place), self.spark.sparkContext.defaultParallelism
        # Ranges of one topic come one after another, and some topics take longer to check.
        spread = [one for first in range(tasks) for one in ranges[first::tasks]]
        return self._take(lambda: self._checked_parts(spread, read, tasks), evaluation, batch_name)

    def _take(self, write: Write, evaluation: Evaluation, batch_name: BatchName) -> bool:
        if batch_name.is_taken(self.tables.manifest):
            return False
        self.follow_sets()
        self._follow_genesis()
        batch, awaited = self._proved(self._written(write))
        waiting = [*self.tables.manifest.waiting, *batch.of(STATE), *batch.of(RECEIPTS)]
        passing = self.tables.manifest.waiting_passing + batch.passing
        total = joined([self.tables.manifest.total, _counts(batch)])
        change = None
        if evaluation.what is not Evaluated.NOTHING:
            change = self.lives.evaluated(waiting, passing, self.sets, self.moment(total, evaluation))
        with self.tables.changing():
            for name in AT_ONCE:
                self.tables.commit(name, Commit(adds=tuple(batch.of(name))))
            before = self.tables.manifest
            following = msgspec.structs.replace(
                batch_name.enter(before),
                awaited_blocks=awaited,
                total=total,
                waiting=waiting,
                waiting_passing=passing,
                changed_days=changed(before, (file.day for file in batch.files)),
            )
            if change is not None:
                following = self.lives.entered(following, change, self.moment(following.total, evaluation))
            self.tables.publish(lambda _: following)
        self._discard(() if change is None else change.unneeded)
        if evaluation.what is Evaluated.ALL:
            self.report(evaluation)
        return True

    def follow_sets(self) -> bool:
        """Check again what a change of the sets touches: the tables become what a backfill would give. Return
        whether the sets had changed.
        """
        manifest = self.tables.manifest
        if manifest.sets_digest == self._sets_digest:
            return False
        if manifest.total.rows or manifest.total.other_rows:
            self._check_again(manifest)
        else:
            self.tables.publish(
                lambda current: msgspec.structs.replace(current, sets_digest=self._sets_digest)
            )
        return True

    def _check_again(self, manifest: Manifest) -> None:
        """Check the records of the messages that the change touches, or all where they are too many."""
        some: LateMessages | None = None
        days: set[str] = set()
        if not manifest.waiting and (former := self._former_sets(manifest)) is not None:
            difference = sets_change(former, self.sets)
            days = self._days_within(difference)
            some = touched_by_sets(
                self.tables.store,
                self.tables.table(RECORDS).require(),
                self.tables.table(STATE).require(),
                difference,
            )
        # A record that says nothing of when it arrived is of the day on which it is checked: its former day changes, too.
        days |= {one.day for one in self.tables.table(RECORDS).held()} if some is None else set(some.days)
        batch = Batch() if some == ([], []) else self._written(lambda: self._checked(self._records(some)))
        batch, awaited = self._proved(batch, is_again=True)
        evaluation = Evaluation.same(manifest.reports)
        waiting = [*batch.of(STATE), *batch.of(RECEIPTS)]
        moment = self.moment(manifest.total, evaluation)
        change = self.lives.evaluated(waiting, batch.passing, self.sets, moment, is_whole=True)
        with self.tables.changing():
            left = self._taken_out(some)
            for name in AT_ONCE:
                self.tables.commit(name, Commit(adds=tuple(batch.of(name))))
            before = self.tables.manifest
            following = msgspec.structs.replace(
                before,
                sets_digest=self._sets_digest,
                awaited_blocks=awaited,
                total=joined([left, _counts(batch)]),
                changed_days=changed(before, (*days, *(file.day for file in batch.files))),
            )
            following = self.lives.entered(following, change, self.moment(following.total, evaluation))
            self.tables.publish(
                lambda _: msgspec.structs.replace(following, reports=before.reports and following.reports)
            )
        self._discard(change.unneeded)

    def _former_sets(self, manifest: Manifest) -> ValidatorSets | None:
        """Return the sets by which the records were checked; None if there are none, or if their copy is lost or damaged."""
        if manifest.sets_digest is None:
            return None
        try:
            return parse_validator_sets(kept_sets(self.tables.store, manifest), "the former sets")
        except StorageError:
            return None

    def _days_within(self, difference: SetsChange) -> set[str]:
        """Return the days of the tables on which a session is another than before."""
        held = {one.day for name in (RECORDS, MESSAGES) for one in self.tables.table(name).held()}
        begins = {day: day_begin_ms(day) for day in held}
        return {
            day
            for day, begin_ms in begins.items()
            if any(window.meets(begin_ms, begin_ms + DAY_MS - 1) for window in difference.sessions)
        }

    def _records(self, some: LateMessages | None) -> DataFrame:
        """Return the records of some messages, or all, as they were read."""
        columns = schemas.RAW.fieldNames()
        if some is None:
            paths = [one.path for one in self.tables.table(RECORDS).held()]
            return stored_rows(self.spark, self.tables.store, RECORDS, paths).select(*columns)
        table = self.tables.table(RECORDS).require()
        rows = rows_of(table, some.message_ids, arrow_schema(schemas.with_day(schemas.RAW)))
        rows = rows.filter(pc.is_in(rows["day"], pa.array(some.days))).select(columns)
        return self.spark.createDataFrame(rows, schemas.RAW)

    def _taken_out(self, some: LateMessages | None) -> Batch:
        """Commit the removal of all rows of some messages, or of all. Return the account of what is left."""
        total = self.tables.manifest.total
        if some is None:
            for name in CHECKED:
                self.tables.commit(name, Commit(removes=tuple(self.tables.table(name).held())))
            return Batch(
                greatest_arrival_ms=total.greatest_arrival_ms,
                greatest_full_node_ms=total.greatest_full_node_ms,
            )
        if not some.message_ids:
            return total
        records, receipts = self.tables.table(RECORDS).require(), self.tables.table(RECEIPTS).require()
        gone = held_account(self.tables.store, records, receipts, some.days, some.message_ids)
        for name in CHECKED:
            self.tables.delete(name, some.condition)
        return without(total, gone)

    def _proved(self, batch: Batch, *, is_again: bool = False) -> tuple[Batch, dict[str, list[str]]]:
        """Return the batch with what its proofs show, and the blocks that proofs wait for."""
        if self._proofs is None or not batch.proof_parts:
            return batch, self.tables.manifest.awaited_blocks
        found = self._proofs.prove([file.path for file in batch.of(RECORDS)], is_again=is_again)
        return joined([batch, Batch(found.files)]), found.awaited

    def _follow_genesis(self) -> None:
        """Check the proofs that came before the tables knew a genesis. They count with the next evaluation."""
        if self._proofs is None or self.tables.manifest.genesis_digest == self._genesis_digest:
            return
        held = [one.path for one in self.tables.table(RECORDS).held()]
        found = self._proofs.prove(held)
        batch = Batch(found.files)
        with self.tables.changing():
            self.tables.commit(PROOFS, Commit(adds=tuple(batch.of(PROOFS))))
            self.tables.publish(
                lambda current: msgspec.structs.replace(
                    current,
                    genesis_digest=self._genesis_digest,
                    awaited_blocks=found.awaited,
                    waiting=[*current.waiting, *batch.of(STATE)],
                )
            )

    def _written(self, write: Write) -> Batch:
        self.tables.at_point("before write")
        batch = write()
        self.tables.at_point("after write")
        return batch

    def _target(self) -> Target:
        return Target(self.tables.store, self.tables.mark, day_of(self.tables.now_ms) or "")

    def _checked(self, raw: DataFrame) -> Batch:
        # Small batches come in many small parts, one of each partition of a topic; each part has its price.
        near = raw.select(*schemas.RAW.fieldNames()).coalesce(self.spark.sparkContext.defaultParallelism)
        return self._accounts(near.mapInArrow(checking_raw(self._sets_file, self._target()), ACCOUNT))

    def _checked_parts(
        self, parts: Sequence[Part], read: Callable[[Part], Iterator[Record]], tasks: int
    ) -> Batch:
        if not parts:
            return Batch()
        numbers = self.spark.range(0, len(parts), 1, min(tasks, len(parts)))
        step = checking_parts(parts, read, self._sets_file, self._target())
        return self._accounts(numbers.mapInArrow(step, ACCOUNT))

    def _accounts(self, accounts: DataFrame) -> Batch:
        """Run the tasks and return their joined batch: each task returns one small row, and nothing else
        comes back here.
        """
        rows = self.tables.ran(accounts.collect)
        return joined([msgspec.json.decode(row[0], type=Batch) for row in rows])

    # Evaluating

    def refresh(self, evaluation: Evaluation) -> None:
        """Move the tables to another moment, and evaluate the batches that have not been evaluated yet."""
        self.follow_sets()
        self._follow_genesis()
        waiting, passing = self.tables.manifest.waiting, self.tables.manifest.waiting_passing
        moment = self.moment(self.tables.manifest.total, evaluation)
        change = self.lives.evaluated(waiting, passing, self.sets, moment)
        with self.tables.changing():
            following = self.lives.entered(self.tables.manifest, change, moment)
            self.tables.publish(lambda _: following)
        self._discard(change.unneeded)
        if evaluation.what is Evaluated.ALL:
            self.report(evaluation)

    def moment(self, total: Batch, evaluation: Evaluation) -> Moment:
        as_of_ms = total.natural_as_of_ms if evaluation.as_of_ms is None else evaluation.as_of_ms
        timeout_ms = evaluation.message_timeout_ms
        if timeout_ms is None:
            timeout_ms = self.sets.message_timeout_ms
        return Moment(as_of_ms, timeout_ms, self._proofs is not None)

    def _discard(self, files: Iterable[DataFile]) -> None:
        """Remove files that were written and never committed."""
        for file in files:
            self.tables.store.file_system(file.table).delete_file(file.path)

    # Reports

    def report(self, evaluation: Evaluation, after_each: Callable[[], None] = lambda: None) -> None:
        """Evaluate every table but `messages`, for the days that have changed. Batches may come in meanwhile;
        `after_each` is called after each piece of work to let them.
        """
        before = self.tables.manifest
        if before.reports is None:
            return
        days = set(before.changed_days)
        if not before.reports.are_all_made:
            days |= {one.day for name in (RECORDS, MESSAGES) for one in self.tables.table(name).held()}
        made: dict[str, list[DataFile]] = {}
        moment = self.moment(before.total, evaluation)
        is_published = False
        epochs: set[int] = set()
        try:
            if days:
                inputs = Inputs(self.spark, self.tables, sorted(days), self.sets, moment)
                epochs = write_others(inputs, made, after_each)
            with self.tables.changing():
                if not _is_same_ground(before, self.tables.manifest):
                    return
                for name in REPORTS:
                    held = () if name in BY_EPOCH else tuple(self.tables.table(name).held(days))
                    if name in BY_EPOCH and epochs and self.tables.table(name).held():
                        self.tables.delete(name, f"epoch IN ({', '.join(map(str, sorted(epochs)))})")
                    self.tables.commit(name, Commit(tuple(made.get(name, ())), held))
                self.tables.publish(lambda current: _reported(current, before.generation))
            is_published = True
        finally:
            if not is_published:
                self._discard(file for files in made.values() for file in files)


def _is_same_ground(before: Manifest, now: Manifest) -> bool:
    """Return whether what reports were made of is still there: the same sets, and no day dropped meanwhile."""
    return (
        now.sets_digest == before.sets_digest
        and now.removed_rows == before.removed_rows
        and now.reports is not None
    )


def _reported(current: Manifest, generation: int) -> Manifest:
    """Return the manifest with reports of all days that have not changed since a generation."""
    return msgspec.structs.replace(
        current,
        changed_days={day: changed for day, changed in current.changed_days.items() if changed > generation},
        reports=current.reports and msgspec.structs.replace(current.reports, are_all_made=True),
    )


def _counts(batch: Batch) -> Batch:
    """Return what the account of all batches takes over of one."""
    return msgspec.structs.replace(batch, files=[], proof_parts=0)
