"""Downloads: one table over all peers, so that a message comes once however many peers announce it.

Each announced id is leased to one peer at a time. A peer that holds the lease and does not begin loses it
after 250 ms; a download that has not ended after 600 ms makes room for one more beside it. So no peer that
announces and never serves can keep an id from the others for long.

A refused message settles nothing for other peers. The id covers the payload alone: anybody can put a bad
signature under somebody else's payload, and another announcer of the id may still have the good one. For the
same reason the node does not acknowledge an id while its message is being judged, as running nodes do; the
other announcers wait for the judgement.

`FirstAnnouncements` counts how many valid messages each peer was the first to announce, over the last hour.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from stagepost.ground.identifiers import MessageId

WINDOW_S = 3_600
SLOT_S = 60
PEERS_REMEMBERED_MAX = 1_024

_SLOTS = WINDOW_S // SLOT_S


class FirstAnnouncements:
    """Count of first announcements per peer, in slots of a minute, so that peers and not messages bound the
    memory.

    A credit is forgotten between 59 and 60 minutes after it was earned. Peers are known by name, and keep
    their credits when they reconnect. If there are too many of them, the one whose last credit is oldest is
    forgotten.
    """

    def __init__(self) -> None:
        self._slots: OrderedDict[str, deque[list[int]]] = OrderedDict()

    def credit(self, peer: str, now: float, count: int = 1) -> None:
        """Credit `peer` with `count` valid messages that it was the first to announce."""
        slots = self._slots.get(peer)
        if slots is None:
            slots = self._slots[peer] = deque(maxlen=_SLOTS)
        else:
            self._slots.move_to_end(peer)
        slot = int(now // SLOT_S)
        if slots and slots[-1][0] == slot:
            slots[-1][1] += count
        else:
            slots.append([slot, count])
        if len(self._slots) > PEERS_REMEMBERED_MAX:
            self._slots.popitem(last=False)

    def credits(self, peer: str, now: float) -> int:
        slots = self._slots.get(peer)
        if slots is None:
            return 0
        oldest = int(now // SLOT_S) - _SLOTS
        while slots and slots[0][0] <= oldest:
            slots.popleft()
        if not slots:
            del self._slots[peer]
        return sum(count for _, count in slots)

    @property
    def peers_remembered(self) -> int:
        return len(self._slots)


LEASE_S = 0.25
STUCK_S = 0.6


def _nothing() -> None:
    return


class Claimant:
    """Peer in the table, known by identity. The table calls `on_change` when an act of other peers may let
    this one go on."""

    __slots__ = ("name", "on_change")

    def __init__(self, name: str) -> None:
        self.name = name
        self.on_change: Callable[[], None] = _nothing


class _Download:
    """Entry of one id. Dictionaries stand for sets, because their order is the same in every run."""

    __slots__ = ("announcers", "attempts", "first_announcer", "judged_for", "lease_until", "leaseholder")

    def __init__(self, first_announcer: str) -> None:
        self.first_announcer = first_announcer
        self.announcers: dict[Claimant, None] = {}
        self.leaseholder: Claimant | None = None
        self.lease_until = 0.0
        self.attempts: dict[Claimant, float] = {}  # when each of them began
        self.judged_for: dict[Claimant, None] = {}  # they have brought the message, it is not judged yet


class Downloads:
    """Table of announced ids.

    An entry lives as long as some peer has announced the id and it is not settled for that peer: so there are
    at most 132 entries, the size of the window, per peer.
    """

    def __init__(self, first_announcements: FirstAnnouncements | None = None) -> None:
        self.first_announcements = first_announcements or FirstAnnouncements()
        self._table: dict[MessageId, _Download] = {}

    def __len__(self) -> int:
        return len(self._table)

    def announce(self, claimant: Claimant, message_id: MessageId, now: float, *, may_lease: bool) -> None:
        """Record that `claimant` announced the id.

        `may_lease` allows the peer to hold the id for itself before it begins. Peers with a bad score may
        not.
        """
        download = self._table.get(message_id)
        if download is None:
            download = self._table[message_id] = _Download(claimant.name)
        download.announcers[claimant] = None
        if may_lease and download.leaseholder is None:
            download.leaseholder = claimant
            download.lease_until = now + LEASE_S

    def claimable_at(self, claimant: Claimant, message_id: MessageId, now: float) -> float | None:
        """Return the time from which `claimant` may download the id; None if only a change in the table can
        help."""
        download = self._table[message_id]
        if download.judged_for:
            return None
        at = now
        holder = download.leaseholder
        if holder is not None and holder is not claimant and download.lease_until > at:
            at = download.lease_until
        if download.attempts:
            if claimant in download.attempts:
                return None
            # One download at a time, and one more for each that is stuck: so all that run must be stuck.
            at = max(at, max(download.attempts.values()) + STUCK_S)
        return at

    def claim(self, claimant: Claimant, message_id: MessageId, now: float) -> None:
        download = self._table[message_id]
        download.leaseholder = claimant
        download.lease_until = now + LEASE_S
        download.attempts[claimant] = now

    def arrived(self, claimant: Claimant, message_id: MessageId) -> None:
        """Record that the message has come; no other peer need try until it is judged."""
        download = self._table[message_id]
        download.attempts.pop(claimant, None)
        download.judged_for[claimant] = None

    def let_others_try(self, claimant: Claimant, message_id: MessageId) -> None:
        """Let other peers download, because this copy has to wait before it can be judged, for a reason that
        may lie in this copy alone."""
        download = self._table[message_id]
        download.judged_for.pop(claimant, None)
        self._end_lease(download, claimant)
        self._tell(download, but=claimant)

    def proved_valid(self, claimant: Claimant, message_ids: Sequence[MessageId], now: float) -> None:
        """Credit the first announcers of `message_ids`, and settle these ids for this peer."""
        credits: dict[str, int] = {}
        for message_id in message_ids:
            first = self._table[message_id].first_announcer
            credits[first] = credits.get(first, 0) + 1
            self.withdraw(claimant, message_id)
        for first, count in credits.items():
            self.first_announcements.credit(first, now, count)

    def withdraw(self, claimant: Claimant, message_id: MessageId) -> None:
        """Settle the id for this peer, for better or worse, and tell all other announcers to look again."""
        download = self._table[message_id]
        del download.announcers[claimant]
        if not download.announcers:
            del self._table[message_id]
            return
        download.attempts.pop(claimant, None)
        download.judged_for.pop(claimant, None)
        self._end_lease(download, claimant)
        self._tell(download, but=claimant)

    @staticmethod
    def _end_lease(download: _Download, claimant: Claimant) -> None:
        if download.leaseholder is claimant:
            download.leaseholder = None

    @staticmethod
    def _tell(download: _Download, but: Claimant) -> None:
        for claimant in download.announcers:
            if claimant is not but:
                claimant.on_change()
