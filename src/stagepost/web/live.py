"""Tail of the topic of statuses, one for all visitors: it fills the book, and a bounded ring of what was heard last.

Every row has a number of its own and the place of its record. Streams send places as event ids, so that a visitor goes on
where it was, also after this program was started anew; what the ring no longer holds is counted and said.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from stagepost.errors import StagepostError
from stagepost.ground.telemetry.health import Unread
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.topics.log.file_topic import TOPIC_FILE, TOPICS_FOLDER, FileTopicReader, open_topic
from stagepost.topics.topic import OffsetGone
from stagepost.trace.folder_health import topic_readings
from stagepost.trace.index import MessageIndex, has_topics
from stagepost.trace.kept_proofs import ProofTail
from stagepost.trace.reading import status_record
from stagepost.trace.session_records import SetsFolder
from stagepost.web.message_book import MessageBook, ShownRecord, Told
from stagepost.web.outcomes import Nothing, Unreadable

RECORDS_AT_START = 50_000
"""How far back the tail begins."""
RING_ROWS = 10_000
POLL_S = 0.1
FAULT_PAUSE_S = 1.0
PULSE_S = 0.2
"""Visitors are told of news together, so often at most: whatever came in between is one event."""
TIME_ALONE_S = 1.0

log = logging.getLogger(__name__)


class LiveRow(NamedTuple):
    """`place` is the partition and offset of the record behind it, `data` its JSON, made once for everybody."""

    number: int
    place: tuple[int, int]
    row: ShownRecord | Told
    data: bytes


class Since(NamedTuple):
    """Rows that a visitor has missed: the rows, the number to go on from, and how many are gone."""

    rows: list[LiveRow]
    next_number: int
    dropped: int


class Ring:
    """The newest rows. Written by the tail's thread, read by the loop: a lock around each."""

    def __init__(self, rows_max: int = RING_ROWS) -> None:
        self._rows: deque[LiveRow] = deque(maxlen=rows_max)
        self._next = 0
        self._lock = threading.Lock()
        self.next_offsets: dict[int, int] = {}

    @property
    def next_number(self) -> int:
        return self._next

    def append(self, place: tuple[int, int], row: ShownRecord | Told) -> None:
        data = msgspec.json.encode(row)
        with self._lock:
            self._rows.append(LiveRow(self._next, place, row, data))
            self._next += 1
            partition, offset = place
            self.next_offsets[partition] = max(offset + 1, self.next_offsets.get(partition, 0))

    def since(self, number: int) -> Since:
        with self._lock:
            first = self._next - len(self._rows)
            begin = max(number, first)
            rows = [self._rows[at - first] for at in range(begin, self._next)]
            return Since(rows, self._next, begin - number)

    def newest(self, count: int) -> Since:
        with self._lock:
            return Since(list(self._rows)[-count:], self._next, 0)

    def after_places(self, offsets: Mapping[int, int]) -> Since:
        """`offsets`: of the next record of each partition that the visitor has not seen."""
        with self._lock:
            rows = [row for row in self._rows if row.place[1] >= offsets.get(row.place[0], 0)]
            oldest: dict[int, int] = {}
            for row in self._rows:
                oldest.setdefault(row.place[0], row.place[1])
            dropped = sum(max(0, first - offsets.get(partition, 0)) for partition, first in oldest.items())
            return Since(rows, self._next, dropped)


def event_id(offsets: Mapping[int, int]) -> str:
    """The next offset of each partition, in order: `17`, or `17.5.0` for three of them."""
    return ".".join(str(offsets.get(partition, 0)) for partition in range(max(offsets, default=0) + 1))


def read_event_id(text: str) -> dict[int, int] | None:
    """None for what no stream of ours has sent."""
    parts = text.strip().split(".")
    if len(parts) > 64 or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        return None
    return dict(enumerate(map(int, parts)))


INDEX_EVERY_S = 2.0
"""Seconds, at least, from one look of the index at the topics to the next."""


