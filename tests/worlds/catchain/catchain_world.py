"""Members of one graph in virtual time: a seeded event queue in place of network and disk.

Links lose, delay and reorder; disks take time, and a crash loses what was not written. Dishonest members hold real
keys. What honest members end with is compared by means that the graph has no part in.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from random import Random

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.catchain.block import Block, incarnation_of
from stagepost.catchain.budgets import AuthorAccount
from stagepost.catchain.dates import DateRules
from stagepost.catchain.effects import (
    Ask,
    BlameReport,
    Deliver,
    Effect,
    Halt,
    Persist,
    RecoveryReport,
    RefusalReport,
    Reply,
    Send,
)
from stagepost.catchain.graph import Graph, GraphRules
from stagepost.catchain.member import Member, MemberOptions
from stagepost.ground.wire.tl import key_id
from tests.worlds.catchain.members_world import Hearer, MembersWorld, answer_came, frame_came, verify_once

SESSION = sha256(b"session").digest()


class Peer(Hearer):
    """One member's process: its core, what it has to say, its disk, and what it told those above."""

    def __init__(self, world: World, index: int) -> None:
        self.world = world
        self.index = index
        self.disk: list[bytes] = []
        self.to_say: list[bytes] = []
        self.delivered: list[tuple[int, int, bytes, bytes]] = []
        self.blamed: set[int] = set()
        self.refused: list[RefusalReport] = []
        self.recovered = 0
        self.halted: str | None = None
        self.life = 0
        self.is_up = False
        self.crashes_when_written = False
        self.member: Member

    def start(self) -> None:
        world = self.world
        self.life += 1
        self.is_up = True
        self.delivered = []
        graph = Graph(
            world.incarnation,
            [public_key_of(one) for one in range(world.size)],
            world.rules,
            verify=verify_once,
            dates=world.dates,
        )
        self.member = Member(
            graph,
            self.index,
            seed_of(self.index),
            self.next_payload,
            Random(world.random.random()),
            world.now,
            world.options,
            unix_ms=lambda: int(world.now * 1_000),
        )
        self.perform(self.member.restore(self.disk, world.now))
        self.wake_later()

    def crash_when_written(self) -> None:
        """The next time that a block of ours is on disk, and nobody has heard of it."""
        self.crashes_when_written = self.is_up

    def next_payload(self, is_due: bool, account: AuthorAccount) -> bytes | None:
        return self.to_say.pop(0) if self.to_say else None

    def say(self, payload: bytes) -> None:
        self.to_say.append(payload)
        if self.is_up:
            self.perform(self.member.speak_soon(self.world.now))

    def wake_later(self) -> None:
        life = self.life
        at = max(self.world.now + 1e-6, self.member.next_wake)
        self.world.at(at, lambda: self.wake(life))

    def wake(self, life: int) -> None:
        if self.is_up and life == self.life:
            self.perform(self.member.tick(self.world.now))
            self.wake_later()

    def perform(self, effects: list[Effect]) -> None:
        world = self.world
        life = self.life
        for effect in effects:
            match effect:
                case Persist(block_hash, frame, is_own):
                    world.after(world.disk_delay(), partial(self.written, life, block_hash, frame, is_own))
                case Send(peer, frame):
                    world.send(self.index, peer, partial(frame_came, self.index, frame))
                case Ask(peer, number, query):
                    self.ask(peer, number, query, world.options.sync.query_timeout_s)
                case Reply(peer, number, answer):
                    world.send(self.index, peer, partial(answer_came, self.index, number, answer))
                case Deliver(source, height, block_hash, payload):
                    self.delivered.append((source, height, block_hash, payload))
                case BlameReport(source, _):
                    self.blamed.add(source)
                case RefusalReport():
                    self.refused.append(effect)
                case RecoveryReport():
                    self.recovered += 1
                case Halt(text):
                    self.halted = text

    def written(self, life: int, block_hash: bytes, frame: bytes, is_own: bool) -> None:
        if self.is_up and life == self.life:
            self.disk.append(frame)
            if is_own and self.crashes_when_written:
                self.crashes_when_written = False
                self.crash()
                self.world.after(0.5, self.start_if_down)
                return
            self.perform(self.member.stored(block_hash, self.world.now))


class World(MembersWorld[Peer]):
    """Members of one graph."""

    def __init__(
        self,
        size: int,
        seed: int,
        *,
        loss: float = 0.0,
        rules: GraphRules | None = None,
        options: MemberOptions | None = None,
        dates: DateRules | None = None,
        make_peer: Callable[[World, int], Peer] = Peer,
    ) -> None:
        super().__init__(seed, loss)
        self.size = size
        self.rules = rules or GraphRules()
        self.dates = dates
        self.options = options or MemberOptions(start_wait_s=0.5, idle_timeout_s=4.0)
        self.incarnation = incarnation_of(SESSION, [key_id(public_key_of(one)) for one in range(size)])
        self.peers = [make_peer(self, index) for index in range(size)]


def check_causal_order(peer: Peer, blocks: dict[bytes, Block]) -> None:
    """Nothing is delivered before what it rests on; recomputed from the frames alone."""
    graph = peer.member.graph
    places = {block_hash: place for place, (_, _, block_hash, _) in enumerate(peer.delivered)}
    for block_hash, place in places.items():
        block = blocks[block_hash]
        for reference in (block.previous, *block.dependencies):
            # Blocks with nothing for those above are not told, and neither is the root.
            parent = places.get(graph.hash_of(reference), -1)
            assert parent < place, "delivered before what it rests on"
