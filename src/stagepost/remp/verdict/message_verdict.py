"""The progress of a message against the stage that somebody waits for."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from stagepost.remp.verdict.verdict import Conclusion, Verdict
from stagepost.remp.verdict.words import silent_names, verdict_words

EXECUTED = "executed"


class Awaited(StrEnum):
    """`optimistic`: a validator has put the message into a block; `accepted`: the block stands in its shard."""

    QUEUED = "queued"
    OPTIMISTIC = "optimistic"
    ACCEPTED = "accepted"
    FINAL = "final"


_BLOCKS = frozenset({Conclusion.FINALIZED.value, Conclusion.ACCEPTED.value})


def is_reached(verdict: Verdict | None, awaited: Awaited) -> bool:
    """Return whether the verdict has reached the awaited stage. For the first two stages one validator's word is enough,
    and a later step back does not change that. An accepted message needs more than a third of its session, a final one a
    proof that it was executed.
    """
    if verdict is None:
        return False
    if verdict.proof == EXECUTED:
        return True
    match awaited:
        case Awaited.QUEUED:
            return verdict.queued_ms is not None or verdict.verdict in _BLOCKS
        case Awaited.OPTIMISTIC:
            return verdict.included_ms is not None or verdict.verdict in _BLOCKS
        case Awaited.ACCEPTED:
            return verdict.verdict in _BLOCKS
        case Awaited.FINAL:
            return False


class MessageVerdict(msgspec.Struct, frozen=True):
    """The result of a wait. `str` gives the words that all our screens use; `row` is the row of `messages`. `proof` is
    the content of a proof file, which anybody can check; None as long as the end of the message is not known.
    `silent_names` are the names of the validators in `row.silent`, where their network gave them any.
    """

    message_id: str
    awaited: Awaited
    row: Verdict | None
    as_of_ms: int
    proof: bytes | None = None
    silent_names: tuple[str, ...] = ()

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
        """Return whether the end of the message is proved. Refusals and time-outs that nodes sign are claims: as long
        as there is no proof, the message may still be executed, and must not be sent again under another id.
        """
        return self.row is not None and self.row.is_proved

    @property
    def missing(self) -> tuple[str, ...]:
        """Validators of the message's session that have sent no receipt so far, by name, else as `V2`; empty once
        the message has ended.
        """
        if self.row is None or self.has_ended:
            return ()
        return self.silent_names or silent_names(self.row, None)

    def __str__(self) -> str:
        return verdict_words(self.row)
