"""The place of one local program in the mempool: it never repeats, never skips an unexpired message, and
holds no queue."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

from stagepost.dmq.mempool import Mempool, MempoolEntry
from stagepost.dmq.message import DmqMessage, MessageLayout
from stagepost.dmq.profiles import MiniProtocol
from stagepost.ground.loop.bell import Bell, Call

Taken = tuple[tuple[DmqMessage, ...], bool]
OnSent = Callable[[MiniProtocol, int], None]
"""Callback with the mini-protocol and the number of messages sent on it."""


class Audience:
    """All programs that listen to one mempool. Programs at the same place get the same answer, put together
    once."""

    def __init__(self) -> None:
        self.expired_unseen = 0
        """Messages that expired before a listening program received them, counted for each program."""
        self.on_unseen: list[Callable[[int], None]] = []
        # A dictionary for its order.
        self._listening: dict[MempoolFeed, None] = {}
        self._asked: tuple[object, ...] = ()
        self._given: tuple[Taken, int] = ((), False), 0

    def join(self, feed: MempoolFeed) -> None:
        self._listening[feed] = None

    def leave(self, feed: MempoolFeed) -> None:
        self._listening.pop(feed, None)

    def expired(self, gone: Sequence[MempoolEntry]) -> None:
        """Count the expired messages that listening programs have not received, and never will."""
        unseen = 0
        by_layout: dict[MessageLayout, list[int]] = {}
        for entry in gone:
            by_layout.setdefault(entry.message.layout, []).append(entry.index)
        for layout, indexes in by_layout.items():
            indexes.sort()
            last = indexes[-1]
            for feed in self._listening:
                if feed.cursor < last and layout in feed.layouts:
                    unseen += len(indexes) - bisect_right(indexes, feed.cursor)
        if unseen:
            self.expired_unseen += unseen
            for hook in self.on_unseen:
                hook(unseen)

    def after(
        self, mempool: Mempool, cursor: int, count_max: int, layouts: Collection[MessageLayout]
    ) -> tuple[Taken, int]:
        """Return the messages after `cursor`, and the cursor after them."""
        asked = (mempool, mempool.changes, cursor, count_max, layouts)
        if asked != self._asked:
            self._given = _after(mempool, cursor, count_max, layouts)
            self._asked = asked
        return self._given


def _after(
    mempool: Mempool, cursor: int, count_max: int, layouts: Collection[MessageLayout]
) -> tuple[Taken, int]:
    entries = mempool.after(cursor, count_max, layouts)
    messages = tuple([entry.message for entry in entries])
    if len(entries) < count_max:
        # No visible message is left, so the hidden ones need not be looked at again.
        return (messages, False), mempool.last_index
    if entries:
        cursor = entries[-1].index
    return (messages, mempool.has_after(cursor, layouts)), cursor


class MempoolFeed:
    """Feed that starts before the oldest message. It passes over layouts that the program's profile does not
    know. `on_sent` gets the number of messages each time that some are taken."""

    def __init__(
        self,
        mempool: Mempool,
        bell: Bell,
        layouts: Collection[MessageLayout],
        audience: Audience | None = None,
        on_sent: OnSent = lambda protocol, count: None,
    ) -> None:
        self.layouts = layouts
        self._on_sent = on_sent
        self._mempool = mempool
        self._bell = bell
        self._audience = audience or Audience()
        self._cursor = 0

    @property
    def cursor(self) -> int:
        """Index of the last message that was taken or passed over."""
        return self._cursor

    def take(self, count_max: int) -> Taken:
        """Return the next messages, and whether more follow them."""
        audience = self._audience
        audience.join(self)
        taken, self._cursor = audience.after(self._mempool, self._cursor, count_max, self.layouts)
        if taken[0]:
            self._on_sent(MiniProtocol.LOCAL_MESSAGE_NOTIFICATION, len(taken[0]))
        return taken

    async def wait(self) -> None:
        """Return when `take` has messages to return."""
        while not self._mempool.has_after(self._cursor, self.layouts):
            self._cursor = max(self._cursor, self._mempool.last_index)
            await self._bell.wait()

    def is_better_later(self, count_max: int) -> bool:
        """Return whether the bell rings soon in any case, and a reply before it would not be full."""
        return self._bell.is_put_off and self._mempool.last_index - self._cursor < count_max

    def call(self, look: Call) -> None:
        """Call `look` once, soon after more messages have come, for this program or for others."""
        self._bell.call(look)

    def forget(self, look: Call) -> None:
        self._bell.forget(look)

    def close(self) -> None:
        """Leave the audience: the program is gone, and misses nothing any more."""
        self._audience.leave(self)
