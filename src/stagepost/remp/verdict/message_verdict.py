"""The progress of a message against the stage that somebody waits for."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from stagepost.remp.verdict.trace import ENDED
from stagepost.remp.verdict.verdict import Conclusion, Verdict
from stagepost.remp.verdict.words import verdict_words


class Awaited(StrEnum):
    """`optimistic`: a validator has put the message into a block; `accepted`: the block stands in its shard."""

    QUEUED = "queued"
    OPTIMISTIC = "optimistic"
    ACCEPTED = "accepted"
    FINAL = "final"


def is_reached(verdict: Verdict | None, awaited: Awaited) -> bool:
    """Return whether the verdict has reached the awaited stage. A later step back does not change that; the
    verdict itself shows it.
    """
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
    """The result of a wait. `str` gives the words that all our screens use; `row` is the row of `messages`."""

    message_id: str
    awaited: Awaited
    row: Verdict | None
    as_of_ms: int

    @property
    def verdict(self) -> str | None:
        """`finalized`, `accepted`, `rejected` or another `Conclusion`; None if no valid receipt has come."""
        return None if self.row is None else self.row.verdict

    @property
    def is_reached(self) -> bool:
        """Return whether the message reached the awaited stage."""
        return is_reached(self.row, self.awaited)

    @property
    def has_ended(self) -> bool:
        """Return whether nothing further can be expected: the message is final, rejected or expired."""
        return self.row is not None and self.row.verdict in ENDED

    @property
    def missing(self) -> tuple[str, ...]:
        """Validators of the message's session that have sent no receipt so far, as `V2`; empty once the
        message has ended.
        """
        if self.row is None or self.has_ended:
            return ()
        return tuple(f"V{index + 1}" for index in self.row.silent)

    def __str__(self) -> str:
        return verdict_words(self.row)
