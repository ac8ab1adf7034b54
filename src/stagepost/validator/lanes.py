"""What a validator has said of each message, in order. All full nodes hear the same lane of receipts: one that sends a message
later than others hears it again as it was, and nothing that was said to it alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import FIRST_KINDS

LANES_MAX = 16_384
"""Messages; the one that was spoken of longest ago is forgotten for a further one. A lane takes about a kilobyte."""

LANE_RECEIPTS_MAX = 16
"""Of one message. A message that goes to and fro loses the beginning of its lane, up to a receipt that may stand first."""


class Lanes:
    def __init__(self) -> None:
        self._lanes: dict[bytes, tuple[Receipt, ...]] = {}

    def __getitem__(self, message_id: bytes) -> tuple[Receipt, ...]:
        """Empty if nothing was said, or nothing is remembered."""
        return self._lanes.get(message_id, ())

    def extend(self, message_id: bytes, said: Sequence[Receipt]) -> tuple[Receipt, ...]:
        lane = _trimmed((*self._lanes.pop(message_id, ()), *said))
        self._lanes[message_id] = lane
        if len(self._lanes) > LANES_MAX:
            del self._lanes[next(iter(self._lanes))]
        return lane

    def forget(self, message_id: bytes) -> None:
        self._lanes.pop(message_id, None)


def _trimmed(lane: tuple[Receipt, ...]) -> tuple[Receipt, ...]:
    over = len(lane) - LANE_RECEIPTS_MAX
    if over <= 0:
        return lane
    begins = (place for place in range(over, len(lane)) if lane[place].kind.name in FIRST_KINDS)
    return lane[next(begins, over) :]
