"""From a session of the ledger to the message queue that goes with it: who takes part, and under which name."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stagepost.ground.wire.tl import key_id
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.sessions import Member, SessionFacts, queue_id, queue_members
from stagepost.validator.session_plan import SessionPlan


def queue_session_id(session: LedgerSession) -> bytes:
    previous = tuple(member for facts in _previous(session) for member in facts.members)
    return queue_id(msgspec.structs.replace(session.facts, members=(*previous, *session.facts.members)))


def queue_plan(session: LedgerSession, own_key: bytes, keys: Mapping[bytes, bytes]) -> SessionPlan | None:
    """Previous members take part, for they know what was open; None if we are neither of them nor of the present ones.

    `keys`: public keys by key id. A previous member whose key nobody knows any more cannot be linked to, and its place
    would shift everybody's: `KeyError` then, for the list of validators that this node was given is not complete.
    """
    members = queue_members([facts.members for facts in _previous(session)], session.facts.members)
    own = key_id(own_key)
    index = next((index for index, member in enumerate(members) if member.key_id == own), None)
    if index is None:
        return None
    known = {**keys, **dict(zip(_ids(session.facts.members), session.public_keys, strict=True))}
    present = set(_ids(session.facts.members))
    return SessionPlan(
        queue_session_id(session),
        tuple(known[member.key_id] for member in members),
        index,
        frozenset(place for place, member in enumerate(members) if member.key_id in present),
        session.master_catchain_seqno,
        session.shard,
    )


def _previous(session: LedgerSession) -> tuple[SessionFacts, ...]:
    """Shards in sorted order."""
    return tuple(sorted(session.previous, key=lambda facts: (facts.workchain, facts.shard)))


def _ids(members: tuple[Member, ...]) -> list[bytes]:
    return [member.key_id for member in members]
