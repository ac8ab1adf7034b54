"""A small chain for validators in virtual time: who validates which shard, and what every node learns in one order.

It decides nothing about messages by itself. Blocks come from collators, count when validators have voted for them, and
are final when a master block holds them; a master block that changes sessions may leave the last ones out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from rigs.catchain_keys import public_key_of
from stagepost.ground.wire.tl import key_id
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.sessions import Member, SessionFacts, queue_id, queue_members
from stagepost.remp.shard import MASTERCHAIN, WHOLE_SHARD, BlockId

WHOLE = Shard(0, WHOLE_SHARD)
FIRST_SEQNO = 10


@dataclass(frozen=True)
class Plan:
    """One session: `members` are the previous validators and then the present ones, each once."""

    number: int
    shard: Shard
    masterchain_seqno: int
    current: tuple[int, ...]
    members: tuple[int, ...]
    parents: tuple[int, ...]
    session_id: bytes


@dataclass(frozen=True)
class ShardBlock:
    session: int
    block_id: BlockId
    messages: tuple[ExternalMessage, ...]
    masterchain_seqno: int

    @property
    def message_ids(self) -> list[bytes]:
        return [one.message_id for one in self.messages]


@dataclass(frozen=True)
class Committed:
    block: ShardBlock


@dataclass(frozen=True)
class CandidateEnded:
    session: int
    block_id: BlockId
    is_refused: bool
    replayed: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class MasterBlock:
    """`dropped`: shard blocks that came too late for the last top of their session."""

    master_id: BlockId
    masterchain_seqno: int
    at_s: float
    final: tuple[ShardBlock, ...]
    dropped: tuple[ShardBlock, ...] = ()
    ended: tuple[int, ...] = ()
    begun: tuple[Plan, ...] = ()


Entry = Committed | CandidateEnded | MasterBlock


@dataclass
class Head:
    plan: Plan
    seqno: int
    waiting: list[ShardBlock] = field(default_factory=list)


class Chain:
    """`log` is what all nodes follow, each at its own pace."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.plans: list[Plan] = []
        self.heads: dict[Shard, Head] = {}
        self.masterchain_seqno = FIRST_SEQNO
        self.final: list[ShardBlock] = []
        self._master_count = 0

    def is_live(self, plan: Plan) -> bool:
        head = self.heads.get(plan.shard)
        return head is not None and head.plan is plan

    def head_for(self, message: ExternalMessage) -> Head:
        return next(
            head for shard, head in self.heads.items() if shard.holds(message.workchain, message.account)
        )

    def next_block_id(self, plan: Plan, author: int) -> BlockId:
        seqno = self.heads[plan.shard].seqno + 1
        name = b"%d %d %d %d" % (plan.number, seqno, author, len(self.log))
        return BlockId(
            plan.shard.workchain,
            plan.shard.prefix,
            seqno,
            sha256(b"root " + name).digest(),
            sha256(b"file " + name).digest(),
        )

    def commit(self, block: ShardBlock) -> None:
        head = self.heads[self.plans[block.session].shard]
        head.seqno = block.block_id.seqno
        head.waiting.append(block)
        self.log.append(Committed(block))

    def end_candidate(
        self, session: int, block_id: BlockId, *, is_refused: bool, replayed: Sequence[bytes]
    ) -> None:
        self.log.append(CandidateEnded(session, block_id, is_refused, tuple(replayed)))

    def add_master_block(
        self,
        at_s: float,
        *,
        advances: bool = False,
        changes: Sequence[tuple[Sequence[Shard], Sequence[tuple[Shard, Sequence[int]]]]] = (),
        kept: int | None = None,
    ) -> None:
        """`changes`: shards whose sessions end, with the shards and validators that follow them. `kept`: how many of an
        ended session's waiting blocks are in time."""
        final: list[ShardBlock] = []
        dropped: list[ShardBlock] = []
        ended: list[int] = []
        begun: list[Plan] = []
        self._master_count += 1
        self.masterchain_seqno += advances
        for old_shards, following in changes:
            old = [self.heads.pop(shard) for shard in old_shards]
            for head in old:
                ended.append(head.plan.number)
                in_time = len(head.waiting) if kept is None else kept
                final += head.waiting[:in_time]
                dropped += head.waiting[in_time:]
            for shard, current in following:
                plan = self._plan(shard, current, [head.plan for head in old])
                begun.append(plan)
                self.heads[shard] = Head(plan, max((head.seqno for head in old), default=0))
        for head in self.heads.values():
            final += head.waiting
            head.waiting = []
        self.final += final
        master_id = BlockId(
            MASTERCHAIN, WHOLE_SHARD, self._master_count, sha256(b"master %d" % self._master_count).digest()
        )
        self.log.append(
            MasterBlock(
                master_id,
                self.masterchain_seqno,
                at_s,
                tuple(final),
                tuple(dropped),
                tuple(ended),
                tuple(begun),
            )
        )

    def _plan(self, shard: Shard, current: Sequence[int], parents: Sequence[Plan]) -> Plan:
        previous = [[_member(one) for one in plan.current] for plan in parents]
        present = [_member(one) for one in current]
        order = {_member(one).adnl: one for plan in parents for one in plan.current}
        order |= {_member(one).adnl: one for one in current}
        members = tuple(order[member.adnl] for member in queue_members(previous, present))
        facts = SessionFacts(
            shard.workchain,
            shard.prefix,
            0,
            0,
            len(self.plans),
            bytes(32),
            tuple([member for group in previous for member in group] + present),
        )
        plan = Plan(
            len(self.plans),
            shard,
            self.masterchain_seqno,
            tuple(current),
            members,
            tuple(plan.number for plan in parents),
            queue_id(facts),
        )
        self.plans.append(plan)
        return plan


def _member(number: int) -> Member:
    identity = key_id(public_key_of(number))
    return Member(identity, identity, 1)
