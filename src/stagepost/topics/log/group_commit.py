"""Group commit: many callers share one sync. Appends that come while the disk is busy are written together as
soon as it is free.

One thread per partition writes, and answers the callers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from stagepost.errors import ErrorCode, StorageError
from stagepost.ground.loop.clock import SureTime
from stagepost.topics.log.block import CONTENT_BYTES_MAX, RECORDS_MAX, Row
from stagepost.topics.log.partition_log import PartitionLog

WAITING_BYTES_MAX = 33_554_432
"""Bytes per partition that callers have appended and the disk has not taken yet."""
RETENTION_EVERY_MS = 60_000
ROW_BYTES = 128
"""Bytes counted for each record beside its content: a million empty ones need memory too."""

Settled = Callable[[int | StorageError], None]
Clock = Callable[[], int]
"""Function that returns Unix milliseconds."""


class CommitCounters(msgspec.Struct):
    groups: int = 0
    records: int = 0
    failures: int = 0
    refused: int = 0


class _AppendJob(NamedTuple):
    rows: Sequence[Row]
    content_bytes: int
    settled: Settled

    @property
    def held_bytes(self) -> int:
        return self.content_bytes + ROW_BYTES * len(self.rows)


class GroupCommit:
    """Writer of one partition log, in a thread of its own.

    It calls `on_error` with failures that nobody waits for: those of retention, and the first of several
    failed groups. `fault` is the reason why the last group could not be written; None after a success.

    With `retry_s` no append fails while the writer is open: the writer keeps the records that the disk
    refuses, and tries again after so many seconds, in the order of the appends. It then refuses no append for
    want of memory either; the caller bounds how much it appends.
    """

    def __init__(
        self,
        log: PartitionLog,
        name: str,
        now_ms: Clock,
        on_error: Callable[[StorageError], None],
        *,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        retry_s: float | None = None,
    ) -> None:
        self.counters = CommitCounters()
        self.fault: StorageError | None = None
        self._log = log
        self._name = name
        self._now_ms = now_ms
        self._on_error = on_error
        self._waiting_bytes_max = waiting_bytes_max
        self._retry_s = retry_s
        self._jobs: deque[_AppendJob] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._is_closed = False
        self._retained_ms = now_ms()
        self._sure = SureTime()
        self._sure.at(self._retained_ms / 1_000, time.monotonic())
        self._thread: threading.Thread | None = None

    def append(self, rows: Sequence[Row], settled: Settled) -> None:
        """Append rows, from any thread.

        The writing thread calls `settled` once, with the first offset or with the error.
        """
        job = _AppendJob(rows, sum(row.content_bytes for row in rows), settled)
        if len(rows) > RECORDS_MAX or job.content_bytes > CONTENT_BYTES_MAX:
            raise StorageError(
                f"{self._name}: {len(rows)} records with {job.content_bytes} bytes do not fit into one block of at most "
                f"{RECORDS_MAX} records and {CONTENT_BYTES_MAX} bytes",
                advice="append them in several calls",
            )
        with self._changed:
            if self._is_closed:
                raise StorageError(f"the writer of {self._name} is closed")
            is_too_much = self._waiting_bytes + job.held_bytes > self._waiting_bytes_max
            if self._jobs and is_too_much and self._retry_s is None:
                self.counters.refused += 1
                raise queue_full(self._name, self._waiting_bytes, self._waiting_bytes_max)
            self._jobs.append(job)
            self._waiting_bytes += job.held_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Write or refuse all appended records, answer them, and close the log. Further calls do nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        self._log.close()

    def _write_all(self) -> None:
        """Write until closed. Runs in the thread."""
        while group := self._next_group():
            rows = group[0].rows if len(group) == 1 else [row for job in group for row in job.rows]
            segment_before = self._log.mark.segment
            try:
                offset = self._log.append(rows, self._now_ms())
            except StorageError as error:
                self._failed(group, error)
                continue
            except Exception as fault:
                # A bug of ours. Nobody may wait for ever because of it.
                self._failed(group, StorageError(f"the log of {self._name} has an internal fault: {fault!r}"))
                continue
            self.fault = None
            self.counters.groups += 1
            self.counters.records += len(rows)
            for job in group:
                self._settle(job, offset)
                offset += len(job.rows)
            self._retain(is_due=self._log.mark.segment != segment_before)

    def _failed(self, group: Sequence[_AppendJob], error: StorageError) -> None:
        self.counters.failures += 1
        is_first, self.fault = self.fault is None, error
        # Once, until a write succeeds: a full disk must not fill the log as well.
        if is_first:
            self._on_error(error)
        for job in self._given_up(group):
            self._settle(job, error)

    def _given_up(self, group: Sequence[_AppendJob]) -> Sequence[_AppendJob]:
        """Put `group` back in front of later appends and wait for the next try; return the jobs that get none."""
        if self._retry_s is None:
            return group
        with self._changed:
            if self._is_closed:
                # Nothing may be written after records that were not.
                later = tuple(self._jobs)
                self._jobs.clear()
                self._waiting_bytes = 0
                return (*group, *later)
            self._jobs.extendleft(reversed(group))
            self._waiting_bytes += sum(job.held_bytes for job in group)
            self._changed.wait_for(lambda: self._is_closed, self._retry_s)
        return ()

    def _settle(self, job: _AppendJob, outcome: int | StorageError) -> None:
        """Answer a job. A bug of one caller must not keep the others waiting."""
        try:
            job.settled(outcome)
        except Exception as fault:
            self._on_error(StorageError(f"a callback of {self._name} failed: {fault!r}"))

    def _next_group(self) -> list[_AppendJob]:
        """Return as many jobs as fit into one block; none when the writer is closed and no job is left."""
        with self._changed:
            while not self._jobs:
                if self._is_closed:
                    return []
                self._changed.wait()
            group: list[_AppendJob] = []
            records = content_bytes = 0
            while self._jobs:
                job = self._jobs[0]
                records, content_bytes = records + len(job.rows), content_bytes + job.content_bytes
                if group and (records > RECORDS_MAX or content_bytes > CONTENT_BYTES_MAX):
                    break
                group.append(self._jobs.popleft())
                self._waiting_bytes -= job.held_bytes
            return group

    def _retain(self, *, is_due: bool) -> None:
        """Apply retention after each new segment, and every `RETENTION_EVERY_MS`. A wall clock that is ahead for a moment
        makes no record old."""
        now_ms = self._now_ms()
        if not is_due and 0 <= now_ms - self._retained_ms < RETENTION_EVERY_MS:
            return
        self._retained_ms = now_ms
        try:
            self._log.retain(int(self._sure.at(now_ms / 1_000, time.monotonic()) * 1_000))
        except StorageError as error:
            self._on_error(error)


def queue_full(name: str, waiting_bytes: int, limit: int) -> StorageError:
    return StorageError(
        f"{waiting_bytes} bytes wait for the disk of {name} already, {limit} may",
        code=ErrorCode.QUEUE_FULL,
        advice="try again when earlier appends have been answered",
        limit=limit,
        found=waiting_bytes,
    )
