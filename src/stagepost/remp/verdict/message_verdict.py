"""How far a message has come against how far somebody waits for it to come."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from stagepost.remp.verdict.trace import ENDED
from stagepost.remp.verdict.verdict import Conclusion, Verdict
from stagepost.remp.verdict.words import verdict_words


class Awaited(StrEnum):
    """`optimistic`: a validator has put it into a block; `accepted`: the block stands in its shard."""

    QUEUED = "queued"
    OPTIMISTIC = "optimistic"
    ACCEPTED = "accepted"
    FINAL = "final"


def is_reached(verdict: Verdict | None, awaited: Awaited) -> bool:
    """Once reached is reached: what a later status takes back is told by the verdict itself."""
    if verdict is None:
        return False
    if verdict.verdict == Conclusion.FINALIZED.value:
        return True
    times = {
        Awaited.QUEUED: verdict.queued_ms,
        Awaited.OPTIMISTIC: verdict.included_ms,
        Awaited.ACCEPTED: verdict.accepted_ms,
        Awaited.FINAL: None,
    }
    return times[awaited] is not None


class MessageVerdict(msgspec.Struct, frozen=True):
    """What became of a wait. `str` gives the words that all our screens have for it; `row` is the row of `messages`."""

    message_id: str
    awaited: Awaited
    row: Verdict | None
    as_of_ms: int

    @property
    def verdict(self) -> str | None:
        """One of `finalized`, `accepted`, `rejected` …; None if no receipt has come that counts."""
        return None if self.row is None else self.row.verdict

    @property
    def is_reached(self) -> bool:
        """Whether it came as far as was waited for."""
        return is_reached(self.row, self.awaited)

    @property
    def has_ended(self) -> bool:
        """Whether nothing further can be expected: it is final, rejected or expired."""
        return self.row is not None and self.row.verdict in ENDED

    @property
    def missing(self) -> tuple[str, ...]:
        """Validators of its session that have said nothing so far, as `V2`; nobody once it has ended."""
        if self.row is None or self.has_ended:
            return ()
        return tuple(f"V{index + 1}" for index in self.row.silent)

    def __str__(self) -> str:
        return verdict_words(self.row)
