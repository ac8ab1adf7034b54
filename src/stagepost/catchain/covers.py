"""Rows that tell on which blocks a block rests: the greatest height of each branch among the block and all its ancestors."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence


class Covers:
    """Greatest height of each branch among some blocks and all their ancestors. Every block has one: in two rows it takes a
    tenth of what a mapping takes. Blocks that cover the same branches share the row of `branches`, which is in order.
    """

    __slots__ = ("branches", "heights")

    def __init__(self, branches: tuple[int, ...] = (), heights: tuple[int, ...] = ()) -> None:
        self.branches = branches
        self.heights = heights

    def height_of(self, branch: int) -> int:
        """Return the greatest height of the branch; 0 if none of its blocks is covered."""
        place = bisect_left(self.branches, branch)
        is_covered = place < len(self.branches) and self.branches[place] == branch
        return self.heights[place] if is_covered else 0

    def items(self) -> Iterator[tuple[int, int]]:
        return zip(self.branches, self.heights, strict=True)

    def joined(self, others: Sequence[Covers]) -> Covers:
        """Return what these and `others` cover together."""
        heights, rest = self.heights, []
        for other in others:
            if other.branches is self.branches:
                heights = tuple(map(max, heights, other.heights))
            else:
                rest.append(other)
        if not rest:
            return Covers(self.branches, heights)
        found = dict(zip(self.branches, heights, strict=True))
        for other in rest:
            for branch, height in other.items():
                found[branch] = max(height, found.get(branch, 0))
        return Covers(*_rows(found))

    def raised(self, branch: int, height: int) -> Covers:
        """Return the same with another height of one branch."""
        place = bisect_left(self.branches, branch)
        if place < len(self.branches) and self.branches[place] == branch:
            return Covers(self.branches, (*self.heights[:place], height, *self.heights[place + 1 :]))
        return Covers(*_rows({**dict(self.items()), branch: height}))


def _rows(heights: Mapping[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    branches = tuple(sorted(heights))
    return branches, tuple(map(heights.__getitem__, branches))


NOTHING_COVERED = Covers()
