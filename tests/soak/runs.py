"""What a part of `make soak` is told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rigs.results import OWN_COUNT


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Run:
    """`inputs` and `seconds` are counts of one's own instead of the scale's; `target` is one decoder alone.

    `promises`: the promises to be tried, where a part tries several one by one; empty for all. `share`: place and
    number of the shares in which the inputs of fuzzing are run, each by a command of its own.
    """

    scale: str
    seed: int
    inputs: int | None = None
    seconds: float | None = None
    target: str | None = None
    processes: int = 1
    promises: tuple[str, ...] = ()
    share: tuple[int, int] = (1, 1)
    say: Callable[[str], None] = say

    def count(self, by_scale: Mapping[str, int]) -> int:
        return self.inputs or by_scale[self.scale]

    @property
    def named_scale(self) -> str:
        """What a reader may conclude: only the counts of a scale prove a promise."""
        return OWN_COUNT if self.inputs or self.seconds or self.target else self.scale
