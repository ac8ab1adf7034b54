"""The driver: takes records into the tables batch by batch, each exactly once, and evaluates what they changed.

A batch writes its records and its partial state into a folder of its own, evaluates the messages that it touched, and is
published by one replacement of the manifest. Whatever ends the process before that leaves the tables as they were, and
the batch is taken again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession

from stagepost.errors import ConfigError
from stagepost.pipeline import schemas
from stagepost.pipeline.sources.dumps import Dump
from stagepost.pipeline.steps.checked_files import ACCOUNT, checking_pieces, checking_raw
from stagepost.pipeline.steps.messages import Moment, lives
from stagepost.pipeline.steps.reports import write_others
from stagepost.pipeline.tables.folding import Fold, fold, forgotten, joined, named, new_receipts, touched
from stagepost.pipeline.tables.manifest import (
    LIVES,
    RECORDS,
    STATE,
    Batch,
    BatchName,
    Manifest,
    Reports,
    keep_sets,
    kept_sets,
)
from stagepost.pipeline.tables.tables import Tables, read_files
from stagepost.remp.validator_sets import ValidatorSets, parse_validator_sets

RECEIPTS_PER_PART = 500_000
"""Receipts that one core evaluates at a time: what it needs for them fits into its share of the memory,
however many there are.
"""

Write = Callable[[Path], Batch]
"""Function that writes the files of a batch into a folder."""


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


class Driver:
    """The writer of one tables folder. `sets_file` None: the sets that the tables were made with.

    A single thread takes batches; another may do upkeep (`report`, `fold`) meanwhile.
    """

    def __init__(
        self, spark: SparkSession, tables: Tables, sets_file: bytes | None, name: str = "sets"
    ) -> None:
        manifest = tables.manifest
        if sets_file is None and manifest.sets_digest is None:
            raise ConfigError(
                f"the tables in {tables.folder} have no validator sets yet",
                advice="give a file with --validator-sets",
            )
        content = kept_sets(tables.folder, manifest) if sets_file is None else sets_file
        self.spark = spark
        self.tables = tables
        self.use_sets(content, name)

    def use_sets(self, content: bytes, name: str = "sets") -> None:
        """Use these sets from the next commit on. `ConfigFaults` for a file with faults, and then the former
        sets stay.
        """
        self.sets: ValidatorSets = parse_validator_sets(content, name)
        self._sets_file = content
        self._sets_digest = keep_sets(self.tables.folder, content)

    # Taking records in

    def take(self, raw: DataFrame, evaluation: Evaluation, batch_name: BatchName) -> bool:
        """Take the records of one batch, with the columns of `schemas.RAW`. Return False if the batch was
        taken before.
        """
        return self._take(lambda folder: self._checked(raw, folder), evaluation, batch_name)

    def take_dump(self, dump: Dump, evaluation: Evaluation, batch_name: BatchName) -> bool:
        """Take a dump as one batch; workers read, check and write its lines in one go. Return False if it was
        taken before.
        """
        return self._take(lambda folder: self._checked_dump(dump, folder), evaluation, batch_name)

    def _take(self, write: Write, evaluation: Evaluation, batch_name: BatchName) -> bool:
        if batch_name.is_taken(self.tables.manifest):
            return False
        self.follow_sets()
        with self.tables.work() as folder:
            batch = self._written(write, folder)
            before = self.tables.manifest
            batches = [*before.batches, batch]
            if evaluation.what is not Evaluated.NOTHING:
                batches = self._evaluated(batches, folder)

            def enter(current: Manifest) -> Manifest:
                # Batches may have been folded meanwhile; then those before this one were all evaluated.
                known = batches[:-1] if current.batches == before.batches else current.batches
                following = msgspec.structs.replace(current, batches=[*known, batches[-1]])
                return self._at_moment(batch_name.enter(following), evaluation)

            self.tables.publish(enter)
        if evaluation.what is Evaluated.ALL:
            self.report(evaluation)
        return True

    def follow_sets(self) -> bool:
        """Check every record again if the sets have changed since: the tables become what a backfill would
        give. Return whether they had.
        """
        manifest = self.tables.manifest
        if manifest.sets_digest == self._sets_digest:
            return False
        with self.tables.work() as folder:
            batches: list[Batch] = []
            if manifest.batches:
                raw = self.records().select(*schemas.RAW.fieldNames())
                batches = [self._written(lambda place: self._checked(raw, place), folder)]
                if any(LIVES in batch.files for batch in manifest.batches):
                    batches = self._evaluated(batches, folder)
            self.tables.publish(
                lambda current: msgspec.structs.replace(
                    current, sets_digest=self._sets_digest, batches=batches
                )
            )
        return True

    def _written(self, write: Write, folder: Path) -> Batch:
        self.tables.at_point("before write")
        batch = write(folder)
        self.tables.at_point("after write")
        return batch

    def _checked(self, raw: DataFrame, folder: Path) -> Batch:
        place, root = str(folder.absolute()), str(self.tables.folder.absolute())
        # Small batches come in many small parts, one of each partition of a topic; each part has its price.
        near = schemas.expect(raw, schemas.RAW).coalesce(self.spark.sparkContext.defaultParallelism)
        return self._accounts(near.mapInArrow(checking_raw(self._sets_file, place, root), ACCOUNT), folder)

    def _checked_dump(self, dump: Dump, folder: Path) -> Batch:
        if not dump.pieces:
            return Batch({RECORDS: [], STATE: []})
        place, root = str(folder.absolute()), str(self.tables.folder.absolute())
        numbers = self.spark.range(0, len(dump.pieces), 1, len(dump.pieces))
        step = checking_pieces(dump.pieces, self._sets_file, place, root)
        return self._accounts(numbers.mapInArrow(step, ACCOUNT), folder)

    def _accounts(self, accounts: DataFrame, folder: Path) -> Batch:
        """Run the tasks and return their joined batch: each task returns one small row, and nothing else
        comes back here.
        """
        rows = self.tables.ran(accounts.collect, folder)
        self.tables.sync(folder, RECORDS, STATE)
        return joined([msgspec.json.decode(row[0], type=Batch) for row in rows])

    # Evaluating

    def refresh(self, evaluation: Evaluation) -> None:
        """Move the tables to another moment, and evaluate the batches that have not been evaluated yet."""
        self.follow_sets()
        before = self.tables.manifest
        if all(LIVES in batch.files for batch in before.batches):
            self.tables.publish(lambda current: self._at_moment(current, evaluation))
        else:
            with self.tables.work() as folder:
                batches = self._evaluated(before.batches, folder)
                self.tables.publish(
                    lambda current: self._at_moment(
                        msgspec.structs.replace(current, batches=batches), evaluation
                    )
                )
        if evaluation.what is Evaluated.ALL:
            self.report(evaluation)

    def _at_moment(self, manifest: Manifest, evaluation: Evaluation) -> Manifest:
        if evaluation.what is Evaluated.NOTHING:
            return manifest
        moment = self._moment(manifest, evaluation)
        files = {} if manifest.reports is None else manifest.reports.files
        reports = Reports(files, moment.as_of_ms, moment.message_timeout_ms)
        return msgspec.structs.replace(manifest, reports=reports)

    def _moment(self, manifest: Manifest, evaluation: Evaluation) -> Moment:
        as_of_ms = manifest.natural_as_of_ms if evaluation.as_of_ms is None else evaluation.as_of_ms
        timeout_ms = evaluation.message_timeout_ms
        return Moment(as_of_ms, self.sets.message_timeout_ms if timeout_ms is None else timeout_ms)

    def _evaluated(self, batches: list[Batch], folder: Path) -> list[Batch]:
        """Return the same batches; the last one that waited now has the lives of all messages that the
        waiting batches touched.
        """
        waiting = [number for number, batch in enumerate(batches) if LIVES not in batch.files]
        if not waiting:
            return batches
        fresh = [batches[number] for number in waiting]
        before = [batch for number, batch in enumerate(batches) if number not in waiting]
        if not any(batch.files.get(STATE) for batch in fresh) and any(batch.files[LIVES] for batch in before):
            # Records of other topics only: no message is touched, and the table is there.
            return [_with_lives(batch, [], 0) if batch in fresh else batch for batch in batches]
        known = self._known(fresh, before) if any(batch.files.get(STATE) for batch in before) else None
        parts = sum(batch.passing for batch in fresh) // RECEIPTS_PER_PART
        least = int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)
        frame = lives(
            self._state(fresh),
            known,
            self.sets,
            self.tables.manifest.generation + 1,
            parts=parts if parts > least else None,
        )
        files = self.tables.write(frame, folder, LIVES)
        self.tables.at_point("after messages")
        found = list(batches)
        for number in waiting:
            found[number] = _with_lives(batches[number], [], 0)
        found[waiting[-1]] = _with_lives(batches[waiting[-1]], files, new_receipts(self.tables.folder, files))
        return found

    def _known(self, fresh: list[Batch], before: list[Batch]) -> DataFrame:
        """Return the state rows that earlier batches have of the messages that the `fresh` batches touch."""
        found = self._state(before)
        files = [name for batch in fresh for name in batch.files.get(STATE, ())]
        message_ids = touched(self.tables.folder, files)
        if message_ids is not None:
            return found.where(named(message_ids))
        near = found.join(self._state(fresh).select("message_id"), on="message_id", how="left_semi")
        return near.select(*schemas.STATE.fieldNames())

    def report(self, evaluation: Evaluation, after_each: Callable[[], None] = lambda: None) -> None:
        """Evaluate every table but `messages`, as of a moment. Batches may come in meanwhile; `after_each` is
        called after each piece of work to let them.
        """
        with self.tables.work() as folder:
            before = self.tables.manifest
            moment = self._moment(before, evaluation)

            def write(frame: DataFrame, name: str) -> list[str]:
                return self.tables.write(frame.coalesce(1), folder, name)

            files = write_others(
                self.spark,
                self.tables.folder,
                read_files(self.spark, self.tables.folder, before.files(STATE), schemas.STATE),
                read_files(self.spark, self.tables.folder, before.files(RECORDS), schemas.RECORDS),
                before.files(LIVES),
                self.sets,
                moment,
                write,
                after_each,
            )

            def show(current: Manifest) -> Manifest:
                if current.sets_digest != before.sets_digest or current.reports is None:
                    return current  # the batches that these tables were made of are no longer there
                return msgspec.structs.replace(
                    current, reports=msgspec.structs.replace(current.reports, files=files)
                )

            self.tables.publish(show)

    # Upkeep

    def fold(self, first: int) -> bool:
        """Join the batches from the place `first` on into one. Batches may come in meanwhile. Return False if
        nothing was done.
        """
        before = self.tables.manifest
        some = before.batches[first:]
        if len(some) < 2 or any(LIVES not in batch.files for batch in some):
            return False
        with self.tables.work() as folder:
            one = fold(Fold(self.spark, self.tables, folder), some)
            self.tables.at_point("during compaction")

            def replace(current: Manifest) -> Manifest:
                end = first + len(some)
                if current.batches[first:end] != some:
                    return current  # looked at again with other sets meanwhile
                batches = [*current.batches[:first], one, *current.batches[end:]]
                return msgspec.structs.replace(current, batches=batches)

            self.tables.publish(replace)
        return True

    def compact(self, evaluation: Evaluation, *, keep_ms: int | None = None) -> int:
        """Join all batches into one. With `keep_ms`, forget the messages of which nothing was heard for so
        many milliseconds, with their records. Return the number of records forgotten.
        """
        self.refresh(msgspec.structs.replace(evaluation, what=Evaluated.MESSAGES))
        manifest = self.tables.manifest
        as_of_ms = self._moment(manifest, evaluation).as_of_ms
        if keep_ms is None or as_of_ms is None:
            self.fold(0)
            return 0
        with self.tables.work() as folder:
            one = forgotten(Fold(self.spark, self.tables, folder), manifest, as_of_ms, keep_ms)
            self.tables.at_point("during compaction")
            held = sum(batch.rows + batch.other_rows for batch in manifest.batches)
            removed = held - one.rows - one.other_rows
            following = msgspec.structs.replace(
                manifest, batches=[one], removed_rows=manifest.removed_rows + removed
            )
            self.tables.publish(lambda current: following)
        if removed and manifest.reports is not None and manifest.reports.files:
            self.report(evaluation)
        return removed

    def records(self) -> DataFrame:
        return self.tables.read(self.spark, RECORDS, schemas.RECORDS)

    def _state(self, batches: Iterable[Batch]) -> DataFrame:
        files = [name for batch in batches for name in batch.files.get(STATE, ())]
        return read_files(self.spark, self.tables.folder, files, schemas.STATE)


def _with_lives(batch: Batch, files: list[str], counted: int) -> Batch:
    return msgspec.structs.replace(batch, files={**batch.files, LIVES: files}, counted=counted)
