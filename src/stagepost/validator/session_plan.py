"""One session as a validator is told to take part in it, and what it is run with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from stagepost.catchain.block import incarnation_of
from stagepost.catchain.effects import Blamed, Deliver, Halt, Recovered, Refused
from stagepost.catchain.graph import GraphRules
from stagepost.catchain.member import MemberOptions
from stagepost.catchain.quorum_watch import QuorumReport
from stagepost.ground.wire.tl import key_id
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.queue.state import QueueOptions, QueueSession

Parse = Callable[[bytes], ExternalMessage]
"""What a ledger reads in a message's bytes; `DecodeError` if they are no message."""

SessionEvent: TypeAlias = Deliver | Blamed | Refused | Recovered | Halt | QuorumReport


class SessionPlan(msgspec.Struct, frozen=True):
    """`session_id` is that of the message queue. A member is known by its place among the public keys."""

    session_id: bytes
    public_keys: tuple[bytes, ...]
    index: int
    current: frozenset[int]
    masterchain_seqno: int
    shard: Shard

    @property
    def incarnation(self) -> bytes:
        return incarnation_of(self.session_id, [key_id(key) for key in self.public_keys])

    @property
    def queue_session(self) -> QueueSession:
        return QueueSession(
            self.masterchain_seqno, self.index, self.current, len(self.public_keys), self.shard
        )

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(peer for peer in range(len(self.public_keys)) if peer != self.index)


class SessionOptions(msgspec.Struct, frozen=True):
    rules: GraphRules = GraphRules()
    member: MemberOptions = MemberOptions()
    queue: QueueOptions = QueueOptions()


class SessionCounters(msgspec.Struct):
    """`refused` by the name of the rule that was broken."""

    blocks_pushed: int = 0
    bodies_pushed: int = 0
    bodies_asked: int = 0
    bodies_answered: int = 0
    pushes_dropped: int = 0
    offered: int = 0
    held_back: int = 0
    refused: Counter[str] = msgspec.field(default_factory=Counter)
