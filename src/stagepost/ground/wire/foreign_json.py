"""JSON from elsewhere: its depth is checked before any parser sees it.

A parser that descends into brackets gives up where the interpreter's stack ends, and that depends on its
caller. A fixed limit refuses the same text everywhere, and well before that.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

T = TypeVar("T")

DEPTH_MAX = 256
"""Levels of objects and lists inside one another; the outermost is the first."""

TOO_DEEP = f"nested deeper than {DEPTH_MAX} levels"

# One pass, whatever the text is: a string that does not end reaches to the end of the text.
_BRACKET_OR_STRING = re.compile(rb'[\[\]{}]|"(?:[^"\\]++|\\.?)*+(?:"|\Z)', re.DOTALL)


def is_too_deep(data: bytes) -> bool:
    """Return whether `data` opens more than `DEPTH_MAX` brackets inside one another, up to its end or its first fault."""
    if data.count(b"{") + data.count(b"[") <= DEPTH_MAX:
        return False
    depth = 0
    for token in _BRACKET_OR_STRING.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            if depth > DEPTH_MAX:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def decode_foreign(data: bytes, kind: type[T]) -> T:
    """Decode `data` as `msgspec.json.decode` does; `msgspec.DecodeError` also for what is nested too deeply."""
    if is_too_deep(data):
        raise msgspec.DecodeError(TOO_DEEP)
    return msgspec.json.decode(data, type=kind)
