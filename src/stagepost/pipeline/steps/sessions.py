"""Sessions and their members as small tables for queries, and the codes of the statuses that a member may have last.

Sessions are numbered by their age: numbers are compared, grouped and moved at a fraction of the cost of ids.
"""

from __future__ import annotations

from collections.abc import Callable

from stagepost.pipeline.steps.sql_engines import Engine
from stagepost.remp.receipts.status import KINDS, Kind, Level, Status
from stagepost.remp.validator_sets import Session, ValidatorSets

_MEMBERSHIPS = (
    "source_id string, session int, session_id string, validator int, validators int, wc int, shard string, "
    "from_ms long, to_ms long"
)
_VALIDATORS_KINDS = tuple(kind for kind in KINDS if kind.level is not Level.FULLNODE)


def by_age(sets: ValidatorSets) -> list[Session]:
    """Return the sessions by age. The place in this list is the session's number: the greater, the newer."""
    return sorted(sets.sessions.values(), key=lambda session: session.age_key)


def show_sessions(engine: Engine, sets: ValidatorSets) -> None:
    """Show the tables `sessions` and `memberships`. Shards are sixteen hexadecimal digits; a window without an end has no `to_ms`."""
    sessions = [(one, one.session_id.hex(), f"{one.shard:016x}") for one in by_age(sets)]
    members = [
        (
            *(member.key_id.hex(), number, session_id, member.index, one.size),
            *(one.workchain, shard, one.from_ms or 0, one.to_ms),
        )
        for number, (one, session_id, shard) in enumerate(sessions)
        for member in one.validators
    ]
    engine.small("memberships", members, _MEMBERSHIPS)
    places = [
        (number, session_id, one.workchain, shard) for number, (one, session_id, shard) in enumerate(sessions)
    ]
    engine.small("sessions", places, "session int, session_id string, wc int, shard string")


def codes(is_meant: Callable[[Kind], bool]) -> str:
    """Return the list for SQL of the codes, 8 · level + rank, of the kinds for which `is_meant` holds."""
    return ", ".join(str(8 * int(kind.level) + kind.rank) for kind in _VALIDATORS_KINDS if is_meant(kind))


def is_queued(kind: Kind) -> bool:
    return kind.status in (Status.NEW, Status.IGNORED, Status.DUPLICATE) or (
        kind.status is Status.ACCEPTED and kind.level is Level.QUEUE
    )


def is_rejecting(kind: Kind) -> bool:
    return kind.status is Status.REJECTED


def is_in_accepted_block(kind: Kind) -> bool:
    return kind.status is Status.ACCEPTED and kind.level in (Level.SHARDCHAIN, Level.MASTERCHAIN)


def is_included(kind: Kind) -> bool:
    return kind.status is Status.ACCEPTED and kind.level is Level.COLLATOR
