"""What a part of `make soak` is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rigs import results
from rigs.results import OWN_COUNT, Result, revision


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Run:
    """`inputs` and `seconds` are counts of one's own instead of the scale's; `target` is one decoder alone.

    `promises`: the promises to be tried, where a part tries several one by one; empty for all. `share`: place and
    number of the shares in which the tries of a part are run, each by a command of its own.
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

    def tries(self, by_scale: Mapping[str, int]) -> range:
        """Return the numbers of the tries that this share has to do."""
        count, (place, shares) = self.count(by_scale), self.share
        return range(count * (place - 1) // shares, count * place // shares)

    def rows_of_all_shares(self, part: str, row: Result) -> list[dict[str, Any]]:
        """Store `row`, which this share of `part` has found; return the rows of all shares, or none while some are missing."""
        place, shares = self.share
        if shares == 1:
            return [row]
        folder = results.RESULTS / f"{part}-{self.named_scale}-{self.seed}-{revision()}-{shares}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{place}.json").write_text(json.dumps(row))
        paths = [folder / f"{number}.json" for number in range(1, shares + 1)]
        missing = sum(not path.exists() for path in paths)
        if missing:
            self.say(f"{missing} of {shares} shares of {part} are missing")
            return []
        return [json.loads(path.read_text()) for path in paths]

    @property
    def named_scale(self) -> str:
        """What a reader may conclude: only the counts of a scale prove a promise."""
        return OWN_COUNT if self.inputs or self.seconds or self.target else self.scale
