"""Messages that programs follow: their statuses from the topic and as they come, and the present verdict of each.

Each follower has a position in one list; there is no queue per follower. A message without followers costs one look into a
table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from stagepost.errors import ErrorCode, StagepostError
from stagepost.remp.receipts.receipt import Counting
from stagepost.remp.receipts.status_records import StatusRecord, check_record
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.state import MessageState, ProvedEnd
from stagepost.remp.verdict.verdict import Verdict, evaluate

FOLLOWED_MAX = 1_024
"""Messages that are followed at a time."""
STATUSES_MAX = 10_000
"""Statuses of one message: far more than its validators send. Further ones count in the verdict, but no follower gets them."""
HISTORIES_READ_AT_ONCE = 2
"""Threads that read the topic at a time."""

ReadHistory = Callable[[bytes], Iterable[StatusRecord]]
"""Return the records that the topic holds of a message now; called in a thread."""


class FollowedMessage:
    """Message with at least one follower. `records` only grows."""

    def __init__(self, message_id: bytes) -> None:
        self.message_id = message_id
        self.records: list[StatusRecord] = []
        self.followers = 0
        self.reading: asyncio.Task[None] | None = None
        self.proved: ProvedEnd | None = None
        self._known: set[tuple[bytes | None, str | None]] = set()
        self._waiting: list[StatusRecord] | None = []
        self._unread: list[StatusRecord] = []
        self._state = MessageState()
        self._bell = asyncio.Event()

    def history_is(self, records: Iterable[StatusRecord]) -> None:
        """Put the history first; records that came while it was read are in it, or come behind it."""
        waiting, self._waiting = self._waiting or [], None
        for record in (*records, *waiting):
            self.add(record)

    def add(self, record: StatusRecord) -> None:
        if self._waiting is not None:
            self._waiting.append(record)
            return
        key = record.value, record.session_hint
        if key in self._known:
            return
        self._unread.append(record)
        if len(self.records) < STATUSES_MAX:
            self._known.add(key)
            self.records.append(record)
        self._bell.set()

    def end_is(self, end: ProvedEnd | None) -> None:
        """Note the proved end of the message; None leaves what is known."""
        if end is not None:
            self.proved = self._state.proved = end
            self._bell.set()

    def verdict(self, sets: ValidatorSets, as_of_ms: int) -> Verdict | None:
        unread, self._unread = self._unread, []
        for record in unread:
            checked = check_record(record, sets)
            if isinstance(checked, Counting):
                self._state.add(checked, record.session_hint)
        return evaluate(self._state, sets, as_of_ms)

    async def more_than(self, count: int, within_s: float) -> None:
        """Return when there are more than `count` statuses, or the end is proved, or `within_s` is over."""
        was_proved = self.proved is not None
        try:
            async with asyncio.timeout(within_s):
                while len(self.records) <= count and was_proved is (self.proved is not None):
                    self._bell.clear()
                    await self._bell.wait()
        except TimeoutError:
            pass


class FollowedStatuses:
    """Table of followed messages. `sets` returns the validator sets by which receipts count now; `read_end` the proved end
    of a message, in a thread."""

    def __init__(
        self,
        read_history: ReadHistory,
        sets: Callable[[], ValidatorSets],
        read_end: Callable[[bytes], ProvedEnd | None] = lambda message_id: None,
    ) -> None:
        self._read_history = read_history
        self._read_end = read_end
        self._sets = sets
        self._followed: dict[str, FollowedMessage] = {}
        self._reading = asyncio.Semaphore(HISTORIES_READ_AT_ONCE)

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, key: str) -> bool:
        """Return whether the message with this key has a follower; may be called in any thread."""
        return key in self._followed

    def heard(self, record: StatusRecord) -> None:
        """Give followers a record that is on the topic now."""
        followed = self._followed.get(record.key or "")
        if followed is not None:
            followed.add(record)

    def proved(self, message_id: bytes, end: ProvedEnd) -> None:
        """Give followers the end of a message that a proof on the topic shows."""
        followed = self._followed.get(message_id.hex())
        if followed is not None:
            followed.end_is(end)

    def verdict(self, followed: FollowedMessage, as_of_ms: int) -> Verdict | None:
        return followed.verdict(self._sets(), as_of_ms)

    @asynccontextmanager
    async def following(self, message_id: bytes) -> AsyncIterator[FollowedMessage]:
        """Follow a message as long as the context lasts; `StagepostError` with `QUEUE_FULL` if too many are followed."""
        key = message_id.hex()
        followed = self._followed.get(key)
        if followed is None:
            if len(self._followed) >= FOLLOWED_MAX:
                raise StagepostError(
                    f"{FOLLOWED_MAX} messages are followed already",
                    code=ErrorCode.QUEUE_FULL,
                    advice="follow it later, or read its trace from the data folder",
                    limit=FOLLOWED_MAX,
                    message_id=message_id,
                )
            # From here on no record is missed: earlier records are on the topic, which is read now, and later ones wait
            # behind them.
            followed = self._followed[key] = FollowedMessage(message_id)
            followed.reading = asyncio.create_task(self._read(followed))
        followed.followers += 1
        try:
            assert followed.reading is not None, "begun together with its entry"
            await asyncio.shield(followed.reading)
            yield followed
        finally:
            followed.followers -= 1
            if not followed.followers:
                del self._followed[key]
                if followed.reading is not None:
                    followed.reading.cancel()

    async def _read(self, followed: FollowedMessage) -> None:
        async with self._reading:
            records, end = await asyncio.to_thread(self._history, followed.message_id)
            followed.history_is(records)
            followed.end_is(end)

    def _history(self, message_id: bytes) -> tuple[list[StatusRecord], ProvedEnd | None]:
        return list(self._read_history(message_id)), self._read_end(message_id)
