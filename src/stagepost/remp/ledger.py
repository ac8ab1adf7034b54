"""What the queue of external messages needs of a chain; whoever offers this can be collated into.

bytes → parse → shard_of → dry_run → queue → collate → agreement → check, finalised → events → queue
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.collation import Report
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.queue.staged_sending import Subset
from stagepost.remp.sessions import SessionFacts, session_id
from stagepost.remp.shard import BlockId


class ParsedMessage(msgspec.Struct, frozen=True):
    """`expires_at_s`: the first second at which no block may hold it any more; None if it says nothing of that."""

    message: ExternalMessage
    expires_at_s: int | None = None


class LedgerSession(msgspec.Struct, frozen=True):
    """A subset of validators at work for one shard, or for the masterchain.

    `master_catchain_seqno` is the clock of messages' lives as it stands now; `previous` are the sessions whose work it
    goes on with, shards in sorted order; `start` names the blocks that it stands upon now; `started_by` is the number of
    the master block that started it; `ends_ms` when others follow it, as far as that is foreseen.
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

    @property
    def subset(self) -> Subset:
        """As full nodes know it."""
        return Subset(tuple(member.key_id for member in self.facts.members), self.ends_ms / 1_000)


class Collated(msgspec.Struct, frozen=True):
    """A candidate, and what became of each message that was asked for, in the order of asking."""

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
    """Ours, or one of another validator that we found nothing wrong with."""

    session_id: bytes
    block_id: BlockId
    message_ids: tuple[bytes, ...]
    is_own: bool


class CandidateLost(msgspec.Struct, frozen=True):
    """Nothing came of it, and nobody is to blame: never sent, ignored in the vote, or another took its place."""

    session_id: bytes
    block_id: BlockId


class CandidateRefused(msgspec.Struct, frozen=True):
    """Validators declined it. `replayed`: the messages that were the reason."""

    session_id: bytes
    block_id: BlockId
    replayed: tuple[bytes, ...] = ()


class ShardCommitted(msgspec.Struct, frozen=True):
    session_id: bytes
    block_id: BlockId
    message_ids: tuple[bytes, ...]


class ShardDropped(msgspec.Struct, frozen=True):
    """The masterchain has gone on without it."""

    session_id: bytes
    block_id: BlockId
    message_ids: tuple[bytes, ...]


class MasterApplied(msgspec.Struct, frozen=True):
    """A master block is final. `ended` and `started` are empty unless it rotates sessions."""

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
    """Hashes of candidates are the agreement's; the first candidate of a session has its id for a parent."""

    # Messages

    def parse(self, data: bytes) -> ParsedMessage:
        """`DecodeError` if the bytes are no external message."""
        ...

    def dry_run(self, message: ExternalMessage, now_ms: int) -> str | None:
        """Why the account would not take it now, by the last final state; None if it would."""
        ...

    def holds(self, message: ExternalMessage) -> bool:
        """Whether a block holds this very message, by the same state: one that counts, or may still come to count."""
        ...

    # Shards and sessions

    def shard_of(self, workchain: int, account: bytes) -> Shard | None: ...

    def session(self, shard: Shard) -> LedgerSession | None:
        """At work now."""
        ...

    def sessions(self) -> Sequence[LedgerSession]:
        """Of all shards, in sorted order; the masterchain's is not among them."""
        ...

    def master_session(self) -> LedgerSession: ...

    def followers(self, shard: Shard, now_ms: int, ahead_ms: int) -> Sequence[LedgerSession]:
        """Those that take over from the shard's session if it ends within `ahead_ms`, as far as that is known now:
        the next catchain, the next set, both children or the parent. Their ids are settled only when they start."""
        ...

    # Blocks

    def collate(
        self, session: bytes, parent: bytes, messages: Iterable[ExternalMessage], now_ms: int
    ) -> Collated | None:
        """A candidate upon `parent`; no more is asked of `messages` than fits. None if the session cannot go on."""
        ...

    def messages_of(self, payload: bytes) -> tuple[ExternalMessage, ...]:
        """The external messages of a candidate, in order; `DecodeError` if it is none."""
        ...

    def events(self) -> list[LedgerEvent]:
        """Everything that has happened since the last call."""
        ...

    def history(self, from_catchain_seqno: int) -> Iterator[FinalBlock]:
        """Blocks that were committed under this catchain of the masterchain or a later one, oldest first."""
        ...
