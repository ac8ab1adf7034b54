"""Queries under way on one link, both ways: bounded, each answered once at most.

Pure: time comes in as `now`. The asker counts a query until it is answered or its life is over, however early
it gave up waiting; so does the other side, from its arrival. Both counts differ by the queries and answers on
the way, so the other side allows twice as many before it reports a broken rule.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from stagepost.errors import ErrorCode, RemoteProtocolError

QUERIES_ASKED_MAX = 64
"""Queries that one side may have under way on one link."""

QUERIES_HELD_MAX = 2 * QUERIES_ASKED_MAX
"""Queries of the peer that may be unanswered."""

QUERY_LIFE_S = 30.0
"""Seconds after which neither side awaits or gives an answer."""

LATE_ANSWERS_MAX = 2 * QUERIES_ASKED_MAX
"""Queries whose life is over and whose answers may still be on their way."""


@dataclass
class SentQueries:
    """Queries that we have sent on one link."""

    _next: int = 0
    _under_way: dict[int, float] = field(default_factory=dict)  # in the order of asking: the oldest first
    _given_up: deque[int] = field(default_factory=lambda: deque(maxlen=LATE_ANSWERS_MAX))

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def number_for_next(self, now: float) -> int | None:
        """Return the number of the next query; None if the limit is reached."""
        while self._under_way:
            number, asked_at = next(iter(self._under_way.items()))
            if now - asked_at < QUERY_LIFE_S:
                break
            del self._under_way[number]
            self._given_up.append(number)
        if len(self._under_way) >= QUERIES_ASKED_MAX:
            return None
        number = self._next
        self._next += 1
        self._under_way[number] = now
        return number

    def answered(self, number: int) -> None:
        """Record the answer; raise `RemoteProtocolError` if the peer answers a query that was never sent, or
        answers again."""
        if self._under_way.pop(number, None) is not None:
            return
        try:
            self._given_up.remove(number)
        except ValueError:
            raise RemoteProtocolError(
                f"CatchainOverlay: an answer to query {number} came; {self._next} were asked, numbered from 0, "
                "and this one is not waiting for an answer",
                code=ErrorCode.PROTOCOL_WINDOW,
                found=number,
                reason="AnswerWithoutQuery",
            ) from None


@dataclass
class ReceivedQueries:
    """Queries that the peer has sent on one link."""

    _next: int = 0
    _held: dict[int, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self._held)

    def take(self, number: int, now: float) -> None:
        """Take in a query; raise `RemoteProtocolError` if the peer skips or repeats a number, or asks more
        than may wait."""
        if number != self._next:
            raise RemoteProtocolError(
                f"CatchainOverlay: query {number} came where {self._next} was next",
                code=ErrorCode.PROTOCOL_WINDOW,
                found=number,
                reason="QueryOutOfOrder",
            )
        while self._held:
            oldest, since = next(iter(self._held.items()))
            if now - since < QUERY_LIFE_S:
                break
            del self._held[oldest]
        if len(self._held) >= QUERIES_HELD_MAX:
            raise RemoteProtocolError(
                f"CatchainOverlay: query {number} came on top of {len(self._held)} unanswered ones; "
                f"at most {QUERIES_HELD_MAX} may wait",
                code=ErrorCode.PROTOCOL_WINDOW,
                limit=QUERIES_HELD_MAX,
                found=len(self._held) + 1,
                reason="TooManyQueries",
            )
        self._next += 1
        self._held[number] = now

    def may_answer(self, number: int, now: float) -> bool:
        """Return whether to answer: once, and only within the query's life."""
        since = self._held.pop(number, None)
        return since is not None and now - since < QUERY_LIFE_S
