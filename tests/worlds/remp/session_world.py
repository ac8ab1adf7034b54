"""Validators over many sessions in virtual time: nodes with a disk each, their seats in sessions, and a chain.

A node has one cache and a seat, that is a member of a graph with a queue upon it, in every session that it takes part
in. It follows the chain at its own pace. A crash takes away everything but the disk: blocks of its graphs, bodies, and
what full nodes had handed over; the chain can be read again by everybody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from random import Random

from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.records import Header
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.queue.state import QueueOptions
from tests.worlds.catchain.catchain_world import Network, Peer, Timeline
from tests.worlds.remp.session_chain import Chain, Plan, ShardBlock
from tests.worlds.remp.session_nodes import Node
from tests.worlds.remp.session_seats import Room, Seat, Vote

VOTE_WITHIN_S = 0.4
SLOT_S = 0.6
MASTER_S = 1.5
LAG_S = (0.01, 0.4)

Verdict = Callable[[ExternalMessage, int], str | None]
"""Why a node's executor refuses a message; None if it does not."""


class SessionWorld:
    """`seat_kinds`: the nodes that are not honest, and how."""

    def __init__(
        self,
        size: int,
        seed: int,
        seat_kinds: dict[int, type[Seat]],
        *,
        loss: float = 0.0,
        verdict: Verdict = lambda message, number: None,
        queue_options: QueueOptions | None = None,
    ) -> None:
        self.random = Random(seed)
        self.timeline = Timeline()
        self.network = Network(Random(seed + 1), loss=loss)
        self.seat_kinds = seat_kinds
        self.verdict = verdict
        self.queue_options = queue_options or QueueOptions()
        self.chain = Chain()
        self.rooms: dict[int, Room] = {}
        self.nodes = [Node(self, number) for number in range(size)]
        self.resubmitted: set[bytes] = set()
        self.heard_by_replayers: dict[bytes, Header] = {}
        self._slots: dict[int, int] = defaultdict(int)

    @property
    def honest(self) -> list[Node]:
        return [node for node in self.nodes if node.is_honest]

    def begin(self, shard: Shard, current: list[int]) -> None:
        self.chain.add_master_block(0.0, changes=[((), [(shard, current)])])
        self._open_rooms()
        for node in self.nodes:
            node.start()
        self.timeline.at(MASTER_S, self._master_tick)

    def switch(
        self, changes: list[tuple[list[Shard], list[tuple[Shard, list[int]]]]], *, advances: bool
    ) -> None:
        """At this moment; blocks that wait may be too late."""
        kept = self.random.choice([None, None, 0, 1])
        self.chain.add_master_block(self.timeline.now, advances=advances, changes=changes, kept=kept)
        self._open_rooms()
        self.news()

    def _open_rooms(self) -> None:
        for plan in self.chain.plans[len(self.rooms) :]:
            self.rooms[plan.number] = Room(self, plan)
            self.timeline.at(self.timeline.now + SLOT_S, partial(self._slot, plan))

    def live_rooms(self) -> list[Room]:
        return [self.rooms[head.plan.number] for head in self.chain.heads.values()]

    def news(self) -> None:
        """Everybody hears of the chain's newest entry after a while of his own."""
        until = len(self.chain.log)
        for node in self.nodes:
            lag = self.random.uniform(*LAG_S) if self.random.random() < 0.95 else 1.5
            self.timeline.at(self.timeline.now + lag, partial(node.follow, until))

    def _master_tick(self) -> None:
        self.timeline.at(self.timeline.now + MASTER_S, self._master_tick)
        if any(head.waiting for head in self.chain.heads.values()):
            self.chain.add_master_block(self.timeline.now)
            self.news()

    # Blocks of one session, one after the other

    def _slot(self, plan: Plan) -> None:
        if not self.chain.is_live(plan):
            return
        self.timeline.at(self.timeline.now + SLOT_S, partial(self._slot, plan))
        self._slots[plan.number] += 1
        node = self.nodes[plan.current[self._slots[plan.number] % len(plan.current)]]
        node.follow(len(self.chain.log))
        seat = node.seat_in(plan)
        if seat is None:
            return
        block_id = self.chain.next_block_id(plan, node.number)
        messages = tuple(seat.collate())
        if not messages:
            return
        block = ShardBlock(plan.number, block_id, messages, self.chain.masterchain_seqno)
        votes = {node.number: Vote(True)}
        for number in plan.current:
            if number != node.number:
                index = plan.members.index(number)
                seat.world.send(
                    seat.index, index, partial(_candidate_came, block, votes, len(self.chain.log))
                )
        self.timeline.at(self.timeline.now + VOTE_WITHIN_S, partial(self._decide, plan, block, votes))

    def _decide(self, plan: Plan, block: ShardBlock, votes: dict[int, Vote]) -> None:
        if not self.chain.is_live(plan):
            return
        votes_for = sum(vote.is_for for vote in votes.values())
        if 3 * votes_for > 2 * len(plan.current) and self.random.random() > 0.05:
            self.chain.commit(block)
        else:
            size = len(plan.current)
            is_refused = 3 * (len(votes) - votes_for) >= size
            # At least one of more than a third is honest.
            replayed = [
                one
                for one in block.message_ids
                if 3 * sum(one in vote.replayed for vote in votes.values()) > size
            ]
            self.chain.end_candidate(plan.number, block.block_id, is_refused=is_refused, replayed=replayed)
        self.news()


def _candidate_came(block: ShardBlock, votes: dict[int, Vote], log_length: int, to: Peer) -> None:
    """A validator checks a block against those before it, so it has applied them."""
    assert isinstance(to, Seat)
    to.node.follow(log_length)
    if to.is_up:
        votes[to.number] = to.vote(block)
