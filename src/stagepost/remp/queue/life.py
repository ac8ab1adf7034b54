"""How long a message lives, counted in catchains of the masterchain: the clock that all validators share."""

from __future__ import annotations

from enum import Enum


class LifeRule(Enum):
    TWO_CATCHAINS = "two_catchains"  # what came under N is over at N + 2
    RP_GUARANTEE = "rp_guarantee"  # what came under N is over when a later one is older than the guarantee


class LifeWindow:
    """The range of catchain numbers whose messages may still be collated, and when each of them began."""

    def __init__(self, rule: LifeRule = LifeRule.TWO_CATCHAINS, rp_guarantee_s: float = 0.0) -> None:
        self._rule = rule
        self._rp_guarantee_s = rp_guarantee_s
        self._starts: dict[int, float] = {}
        self.current = -1
        self.lowest = 0

    def __contains__(self, masterchain_seqno: int) -> bool:
        return self.lowest <= masterchain_seqno <= self.current

    def advance(self, masterchain_seqno: int, start_s: float) -> None:
        """A master block rotated to this number. Going back, or staying, changes nothing."""
        if masterchain_seqno <= self.current:
            return
        if self.current < 0:
            self.lowest = masterchain_seqno
        self._starts[masterchain_seqno] = start_s
        self.current = masterchain_seqno
        if self._rule is LifeRule.TWO_CATCHAINS:
            # A validator that begins now takes part in the previous one's messages as well.
            self.lowest = max(0, masterchain_seqno - 1)
        else:
            self._raise_by_time(masterchain_seqno, start_s)
        self._starts = {cc: at for cc, at in self._starts.items() if cc >= self.lowest}

    def _raise_by_time(self, masterchain_seqno: int, start_s: float) -> None:
        old_enough = [
            cc
            for cc, at in self._starts.items()
            if cc < masterchain_seqno and at <= start_s - self._rp_guarantee_s
        ]
        if old_enough:
            self.lowest = max(self.lowest, *old_enough)
