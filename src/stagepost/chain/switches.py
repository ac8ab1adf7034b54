"""The ways in which a block may come to nothing, for tests that must see each of them: all off, unless somebody sets one."""

from __future__ import annotations

from collections.abc import Callable

from stagepost.remp.shard import BlockId

Choice = Callable[[BlockId], bool]


def never(block_id: BlockId) -> bool:
    return False


class Switches:
    """Each says of which blocks it shall happen, here."""

    def __init__(
        self,
        *,
        loses: Choice = never,
        refuses: Choice = never,
        ignores: Choice = never,
        leaves_out: Choice = never,
    ) -> None:
        self.loses = loses  # our own candidate is built and never sent
        self.refuses = refuses  # we decline a candidate with which nothing is wrong
        self.ignores = ignores  # we never answer whether it is fine
        self.leaves_out = leaves_out  # our master block commits nothing from this shard block on
