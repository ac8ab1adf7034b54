"""Members of one graph in virtual time: a seeded event queue in place of network and disk.

Links lose, delay and reorder; disks take time, and a crash loses what was not written. Dishonest members hold real
keys. What honest members end with is compared by means that the graph has no part in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import sha256
from itertools import count
from random import Random

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.catchain.block import Block, incarnation_of
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
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import key_id

SESSION = sha256(b"session").digest()


@lru_cache(maxsize=200_000)
def verify_once(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """A signature is checked once for all members of a run."""
    return ed25519.verify(public_key, message, signature)


class Network:
    def __init__(
        self, random: Random, *, loss: float = 0.0, delay_s: tuple[float, float] = (0.001, 0.05)
    ) -> None:
        self.random = random
        self.loss = loss
        self.delay_s = delay_s
        self.groups: dict[int, int] = {}

    def passes(self, sender: int, receiver: int) -> bool:
        if self.groups.get(sender, 0) != self.groups.get(receiver, 0):
            return False
        return self.random.random() >= self.loss

    def delay(self) -> float:
        return self.random.uniform(*self.delay_s)


class Peer:
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

    def start_if_down(self) -> None:
        if not self.is_up:
            self.start()

    def crash(self) -> None:
        self.is_up = False
        self.life += 1

    def crash_when_written(self) -> None:
        """The next time that a block of ours is on disk, and nobody has heard of it."""
        self.crashes_when_written = self.is_up

    def next_payload(self, is_due: bool) -> bytes | None:
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
                    world.send(self.index, peer, partial(_frame_came, self.index, frame))
                case Ask(peer, number, query):
                    world.send(self.index, peer, partial(_query_came, self.index, number, query))
                    is_linked = world.are_linked(self.index, peer)
                    wait_s = world.options.sync.query_timeout_s if is_linked else 0.0
                    world.after(wait_s, partial(self.query_failed, life, peer, number))
                case Reply(peer, number, answer):
                    world.send(self.index, peer, partial(_answer_came, self.index, number, answer))
                case Deliver(source, height, block_hash, payload, _):
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

    def frame_came(self, sender: int, frame: bytes) -> None:
        self.perform(self.member.frame_received(sender, frame, self.world.now))

    def query_came(self, sender: int, number: int, query: bytes) -> None:
        self.perform(self.member.query_received(sender, number, query, self.world.now))

    def query_failed(self, life: int, peer: int, number: int) -> None:
        """Tell the member that no answer came, as a link does; the member ignores it if one did."""
        if self.is_up and life == self.life:
            self.perform(self.member.answered(peer, number, None, self.world.now))

    def answer_came(self, sender: int, number: int, answer: bytes) -> None:
        self.perform(self.member.answered(sender, number, answer, self.world.now))


def _frame_came(sender: int, frame: bytes, to: Peer) -> None:
    to.frame_came(sender, frame)


def _query_came(sender: int, number: int, query: bytes, to: Peer) -> None:
    to.query_came(sender, number, query)


def _answer_came(sender: int, number: int, answer: bytes, to: Peer) -> None:
    to.answer_came(sender, number, answer)


class Timeline:
    """Events in the order of their times, one after the other."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until


class World:
    """Members with numbers, their network and their time."""

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
        self.size = size
        self.random = Random(seed)
        self.timeline = Timeline()
        self.rules = rules or GraphRules()
        self.dates = dates
        self.options = options or MemberOptions(start_wait_s=0.5, idle_timeout_s=4.0)
        self.network = Network(Random(seed + 1), loss=loss)
        self.incarnation = incarnation_of(SESSION, [key_id(public_key_of(one)) for one in range(size)])
        self.peers = [make_peer(self, index) for index in range(size)]

    @property
    def now(self) -> float:
        return self.timeline.now

    def at(self, time: float, event: Callable[[], None]) -> None:
        self.timeline.at(time, event)

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        self.at(self.now + delay_s, event)

    def disk_delay(self) -> float:
        return self.random.uniform(0.0005, 0.005)

    def send(self, sender: int, receiver: int, event: Callable[[Peer], None]) -> None:
        if not self.network.passes(sender, receiver):
            return
        peer = self.peers[receiver]

        def arrive() -> None:
            if peer.is_up:
                event(peer)

        self.after(self.network.delay(), arrive)

    def are_linked(self, one: int, other: int) -> bool:
        groups = self.network.groups
        return self.peers[other].is_up and groups.get(one, 0) == groups.get(other, 0)

    def start_all(self) -> None:
        for peer in self.peers:
            peer.start()

    def run(self, until: float) -> None:
        self.timeline.run(until)


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
