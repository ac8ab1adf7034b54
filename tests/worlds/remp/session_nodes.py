"""A validator's process over many sessions: its cache, its disk, its seats, and the chain as far as it has followed it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from stagepost.remp.message import ExternalMessage, Origin, header_of
from stagepost.remp.queue.message_cache import LifeWindow, MessageCache
from stagepost.remp.queue.records import Header
from stagepost.remp.receipts.message_status import MessageStatus
from tests.worlds.remp.queue_world import FULL_NODE
from tests.worlds.remp.session_chain import CandidateEnded, Committed, MasterBlock, Plan, ShardBlock
from tests.worlds.remp.session_seats import Seat

if TYPE_CHECKING:
    from tests.worlds.remp.session_world import SessionWorld

LINGER_S = 15.0
"""So long a node stays in a session that is over, and hands on what still comes."""


class Node:
    """`told` is what full nodes heard in this life; `earlier_lives` what they heard before."""

    def __init__(self, world: SessionWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.is_up = False
        self.life = 0
        self.applied = 0
        self.bodies: dict[bytes, ExternalMessage] = {}
        self.offers: dict[bytes, Header] = {}
        self.told: dict[bytes, list[MessageStatus]] = defaultdict(list)
        self.earlier_lives: list[dict[bytes, list[MessageStatus]]] = []
        self.receipts: list[tuple[float, bytes, MessageStatus]] = []
        self.final_ids: set[bytes] = set()
        self.processed_handed_on: list[bytes] = []
        self.cache = MessageCache()
        self._joined: dict[int, Seat] = {}

    @property
    def is_honest(self) -> bool:
        return self.number not in self.world.seat_kinds

    def seats(self) -> Iterator[Seat]:
        """Those whose queue is alive, live sessions or not."""
        return iter(list(self._joined.values()))

    def seat_in(self, plan: Plan) -> Seat | None:
        seat = self._joined.get(plan.number)
        return seat if seat is not None and seat.is_up and seat.ended_at is None else None

    # Full nodes

    def hand_over(self, message: ExternalMessage) -> bool:
        """Whether the node took it: it must be up, and validate the shard."""
        if not self.is_up:
            return False
        for seat in self.seats():
            plan = seat.plan
            is_its_shard = plan.shard.holds(message.workchain, message.account)
            if seat.is_up and seat.ended_at is None and self.number in plan.current and is_its_shard:
                now = self.world.timeline.now
                # On disk before the answer: the answer is a promise.
                seqno = self.cache.window.current
                origin = Origin(FULL_NODE, seat.index, int(now * 1_000))
                self.offers.setdefault(message.message_id, header_of(message, origin, seqno))
                self.bodies[message.message_id] = message
                seat.do(seat.queue.offer(message, FULL_NODE, now))
                return True
        return False

    # Life

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        if any(self.told.values()):
            self.earlier_lives.append(self.told)
        self.told = defaultdict(list)
        self._joined.clear()
        self._read_chain_again()
        self.follow(len(self.world.chain.log))
        self.tick(self.life)

    def start_if_down(self) -> None:
        if not self.is_up:
            self.start()

    def crash(self) -> None:
        if self.is_up:
            self.is_up = False
            self.life += 1
            for seat in self._joined.values():
                if seat.is_up:
                    seat.crash()

    def tick(self, life: int) -> None:
        """Queues of sessions that are over still close what is open in them."""
        if self.is_up and life == self.life:
            now = self.world.timeline.now
            for seat in self.seats():
                if seat.has_left:
                    seat.do(seat.queue.tick(now))
                elif seat.ended_at is not None:
                    self._hand_on_from(seat)
                    if now >= seat.ended_at + LINGER_S:
                        seat.leave()
            self.world.timeline.at(self.world.timeline.now + 1.0, partial(self.tick, life))

    def _read_chain_again(self) -> None:
        """History first: a queue that knows less than the chain would collate what stands in it."""
        world, now = self.world, self.world.timeline.now
        seen = world.chain.log[: self.applied]
        blocks = [one for one in seen if isinstance(one, MasterBlock)]
        window = LifeWindow()
        self.cache = MessageCache(window)
        if not blocks:
            return
        window.advance(blocks[-1].masterchain_seqno, now)
        for master in blocks:
            if master.masterchain_seqno >= window.lowest:
                for block in master.final:
                    for one in block.messages:
                        self.cache.index_final(
                            one, master.masterchain_seqno, block.block_id, master.master_id, now
                        )
        ended = {number: master for master in blocks for number in master.ended}
        for plan in [plan for master in blocks for plan in master.begun]:
            end = ended.get(plan.number)
            is_needed = end is None or end.masterchain_seqno > window.lowest
            if self.number in plan.members and is_needed:
                self._join(plan)
                self._joined[plan.number].ended_at = None if end is None else end.at_s
        for seat in self.seats():
            self._hand_on_from(seat)
        settled = {block.block_id for master in blocks for block in (*master.final, *master.dropped)}
        for entry in seen:
            if isinstance(entry, Committed) and entry.block.block_id not in settled:
                self._committed(entry.block)
        self._offer_again()

    def _offer_again(self) -> None:
        for message_id, header in self.offers.items():
            if header.masterchain_seqno not in self.cache.window or self.cache.get(message_id) is not None:
                continue
            for seat in self.seats():
                if seat.ended_at is None and seat.plan.shard.holds(header.workchain, header.account):
                    seat.do(
                        seat.queue.forward_into([header], [self.bodies[message_id]], self.world.timeline.now)
                    )
                    break

    # The chain

    def follow(self, until: int) -> None:
        if self.is_up:
            for entry in self.world.chain.log[self.applied : until]:
                self.applied += 1
                self._apply(entry)

    def _apply(self, entry: Committed | CandidateEnded | MasterBlock) -> None:
        now = self.world.timeline.now
        match entry:
            case Committed(block):
                self._committed(block)
            case CandidateEnded(session, block_id, is_refused, replayed):
                seat = self._joined.get(session)
                if seat is not None and seat.is_up:
                    queue = seat.queue
                    seat.do(
                        queue.candidate_refused(block_id, now, replayed)
                        if is_refused
                        else queue.candidate_lost(block_id, now)
                    )
            case MasterBlock():
                self._apply_master(entry)

    def _committed(self, block: ShardBlock) -> None:
        seat = self._joined.get(block.session)
        if seat is not None:
            seat.do(seat.queue.shard_committed(block.block_id, block.message_ids, self.world.timeline.now))

    def _apply_master(self, master: MasterBlock) -> None:
        now = self.world.timeline.now
        for block in master.final:
            seqno = master.masterchain_seqno
            self.final_ids.update(block.message_ids)
            for one in block.messages:
                self.cache.index_final(one, seqno, block.block_id, master.master_id, now)
            for seat in self.seats():
                seat.do(
                    seat.queue.master_committed(
                        block.block_id, master.master_id, block.messages, now, masterchain_seqno=seqno
                    )
                )
        for block in master.dropped:
            for seat in self.seats():
                seat.do(seat.queue.shard_dropped(block.block_id, block.message_ids, now))
        gone = self.cache.advance(master.masterchain_seqno, master.at_s)
        for seat in self.seats():
            seat.do(seat.queue.lives_over(gone.messages, now))
            if seat.has_left and not seat.queue.known_ids:
                del self._joined[seat.plan.number]
        for number in master.ended:
            if number in self._joined:
                seat = self._joined[number]
                seat.ended_at = now
                seat.do(seat.queue.session_ended(now))
        for plan in master.begun:
            if self.number in plan.members:
                self._join(plan)
        for number in master.ended:
            if number in self._joined:
                self._hand_on_from(self._joined[number])

    def _join(self, plan: Plan) -> None:
        seat = self.world.rooms[plan.number].seat(self.number)
        self._joined[plan.number] = seat
        seat.has_left, seat.ended_at = False, None
        seat.start()

    def _hand_on_from(self, seat: Seat) -> None:
        for following in self.seats():
            if seat.plan.number in following.plan.parents:
                seat.hand_on_to(following)
