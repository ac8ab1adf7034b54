"""The bounded queue: FIFO is the order of sending, LRU is the order of eviction, and in flight means never evicted."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from stagepost.delivery.entry import (
    AWAITING,
    BACKING_OFF,
    ENDED,
    HELD,
    LEAVING,
    NEVER,
    READY,
    SENDING,
    STORING,
    OutboxEntry,
    Phase,
)
from stagepost.delivery.status import PENDING, QUEUED, SENT, DeliveryStatus
from stagepost.errors import LocalProtocolError

STALE_MAX = 256
"""Stale items, at most, in a heap beside two for each entry; then the heap is cleaned."""

_UNSENT = (PENDING, QUEUED)
_TO_BE_SENT = (READY, BACKING_OFF, HELD)
_IN_THE_QUEUE = (READY, BACKING_OFF, HELD, LEAVING)


class Outbox:
    """The messages on their way. Each holds one place until it ends.

    The heaps hold stale items, of entries that are gone or were used again; readers skip them.
    """

    def __init__(
        self, *, size_max: int, bytes_max: int, in_flight_max: int, is_strict: bool, may_evict: bool
    ) -> None:
        """`bytes_max` 0 limits the count alone. `is_strict`: an entry that must wait makes all behind it wait."""
        self._size_max = size_max
        self._bytes_max = bytes_max
        self._in_flight_max = in_flight_max
        self._is_strict = is_strict
        self._may_evict = may_evict
        self._uses = 0
        self._ready: list[int] = []
        self._held: list[int] = []
        self._unsent: list[int] = []
        # Least recently used first: without a waiting caller, and with one.
        self._idle: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._ready_count = 0
        self._leaving = 0
        self._leaving_bytes = 0
        self._sending_unsent = 0
        self.entries: dict[int, OutboxEntry] = {}
        self.by_id: dict[bytes, OutboxEntry] = {}
        self.by_key: dict[bytes, OutboxEntry] = {}
        """Entries by the hash of their idempotency key."""
        self.bytes_held = 0
        self.acked_in_flight = 0
        """Unresolved messages that wait for acknowledgements, or are being sent and will wait for them."""
        self.storing = 0
        self.must_be_told: list[OutboxEntry] = []
        """Pending entries that were held back: the core has to report that they are queued."""
        self.waiting = 0
        """Entries that are accepted, not yet sent, and not being sent: the length of the queue."""

    def __iter__(self) -> Iterator[OutboxEntry]:
        """Return the entries in order of sending."""
        return iter(list(self.entries.values()))

    def __len__(self) -> int:
        return len(self.entries)

    # Places in the queue.

    def room_for(self, size: int) -> tuple[OutboxEntry, ...] | None:
        """Return the entries to evict for `size` more bytes, least recently used first; None if there is no room.

        Nothing changes yet.
        """
        count = len(self.entries) - self._leaving + 1 - self._size_max
        excess = self.bytes_held - self._leaving_bytes + size - self._bytes_max if self._bytes_max else 0
        if count <= 0 and excess <= 0:
            return ()
        if not self._may_evict:
            return None
        victims: dict[int, OutboxEntry] = {}
        for idle in self._idle:
            while idle and (count > 0 or excess > 0):
                last_used, sequence = heappop(idle)
                entry = self.entries.get(sequence)
                if entry is None or entry.last_used != last_used or not _is_idle(entry):
                    continue
                if sequence in victims:
                    continue  # an entry that waited, and waits again, has several items
                victims[sequence] = entry
                count -= 1
                excess -= entry.size
        if count > 0 or excess > 0:
            for victim in victims.values():
                self._remember_idle(victim)
            return None
        return tuple(victims.values())

    def add(self, entry: OutboxEntry) -> None:
        """Give the entry its place; the core accepts the entry when it is stored."""
        if entry.phase is not STORING:
            raise LocalProtocolError(
                f"delivery {entry.sequence} is {entry.phase.name} before it was added to the outbox",
                reason="NotStoring",
            )
        self.storing += 1
        self.entries[entry.sequence] = entry
        self.by_id[entry.delivery_id] = entry
        if entry.key_hash is not None:
            self.by_key[entry.key_hash] = entry
        self.bytes_held += entry.size
        if entry.evicted:
            for victim in entry.evicted:
                self.enter(victim, LEAVING)
                self._leaving += 1
                self._leaving_bytes += victim.size

    def add_used(self, entry: OutboxEntry) -> None:
        """Add the entry, and count that as a use."""
        self.add(entry)
        self._uses += 1
        entry.last_used = self._uses

    def remove(self, entry: OutboxEntry) -> None:
        """Remove an entry for good."""
        if entry.phase is AWAITING:
            # The usual end: the entry was sent, so no other waits for its turn.
            passes_on = False
            entry.phase = ENDED
            self.acked_in_flight -= 1
            if self._held:
                self.release()
        else:
            was_unsent = entry.status in _UNSENT and entry.phase is not STORING
            # The turn of the entry, if it had one, passes to the next that is held back.
            passes_on = was_unsent and (entry.wants_ack or self._is_strict)
            self._leave_flight(entry)
            self.enter(entry, ENDED)
        del self.entries[entry.sequence]
        if self.by_id.get(entry.delivery_id) is entry:
            del self.by_id[entry.delivery_id]
        if entry.key_hash is not None and self.by_key.get(entry.key_hash) is entry:
            del self.by_key[entry.key_hash]
        self.bytes_held -= entry.size
        if passes_on:
            self.release()

    def restore(self, entry: OutboxEntry) -> None:
        """Put back a victim, since the message that needed its place was not stored."""
        self.make_ready(entry)

    def use(self, entry: OutboxEntry) -> None:
        """Mark the entry as recently used: it was enqueued, tried, or published again."""
        self._uses += 1
        entry.last_used = self._uses
        if _is_idle(entry):
            self._remember_idle(entry)

    def resume_uses(self, last_used: int) -> None:
        """Continue the count of uses behind a stored one, after a restart."""
        self._uses = max(self._uses, last_used)

    # Phases.

    def enter(self, entry: OutboxEntry, phase: Phase) -> None:
        before = entry.phase
        if before is phase:
            return
        entry.phase = phase
        was_waiting = _is_waiting(entry, before)
        is_waiting = _is_waiting(entry, phase)
        self.waiting += is_waiting - was_waiting
        self._ready_count += (phase is READY) - (before is READY)
        self.storing -= before is STORING
        if before is LEAVING:
            self._leaving -= 1
            self._leaving_bytes -= entry.size
        if _is_idle(entry):
            self._remember_idle(entry)

    def make_ready(self, entry: OutboxEntry) -> None:
        entry.wait_until = NEVER
        self.enter(entry, READY)
        heappush(self._ready, entry.sequence)
        if entry.status in _UNSENT and self._is_strict:
            heappush(self._unsent, entry.sequence)

    def become(self, entry: OutboxEntry, status: DeliveryStatus) -> None:
        """Change the status; the phase stays."""
        waited = _is_waiting(entry, entry.phase)
        was_unsent = entry.status in _UNSENT
        entry.status = status
        self.waiting += _is_waiting(entry, entry.phase) - waited
        if was_unsent and status not in _UNSENT:
            if entry.phase is SENDING:
                self._sending_unsent -= 1
            if self._is_strict:
                self.release()
        elif _is_idle(entry):
            self._remember_idle(entry)

    @property
    def has_ready(self) -> bool:
        return self._ready_count > 0

    @property
    def in_flight(self) -> int:
        """Return how many entries were handed to the network and are not resolved."""
        return len(self.entries) - self.waiting - self.storing

    def must_wait_its_turn(self, entry: OutboxEntry) -> bool:
        """Return whether a new message may not be sent at once, although a peer is connected."""
        if self._ready_count:
            return True
        if self._is_strict and (self._sending_unsent or self._head_of_unsent(entry) is not None):
            return True
        return entry.wants_ack and self.acked_in_flight >= self._in_flight_max

    def take(self) -> OutboxEntry | None:
        """Return the next entry to send, as far as limits allow; the caller must call `begin_send` for it."""
        while self._ready:
            entry = self.entries.get(self._ready[0])
            if entry is None or entry.phase is not READY:
                heappop(self._ready)
                continue
            if entry.is_sent or self._may_go(entry):
                heappop(self._ready)
                return entry
            heappop(self._ready)
            self.enter(entry, HELD)
            if entry.status is PENDING:
                self.must_be_told.append(entry)
            heappush(self._held, entry.sequence)
        return None

    def _may_go(self, entry: OutboxEntry) -> bool:
        if entry.wants_ack and self.acked_in_flight >= self._in_flight_max:
            return False
        if not self._is_strict:
            return True
        return not self._sending_unsent and self._head_of_unsent() is entry

    def _head_of_unsent(self, besides: OutboxEntry | None = None) -> OutboxEntry | None:
        while self._unsent:
            entry = self.entries.get(self._unsent[0])
            if entry is not None and entry.status in _UNSENT and entry is not besides:
                return entry
            heappop(self._unsent)
        return None

    def begin_send(self, entry: OutboxEntry) -> None:
        self.enter(entry, SENDING)
        if entry.status in _UNSENT:
            self._sending_unsent += 1
            if entry.wants_ack:
                self.acked_in_flight += 1
        self.use(entry)

    def begin_send_at_once(self, entry: OutboxEntry) -> None:
        """Begin to send a new entry that asks for acknowledgements and never waited."""
        self.storing -= 1
        entry.phase = SENDING
        self._sending_unsent += 1
        self.acked_in_flight += 1
        self._uses += 1
        entry.last_used = self._uses
        if self._is_strict:
            heappush(self._unsent, entry.sequence)

    def await_answers(self, entry: OutboxEntry) -> None:
        """Note that the entry was sent, for the first time or again; the caller reports it."""
        entry.phase = AWAITING
        if entry.status is not SENT:
            entry.status = SENT
            self._sending_unsent -= 1
            if self._is_strict:
                self.release()

    def send_failed(self, entry: OutboxEntry) -> None:
        """Take an entry out of flight unless it was sent before. The caller says what the entry does next."""
        if entry.status in _UNSENT:
            self._leave_flight(entry)

    def _leave_flight(self, entry: OutboxEntry) -> None:
        is_sending_unsent = entry.phase is SENDING and entry.status in _UNSENT
        self._sending_unsent -= is_sending_unsent
        if entry.wants_ack and (is_sending_unsent or entry.is_sent):
            self.acked_in_flight -= 1
            self.release()

    def release(self) -> None:
        """Make the first entry ready that was held back."""
        while self._held:
            entry = self.entries.get(heappop(self._held))
            if entry is not None and entry.phase is HELD:
                self.make_ready(entry)
                return

    def _remember_idle(self, entry: OutboxEntry) -> None:
        idle = self._idle[entry.is_awaited]
        heappush(idle, (entry.last_used, entry.sequence))
        if len(idle) > STALE_MAX + 2 * len(self.entries):
            live = self.entries
            found = {item for item in idle if item[1] in live and live[item[1]].last_used == item[0]}
            idle[:] = sorted(found)


def _is_idle(entry: OutboxEntry) -> bool:
    """Return whether the entry may be evicted: it waits in the queue, and no send of it is running."""
    return entry.status is QUEUED and entry.phase in _TO_BE_SENT


def _is_waiting(entry: OutboxEntry, phase: Phase) -> bool:
    return entry.status in _UNSENT and phase in _IN_THE_QUEUE
