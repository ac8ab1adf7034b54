"""What happened, as one hash: two runs of a seed are the same run if their hashes agree."""

from __future__ import annotations

import hashlib
from collections import deque

LAST_EVENTS_KEPT = 400


class TraceHash:
    """Every event that could be seen from outside goes in, with its time; the last ones stay readable."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.events = 0
        self.last: deque[str] = deque(maxlen=LAST_EVENTS_KEPT)

    def note(self, at_s: float, what: str, data: bytes | bytearray = b"") -> None:
        self.events += 1
        text = f"{at_s:.9f} {what} {len(data)}"
        self._hash.update(text.encode())
        self._hash.update(data)
        self.last.append(text)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
