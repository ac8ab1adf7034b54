"""Dates of blocks that a lying minority cannot move.

Each block has a date of its author. The floor of a block is the median, over all members, of the newest effective
date of each among the block's ancestors, less the skew of honest clocks. The effective date is the date, or the
floor if that is later. Fewer than half of the members cannot move a median out of the range of what the others
said, and everything here depends on a block and its ancestors alone, so all members compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from stagepost.catchain.budgets import Budget, Rates, ReadContent


class DateRules(msgspec.Struct, frozen=True):
    """`starts_ms`: date of a member that has no block yet, in Unix milliseconds. `skew_ms`: how far the clocks of
    honest members differ. `date_of` reads the date in a payload, None if it has none; `is_bare` says whether a
    payload holds nothing but date and totals; `content_of` reads what a payload adds to the totals of its author,
    which `rates` bound.
    """

    starts_ms: int
    skew_ms: int
    date_of: Callable[[bytes], int | None]
    is_bare: Callable[[bytes], bool]
    content_of: ReadContent
    rates: Rates = Rates()

    @property
    def budget(self) -> Budget:
        return Budget(self.starts_ms, self.rates)


class BlockDates(msgspec.Struct, frozen=True):
    """Dates that one block fixes. `floor_ms`: no announcement in the block counts as earlier. `own_ms`: the author's
    date, which does not fall along its chain. `newest`: the newest effective date of each member among the block
    and its ancestors.
    """

    floor_ms: int
    own_ms: int
    newest: tuple[int, ...]


def first_dates(rules: DateRules, size: int) -> BlockDates:
    """Return the dates before any block."""
    return BlockDates(rules.starts_ms - rules.skew_ms, rules.starts_ms, (rules.starts_ms,) * size)


def block_dates(
    rules: DateRules, source: int, payload: bytes, previous: BlockDates, others: Sequence[BlockDates]
) -> BlockDates:
    """Return the dates of a block of member `source` that rests on `previous`, its author's last one, and on
    `others`.
    """
    newest = previous.newest
    for one in others:
        newest = tuple(map(max, newest, one.newest))
    floor_ms = median(newest) - rules.skew_ms
    said_ms = rules.date_of(payload)
    own_ms = previous.own_ms if said_ms is None else max(said_ms, previous.own_ms)
    effective_ms = max(own_ms, floor_ms)
    return BlockDates(floor_ms, own_ms, (*newest[:source], effective_ms, *newest[source + 1 :]))


def median(values: Sequence[int]) -> int:
    """Return the middle value; the lower one of two."""
    return sorted(values)[(len(values) - 1) // 2]
