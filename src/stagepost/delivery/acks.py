"""The count of acknowledgements: when enough critical peers have acknowledged, and when they never will."""

from __future__ import annotations

from stagepost.delivery.status import NackReason


class AckTally:
    """The answers of the `critical` peers about one message; `required` of them must acknowledge."""

    __slots__ = ("acked", "critical", "refused", "refused_for_now", "required", "texts")

    def __init__(self, critical: tuple[str, ...], required: int) -> None:
        self.critical = critical
        self.required = required
        # Dictionaries keep the order of arrival, in which results name the peers.
        self.acked: dict[str, None] = {}
        self.refused: dict[str, NackReason | int] = {}
        self.refused_for_now: dict[str, NackReason | int] = {}
        self.texts: dict[str, str] = {}
        """Words of the peers that refused, at most one text of each."""

    def acknowledge(self, peer: str) -> bool:
        """Count an acknowledgement; return False if the peer had acknowledged before.

        An acknowledgement wins over any refusal of the same peer, and stays.
        """
        if peer in self.acked:
            return False
        self.acked[peer] = None
        if self.refused or self.refused_for_now:
            self.refused.pop(peer, None)
            self.refused_for_now.pop(peer, None)
        return True

    def refuse(self, peer: str, reason: NackReason | int, *, for_now: bool, text: str = "") -> bool:
        """Count a refusal; return False if it is not new. A refusal `for_now` lasts until the next attempt."""
        if peer in self.acked or peer in self.refused:
            return False
        if text:
            self.texts[peer] = text
        if for_now:
            if peer in self.refused_for_now:
                return False
            self.refused_for_now[peer] = reason
            return True
        self.refused[peer] = reason
        self.refused_for_now.pop(peer, None)
        return True

    def begin_attempt(self) -> None:
        if self.refused_for_now:
            self.refused_for_now.clear()

    @property
    def is_complete(self) -> bool:
        return len(self.acked) >= self.required

    @property
    def is_out_of_reach(self) -> bool:
        """Return whether so many peers have refused for good that the others are too few."""
        return len(self.refused) > len(self.critical) - self.required

    @property
    def is_out_of_reach_for_now(self) -> bool:
        """Return the same with the refusals of this attempt: if it is the last attempt, nothing more can come."""
        return len(self.refused) + len(self.refused_for_now) > len(self.critical) - self.required

    @property
    def missing(self) -> tuple[str, ...]:
        if not self.acked:
            return self.critical
        if len(self.acked) == len(self.critical):
            return ()
        return tuple(peer for peer in self.critical if peer not in self.acked)

    @property
    def nacked_by(self) -> dict[str, NackReason | int]:
        return self.refused | self.refused_for_now
