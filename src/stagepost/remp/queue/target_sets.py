"""Whom a full node tells of a message: the validators that work for it now, and near a change those who follow them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

LOOK_AHEAD_S = 15.0
"""A change this near is foreseen: of sets, of catchains, by split or by merge."""


class Subset(msgspec.Struct, frozen=True):
    """Validators of one session, by their key ids. `ends_s`: when others follow them, None if that is not known."""

    validators: tuple[bytes, ...]
    ends_s: float | None = None

    def ends_soon(self, now: float) -> bool:
        return self.ends_s is not None and self.ends_s - now <= LOOK_AHEAD_S


def subsets_for(current: Subset, followers: Iterable[Subset], now: float) -> tuple[Subset, ...]:
    """`followers` are those that may take over: the next set, the next catchain, both children, the parent."""
    return (current, *followers) if current.ends_soon(now) else (current,)


class Targets:
    """Those who are told, each once, and when enough of them have a message.

    More than a third of *each* subset must have it: then one honest validator of each has it, and tells the others.
    """

    def __init__(self, subsets: Iterable[Subset]) -> None:
        self._subsets = tuple(frozenset(subset.validators) for subset in subsets)
        self.all: frozenset[bytes] = frozenset().union(*self._subsets)

    def __len__(self) -> int:
        return len(self.all)

    def have_it(self, answered: frozenset[bytes] | set[bytes]) -> bool:
        return all(3 * len(subset & answered) > len(subset) for subset in self._subsets)

    def wanting(self, answered: frozenset[bytes] | set[bytes]) -> set[bytes]:
        """Those who have not answered, of subsets that have not enough yet."""
        found: set[bytes] = set()
        for subset in self._subsets:
            if 3 * len(subset & answered) <= len(subset):
                found |= subset
        return found - answered
