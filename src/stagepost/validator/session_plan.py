"""A session as a validator is told to take part in it, its options, and the way from a session of the ledger
to its message queue: the members of the queue, and its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from stagepost.catchain.block import incarnation_of
from stagepost.catchain.budgets import Budget, Rates
from stagepost.catchain.effects import BlameReport, Deliver, Halt, RecoveryReport, RefusalReport
from stagepost.catchain.graph import GraphRules
from stagepost.catchain.member import MemberOptions
from stagepost.catchain.quorum_watch import QuorumReport
from stagepost.ground.statemachine.lifecycle import StartAnswers
from stagepost.ground.wire.tl import key_id
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.queue.state import SKEW_MS, QueueOptions, QueueSession
from stagepost.remp.sessions import Member, SessionFacts, queue_id, queue_members

Parse = Callable[[bytes], ExternalMessage]
"""Function that reads an external message from its bytes; `DecodeError` if they are not a message."""

SessionEvent: TypeAlias = Deliver | BlameReport | RefusalReport | RecoveryReport | Halt | QuorumReport


class SessionPlan(msgspec.Struct, frozen=True):
    """`session_id` is that of the message queue. A member is known by its place among the public keys.
    `starts_ms`: when the session starts, in Unix milliseconds. `answers`: the answers that this validator needs before
    it speaks there.
    """

    session_id: bytes
    public_keys: tuple[bytes, ...]
    index: int
    current: frozenset[int]
    masterchain_seqno: int
    shard: Shard
    starts_ms: int = 0
    skew_ms: int = SKEW_MS
    rates: Rates = Rates()
    answers: StartAnswers = StartAnswers.QUORUM

    @property
    def incarnation(self) -> bytes:
        return incarnation_of(self.session_id, [key_id(key) for key in self.public_keys])

    @property
    def queue_session(self) -> QueueSession:
        return QueueSession(
            self.masterchain_seqno,
            self.index,
            self.current,
            len(self.public_keys),
            self.shard,
            self.skew_ms,
            Budget(self.starts_ms, self.rates),
        )

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(peer for peer in range(len(self.public_keys)) if peer != self.index)


class SessionOptions(msgspec.Struct, frozen=True):
    rules: GraphRules = GraphRules()
    member: MemberOptions = MemberOptions()
    queue: QueueOptions = QueueOptions()


class SessionCounters(msgspec.Struct):
    """`refused` counts by the name of the broken rule."""

    blocks_pushed: int = 0
    bodies_pushed: int = 0
    bodies_asked: int = 0
    bodies_answered: int = 0
    pushes_dropped: int = 0
    offered: int = 0
    held_back: int = 0
    challenges_answered: int = 0
    refused: Counter[str] = msgspec.field(default_factory=Counter)


def queue_session_id(session: LedgerSession) -> bytes:
    previous = tuple(member for facts in _previous(session) for member in facts.members)
    return queue_id(msgspec.structs.replace(session.facts, members=(*previous, *session.facts.members)))


def queue_plan(
    session: LedgerSession,
    own_key: bytes,
    keys: Mapping[bytes, bytes],
    skew_ms: int = SKEW_MS,
    rates: Rates | None = None,
) -> SessionPlan | None:
    """Return the plan of the session's message queue. Previous members take part, for they know the open
    messages. Return None if this node is neither a previous nor a present member.

    `keys`: public keys by key id. A previous member whose key nobody knows any more cannot be linked to, and
    without it every later member would have another place: then `KeyError`, for the list of validators that
    this node was given is not complete.
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
        session.from_ms,
        skew_ms,
        rates or Rates(),
    )


def _previous(session: LedgerSession) -> tuple[SessionFacts, ...]:
    """Return the previous sessions, shards in sorted order."""
    return tuple(sorted(session.previous, key=lambda facts: (facts.workchain, facts.shard)))


def _ids(members: tuple[Member, ...]) -> list[bytes]:
    return [member.key_id for member in members]
