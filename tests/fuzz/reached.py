"""Which lines of ours an input reaches, one after the other, to choose the few inputs that reach them all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import stagepost
from tests.fuzz.harness import Target

OURS = str(Path(stagepost.__file__).parent)

Step = tuple[str, int, int]
"""File, line, and the line before it in the same call: with both, the two ways through an `if` differ."""


def reached_by(target: Target, data: bytes) -> set[Step]:
    """Empty if the check fails: such an input is a failure and not a way through the code."""
    steps: set[Step] = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if not name.startswith(OURS):
            return None
        before = 0

        def follow(inner: FrameType, what: str, value: Any) -> Callable[..., Any]:
            nonlocal before
            if what == "line":
                steps.add((name, before, inner.f_lineno))
                before = inner.f_lineno
            return follow

        return follow

    outer = sys.gettrace()
    sys.settrace(enter)
    try:
        target.check(data)
    except Exception:
        return set()
    finally:
        sys.settrace(outer)
    return steps


def fewest_reaching_all(target: Target, inputs: Iterable[bytes], already: Iterable[bytes]) -> list[bytes]:
    """The shortest inputs first; each one must reach something that those before it, and `already`, do not."""
    reached: set[Step] = set()
    for data in already:
        reached |= reached_by(target, data)
    chosen: list[bytes] = []
    for data in sorted(set(inputs), key=lambda one: (len(one), one)):
        fresh = reached_by(target, data) - reached
        if fresh:
            reached |= fresh
            chosen.append(data)
    return chosen
