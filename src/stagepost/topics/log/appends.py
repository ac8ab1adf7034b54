"""Appends: from the records of one append to the rows of each partition, and from the partitions' answers
back to one.

`AwaitedAppends` serves callers that wait: it gives the answers of a writer's threads on the caller's event
loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from stagepost.errors import ConfigError, StorageError
from stagepost.topics.log.block import CONTENT_BYTES_MAX, RECORDS_MAX, Row, row_of
from stagepost.topics.topic import Appended, Place, Record, RecordRefused, partition_of

Routed = Mapping[int, tuple[list[Row], list[int]]]
"""Rows by partition, and the place of each in the append."""


class Router:
    """Router of records to partitions. `owned` are the partitions written here. Records without a key go to
    each of them in turn."""

    def __init__(self, topic: str, partitions: int, owned: Sequence[int]) -> None:
        self._topic = topic
        self._partitions = partitions
        self._owned = owned
        self._turn = 0

    def routed(self, records: Sequence[Record], now_ms: int) -> Routed:
        """Return the rows by partition; raise `RecordRefused` if a record, or the whole append, is too large:
        then none is taken."""
        _require_room(len(records), RECORDS_MAX, "records")
        found: dict[int, tuple[list[Row], list[int]]] = {}
        content_bytes = 0
        for number, record in enumerate(records):
            row = row_of(record, now_ms)
            content_bytes += row.content_bytes
            rows, numbers = found.setdefault(self._partition(record.key), ([], []))
            rows.append(row)
            numbers.append(number)
        _require_room(content_bytes, CONTENT_BYTES_MAX, "bytes")
        return found

    def _partition(self, key: bytes | None) -> int:
        if key is None:
            self._turn += 1
            return self._owned[self._turn % len(self._owned)]
        partition = partition_of(key, self._partitions)
        if partition not in self._owned:
            raise ConfigError(
                f"a key belongs to partition {partition} of {self._topic}, which this writer does not write",
                advice=f"send it to the writer of that partition; this one has {list(self._owned)}",
                found=partition,
            )
        return partition


def _require_room(found: int, limit: int, what: str) -> None:
    if found > limit:
        raise RecordRefused(
            f"one append may hold {limit} {what}, this one holds {found}",
            advice="append the records in several calls",
            limit=limit,
            found=found,
        )


class PendingAppend:
    """Append that is answered once every partition has answered. Any error is the answer, whatever the others
    say."""

    def __init__(self, routed: Routed, done: Appended) -> None:
        self._routed = routed
        self._done = done
        self._left = len(routed)
        self._places: list[Place] = [Place(-1, -1)] * sum(len(numbers) for _, numbers in routed.values())
        self._error: StorageError | None = None
        self._lock = threading.Lock()
        if not routed:
            done([])

    def settle(self, partition: int, outcome: int | StorageError) -> None:
        with self._lock:
            if isinstance(outcome, StorageError):
                self._error = self._error or outcome
            else:
                for offset, number in enumerate(self._routed[partition][1], start=outcome):
                    self._places[number] = Place(partition, offset)
            self._left -= 1
            if self._left:
                return
        self._done(self._places if self._error is None else self._error)


AppendSoon = Callable[[Sequence[Record], Appended], None]


class AwaitedAppends:
    """Awaitable appends of one writer. It serves one event loop at a time, the one that runs the call."""

    def __init__(self, append_soon: AppendSoon) -> None:
        self._append_soon = append_soon
        self._answers: LoopAnswers | None = None

    async def append(self, records: Sequence[Record]) -> list[Place]:
        loop = asyncio.get_running_loop()
        if self._answers is None or self._answers.loop is not loop:
            self._answers = LoopAnswers(loop)
        answers, appended = self._answers, loop.create_future()

        def settle(outcome: list[Place] | StorageError) -> None:
            answers.give(lambda: answer(appended, outcome))

        self._append_soon(records, settle)
        places: list[Place] = await appended
        return places


def answer(appended: asyncio.Future[list[Place]], outcome: list[Place] | StorageError) -> None:
    if appended.done():
        return
    if isinstance(outcome, StorageError):
        appended.set_exception(outcome)
    else:
        appended.set_result(outcome)


class LoopAnswers:
    """Answers from threads, given on one event loop: a whole group of them with one call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._answers: deque[Callable[[], None]] = deque()
        self._is_called = False
        self._lock = threading.Lock()

    def give(self, answer: Callable[[], None]) -> None:
        """Queue an answer from any thread."""
        with self._lock:
            self._answers.append(answer)
            if self._is_called:
                return
            self._is_called = True
        with suppress(RuntimeError):  # the loop is gone, and with it everybody who could have waited
            self.loop.call_soon_threadsafe(self.give_all)

    def give_all(self) -> None:
        """Give the waiting answers, on the loop; also for a caller that has seen the writer close."""
        with self._lock:
            self._is_called = False
            answers, self._answers = self._answers, deque()
        for answer in answers:
            try:
                answer()
            except Exception as fault:
                # A fault of one receiver must not keep the other answers back.
                self.loop.call_exception_handler(
                    {"message": f"{answer!r} failed with the answer of a writer", "exception": fault}
                )
