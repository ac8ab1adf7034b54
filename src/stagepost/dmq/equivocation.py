"""Equivocation: a pool that signs two different bodies for one slot.

A message of the distributed queue names no slot of a chain. Beside the body, its signature covers the KES
period and the second at which it expires, and the certificate's number says which key speaks for the pool.
Pool, certificate number, KES period and expiry together are the *slot key*: a pool that sends a message and
waits before the next one has no reason to sign two bodies with the same slot key. Period and number alone
would blame everybody, for a period lasts 36 hours and a pool may send every minute.

Only checked signatures count, so nobody can blame a pool with forgeries. The node refuses a second body that
comes before the pool may send again; it asks a peer that holds the body again when the time has come, and
then finds the equivocation here. Both bodies expire in the same second: the memory is no larger than the
mempool and forgets with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected, rejected
from stagepost.errors import ErrorCode
from stagepost.ground.identifiers import MessageId, PoolId

BODIES_PER_SLOT_MAX = 64
"""Bodies of one slot that are counted; further ones are refused or held alike, without counting: the case is clear."""
POOLS_REMEMBERED_MAX = 1_024

Slot: TypeAlias = tuple[int, int, int]
"""Certificate number, KES period, expiry."""
SlotKey: TypeAlias = tuple[bytes, Slot]
"""Cold key and slot; the cold key stands for the pool, which saves hashing it."""


def slot_key(message: DmqMessage) -> SlotKey:
    return message.cold_verification_key, (message.issue_number, message.kes_period, message.expires_at)


class Equivocation(msgspec.Struct, frozen=True):
    """Two messages of one slot, both with valid signatures. `is_refused` says whether the second was refused."""

    pool_id: PoolId
    first: MessageId
    second: MessageId
    expires_at: int
    is_refused: bool


class PoolEquivocations(msgspec.Struct, frozen=True):
    """Number of equivocations of one pool so far, and the latest of them."""

    count: int
    latest: Equivocation


class Equivocations:
    """Memory of slots of one node.

    `hold` enters an accepted message, `forget` removes expired ones; the other methods serve a validator that
    refuses.
    """

    def __init__(self) -> None:
        self.count = 0
        self.refused = 0
        self.on_found: list[Callable[[Equivocation], None]] = []
        # The first message of each slot, by pool. There are many slots, and the pool would be the larger part
        # of every key.
        self._first: dict[bytes, dict[Slot, DmqMessage]] = {}
        self._claimed: dict[SlotKey, tuple[PoolId, DmqMessage]] = {}
        self._others: dict[SlotKey, set[MessageId]] = {}
        self._pools: dict[PoolId, PoolEquivocations] = {}

    def __len__(self) -> int:
        """Return the number of slots remembered."""
        return sum(map(len, self._first.values())) + len(self._claimed)

    @property
    def pools(self) -> dict[PoolId, PoolEquivocations]:
        """Pools that have equivocated, the latest last."""
        return dict(self._pools)

    def hold(self, message: DmqMessage) -> Equivocation | None:
        """Enter a message that the node now holds; return the equivocation if it is the second body of its
        slot."""
        key = cold_key, slot = slot_key(message)
        if self._claimed:
            self._claimed.pop(key, None)
        slots = self._first.get(cold_key)
        if slots is None:
            slots = self._first[cold_key] = {}
        first = slots.setdefault(slot, message)
        return None if first is message else self._found(key, first, message, is_refused=False)

    def forget(self, messages: Iterable[DmqMessage]) -> None:
        """Forget the slots of these messages, which have expired."""
        for message in messages:
            key = cold_key, slot = slot_key(message)
            self._others.pop(key, None)
            slots = self._first.get(cold_key)
            if slots is not None:
                slots.pop(slot, None)
                if not slots:
                    del self._first[cold_key]

    # For a validator that refuses: a message that is being written claims its slot, until it is held or given
    # up.

    def check(self, message: DmqMessage) -> Rejected | None:
        """Return a rejection if another body has the slot of `message`, whose signatures are valid."""
        key = cold_key, slot = slot_key(message)
        first = self._first.get(cold_key, {}).get(slot)
        if first is None:
            _, first = self._claimed.get(key, (None, None))
        if first is None or first.body == message.body:
            return None
        self._found(key, first, message, is_refused=True)
        issue_number, kes_period, expires_at = slot
        text = (
            f"pool {message.pool_id.hex()} has signed another body for this slot (certificate number {issue_number}, "
            f"KES period {kes_period}, expiry {expires_at}): message {first.message_id.hex()}"
        )
        return rejected(ErrorCode.POOL_NOT_ELIGIBLE, text)

    def claim(self, message: DmqMessage, pool_id: PoolId) -> None:
        key = cold_key, slot = slot_key(message)
        if slot not in self._first.get(cold_key, ()):
            self._claimed.setdefault(key, (pool_id, message))

    def release(self, pool_id: PoolId) -> None:
        """Drop the claims of this pool's messages, which could not be kept after all."""
        given_up = [key for key, (owner, _) in self._claimed.items() if owner == pool_id]
        for key in given_up:
            del self._claimed[key]
            self._others.pop(key, None)

    def _found(
        self, key: SlotKey, first: DmqMessage, second: DmqMessage, *, is_refused: bool
    ) -> Equivocation | None:
        if first.body == second.body:
            return None
        others = self._others.setdefault(key, set())
        if second.message_id in others or len(others) >= BODIES_PER_SLOT_MAX:
            return None
        others.add(second.message_id)
        found = Equivocation(
            second.pool_id, first.message_id, second.message_id, second.expires_at, is_refused
        )
        self.count += 1
        self.refused += is_refused
        known = self._pools.pop(found.pool_id, None)
        self._pools[found.pool_id] = PoolEquivocations(1 if known is None else known.count + 1, found)
        if len(self._pools) > POOLS_REMEMBERED_MAX:
            del self._pools[next(iter(self._pools))]
        for hook in self.on_found:
            hook(found)
        return found
