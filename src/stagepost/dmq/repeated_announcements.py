"""Notices a peer that announces what it has announced before: each message of the mempool once and no more.

Acknowledging what we hold costs a peer nothing, so it could keep us busy for ever with the same ids. Remembered are
the mempool's indexes and not the ids: a bit for each message instead of a hundred bytes.
"""

from __future__ import annotations

CHUNK_BITS = 1_024
CHUNKS_MAX = 64
"""65,536 indexes: more than the mempool holds. Beyond that the oldest are forgotten."""


class AnnouncedIndexes:
    """One peer's, on one connection."""

    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: dict[int, int] = {}

    def add(self, index: int) -> bool:
        """Whether it is there for the first time."""
        chunk, bit = divmod(index, CHUNK_BITS)
        bits = self._chunks.get(chunk)
        if bits is None:
            bits = 0
            if len(self._chunks) >= CHUNKS_MAX:
                del self._chunks[min(self._chunks)]
        mask = 1 << bit
        self._chunks[chunk] = bits | mask
        return not bits & mask
