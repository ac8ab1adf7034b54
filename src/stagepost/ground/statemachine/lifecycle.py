"""Lifecycles: the statuses of one thing as an enum of statuses, an enum of events, and one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from stagepost.errors import LocalProtocolError

Status = TypeVar("Status", bound=Enum)
Event = TypeVar("Event", bound=Enum)


@dataclass(frozen=True)
class Lifecycle(Generic[Status, Event]):
    """Table of the statuses that events lead to. A status without a row of its own is final."""

    initial: Status
    table: Mapping[tuple[Status, Event], Status]

    def next_status(self, status: Status, event: Event) -> Status | None:
        """Return the status to which `event` leads from `status`; None if the event cannot happen there."""
        return self.table.get((status, event))

    def after(self, status: Status, event: Event) -> Status:
        """Do what `next_status` does, but raise `LocalProtocolError` for an impossible event, which is a bug
        of ours."""
        target = self.next_status(status, event)
        if target is None:
            raise LocalProtocolError(f"{event.name} cannot happen in {status.name}", state=status.name)
        return target

    def is_final(self, status: Status) -> bool:
        return not any(source is status for source, _ in self.table)

    @property
    def statuses(self) -> tuple[Status, ...]:
        ordered = dict.fromkeys([self.initial])
        for (source, _), target in self.table.items():
            ordered.setdefault(source)
            ordered.setdefault(target)
        return tuple(ordered)


class StartAnswers(Enum):
    """Answers about its own past that a member needs before it speaks in a session.

    `QUORUM`: a member whose disk holds all that it ever said there; the others tell what a crash took. `FOUNDING`: a member
    without anything in a session that began with the network. A quorum is enough until the session has something
    to show; then every other member must have answered, because what this one said may have reached one of them alone.
    `GAP`: a member that has lost its disk, or has an older copy of it. Frames that it sent last may have reached
    nobody who remembers them, so it says nothing; where the chain cannot go on without it, all others must have answered.
    """

    QUORUM = "quorum"
    FOUNDING = "founding"
    GAP = "gap"
