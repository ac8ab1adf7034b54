"""`stagepost pipeline run`: topics into tables, batch by batch, until it is told to stop; its options, which
need no Spark, and the check that there are topics to follow.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from stagepost.errors import ConfigError, ConfigFaults, StorageError
from stagepost.pipeline.driver import Driver, Evaluated, Evaluation
from stagepost.pipeline.sources.checkpoint_fit import (
    STREAM,
    planned_text,
    require_fitting_checkpoint,
    restore_checkpoint,
)
from stagepost.pipeline.sources.sets_source import SetsSource
from stagepost.pipeline.sources.sources import RecordSource, Topics
from stagepost.pipeline.sources.topic_marks import TopicBegunAnew, require_going_on
from stagepost.pipeline.sources.topic_places import TopicPlace, place_of, topics_of
from stagepost.pipeline.sources.topic_ranges import Range
from stagepost.pipeline.sources.topic_source import TopicStreamReader, batches
from stagepost.pipeline.spark import UPKEEP
from stagepost.pipeline.tables.delta import day_of
from stagepost.pipeline.tables.manifest import BatchName, Manifest, OfStream
from stagepost.pipeline.tables.own_files import CHECKPOINT_FOLDER
from stagepost.pipeline.tables.store import TableStore
from stagepost.pipeline.tables.tables import Point, Tables, pass_by, root_cause
from stagepost.pipeline.upkeep import Upkeep
from stagepost.topics.log.file_topic import topic_names
from stagepost.topics.topic import KNOWN


class StreamOptions(NamedTuple):
    """`source` None: the topics of the folder `data`. `keep_ms` None: every day is kept. `find_genesis` returns the genesis of the
    network, or None while there is none; the tables keep the first one. `out` is a folder, or an address of object storage,
    beside which no checkpoint can lie: there the stream goes on from the last commit.
    """

    data: Path | None
    sets_path: Path
    out: TableStore | Path
    is_once: bool = False
    every_s: float = 0.25
    rows_max: int = 200_000
    message_timeout_ms: int | None = None
    source: RecordSource | None = None
    keep_ms: int | None = None
    find_genesis: Callable[[], bytes | None] = lambda: None

    def records(self) -> RecordSource:
        if self.source is not None:
            return self.source
        assert self.data is not None, "one of the two is given"
        return Topics({"path": str(self.data.absolute())})


def require_topics(data: Path) -> None:
    if not set(topic_names(data)) & set(KNOWN):
        raise ConfigError(
            f"{data} holds none of the topics {', '.join(KNOWN)}",
            advice="give a node's data folder with --data",
        )


WHOLE_EVERY_S = 60.0
"""Seconds between two evaluations of the tables other than `messages` while the stream runs; more where they
would take more than `WHOLE_SHARE_MAX` of the time.
"""
WHOLE_SHARE_MAX = 0.1
"""Share of the time, at most, for the tables other than `messages`."""

BATCH_PASSES_WITHIN_S = 10.0
"""Seconds, at most, that upkeep waits between two tables until a batch has had the machine to itself."""

IDLE_REFRESH_S = 5.0
"""Seconds without new records after which the tables move on to the present moment: verdicts still change,
for lives end.
"""

LOOK_EVERY_S = 0.2
LAST_BATCH_WITHIN_S = 30.0
"""Seconds for which a stream that is told to stop finishes the batch in hand; then the batch is cut off, and
comes again.
"""

Say = Callable[[str], None]


class StreamIsOver(Exception):
    """Tells Spark that a batch came after the last one: it counts as not taken, and comes again."""


class _Told(Exception):
    """The process was told to stop: the interrupted upkeep is done again at the end."""


class Following:
    """A stream into one tables folder. Batches come in a thread of Spark's; upkeep goes on beside them."""

    def __init__(
        self,
        spark: SparkSession,
        tables: Tables,
        options: StreamOptions,
        checkpoint: Path,
        say: Say,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now` is the clock of verdicts and of days to drop, in Unix seconds."""
        self._now = now
        self._options = options
        self._checkpoint = checkpoint
        self._say = say
        self._tables = tables
        self._sets = SetsSource(options.sets_path)
        self._sets_file = self._sets.content()
        self._driver = Driver(spark, tables, self._sets_file, genesis=options.find_genesis())
        self._upkeep = Upkeep(self._driver)
        self.is_told = threading.Event()
        self._turn = threading.Lock()
        self._batches = 0
        self._kept_on = ""
        self._whole_every_s = WHOLE_EVERY_S
        # People wait for `messages`, so it comes first; the other tables follow when the stream has run for a while.
        self._evaluated_at = self._whole_at = time.monotonic()

    def take(self, raw: DataFrame, number: int) -> None:
        """Take a batch that Spark has planned."""
        self._take(partial(self._driver.take, raw), number)

    def take_ranges(self, place: TopicPlace, ranges: Sequence[Range], number: int) -> None:
        self._take(partial(self._driver.take_ranges, place, ranges), number)

    def _take(self, take: Callable[[Evaluation, BatchName], bool], number: int) -> None:
        with self._turn:
            if self.is_told.is_set():
                raise StreamIsOver
            self._look_at_files()
            # A run that takes what is there evaluates once, at its end.
            what = Evaluated.NOTHING if self._options.is_once else Evaluated.MESSAGES
            name = OfStream(STREAM, number, planned_text(self._checkpoint, number))
            if take(self._moment(what), name):
                self._evaluated_at = time.monotonic()
                self._say(f"batch {number}: {self._tables.manifest.total.rows} records in all")
                self._tidy()
        self._batches += 1

    def _tidy(self) -> None:
        """Compact crowded days, and drop old ones when a new day has begun."""
        if self._options.is_once:
            return
        self._upkeep.tidy()
        day = day_of(int(self._now() * 1_000)) or ""
        if self._options.keep_ms is not None and self._kept_on != day:
            self._kept_on = day
            if removed := self._upkeep.forget(self._options.keep_ms, self._moment(Evaluated.MESSAGES)):
                self._say(f"{removed} records of days that are no longer kept were dropped")

    def upkeep(self) -> None:
        """Do the upkeep that is due; called again and again, while batches come."""
        total = self._tables.manifest.total
        if self._options.is_once or not (total.rows or total.other_rows):
            return
        self._move_on()
        is_due = time.monotonic() - self._whole_at >= self._whole_every_s
        if is_due and self._tables.manifest.reports is not None:
            self._report()

    def _report(self) -> None:
        began, waited_s = time.monotonic(), 0.0

        def let_batches_pass() -> None:
            nonlocal waited_s
            waited_s += self._let_batches_pass()
            if self.is_told.is_set():
                raise _Told

        with suppress(_Told):
            self._driver.report(self._moment(Evaluated.ALL), let_batches_pass)
        self._whole_at = time.monotonic()
        worked_s = self._whole_at - began - waited_s
        self._whole_every_s = max(WHOLE_EVERY_S, worked_s / WHOLE_SHARE_MAX)

    def _let_batches_pass(self) -> float:
        """Wait until the batch in hand, which had to share the machine, and the one after it are done. Return
        the seconds that it took.
        """
        began = time.monotonic()
        if self._turn.locked():
            wanted, end = self._batches + 2, began + BATCH_PASSES_WITHIN_S
            while self._batches < wanted and time.monotonic() < end and not self.is_told.wait(LOOK_EVERY_S):
                pass
        return time.monotonic() - began

    def _move_on(self) -> None:
        """Move the tables to the present moment, when no batch has done so for a while and none is about to."""
        if time.monotonic() - self._evaluated_at >= IDLE_REFRESH_S and self._turn.acquire(blocking=False):
            try:
                self._look_at_files()
                self._driver.refresh(self._moment(Evaluated.MESSAGES))
                self._tidy()
                self._evaluated_at = time.monotonic()
            finally:
                self._turn.release()

    def end(self) -> None:
        """Finish the batch in hand, and take none from now on. If a batch were cut off, Spark would report
        every failed part of it in a thousand lines.
        """
        self.is_told.set()
        if self._turn.acquire(timeout=LAST_BATCH_WITHIN_S):
            self._turn.release()

    def finish(self) -> None:
        with self._turn:
            self._driver.refresh(self._moment(Evaluated.ALL))

    def _moment(self, what: Evaluated) -> Evaluation:
        """Return the evaluation as of now for a live stream; a run that takes what is there is evaluated by
        its records, as a backfill is.
        """
        now_ms = None if self._options.is_once else int(self._now() * 1_000)
        return Evaluation(now_ms, self._options.message_timeout_ms, what)

    def _look_at_files(self) -> None:
        """Follow the sets file, and a genesis that was not there when the stream began."""
        try:
            genesis = None if self._driver.has_genesis else self._options.find_genesis()
            if genesis is not None:
                self._driver.use_genesis(genesis)
                self._say(
                    "the genesis of the network is there: proofs are checked, also those that came before"
                )
        except StorageError as error:
            self._say(f"no proof is checked: {error.text}")
        try:
            content = self._sets.content()
            if content != self._sets_file:
                self._driver.use_sets(content)
                self._sets_file = content
                self._say("the validator sets have changed: the messages that they touch are checked again")
        except (ConfigFaults, StorageError) as error:
            self._say(f"the validator sets stay as they were: {error.text}")


def follow(
    spark: SparkSession,
    options: StreamOptions,
    *,
    say: Say = lambda text: None,
    at_point: Point = pass_by,
    now: Callable[[], float] = time.time,
) -> Manifest:
    """Follow the topics. Return when everything is taken (`is_once`), or when the process is told to stop."""
    with Tables(options.out, at_point=at_point, now=now) as tables:
        with _checkpoint_of(tables.store) as checkpoint:
            if restore_checkpoint(checkpoint, tables.manifest, STREAM) and tables.store.is_local:
                say("the checkpoint was lost: the stream goes on from the last commit")
            require_fitting_checkpoint(checkpoint, tables.manifest, STREAM)
            _follow(spark, Following(spark, tables, options, checkpoint, say, now), options, checkpoint)
        return tables.manifest


def _follow(spark: SparkSession, following: Following, options: StreamOptions, checkpoint: Path) -> None:
    source = options.records()
    _require_going_on(source, options, checkpoint)
    if options.is_once and isinstance(source, Topics):
        _take_present(source, following, options, checkpoint)
        following.finish()
        return
    writer = source.stream(spark, options.rows_max).writeStream.foreachBatch(following.take)
    writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
    trigger = {"availableNow": True} if options.is_once else {"processingTime": f"{options.every_s} seconds"}
    with _stopping(following.is_told):
        query = writer.trigger(**trigger).start()
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", UPKEEP)
        while query.isActive and not following.is_told.wait(LOOK_EVERY_S):
            following.upkeep()
        following.end()
        query.stop()
    failure = query.exception()
    if failure is not None and StreamIsOver.__name__ not in str(failure):
        _require_going_on(source, options, checkpoint)
        raise StorageError(f"the stream stopped: {root_cause(str(failure))}", advice="see the log with -v")
    following.finish()


def _take_present(source: Topics, following: Following, options: StreamOptions, checkpoint: Path) -> None:
    """Take the records that are there now, in the batches and the checkpoint that a stream of Spark would have.

    To start such a stream takes Spark longer than to check thousands of records.
    """
    place = place_of(source.options)
    reader = TopicStreamReader(place, topics_of(source.options), options.rows_max)
    try:
        with _stopping(following.is_told), suppress(StreamIsOver):
            for number, ranges in batches(checkpoint, reader, options.rows_max):
                following.take_ranges(place, ranges, number)
    except TopicBegunAnew:
        _require_going_on(source, options, checkpoint)
        raise


@contextmanager
def _checkpoint_of(store: TableStore) -> Iterator[Path]:
    """Give the folder of the checkpoint: beside tables in a folder, else one that is there as long as the stream."""
    if store.is_local:
        yield store.folder / CHECKPOINT_FOLDER
        return
    with TemporaryDirectory(prefix="stagepost-checkpoint-") as name:
        yield Path(name)


def _require_going_on(source: RecordSource, options: StreamOptions, checkpoint: Path) -> None:
    """Raise `TopicBegunAnew` if our own topics are not those that the checkpoint has read; a broker's have their own check."""
    if isinstance(source, Topics):
        require_going_on(source.options, options.sets_path, options.out, checkpoint)


@contextmanager
def _stopping(is_told: threading.Event) -> Iterator[None]:
    """Set the event on Ctrl-C and on a request to end; restore the former handlers afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, lambda *_: is_told.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
