"""One direction of one mini-protocol in a capture: its framing, and where each of its bytes lies in the file."""

from __future__ import annotations

from bisect import bisect_right

from stagepost.ground.statemachine.spec import Role
from stagepost.ground.wire.framing import Framer, ItemLimits
from stagepost.ground.wire.mux import Direction

BEGINNING_BYTES = 8


class Lane:
    """Messages may span segments, so an offset in the lane is looked up among the pieces that still matter."""

    def __init__(self, number: int, direction: Direction) -> None:
        self.number = number
        self.direction = direction
        self.beginning = b""  # of the whole lane, as far as it tells what kind of conversation this is
        self._framer = Framer()
        self._fed = 0
        self._starts: list[int] = []
        self._places: list[tuple[int, int]] = []  # offset in the capture, index of the segment

    @property
    def role(self) -> Role:
        return Role.CLIENT if self.direction is Direction.INITIATOR else Role.SERVER

    @property
    def offset(self) -> int:
        """Of the first byte that no whole message has taken yet."""
        return self._framer.offset

    @property
    def buffered(self) -> int:
        return self._framer.buffered

    def feed(self, payload: bytes, offset: int, segment: int) -> None:
        if payload:
            self._starts.append(self._fed)
            self._places.append((offset, segment))
            self._fed += len(payload)
            if len(self.beginning) < BEGINNING_BYTES:
                self.beginning = (self.beginning + payload)[:BEGINNING_BYTES]
            self._framer.feed(payload)

    def next_item(self, limits: ItemLimits, headless_third: bytes | None) -> bytes | None:
        done = bisect_right(self._starts, self._framer.offset) - 1
        if done > 0:
            del self._starts[:done], self._places[:done]
        return self._framer.next_item(limits, headless_third=headless_third)

    def place(self, at: int) -> tuple[int, int]:
        """Where lane offset `at` lies: offset in the capture, and the segment. Only for what was just read."""
        piece = max(bisect_right(self._starts, at) - 1, 0)
        offset, segment = self._places[piece]
        return offset + at - self._starts[piece], segment
