"""A node's place in one session: a member of the session's graph with a queue upon it, a collator and a vote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from stagepost.catchain.catching_up import SyncOptions
from stagepost.catchain.member import MemberOptions
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.collation import (
    ExecutedMessage,
    RefusedMessage,
    Report,
    SkippedMessage,
    UnusedMessage,
)
from stagepost.remp.queue.effects import AskForBody, BroadcastBody, QueueEffect
from stagepost.remp.queue.message_cache import MessageCache
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.queue.session_switch import to_forward
from stagepost.remp.queue.state import QueueSession
from stagepost.remp.receipts.message_status import MessageStatus
from stagepost.remp.receipts.status import Level, Status
from tests.worlds.catchain.catchain_world import Peer, World
from tests.worlds.remp.queue_world import Validator
from tests.worlds.remp.session_chain import Plan, ShardBlock

if TYPE_CHECKING:
    from tests.worlds.remp.session_nodes import Node
    from tests.worlds.remp.session_world import SessionWorld

MESSAGES_PER_BLOCK = 12
OPTIONS = MemberOptions(
    start_wait_s=0.3,
    idle_timeout_s=4.0,
    sync=SyncOptions(sync_min_s=0.2, sync_max_s=0.4, query_timeout_s=1.0),
)


class Vote(NamedTuple):
    """`replayed`: what stands in the chain already, and why the voter says no."""

    is_for: bool
    replayed: frozenset[bytes] = frozenset()


class Room(World):
    """The graph of one session; keys, network and time are those of the nodes."""

    def __init__(self, outer: SessionWorld, plan: Plan) -> None:
        self.outer = outer
        self.plan = plan
        super().__init__(
            len(plan.members),
            outer.random.randrange(1 << 32),
            options=OPTIONS,
            make_peer=self._make_seat,
            timeline=outer.timeline,
            network=outer.network,
        )

    @property
    def session_id(self) -> bytes:
        return self.plan.session_id

    def number_of(self, index: int) -> int:
        return self.plan.members[index]

    def _make_seat(self, world: World, index: int) -> Peer:
        return self.outer.seat_kinds.get(self.number_of(index), Seat)(world, index)

    def seat(self, number: int) -> Seat:
        seat = self.peers[self.plan.members.index(number)]
        assert isinstance(seat, Seat)
        return seat

    def seats(self) -> list[Seat]:
        return [self.seat(number) for number in self.plan.members]


class Seat(Validator):
    """A node's place in one session."""

    is_honest = True

    def __init__(self, world: World, index: int) -> None:
        super().__init__(world, index)
        assert isinstance(world, Room)
        self.room = world
        self.number = world.number_of(index)
        self.has_left = False
        self.ended_at: float | None = None

    @property
    def node(self) -> Node:
        return self.room.outer.nodes[self.number]

    @property
    def plan(self) -> Plan:
        return self.room.plan

    def open_queue(self) -> tuple[MessageCache, ReliableQueue]:
        node, plan = self.node, self.plan
        self.bodies, self.told = node.bodies, node.told
        current = frozenset(plan.members.index(one) for one in plan.current)
        session = QueueSession(plan.masterchain_seqno, self.index, current, len(plan.members), plan.shard)
        return node.cache, ReliableQueue(session, node.cache, self.room.outer.queue_options)

    def leave(self) -> None:
        """The graph is over for us; what the queue knows stays until its messages are closed."""
        self.has_left = True
        self.crash()

    def do(self, effects: Sequence[QueueEffect]) -> None:
        super().do([one for one in effects if not self._has_body(one)])
        for one in effects:
            if self._has_body(one):
                assert isinstance(one, AskForBody)
                super().do(self.queue.body_came(self.bodies[one.message_id], self.world.now))

    def _has_body(self, effect: QueueEffect) -> bool:
        """The network may be faster than the graph: what came before its header need not be asked for."""
        return isinstance(effect, AskForBody) and effect.message_id in self.bodies

    def note_told(self, message_id: bytes, status: MessageStatus) -> None:
        super().note_told(message_id, status)
        self.node.receipts.append((self.world.now, message_id, status))

    def relabelled(self, message_ids: Iterable[bytes]) -> None:
        self.room.outer.resubmitted.update(message_ids)

    # The switch

    def hand_on_to(self, following: Seat) -> None:
        """What this session's queue has for one that follows it."""
        plan = following.plan
        known = following.queue.known_ids
        handed = to_forward(self.queue, plan.masterchain_seqno, plan.shard, known.__contains__)
        effects = following.queue.forward_into(handed.records, handed.bodies, self.world.now)
        bodies = {one.message_id for one in effects if isinstance(one, BroadcastBody)}
        self.node.processed_handed_on += sorted(bodies & self.node.final_ids)
        following.do(effects)

    def switch_is_near(self) -> None:
        """Soon another session begins. Only attackers make something of it."""

    # Blocks

    def collate(self) -> list[ExternalMessage]:
        """What stands in this node's candidate."""
        world = self.room.outer
        block_id = world.chain.next_block_id(self.plan, self.number)
        taken, effects = self.queue.take(self.world.now, MESSAGES_PER_BLOCK)
        self.do(effects)
        reports: list[tuple[bytes, Report]] = []
        included: list[ExternalMessage] = []
        for one in taken:
            refusal = world.verdict(one, self.number)
            chance = world.random.random()
            if chance < 0.05:
                reports.append((one.message_id, SkippedMessage(block_id)))
            elif chance < 0.1:
                reports.append((one.message_id, UnusedMessage()))
            elif refusal is not None:
                reports.append((one.message_id, RefusedMessage(block_id, refusal)))
            else:
                reports.append((one.message_id, ExecutedMessage(block_id)))
                included.append(one)
        self.do(self.queue.collated(reports, self.world.now))
        return included

    def vote(self, block: ShardBlock) -> Vote:
        for one in block.messages:
            # A candidate comes with its messages' bytes.
            self.body_came(one)
        if self.queue.check_candidate(block.message_ids) is not None:
            replayed = [one for one in block.message_ids if _is_in_chain(self.queue.status(one))]
            return Vote(False, frozenset(replayed))
        self.do(self.queue.candidate_seen(block.block_id, block.message_ids, self.world.now))
        return Vote(True)


def _is_in_chain(status: MessageStatus | None) -> bool:
    return (
        status is not None
        and status.status is Status.ACCEPTED
        and status.level in (Level.SHARDCHAIN, Level.MASTERCHAIN)
    )


@lru_cache(maxsize=64)
def seat_of(kind: type[Validator]) -> type[Seat]:
    """A member that breaks rules in one session, as a node that does so in all."""
    return (
        kind if issubclass(kind, Seat) else type(f"{kind.__name__}Seat", (kind, Seat), {"is_honest": False})
    )
