"""The driver: takes records into the tables batch by batch, each exactly once, and evaluates the reports.

A batch writes its records and its partial state into a folder of its own, evaluates the reports with them, and is
published by one replacement of the manifest. Whatever ends the process before that leaves the tables as they were, and
the batch is taken again.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stagepost.errors import ConfigError
from stagepost.pipeline import schemas
from stagepost.pipeline.batch_counts import counted_batch, counted_receipts
from stagepost.pipeline.batch_names import BatchName
from stagepost.pipeline.manifest import RECORDS, STATE, Batch, Manifest, Reports
from stagepost.pipeline.messages import Moment
from stagepost.pipeline.reports import write_messages, write_others
from stagepost.pipeline.sets_copies import keep_sets, kept_sets
from stagepost.pipeline.state import merged, state_of
from stagepost.pipeline.tables import Tables, read_files
from stagepost.pipeline.verified import with_checks
from stagepost.remp.validator_sets import ValidatorSets, parse_validator_sets

ROWS_PER_FILE = 1_000_000
"""After compaction: enough for quick scans, few enough for workers to share them."""


class Evaluated(Enum):
    """Which reports a commit brings up to date. `messages` is what people wait for; the others may follow."""

    NOTHING = "nothing"
    MESSAGES = "messages"
    ALL = "all"


class Evaluation(msgspec.Struct, frozen=True):
    """What the reports are asked for. None: as the records, or the sets file, say."""

    as_of_ms: int | None = None
    message_timeout_ms: int | None = None
    what: Evaluated = Evaluated.ALL


class Driver:
    """Of one tables folder. `sets_file` None: the sets that the tables were made with."""

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
        """From the next commit on. `ConfigFaults` for a file that is not in order, and then all stays as it was."""
        self.sets: ValidatorSets = parse_validator_sets(content, name)
        self._sets_file = content
        self._sets_digest = keep_sets(self.tables.folder, content)

    # Taking records in

    def take(self, raw: DataFrame, evaluation: Evaluation, batch_name: BatchName) -> bool:
        """Records of one batch; False if it was taken before."""
        if batch_name.is_taken(self.tables.manifest):
            return False
        self.follow_sets()
        folder = self.tables.fresh_folder()
        batch = self._written(with_checks(raw, self._sets_file), folder)
        before = self.tables.manifest
        following = batch_name.enter(msgspec.structs.replace(before, batches=[*before.batches, batch]))
        self._publish(following, folder, evaluation)
        return True

    def follow_sets(self) -> bool:
        """Looks at every record again if the sets have changed since: the tables become what a backfill would give."""
        manifest = self.tables.manifest
        if manifest.sets_digest == self._sets_digest:
            return False
        following = msgspec.structs.replace(manifest, sets_digest=self._sets_digest)
        if manifest.batches:
            folder = self.tables.fresh_folder()
            raw = self.records().select(*schemas.RAW.fieldNames())
            batch = self._written(with_checks(raw, self._sets_file), folder)
            self.tables.publish(msgspec.structs.replace(following, batches=[batch]))
        else:
            self.tables.publish(following)
        return True

    def _written(self, records: DataFrame, folder: Path) -> Batch:
        """Records first; their state is worked out from what was written, so that nothing is checked twice."""
        tables = self.tables
        tables.at_point("before write")
        record_files = tables.write(records, folder, RECORDS)
        tables.at_point("after write")
        state = state_of(read_files(self.spark, tables.folder, record_files, schemas.RECORDS))
        state_files = tables.write(state, folder, STATE)
        tables.at_point("after state")
        return counted_batch(tables.folder, {RECORDS: record_files, STATE: state_files}, record_files)

    # Evaluating

    def refresh(self, evaluation: Evaluation) -> None:
        """The reports anew from what is in the tables."""
        self.follow_sets()
        self._publish(self.tables.manifest, self.tables.fresh_folder(), evaluation)

    def _publish(self, manifest: Manifest, folder: Path, evaluation: Evaluation) -> None:
        if evaluation.what is Evaluated.NOTHING:
            self.tables.publish(manifest)
            return
        as_of_ms = manifest.natural_as_of_ms if evaluation.as_of_ms is None else evaluation.as_of_ms
        timeout_ms = evaluation.message_timeout_ms
        moment = Moment(as_of_ms, self.sets.message_timeout_ms if timeout_ms is None else timeout_ms)
        files = self._reports(manifest, folder, moment, is_whole=evaluation.what is Evaluated.ALL)
        counted = counted_receipts(self.tables.folder, files["messages"])
        reports = Reports(files, as_of_ms, moment.message_timeout_ms, counted)
        self.tables.publish(msgspec.structs.replace(manifest, reports=reports))

    def _reports(
        self, manifest: Manifest, folder: Path, moment: Moment, *, is_whole: bool
    ) -> dict[str, list[str]]:
        place = self.tables.folder
        state = read_files(self.spark, place, manifest.files(STATE), schemas.STATE)
        records = read_files(self.spark, place, manifest.files(RECORDS), schemas.RECORDS)

        def write(frame: DataFrame, name: str) -> list[str]:
            return self.tables.write(frame.coalesce(1) if name != "messages" else frame, folder, name)

        made = write_messages(state, records, self.sets, moment, write)
        self.tables.at_point("after messages")
        if is_whole:
            others = write_others(
                self.spark, place, state, records, made["messages"], self.sets, moment, write
            )
            return {**made, **others}
        kept = manifest.reports.files if manifest.reports is not None else {}
        return {**kept, **made}

    # Upkeep

    def compact(self, evaluation: Evaluation, *, keep_ms: int | None = None) -> int:
        """All batches into one, their states joined. With `keep_ms`, messages of which nothing was heard for so long are
        forgotten, with their records; the number of records that went.
        """
        self.follow_sets()
        manifest = self.tables.manifest
        records, state = self.records(), merged(self.tables.read(self.spark, STATE, schemas.STATE))
        as_of_ms = manifest.natural_as_of_ms if evaluation.as_of_ms is None else evaluation.as_of_ms
        if keep_ms is not None and as_of_ms is not None:
            old = _old_messages(records, as_of_ms - keep_ms).cache()
            records = records.join(old, on="message_id", how="left_anti").where(
                F.col("message_id").isNotNull()
                | (F.coalesce("arrived_ms", F.lit(as_of_ms)) >= as_of_ms - keep_ms)
            )
            records = records.select(*schemas.RECORDS.fieldNames())
            state = state.join(old, on="message_id", how="left_anti").select(*schemas.STATE.fieldNames())
        held = sum(batch.rows + batch.other_rows for batch in manifest.batches)
        folder = self.tables.fresh_folder()
        files = {
            RECORDS: self.tables.write(records.coalesce(max(1, held // ROWS_PER_FILE)), folder, RECORDS),
            STATE: self.tables.write(state.coalesce(max(1, held // ROWS_PER_FILE)), folder, STATE),
        }
        self.tables.at_point("during compaction")
        batch = counted_batch(self.tables.folder, files, files[RECORDS])
        # What was the greatest arrival stays it, also when the record itself is forgotten.
        batch = msgspec.structs.replace(
            batch,
            greatest_arrival_ms=manifest.greatest_arrival_ms,
            greatest_full_node_ms=manifest.greatest_full_node_ms,
        )
        removed = held - batch.rows - batch.other_rows
        following = msgspec.structs.replace(
            manifest, batches=[batch], removed_rows=manifest.removed_rows + removed
        )
        if removed:
            self._publish(following, folder, evaluation)
        else:
            self.tables.publish(following)
        return removed

    def records(self) -> DataFrame:
        return self.tables.read(self.spark, RECORDS, schemas.RECORDS)


def _old_messages(records: DataFrame, before_ms: int) -> DataFrame:
    heard = F.greatest(F.coalesce("arrived_ms", F.lit(0)), F.coalesce("timestamp_ms", F.lit(0)))
    last = (
        records.where(F.col("message_id").isNotNull())
        .groupBy("message_id")
        .agg(F.max(heard).alias("last_ms"))
    )
    return last.where(F.col("last_ms") < before_ms).select("message_id")
