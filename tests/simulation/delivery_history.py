"""What was seen from outside of publishers and receivers in one run, as plain values: all that checkers read."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Call:
    """One call of a program and how it ended. `message_id` is None if nothing was accepted."""

    number: int
    tier: str
    payload: bytes
    life: int
    began_s: float
    ended_s: float
    message_id: str | None
    status: str = ""
    acked_by: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Event:
    """One record of the sink of delivery events."""

    at_s: float
    life: int
    message_id: str
    status: str
    tier: str
    error: str | None


@dataclass(frozen=True)
class Run:
    """A handler began, with a message. `effect` is whether it did what it is there for."""

    at_s: float
    receiver: str
    life: int
    message_id: str
    payload: bytes
    attempt: int
    effect: bool


@dataclass
class DeliveryHistory:
    critical: tuple[str, ...] = ()
    required: int = 1
    calls: list[Call] = field(default_factory=list)
    killed: set[int] = field(default_factory=set)
    """Calls whose program was killed before they ended."""
    events: list[Event] = field(default_factory=list)
    callbacks: list[Event] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    stats: list[tuple[float, int, dict[str, object]]] = field(default_factory=list)
    """The publisher's counters: when, in which life."""
    crashed: set[str] = field(default_factory=set)
    bugs: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    ended_s: float = 0.0
