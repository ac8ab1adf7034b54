"""The quorum watch reports when too few members are heard of for the session to reach agreement, and when
there are enough again.

A live member makes a block at least once in its idle time-out, even without a payload. So silence means
nothing before that, and trouble afterwards: nobody need ask anybody.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from stagepost.catchain.catching_up import quorum_of
from stagepost.catchain.member import Member
from stagepost.errors import ErrorCode

REPORT_WITHIN_S = 60.0
"""Seconds within which everybody who waits for a session learns that it cannot go on."""

ALLOWANCE_S = 28.0
"""Seconds beyond the idle time-out, for blocks that get lost, for partitions that pass, and for restarts."""

OVERDUE_S = 10.0
"""Seconds beyond the idle time-out after which a live member has been heard of, even if its block got lost and others had to be asked."""


class QuorumReport(msgspec.Struct, frozen=True):
    """Change of the quorum. `is_lost` False means that it had been lost, and is there again."""

    is_lost: bool
    heard: int
    needed: int
    members: int
    silent: tuple[int, ...]

    @property
    def code(self) -> ErrorCode:
        return ErrorCode.NO_QUORUM

    @property
    def text(self) -> str:
        if not self.is_lost:
            return f"{self.heard} of {self.members} validators are heard of again, {self.needed} are needed"
        names = ", ".join(str(index) for index in self.silent)
        return (
            f"{self.code}: {self.heard} of {self.members} validators are heard of, {self.needed} are needed; look after "
            f"members {names}, or at this node's own links"
        )


class QuorumWatch:
    """Watch of one member over one session. `current` are the members that count, by index; previous members
    may well be gone.

    Call `look` every few seconds: it reads the graph, changes nothing there, and can only notice new blocks.
    """

    def __init__(
        self,
        member: Member,
        now: float,
        *,
        current: Collection[int] | None = None,
        silence_s: float | None = None,
    ) -> None:
        graph = member.graph
        self._member = member
        self._current = tuple(range(graph.size)) if current is None else tuple(sorted(current))
        idle_s = member.options.idle_timeout_s
        self.silence_s = idle_s + ALLOWANCE_S if silence_s is None else silence_s
        self._overdue_s = min(self.silence_s, idle_s + OVERDUE_S)
        self._heights = {index: graph.top(index).height for index in self._current}
        self._heard_at = dict.fromkeys(self._current, now)
        self.is_lost = False

    @property
    def needed(self) -> int:
        """Number of members needed: more than two thirds, by head."""
        return quorum_of(len(self._current))

    def look(self, now: float) -> QuorumReport | None:
        """Return a report if the quorum was lost or is there again; None otherwise."""
        graph = self._member.graph
        for index in self._current:
            height = graph.top(index).height
            is_here = index == self._member.index and not self._member.is_halted
            if is_here or height > self._heights[index]:
                self._heard_at[index] = now
            self._heights[index] = height
        is_lost = len(self._current) - len(self._silent(now, self.silence_s)) < self.needed
        if is_lost == self.is_lost:
            return None
        self.is_lost = is_lost
        # Name all overdue members to the reader, not only those that were silent long enough to lose the
        # quorum.
        silent = self._silent(now, self._overdue_s if is_lost else self.silence_s)
        heard = len(self._current) - len(silent)
        return QuorumReport(is_lost, heard, self.needed, len(self._current), silent)

    def _silent(self, now: float, for_s: float) -> tuple[int, ...]:
        return tuple(
            index
            for index in self._current
            if index in self._member.graph.blamed or now >= self._heard_at[index] + for_s
        )
