"""The history of a run as seen from outside of the nodes, as plain values: the only input of checkers.

`TraceHash` is one hash over all events: two runs of a seed are the same run if their hashes agree.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Made:
    """Message that the simulation made. `flaw` says why no node may take it; "" if every node must."""

    expires_at: int
    flaw: str = ""
    is_old_layout: bool = False


@dataclass(frozen=True, slots=True)
class SubmissionAnswer:
    """Answer to a program's submission. `accepted` is None if the connection ended before an answer."""

    node: str
    life: int
    at_s: float
    node_unix_s: float
    raw: bytes
    accepted: bool | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NotifiedMessage:
    """Message in a notification."""

    at_s: float
    node_unix_s: float
    raw: bytes


@dataclass
class ListenerConnection:
    """Connection of a listening program: the messages it received, in order. `closed_at_s` is None while it
    stands."""

    node: str
    life: int
    number: int
    opened_at_s: float
    sees_old_layout: bool = False
    heard: list[NotifiedMessage] = field(default_factory=list)
    closed_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """All messages that a node sends to a new program. `why` is "restart", "final" or "spot"."""

    node: str
    life: int
    at_s: float
    node_unix_s: float
    raws: tuple[bytes, ...]
    why: str


@dataclass
class History:
    """History of one run. `clock_skew_max_s` bounds the difference between the nodes' clocks and the world's."""

    start_unix_s: float
    clock_skew_max_s: float = 0.0
    made: dict[bytes, Made] = field(default_factory=dict)
    answers: list[SubmissionAnswer] = field(default_factory=list)
    cursors: list[ListenerConnection] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    bugs: list[str] = field(default_factory=list)
    """Exceptions that nobody handled, and log records that report one."""
    accusations: list[str] = field(default_factory=list)
    """Log records in which a node says that a peer broke a rule."""
    is_all_honest: bool = True
    """True if no peer in this run breaks a rule on purpose."""
    ended_at_s: float = 0.0


LAST_EVENTS_KEPT = 400


class TraceHash:
    """Hash over every event that can be seen from outside, with its time; the last events stay readable."""

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
