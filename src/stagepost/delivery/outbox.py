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
    Entry,
    Phase,
)
from stagepost.delivery.status import PENDING, QUEUED, SENT, DeliveryStatus
from stagepost.errors import LocalProtocolError

STALE_MAX = 256
"""Items of entries that are gone or were used again, before a heap is cleaned."""

_UNSENT = (PENDING, QUEUED)
_TO_BE_SENT = (READY, BACKING_OFF, HELD)
_IN_THE_QUEUE = (READY, BACKING_OFF, HELD, LEAVING)


class Outbox:
    """Every accepted message holds one place until it ends. Heaps hold stale items, which are skipped when met."""

    def __init__(
        self, *, size_max: int, bytes_max: int, in_flight_max: int, is_strict: bool, may_evict: bool
    ) -> None:
        """`bytes_max` 0: only the count is limited. `is_strict`: who must wait makes all behind it wait."""
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
        self.entries: dict[int, Entry] = {}
        self.by_id: dict[bytes, Entry] = {}
        self.bytes_held = 0
        self.acked_in_flight = 0
        """Unresolved messages that wait for acknowledgements, or are being sent to do so."""
        self.storing = 0
        self.must_be_told: list[Entry] = []
        """Pending entries that were held back: observers are to hear that they are queued."""
        self.waiting = 0
        """Accepted, not yet sent, and no send running: what people call the length of the queue."""

    def __iter__(self) -> Iterator[Entry]:
        """In order of sending."""
        return iter(list(self.entries.values()))

    def __len__(self) -> int:
        return len(self.entries)

    # Coming and going.

    def room_for(self, size: int) -> tuple[Entry, ...] | None:
        """Who has to leave for it, least recently used first; None if there is no room. Nothing changes yet."""
        count = len(self.entries) - self._leaving + 1 - self._size_max
        excess = self.bytes_held - self._leaving_bytes + size - self._bytes_max if self._bytes_max else 0
        if count <= 0 and excess <= 0:
            return ()
        if not self._may_evict:
            return None
        victims: dict[int, Entry] = {}
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

    def add(self, entry: Entry) -> None:
        """It holds its place from now on; `accept` follows when it is stored."""
        if entry.phase is not STORING:
            raise LocalProtocolError(
                f"delivery {entry.sequence} is {entry.phase.name} before it was added to the outbox",
                reason="NotStoring",
            )
        self.storing += 1
        self.entries[entry.sequence] = entry
        self.by_id[entry.delivery_id] = entry
        self.bytes_held += entry.size
        if entry.evicted:
            for victim in entry.evicted:
                self.enter(victim, LEAVING)
                self._leaving += 1
                self._leaving_bytes += victim.size

    def add_used(self, entry: Entry) -> None:
        """As `add`, and that is a use of it."""
        self.add(entry)
        self._uses += 1
        entry.last_used = self._uses

    def remove(self, entry: Entry) -> None:
        """For good."""
        if entry.phase is AWAITING:
            # The usual end: it was sent, and nothing waits for its turn.
            passes_on = False
            entry.phase = ENDED
            self.acked_in_flight -= 1
            if self._held:
                self.release()
        else:
            was_unsent = entry.status in _UNSENT and entry.phase is not STORING
            # Its turn, if it had one, passes to the next that is held back.
            passes_on = was_unsent and (entry.wants_ack or self._is_strict)
            self._leave_flight(entry)
            self.enter(entry, ENDED)
        del self.entries[entry.sequence]
        if self.by_id.get(entry.delivery_id) is entry:
            del self.by_id[entry.delivery_id]
        self.bytes_held -= entry.size
        if passes_on:
            self.release()

    def restore(self, entry: Entry) -> None:
        """The message that it should have made room for was not stored."""
        self.make_ready(entry)

    def use(self, entry: Entry) -> None:
        """Enqueued, tried, or published again: that is what "recently used" means."""
        self._uses += 1
        entry.last_used = self._uses
        if _is_idle(entry):
            self._remember_idle(entry)

    def resume_uses(self, last_used: int) -> None:
        """After a restart: go on counting behind what was stored."""
        self._uses = max(self._uses, last_used)

    # Phases.

    def enter(self, entry: Entry, phase: Phase) -> None:
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

    def make_ready(self, entry: Entry) -> None:
        entry.wait_until = NEVER
        self.enter(entry, READY)
        heappush(self._ready, entry.sequence)
        if entry.status in _UNSENT and self._is_strict:
            heappush(self._unsent, entry.sequence)

    def become(self, entry: Entry, status: DeliveryStatus) -> None:
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
        """Handed to the network and not resolved."""
        return len(self.entries) - self.waiting - self.storing

    def must_wait_its_turn(self, entry: Entry) -> bool:
        """Whether a new message may not be sent at once, although somebody is connected."""
        if self._ready_count:
            return True
        if self._is_strict and (self._sending_unsent or self._head_of_unsent(entry) is not None):
            return True
        return entry.wants_ack and self.acked_in_flight >= self._in_flight_max

    def take(self) -> Entry | None:
        """The next one to be sent, as far as limits allow; it is the caller's task to say that it is being sent."""
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

    def _may_go(self, entry: Entry) -> bool:
        if entry.wants_ack and self.acked_in_flight >= self._in_flight_max:
            return False
        if not self._is_strict:
            return True
        return not self._sending_unsent and self._head_of_unsent() is entry

    def _head_of_unsent(self, besides: Entry | None = None) -> Entry | None:
        while self._unsent:
            entry = self.entries.get(self._unsent[0])
            if entry is not None and entry.status in _UNSENT and entry is not besides:
                return entry
            heappop(self._unsent)
        return None

    def begin_send(self, entry: Entry) -> None:
        self.enter(entry, SENDING)
        if entry.status in _UNSENT:
            self._sending_unsent += 1
            if entry.wants_ack:
                self.acked_in_flight += 1
        self.use(entry)

    def begin_send_at_once(self, entry: Entry) -> None:
        """A new one that asks for acknowledgements goes out without ever having waited."""
        self.storing -= 1
        entry.phase = SENDING
        self._sending_unsent += 1
        self.acked_in_flight += 1
        self._uses += 1
        entry.last_used = self._uses
        if self._is_strict:
            heappush(self._unsent, entry.sequence)

    def await_answers(self, entry: Entry) -> None:
        """It was sent, for the first time or again; observers are told by the caller."""
        entry.phase = AWAITING
        if entry.status is not SENT:
            entry.status = SENT
            self._sending_unsent -= 1
            if self._is_strict:
                self.release()

    def send_failed(self, entry: Entry) -> None:
        """Before it ever was sent: it is no longer in flight. The caller says what it does next."""
        if entry.status in _UNSENT:
            self._leave_flight(entry)

    def _leave_flight(self, entry: Entry) -> None:
        is_sending_unsent = entry.phase is SENDING and entry.status in _UNSENT
        self._sending_unsent -= is_sending_unsent
        if entry.wants_ack and (is_sending_unsent or entry.is_sent):
            self.acked_in_flight -= 1
            self.release()

    def release(self) -> None:
        """One that was held back may try again."""
        while self._held:
            entry = self.entries.get(heappop(self._held))
            if entry is not None and entry.phase is HELD:
                self.make_ready(entry)
                return

    def _remember_idle(self, entry: Entry) -> None:
        idle = self._idle[bool(entry.waiters)]
        heappush(idle, (entry.last_used, entry.sequence))
        if len(idle) > STALE_MAX + 2 * len(self.entries):
            live = self.entries
            found = {item for item in idle if item[1] in live and live[item[1]].last_used == item[0]}
            idle[:] = sorted(found)


def _is_idle(entry: Entry) -> bool:
    """Whether it may be evicted: it waits in the queue, no send is running, nothing is on its way to it."""
    return entry.status is QUEUED and entry.phase in _TO_BE_SENT


def _is_waiting(entry: Entry, phase: Phase) -> bool:
    return entry.status in _UNSENT and phase in _IN_THE_QUEUE
