"""Shares of submitters: the part of a full node's work that one user, token, address or sender may have under way.

Validators execute messages in the order in which they come, so whatever one submitter has in processing, all others wait for.
The node therefore keeps at most `BLOCKS_MAX` blocks' worth of messages without an end, and lets a submitter add to its own
only while it has less than the room that is left. A single submitter gets a half, two get a third each, n get 1/(n + 1) each:
the last part is free, so a submitter that comes later never finds the door closed.
"""

from __future__ import annotations

from stagepost.errors import ErrorCode, StagepostError
from stagepost.remp.queue.staged_sending import MESSAGES_MAX

BLOCKS_MAX = 32.0
"""Blocks that all messages in processing would fill, by weight, bytes or number: a few seconds of one shard's work."""


class Charge:
    """Amount of work that is in processing: `blocks` that it fills, and the number of its messages."""

    __slots__ = ("blocks", "messages")

    def __init__(self) -> None:
        self.blocks = 0.0
        self.messages = 0

    def add(self, blocks: float, messages: int) -> None:
        self.messages += messages
        self.blocks = self.blocks + blocks if self.messages else 0.0  # no rest of rounding stays behind


class SubmitterShares:
    """Shares at one full node. `submitter` is a text such as `uid:1000`; the empty text is the node's own process, which
    has no limit."""

    def __init__(self, blocks_max: float = BLOCKS_MAX, messages_max: int = MESSAGES_MAX) -> None:
        self.refused = 0
        self.total = Charge()
        self._blocks_max = blocks_max
        self._messages_max = messages_max
        self._by_submitter: dict[str, Charge] = {}
        self._charged: dict[bytes, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._by_submitter)

    def charge_of(self, submitter: str) -> Charge:
        return self._by_submitter.get(submitter) or Charge()

    def check(self, submitter: str) -> None:
        """Raise `StagepostError` with `QUEUE_FULL` if `submitter` has its share in processing."""
        if not submitter:
            return
        mine, total = self.charge_of(submitter), self.total
        if (
            mine.blocks < self._blocks_max - total.blocks
            and mine.messages < self._messages_max - total.messages
        ):
            return
        self.refused += 1
        raise StagepostError(
            f"{submitter} has {mine.messages} messages without an end in processing, which fill {mine.blocks:.1f} blocks; "
            "that is its share",
            code=ErrorCode.QUEUE_FULL,
            advice="submit the message again when earlier ones have ended; other submitters are served meanwhile",
            limit=int(self._blocks_max),
            found=mine.messages,
        )

    def take(self, submitter: str, message_id: bytes, blocks: float) -> None:
        """Charge `submitter` for a message that goes to validators and would fill `blocks` blocks."""
        if not submitter or message_id in self._charged:
            return
        self._charged[message_id] = submitter, blocks
        self._by_submitter.setdefault(submitter, Charge()).add(blocks, 1)
        self.total.add(blocks, 1)

    def give_back(self, message_id: bytes) -> None:
        """Charge nobody any more for a message that has an end, or of which nothing more is expected."""
        submitter, blocks = self._charged.pop(message_id, ("", 0.0))
        if not submitter:
            return
        mine = self._by_submitter[submitter]
        for charge in (mine, self.total):
            charge.add(-blocks, -1)
        if not mine.messages:
            del self._by_submitter[submitter]
