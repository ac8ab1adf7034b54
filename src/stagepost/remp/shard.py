"""A part of a workchain, as sessions are bound to it."""

from __future__ import annotations

import msgspec


class Shard(msgspec.Struct, frozen=True):
    """A part of a workchain: all accounts that begin with the bits above the lowest one that is set."""

    workchain: int
    prefix: int

    @property
    def bits(self) -> int:
        """How often the workchain was split for it."""
        return 63 - ((self.prefix & -self.prefix).bit_length() - 1)

    def holds(self, workchain: int, account: bytes) -> bool:
        if workchain != self.workchain:
            return False
        below = ((self.prefix & -self.prefix) << 1) - 1
        beginning = int.from_bytes(account[:8], "big")
        return (beginning ^ self.prefix) | below == below

    @property
    def children(self) -> tuple[Shard, Shard]:
        lowest = self.prefix & -self.prefix
        half = lowest >> 1
        return Shard(self.workchain, self.prefix - half), Shard(self.workchain, self.prefix + half)

    @property
    def parent(self) -> Shard:
        lowest = self.prefix & -self.prefix
        return Shard(self.workchain, (self.prefix & ~lowest) | (lowest << 1) & ((1 << 64) - 1))
