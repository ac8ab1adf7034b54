"""One local program's place in the mempool: never repeats, never skips an unexpired message, holds no queue."""

from __future__ import annotations

from collections.abc import Collection

from stagepost.dmq.mempool import Mempool
from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.runtime.bell import Bell


class MempoolFeed:
    """Starts before the oldest message. Layouts that the program's profile does not know are passed over."""

    def __init__(self, mempool: Mempool, bell: Bell, layouts: Collection[MessageLayout]) -> None:
        self._mempool = mempool
        self._bell = bell
        self._layouts = layouts
        self._cursor = 0

    @property
    def cursor(self) -> int:
        """The index of the last message that was taken or passed over."""
        return self._cursor

    def take(self, count_max: int) -> tuple[tuple[DmqMessage, ...], bool]:
        """The next messages, and whether there are more behind them."""
        entries = self._mempool.after(self._cursor, count_max, self._layouts)
        if len(entries) < count_max:
            # Nothing that may be seen is left, so what cannot be seen need not be looked at again.
            self._cursor = self._mempool.last_index
            return tuple([entry.message for entry in entries]), False
        if entries:
            self._cursor = entries[-1].index
        has_more = self._mempool.has_after(self._cursor, self._layouts)
        return tuple([entry.message for entry in entries]), has_more

    async def wait(self) -> None:
        """Return when `take` has something to give."""
        while not self._mempool.has_after(self._cursor, self._layouts):
            self._cursor = max(self._cursor, self._mempool.last_index)
            await self._bell.wait()
