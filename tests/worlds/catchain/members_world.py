"""Members with numbers in virtual time: a seeded event queue in place of network and disk, for any kind of member core.

Links lose, delay and reorder. The worlds of the catchain and of the agreement are made of these parts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import count
from random import Random
from typing import Any, Generic, TypeVar

from stagepost.ground.crypto import ed25519

P = TypeVar("P", bound="Hearer")


@lru_cache(maxsize=500_000)
def verify_once(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Verify a signature; once for all members of a run."""
    return ed25519.verify(public_key, message, signature)


class Network:
    def __init__(
        self, random: Random, *, loss: float = 0.0, delay_s: tuple[float, float] = (0.001, 0.05)
    ) -> None:
        self.random = random
        self.loss = loss
        self.delay_s = delay_s
        self.late: dict[int, float] = {}
        """Seconds that a member's frames take longer than those of others."""
        self.groups: dict[int, int] = {}

    def passes(self, sender: int, receiver: int) -> bool:
        if self.groups.get(sender, 0) != self.groups.get(receiver, 0):
            return False
        return self.random.random() >= self.loss

    def delay(self, sender: int) -> float:
        return self.random.uniform(*self.delay_s) + self.late.get(sender, 0.0)


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


class Hearer:
    """Process of one member: it hands what arrives to the member's core, while it is up."""

    world: Any
    index: int
    member: Any
    life: int
    is_up: bool

    def start(self) -> None:
        raise AssertionError("each kind of member starts in its own way")

    def perform(self, effects: list[Any]) -> None:
        raise AssertionError("each kind of member has its own effects")

    def start_if_down(self) -> None:
        if not self.is_up:
            self.start()

    def crash(self) -> None:
        self.is_up = False
        self.life += 1

    def ask(self, peer: int, number: int, query: bytes, timeout_s: float) -> None:
        """Send a query; without an answer in time, the member hears that none came, as a link tells it."""
        self.world.send(self.index, peer, partial(query_came, self.index, number, query))
        wait_s = timeout_s if self.world.are_linked(self.index, peer) else 0.0
        self.world.after(wait_s, partial(self.query_failed, self.life, peer, number))

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


def frame_came(sender: int, frame: bytes, to: Hearer) -> None:
    to.frame_came(sender, frame)


def query_came(sender: int, number: int, query: bytes, to: Hearer) -> None:
    to.query_came(sender, number, query)


def answer_came(sender: int, number: int, answer: bytes, to: Hearer) -> None:
    to.answer_came(sender, number, answer)


class MembersWorld(Generic[P]):
    """Members with numbers, their network and their time."""

    peers: Sequence[P]

    def __init__(self, seed: int, loss: float) -> None:
        self.random = Random(seed)
        self.timeline = Timeline()
        self.network = Network(Random(seed + 1), loss=loss)

    @property
    def now(self) -> float:
        return self.timeline.now

    def at(self, time: float, event: Callable[[], None]) -> None:
        self.timeline.at(time, event)

    def after(self, delay_s: float, event: Callable[[], None]) -> None:
        self.at(self.now + delay_s, event)

    def disk_delay(self) -> float:
        return self.random.uniform(0.0005, 0.005)

    def send(self, sender: int, receiver: int, event: Callable[[P], None]) -> None:
        if not self.network.passes(sender, receiver):
            return
        peer = self.peers[receiver]

        def arrive() -> None:
            if peer.is_up:
                event(peer)

        self.after(self.network.delay(sender), arrive)

    def are_linked(self, one: int, other: int) -> bool:
        groups = self.network.groups
        return self.peers[other].is_up and groups.get(one, 0) == groups.get(other, 0)

    def start_all(self) -> None:
        for peer in self.peers:
            peer.start()

    def run(self, until: float) -> None:
        self.timeline.run(until)
