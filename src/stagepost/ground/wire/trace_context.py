"""The W3C trace context of a message: the trace that its caller is in, and the caller's own span.

00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01      version, trace id, span id, flags
"""

from __future__ import annotations

import re
from typing import Self

import msgspec

TRACE_ID_BYTES = 16
SPAN_ID_BYTES = 8
TRACE_PARENT_BYTES = TRACE_ID_BYTES + SPAN_ID_BYTES + 1
"""Bytes of a trace parent in an envelope: trace id, span id and flags."""
SAMPLED = 0x01

# A later version may append fields after another dash; version ff is forbidden.
_TEXT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_VERSION = "00"


class TraceParent(msgspec.Struct, frozen=True):
    """Caller's span: `trace_id` has 16 bytes, `span_id` 8, neither all zeros."""

    trace_id: bytes
    span_id: bytes
    flags: int = SAMPLED

    @property
    def text(self) -> str:
        """Return the header's value, in the one version that is written."""
        return f"{_VERSION}-{self.trace_id.hex()}-{self.span_id.hex()}-{self.flags:02x}"

    def encode(self) -> bytes:
        return self.trace_id + self.span_id + bytes((self.flags,))

    @classmethod
    def decode(cls, content: bytes) -> Self | None:
        """Return the value of `TRACE_PARENT_BYTES` bytes; None for an id of zeros."""
        trace_id, span_id = content[:TRACE_ID_BYTES], content[TRACE_ID_BYTES:-1]
        if len(content) != TRACE_PARENT_BYTES or not any(trace_id) or not any(span_id):
            return None
        return cls(trace_id, span_id, content[-1])

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the value of a `traceparent` header; None for a text that W3C's rules refuse."""
        found = _TEXT.fullmatch(text)
        if found is None or (found[1] == _VERSION and found[5] is not None):
            return None
        return cls.decode(bytes.fromhex(found[2] + found[3] + found[4]))
