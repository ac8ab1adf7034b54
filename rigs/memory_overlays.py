"""Overlays in memory, in virtual time: links that keep their order, delay what they carry and, if told to, lose it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from stagepost.errors import DecodeError
from stagepost.remp.links.overlay import Answered, OverlayEvents

DELAY_S = (0.001, 0.01)
APART_S = 1e-6


class Joined(NamedTuple):
    life: int
    place: int
    events: OverlayEvents


class Objection(NamedTuple):
    """The number of a node, and a fault in something that this node sent."""

    against: int
    text: str


class MemoryOverlays:
    """Between nodes with numbers. A node that is cut off, or has not joined, gets nothing. `malformed` has every frame that
    a receiver could not decode, `refused` every other objection of a receiver; `counts` has queries and answers."""

    def __init__(self, random: Random, *, delay_s: tuple[float, float] = DELAY_S, loss: float = 0.0) -> None:
        self.random = random
        self.delay_s = delay_s
        self.loss = loss
        self.cut: set[int] = set()
        self.tap: Callable[[int, bytes], None] = lambda sender, frame: None
        """Hears what members push to each other, lost or not."""
        self.counts: Counter[str] = Counter()
        self.malformed: list[Objection] = []
        self.refused: list[Objection] = []
        self._joined: dict[tuple[bytes, int], Joined] = {}
        self._arrivals: dict[tuple[int, int], float] = defaultdict(float)
        self._lives = 0

    def join(
        self, session_id: bytes, members: Sequence[int], number: int, events: OverlayEvents
    ) -> MemoryOverlay:
        """`members`: the number of each, in their order."""
        self._lives += 1
        joined = Joined(self._lives, list(members).index(number), events)
        self._joined[session_id, number] = joined
        overlay = MemoryOverlay(self, session_id, members, number, self._lives)
        asyncio.get_running_loop().call_soon(self._tell_linked, session_id, members, number)
        return overlay

    def _tell_linked(self, session_id: bytes, members: Sequence[int], number: int) -> None:
        ours = self._joined.get((session_id, number))
        for index, other in enumerate(members):
            theirs = self._joined.get((session_id, other))
            if other != number and ours is not None and theirs is not None:
                ours.events.linked(index)
                theirs.events.linked(ours.place)

    def leave(self, session_id: bytes, number: int, life: int) -> None:
        if self.life_of(session_id, number) == life:
            del self._joined[session_id, number]

    def leave_all(self, number: int) -> None:
        """Its process is gone."""
        for key in [key for key in self._joined if key[1] == number]:
            del self._joined[key]

    def life_of(self, session_id: bytes, number: int) -> int | None:
        joined = self._joined.get((session_id, number))
        return None if joined is None else joined.life

    def events_of(self, session_id: bytes, number: int) -> OverlayEvents | None:
        joined = self._joined.get((session_id, number))
        return None if joined is None else joined.events

    def carry(
        self, sender: int, receiver: int, arrive: Callable[[], None], *, is_lossless: bool = False
    ) -> bool:
        if sender in self.cut or receiver in self.cut:
            return False
        if not is_lossless and self.random.random() < self.loss:
            return True
        loop = asyncio.get_running_loop()
        # Timers of the same moment go off in no order.
        earliest = self._arrivals[sender, receiver] + APART_S
        at = max(loop.time() + self.random.uniform(*self.delay_s), earliest)
        self._arrivals[sender, receiver] = at
        loop.call_at(at, arrive)
        return True


class MemoryOverlay:
    """One member's links in one session."""

    def __init__(
        self, overlays: MemoryOverlays, session_id: bytes, members: Sequence[int], number: int, life: int
    ) -> None:
        self._overlays = overlays
        self._session_id = session_id
        self._members = tuple(members)
        self._number = number
        self._index = self._members.index(number)
        self._life = life

    def push(self, peer: int, frame: bytes) -> bool:
        self._overlays.tap(self._number, frame)
        return self._to(peer, lambda events: events.pushed(self._index, frame))

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        pending = [answered]

        def answer_once(data: bytes | None) -> None:
            timer.cancel()
            if pending and self._is_alive:
                pending.pop()(data)

        timer = asyncio.get_running_loop().call_later(timeout_s, answer_once, None)

        def reply(data: bytes) -> None:
            self._overlays.counts["answer"] += 1
            self._overlays.carry(self._members[peer], self._number, lambda: answer_once(data))

        self._overlays.counts["query"] += 1
        self._to(peer, lambda events: events.asked(self._index, query, reply))

    def refuse(self, peer: int, rule: str, text: str) -> None:
        against = self._members[peer]
        self._overlays.refused.append(Objection(against, f"{self._number} of {against}: {rule}: {text}"))

    async def close(self) -> None:
        self._overlays.leave(self._session_id, self._number, self._life)

    @property
    def _is_alive(self) -> bool:
        return self._overlays.life_of(self._session_id, self._number) == self._life

    def _to(self, peer: int, act: Callable[[OverlayEvents], None]) -> bool:
        receiver = self._members[peer]

        def arrive() -> None:
            events = self._overlays.events_of(self._session_id, receiver)
            if events is None:
                return
            try:
                act(events)
            except DecodeError as error:
                self._overlays.malformed.append(Objection(self._number, error.text))

        return self._overlays.carry(self._number, receiver, arrive)
