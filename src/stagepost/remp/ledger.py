"""The chain as the queue of external messages sees it: the calls that queue, collator and validator need of a
ledger.

bytes → parse → shard_of → dry_run → queue → collate → agreement → check, finalised → events → queue
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.collation import Report
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.sessions import SessionFacts, session_id
from stagepost.remp.shard import BlockId


class ParsedMessage(msgspec.Struct, frozen=True):
    """`expires_at_s`: the first second, in Unix time, at which no block may hold the message any more; None
    if it names none.
    """

    message: ExternalMessage
    expires_at_s: int | None = None


class DryRun(msgspec.Struct, frozen=True):
    """Outcome of a message that was executed for a trial. `refused`: why its account would refuse it; None if the account
    would accept it. `blocks`: the part of a block that it fills, by weight, bytes or number.
    """

    refused: str | None
    blocks: float = 0.0


class LedgerSession(msgspec.Struct, frozen=True):
    """A subset of validators that works for one shard, or for the masterchain.

    `master_catchain_seqno` is the clock of messages' lives as it stands now; `previous` are the sessions
    whose work this one continues, shards in sorted order; `start` names the blocks that it stands upon now;
    `started_by` is the number of the master block that started it; `ends_ms` is the time at which others
    follow it, as far as that is foreseen.
    """

    facts: SessionFacts
    public_keys: tuple[bytes, ...]
    master_catchain_seqno: int
    start: tuple[BlockId, ...]
    started_by: int
    from_ms: int
    ends_ms: int
    previous: tuple[SessionFacts, ...] = ()

    @property
    def session_id(self) -> bytes:
        return session_id(self.facts)

    @property
    def shard(self) -> Shard:
        return Shard(self.facts.workchain, self.facts.shard)

    @property
    def catchain_seqno(self) -> int:
        return self.facts.catchain_seqno


class CollatedBlock(msgspec.Struct, frozen=True):
    """A candidate, and a report on each message that the ledger asked for, in the order of asking."""

    block_id: BlockId
    payload: bytes
    reports: tuple[tuple[bytes, Report], ...]


class FinalBlock(msgspec.Struct, frozen=True, gc=False):
    """A shard block that a master block holds, and its external messages in order."""

    block_id: BlockId
    master_id: BlockId
    master_catchain_seqno: int
    messages: tuple[ExternalMessage, ...]


# Events, in the order in which the queue must hear of them


class CandidateBuilt(msgspec.Struct, frozen=True):
    """A candidate of this validator, or a candidate of another validator that passed our checks."""

    session_id: bytes
    block_id: BlockId
    message_ids: tuple[bytes, ...]
    is_own: bool


class CandidateLost(msgspec.Struct, frozen=True):
    """A candidate that will not be a block, and nobody is to blame: never sent, ignored in the vote, or
    replaced by another.
    """

    session_id: bytes
    block_id: BlockId


class CandidateRefused(msgspec.Struct, frozen=True):
    """A candidate that validators declined. `replayed`: the messages that were the reason."""

    session_id: bytes
    block_id: BlockId
    replayed: tuple[bytes, ...] = ()


class ShardCommitted(msgspec.Struct, frozen=True):
    session_id: bytes
    block_id: BlockId
    message_ids: tuple[bytes, ...]


class ShardDropped(msgspec.Struct, frozen=True):
    """A shard block that the masterchain went on without."""

    session_id: bytes
    block_id: BlockId
    message_ids: tuple[bytes, ...]


class MasterApplied(msgspec.Struct, frozen=True):
    """A final master block. `ended` and `started` are empty unless it rotates sessions."""

    master_id: BlockId
    catchain_seqno: int
    time_ms: int
    blocks: tuple[FinalBlock, ...]
    ended: tuple[bytes, ...] = ()
    started: tuple[LedgerSession, ...] = ()


LedgerEvent: TypeAlias = (
    CandidateBuilt | CandidateLost | CandidateRefused | ShardCommitted | ShardDropped | MasterApplied
)


class Ledger(Protocol):
    """Candidates have the hashes that the agreement gives them; the first candidate of a session has the
    session's id as parent.
    """

    # Messages

    def parse(self, data: bytes) -> ParsedMessage:
        """Read an external message; `DecodeError` if the bytes are not one."""
        ...

    def dry_run(self, message: ExternalMessage, now_ms: int) -> DryRun:
        """Execute the message upon the last final state, and keep nothing of it."""
        ...

    def holds(self, message: ExternalMessage) -> bool:
        """Return whether a block of the last final state holds this very message; the block may be one that
        can still become final.
        """
        ...

    def holds_twin(self, message: ExternalMessage) -> bool:
        """Return whether a block of the last final state holds another message with the same content."""
        ...

    # Shards and sessions

    def shard_of(self, workchain: int, account: bytes) -> Shard | None: ...

    def session(self, shard: Shard) -> LedgerSession | None:
        """Return the session that works for the shard now; None if there is none."""
        ...

    def sessions(self) -> Sequence[LedgerSession]:
        """Return the sessions of all shards in sorted order, without the masterchain's."""
        ...

    def master_session(self) -> LedgerSession: ...

    def coming(self, workchain: int, account: bytes, now_ms: int, until_ms: int) -> Sequence[LedgerSession]:
        """Return the sessions that serve the account after the one at work and begin until `until_ms`, nearest first: of
        the next catchain or set, of the child or of the parent. Their ids are settled only when they start.
        """
        ...

    # Blocks

    def collate(
        self, session: bytes, parent: bytes, messages: Iterable[ExternalMessage], now_ms: int
    ) -> CollatedBlock | None:
        """Make a candidate upon `parent`, and read no more of `messages` than fit. Return None if the session
        cannot go on.
        """
        ...

    def messages_of(self, payload: bytes) -> tuple[ExternalMessage, ...]:
        """Return the external messages of a candidate, in order; `DecodeError` if `payload` is not a
        candidate.
        """
        ...

    def events(self) -> list[LedgerEvent]:
        """Return everything that has happened since the last call."""
        ...

    def history(self, from_catchain_seqno: int) -> Iterator[FinalBlock]:
        """Return the blocks committed under this catchain of the masterchain or a later one, oldest first."""
        ...
