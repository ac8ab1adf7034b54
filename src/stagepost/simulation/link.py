"""The way of bytes between two hosts: delay, speed, loss and partitions, as an ordered stream shows them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from stagepost.ground.net.sockets import PEER_IS_DEAD_AFTER_S

RETRANSMISSION_S = 0.2
RETRANSMISSIONS_MAX = 6
WINDOW_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Settings of one direction. A lost packet is sent again, so loss looks like delay and nothing is out of
    order."""

    latency_s: float = 0.02
    jitter_s: float = 0.005
    bytes_per_s: float | None = None
    loss_chance: float = 0.0
    cut_chance: float = 0.1
    """Probability that a piece arrives in two parts: a stream has no borders."""
    window_bytes: int = WINDOW_BYTES
    """Bytes under way before the sender must wait."""


LOCAL_LINK = LinkSettings(latency_s=0.0001, jitter_s=0.0, cut_chance=0.05)


@dataclass(eq=False)
class Route:
    """Way between two hosts, shared by all their connections."""

    link: LinkSettings
    random: Random
    blocks: int = 0
    partitions: int = 0
    pipes: dict[Pipe, None] = field(default_factory=dict)
    _busy_until_s: dict[str, float] = field(default_factory=dict)
    _healed: list[asyncio.Future[None]] = field(default_factory=list)

    def arrival(self, sender: str, length: int, now_s: float) -> float:
        """Return the time at which `length` bytes that leave now would arrive."""
        link = self.link
        departs_s = now_s
        if link.bytes_per_s is not None:
            departs_s = max(now_s, self._busy_until_s.get(sender, 0.0)) + length / link.bytes_per_s
            self._busy_until_s[sender] = departs_s
        return departs_s + self.delay_s()

    def delay_s(self) -> float:
        link = self.link
        delay_s = link.latency_s + link.jitter_s * self.random.random()
        if link.loss_chance:
            wait_s = RETRANSMISSION_S
            for _ in range(RETRANSMISSIONS_MAX):
                if self.random.random() >= link.loss_chance:
                    break
                delay_s += wait_s
                wait_s *= 2
        return delay_s

    @property
    def is_blocked(self) -> bool:
        return self.blocks > 0

    def block(self) -> None:
        """Begin a partition: bytes under way wait until every block is lifted."""
        self.blocks += 1
        if self.blocks == 1:
            self.partitions += 1
            asyncio.get_running_loop().call_later(PEER_IS_DEAD_AFTER_S, self._give_up, self.partitions)

    def _give_up(self, partition: int) -> None:
        # Both ends' kernels have probed the other in vain.
        if self.is_blocked and self.partitions == partition:
            for pipe in list(self.pipes):
                pipe.receiver.reset()

    def heal(self, *, entirely: bool = False) -> None:
        if not self.blocks:
            return
        self.blocks = 0 if entirely else self.blocks - 1
        if self.blocks:
            return
        for waiting in self._healed:
            if not waiting.done():
                waiting.set_result(None)
        self._healed.clear()
        for pipe in list(self.pipes):
            pipe.wake()

    async def cross(self) -> None:
        """Wait for one crossing while a connection is set up, and for as long as the route is blocked."""
        await asyncio.sleep(self.delay_s())
        while self.is_blocked:
            waiting = asyncio.get_running_loop().create_future()
            self._healed.append(waiting)
            await waiting
            await asyncio.sleep(self.delay_s())


@dataclass(frozen=True, slots=True)
class Ending:
    """End of a direction: in order, or by a reset."""

    is_reset: bool


Piece = bytes | Ending


class LinkEnd(Protocol):
    """End of a connection, as the network sees it."""

    @property
    def context(self) -> Context: ...

    def arrived(self, piece: Piece) -> None: ...

    def reset(self) -> None:
        """Take note that the network broke the connection."""
        ...


class Pipe:
    """Direction of one connection: pieces arrive in the order in which they were sent."""

    def __init__(self, route: Route, sender: str, receiver: LinkEnd) -> None:
        self.receiver = receiver
        self._route = route
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._under_way: deque[tuple[float, Piece]] = deque()
        self._last_arrival_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_held = True  # until the receiver is ready
        self.is_abandoned = False  # its receiver is gone
        self.bytes_under_way = 0
        self.on_room: Callable[[], None] | None = None
        route.pipes[self] = None

    @property
    def room(self) -> int:
        return max(0, self._route.link.window_bytes - self.bytes_under_way)

    def send(self, data: bytes) -> None:
        random, cut_chance = self._route.random, self._route.link.cut_chance
        cut = random.randrange(1, len(data)) if len(data) > 1 and random.random() < cut_chance else len(data)
        for piece in filter(None, (data[:cut], data[cut:])):
            self.bytes_under_way += len(piece)
            self._dispatch(piece, len(piece))

    def end(self, *, is_reset: bool) -> None:
        self._dispatch(Ending(is_reset), 40)

    def hold(self) -> None:
        """Stop delivery: the receiver does not read for now."""
        self._is_held = True

    def resume(self) -> None:
        self._is_held = False
        self.wake()

    def wake(self) -> None:
        """Look again for due pieces: the receiver reads again, or the route is open again."""
        if self._timer is None and self._under_way:
            self._schedule()

    def drop(self) -> None:
        """Drop all pieces: nobody is there to receive them any more."""
        self._under_way.clear()
        self._route.pipes.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _dispatch(self, piece: Piece, length: int) -> None:
        now_s = self._loop.time()
        arrival_s = max(self._route.arrival(self._sender, length, now_s), self._last_arrival_s)
        self._last_arrival_s = arrival_s
        self._under_way.append((arrival_s, piece))
        if self._timer is None:
            self._schedule()

    def _schedule(self) -> None:
        at_s = max(self._under_way[0][0], self._loop.time())
        self._timer = self._loop.call_at(at_s, self._due, context=self.receiver.context)

    def _due(self) -> None:
        # One timer for the whole direction: timers of equal time fire in no particular order, but bytes must
        # keep theirs.
        self._timer = None
        now_s = self._loop.time() + 1e-9
        while self._under_way and self._under_way[0][0] <= now_s:
            if self._is_held or self._route.is_blocked:
                return
            _, piece = self._under_way.popleft()
            if isinstance(piece, bytes):
                self.bytes_under_way -= len(piece)
            self.receiver.arrived(piece)
            if self.on_room is not None:
                self.on_room()
        if self._under_way and self._timer is None:
            self._schedule()