class Tail:
    """A thread. `state` says what a page has to say about it: None while it reads, else why it does not."""

    def __init__(
        self,
        data: Path,
        book: MessageBook,
        ring: Ring,
        now_ms: Callable[[], int],
        *,
        poll_s: float = POLL_S,
        records_at_start: int = RECORDS_AT_START,
    ) -> None:
        self.state: Nothing | Unreadable | None = Nothing("receipts are still being read")
        self.is_caught_up = threading.Event()
        self._data = data
        self._book = book
        self._ring = ring
        self._now_ms = now_ms
        self._poll_s = poll_s
        self._records_at_start = records_at_start
        self._next: dict[int, int] | None = None
        self._cut: set[int] = set()
        self._sets = SetsFolder(data / SETS_FILE)
        self._proofs = ProofTail(data, records_at_start)
        self._time_alone_ms = 0
        self._index_fed: float | None = None
        self.index_state: Unreadable | None = None
        """Reason why ids cannot be looked up; None while they can."""
        self.has_looked = threading.Event()
        """Set once the topic and the index have been looked at, whatever was found."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status-tail", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            pause_s = self._poll_s
            try:
                if self.step():
                    continue
                self.is_caught_up.set()
            except StagepostError as error:
                self.state = Unreadable.of(error)
                pause_s = FAULT_PAUSE_S
            except OSError as error:
                self.state = Unreadable(str(error), "check the disk and who may read the data folder")
                pause_s = FAULT_PAUSE_S
            except Exception:
                log.exception("the topic of statuses could not be followed")
                self.state = Unreadable("the topic of statuses could not be followed; the log says why")
                pause_s = FAULT_PAUSE_S
            self.feed_index()
            self.has_looked.set()
            self._stop.wait(pause_s)

    def feed_index(self) -> None:
        """Keep the index of messages up to date, so that nobody who looks for an id waits for it."""
        now = time.monotonic()
        is_fresh = self._index_fed is not None and now - self._index_fed < INDEX_EVERY_S
        if is_fresh or not self._data.is_dir():
            return
        self._index_fed = now
        state: Unreadable | None = None
        try:
            if has_topics(self._data):  # an empty folder is left empty
                with MessageIndex(self._data) as index:
                    index.catch_up()
        except StagepostError as error:
            state = Unreadable.of(error)
        except OSError as error:
            state = Unreadable(str(error), "check the disk and who may read the data folder")
        if state is not None and self.index_state is None:
            log.warning("message index not written", extra={"reason": state.text})
        self.index_state = state

    def step(self) -> bool:
        """Read one batch of each partition; return whether there was any record."""
        if not (self._data / TOPICS_FOLDER / STATUSES_TOPIC / TOPIC_FILE).exists():
            if not self._data.is_dir():
                self.state = Unreadable(
                    f"there is no folder {self._data}", "give the data folder of a node with --data"
                )
            elif isinstance(missing := topic_readings(self._data).get("topic"), Unread):
                self.state = Unreadable(missing.text, missing.advice)
            else:
                self.state = Nothing(
                    "no receipts yet",
                    f"{self._data} holds no topic of statuses; a full node or devnet writes it",
                )
            return False
        if not self._learn():
            return False
        reader = open_topic(self._data, STATUSES_TOPIC).reader()
        if self._next is None:
            self._next = self._begin(reader)
        has_found = False
        for partition in range(reader.partitions):
            has_found |= self._follow(reader, partition, self._next)
        for message_id, end in self._proofs.step():
            self._book.proved(message_id.hex(), end)
            has_found = True
        self.state = None
        now_ms = self._now_ms()
        if has_found:
            self._tell(next(iter(self._next.items())), now_ms)
        elif now_ms - self._time_alone_ms >= TIME_ALONE_S * 1_000:
            self._time_alone_ms = now_ms
            self._tell(next(iter(self._next.items())), now_ms, everything=True)
        return has_found

    def _learn(self) -> bool:
        if not self._sets.is_there:
            self.state = Unreadable(
                f"there is no {SETS_FILE} in {self._data}: receipts cannot be checked",
                "copy it beside the topics; `stagepost sets export` writes it",
            )
            return False
        if self._sets.look():
            self._book.learn(self._sets.sets)
        return True

    def _begin(self, reader: FileTopicReader) -> dict[int, int]:
        share = max(1, self._records_at_start // reader.partitions)
        begin = {}
        for partition in range(reader.partitions):
            start, end = reader.start_offset(partition), reader.end_offset(partition)
            begin[partition] = max(start, end - share)
            if begin[partition] > 0:
                self._cut.add(partition)
            self._ring.next_offsets.setdefault(partition, begin[partition])
        return begin

    def _follow(self, reader: FileTopicReader, partition: int, positions: dict[int, int]) -> bool:
        start = positions[partition]
        if reader.end_offset(partition) <= start:
            return False
        is_cut = partition in self._cut
        try:
            for batch in reader.batches(partition, start):
                for one in batch:
                    heard = self._book.add(status_record(one, partition), is_cut=is_cut)
                    self._ring.append((partition, one.offset), heard)
                positions[partition] = batch.next_offset
                self._tell((partition, batch.next_offset), self._now_ms())
                if self._stop.is_set():
                    break
        except OffsetGone as gone:
            positions[partition] = gone.first_kept
            self._cut.add(partition)
        return True

    def _tell(self, place: tuple[int, int], now_ms: int, *, everything: bool = False) -> None:
        partition, next_offset = place
        for told in self._book.changed(now_ms, everything=everything):
            self._ring.append((partition, max(0, next_offset - 1)), told)


class Pulse:
    """Wakes all streams together when something is new: they then send the same bytes.

    `ends_when` is asked each time: a server that is told to stop waits for open answers, and a stream has no end of its own.
    """

    def __init__(self, ring: Ring, pulse_s: float = PULSE_S) -> None:
        self._ring = ring
        self._pulse_s = pulse_s
        self._seen = ring.next_number
        self._news = asyncio.Event()
        self._is_over = False
        self.ends_when: Callable[[], bool] = lambda: False

    async def run(self) -> None:
        while not self._is_over:
            await asyncio.sleep(self._pulse_s)
            if self.ends_when():
                self.end()
            if self._ring.next_number != self._seen:
                self._seen = self._ring.next_number
                self._ring_out()

    def end(self) -> None:
        self._is_over = True
        self._ring_out()

    def is_over(self) -> bool:
        """Return whether the program ends, and every stream with it."""
        return self._is_over

    def _ring_out(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for news; return whether there is any."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True
