"""Nodes that break the rules of sessions, each in one way: at the switch, before it, with bodies, or with blocks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256

import msgspec

from stagepost.catchain.effects import Effect, Reply, Send
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.effects import BroadcastBody, QueueEffect
from stagepost.remp.queue.message_states import is_open
from stagepost.remp.queue.records import Digest, Header, Ids, Record
from tests.worlds.catchain.catchain_attackers import (
    Attacker,
    Equivocator,
    Liar,
    Replayer,
    Twin,
    Whisperer,
    Withholder,
)
from tests.worlds.catchain.catchain_world import _frame_came
from tests.worlds.remp.session_chain import ShardBlock
from tests.worlds.remp.session_seats import Seat, Vote, seat_of

FLOOD = 60


class SessionAttacker(Attacker, Seat):
    """Votes for everything."""

    is_honest = False

    def vote(self, block: ShardBlock) -> Vote:
        super().vote(block)
        return Vote(True)


class Forgetter(SessionAttacker):
    """Hands nothing on."""

    def hand_on_to(self, following: Seat) -> None:
        pass


class FavouringForwarder(SessionAttacker):
    """Hands on to one member alone, and answers nobody else."""

    def perform(self, effects: list[Effect]) -> None:
        friend = (self.index + 1) % self.world.size
        super().perform([one for one in effects if not isinstance(one, Send | Reply) or one.peer == friend])

    def do(self, effects: Sequence[QueueEffect]) -> None:
        super().do([one for one in effects if not isinstance(one, BroadcastBody)])


class FalseForwarder(SessionAttacker):
    """Calls what is open processed, and what is processed open."""

    def hand_on_to(self, following: Seat) -> None:
        entries = self.queue.entries()
        ids = {one.message_id: Ids(one.message_id, one.header.uid) for one in entries}
        was_open = [ids[one.message_id] for one in entries if is_open(one.status)][:30]
        seqno = following.plan.masterchain_seqno
        records: list[Record] = []
        records += [one.header for one in entries if not is_open(one.status)][:30]
        records.append(Digest(seqno, tuple(was_open), tuple(was_open)))
        self.relabelled(one.message_id for one in was_open)
        following.do(following.queue.forward_into(records, [], self.world.now))


class LateFlooder(SessionAttacker):
    """Fills the queue just before it ends."""

    def switch_is_near(self) -> None:
        for number in range(FLOOD):
            content = b"flood of %d at %.3f: %d" % (self.number, self.world.now, number)
            identity = sha256(content).digest()
            one = ExternalMessage(identity, identity, 0, sha256(b"to " + content).digest(), content)
            if self.plan.shard.holds(0, one.account):
                self.bodies[one.message_id] = one
                self.do(self.queue.offer(one, sha256(b"a friend").digest(), self.world.now))


class Miser(SessionAttacker):
    """Announces messages and keeps their bodies."""

    def send_body(self, peer: int, message_id: bytes) -> None:
        pass


class OldSessionReplayer(SessionAttacker):
    """Announces everything that it ever heard of, as old as it is, and sends the blocks of earlier sessions."""

    def start(self) -> None:
        super().start()
        self._replay()

    def _replay(self) -> None:
        if not self.is_up:
            return
        self.world.after(2.0, self._replay)
        heard = self.room.outer.heard_by_replayers
        heard.update({one.message_id: one.header for one in self.queue.entries()})
        old = [header for header in heard.values() if header.masterchain_seqno < self.cache.window.lowest]
        self.do(self.queue.forward_into(old[-20:], [], self.world.now))
        for parent in self.plan.parents:
            room = self.room.outer.rooms[parent]
            if self.number in room.plan.members:
                for frame in room.seat(self.number).disk[-5:]:
                    for peer in self.others():
                        self.world.send(self.index, peer, partial(_frame_came, self.index, frame))


class Resubmitter(SessionAttacker):
    """Announces what is final, as if it had come today."""

    def switch_is_near(self) -> None:
        seqno = self.cache.window.current
        final = [one for block in self.room.outer.chain.final[-10:] for one in block.messages]
        headers = [
            msgspec.structs.replace(cached.header, masterchain_seqno=seqno)
            for one in final
            if (cached := self.cache.get(one.message_id)) is not None
        ]
        self.relabelled(header.message_id for header in headers)
        records: list[Header] = headers[:30]
        self.do(self.queue.forward_into(records, [], self.world.now))


class Doubler(SessionAttacker):
    """Puts what stands in the chain into its candidates again."""

    def collate(self) -> list[ExternalMessage]:
        again = [one for block in self.room.outer.chain.final[-3:] for one in block.messages]
        return [*super().collate(), *again[-3:]]


SESSION_ATTACKERS: tuple[type[Seat], ...] = (
    Forgetter, FavouringForwarder, FalseForwarder, LateFlooder, Miser, OldSessionReplayer, Resubmitter, Doubler,
    *(seat_of(kind) for kind in (Equivocator, Withholder, Whisperer, Replayer, Liar, Twin)),
)  # fmt: skip
