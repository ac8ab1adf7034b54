"""Downloads: one table over all peers, so that a message comes once however many peers announce it.

Each announced id is leased to one peer at a time. A peer that holds the lease and does not begin loses it
after 250 ms. If the message has not come 600 ms after the first download began, a second one may run, and from then on
the number that may run doubles every 200 ms: 320 peers that announce and never serve delay a message by 2.2 s. A copy
that is refused does not begin this anew, since 320 peers can bring a forged copy each.
Peers with credit come first. Peers of a host that has withheld a message that others had come last, for ten
minutes.

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
"""Seconds for which one download of an id runs at a time, from the first one on."""
DOUBLE_S = 0.2
"""Seconds in which the number of downloads that may run beside one another doubles, after `STUCK_S`."""
YIELD_S = 0.1
"""Seconds that a peer waits, for each step of standing, while a peer of better standing has not been tried."""
WITHHELD_S = 600.0
"""Seconds for which a host is remembered that withheld a message."""
WITHHOLDERS_MAX = 4_096
"""Hosts that are remembered; beyond that the one remembered for longest is forgotten."""

CREDITED, UNKNOWN, WITHHOLDER = range(3)
"""Standing of a peer when it announces an id, the best first."""


class Withholders:
    """Hosts that announced a message and did not supply it, although another peer did."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def note(self, host: str, now: float) -> None:
        self._until[host] = now + WITHHELD_S
        self._until.move_to_end(host)
        if len(self._until) > WITHHOLDERS_MAX:
            self._until.popitem(last=False)

    def __len__(self) -> int:
        return len(self._until)

    def is_known(self, host: str, now: float) -> bool:
        until = self._until.get(host)
        if until is not None and until <= now:
            del self._until[host]
            return False
        return until is not None


def _more_than_after_s(running: int) -> float:
    """Return the seconds after the first download from which on more than `running` may run."""
    return STUCK_S + DOUBLE_S * (running.bit_length() - 1)


def _nothing() -> None:
    return


class DownloadPeer:
    """Peer in the table, known by identity. `host` is what it has in common with other peers of its owner. The
    table calls `on_change` when an act of other peers may let this one go on."""

    __slots__ = ("host", "name", "on_change")

    def __init__(self, name: str, host: str | None = None) -> None:
        self.name = name
        self.host = name if host is None else host
        self.on_change: Callable[[], None] = _nothing


class _Download:
    """Entry of one id. Dictionaries stand for sets, because their order is the same in every run."""

    __slots__ = (
        "announcers", "attempts", "began", "first_announcer", "judged_for", "lease_until", "leaseholder",
        "omitted_by", "since", "untried",
    )  # fmt: skip

    def __init__(self, first_announcer: str, since: float) -> None:
        self.first_announcer = first_announcer
        self.since = since
        self.announcers: dict[DownloadPeer, int | None] = {}  # with their standing until they are tried
        self.untried = [0, 0, 0]  # announcers by standing
        self.leaseholder: DownloadPeer | None = None
        self.lease_until = 0.0
        self.began: float | None = None  # of the first download
        self.attempts: dict[DownloadPeer, float] = {}  # when each of them began
        self.omitted_by: dict[str, None] = {}  # hosts that were asked, and did not have it
        self.judged_for: dict[DownloadPeer, None] = {}  # they have brought the message, it is not judged yet


class Downloads:
    """Table of announced ids.

    An entry lives as long as some peer has announced the id and it is not settled for that peer: so there are
    at most 132 entries, the size of the window, per peer.
    """

    def __init__(self, first_announcements: FirstAnnouncements | None = None) -> None:
        self.first_announcements = first_announcements or FirstAnnouncements()
        self.withholders = Withholders()
        self._table: dict[MessageId, _Download] = {}

    def standing(self, peer: DownloadPeer, now: float) -> int:
        if self.withholders.is_known(peer.host, now):
            return WITHHOLDER
        return CREDITED if self.first_announcements.credits(peer.name, now) else UNKNOWN

    def __len__(self) -> int:
        return len(self._table)

    def announce(
        self,
        claimant: DownloadPeer,
        message_id: MessageId,
        now: float,
        *,
        may_lease: bool,
        standing: int = UNKNOWN,
    ) -> None:
        """Record that `claimant` announced the id.

        `may_lease` allows the peer to hold the id for itself before it begins. Peers with a bad score may
        not. `standing` is the result of that method.
        """
        download = self._table.get(message_id)
        if download is None:
            download = self._table[message_id] = _Download(claimant.name, now)
        download.announcers[claimant] = standing
        download.untried[standing] += 1
        if may_lease and download.leaseholder is None:
            download.leaseholder = claimant
            download.lease_until = now + LEASE_S

    def claimable_at(self, claimant: DownloadPeer, message_id: MessageId, now: float) -> float | None:
        """Return the time from which `claimant` may download the id; None if only a change in the table can
        help."""
        download = self._table[message_id]
        if download.judged_for:
            return None
        at = download.since
        holder = download.leaseholder
        if holder is not None and holder is not claimant and download.lease_until > at:
            at = download.lease_until
        if download.attempts and download.began is not None:
            if claimant in download.attempts:
                return None
            at = max(at, download.began + _more_than_after_s(len(download.attempts)))
        standing = download.announcers[claimant]
        if standing:  # the best never yield
            # Peers of better standing that nobody has asked yet go first.
            at += YIELD_S * sum(1 for count in download.untried[:standing] if count)
        return max(at, now)

    def claim(self, claimant: DownloadPeer, message_id: MessageId, now: float) -> None:
        download = self._table[message_id]
        download.leaseholder = None  # from here on the downloads under way decide
        if download.began is None:
            download.began = now
        download.attempts[claimant] = now
        self._tried(download, claimant)

    def arrived(self, claimant: DownloadPeer, message_id: MessageId) -> None:
        """Record that the message has come; no other peer need try until it is judged."""
        download = self._table[message_id]
        download.attempts.pop(claimant, None)
        download.judged_for[claimant] = None

    def omitted(self, claimant: DownloadPeer, message_id: MessageId) -> None:
        """Record that the peer announced the id and then replied without its message."""
        self._table[message_id].omitted_by[claimant.host] = None

    def let_others_try(self, claimant: DownloadPeer, message_id: MessageId) -> None:
        """Let other peers download, because this copy has to wait before it can be judged, for a reason that
        may lie in this copy alone."""
        download = self._table[message_id]
        download.judged_for.pop(claimant, None)
        self._end_lease(download, claimant)
        self._tell(download, but=claimant)

    def proved_valid(self, claimant: DownloadPeer, message_ids: Sequence[MessageId], now: float) -> None:
        """Credit the first announcers of `message_ids`, and settle these ids for this peer."""
        credits: dict[str, int] = {}
        for message_id in message_ids:
            download = self._table[message_id]
            first = download.first_announcer
            credits[first] = credits.get(first, 0) + 1
            for host in download.omitted_by:
                self.withholders.note(host, now)
            for other, began in download.attempts.items():
                if now - began >= STUCK_S:
                    self.withholders.note(other.host, now)
            self.withdraw(claimant, message_id)
        for first, count in credits.items():
            self.first_announcements.credit(first, now, count)

    def withdraw(self, claimant: DownloadPeer, message_id: MessageId) -> None:
        """Settle the id for this peer, for better or worse, and tell all other announcers to look again."""
        download = self._table[message_id]
        self._tried(download, claimant)
        del download.announcers[claimant]
        if not download.announcers:
            del self._table[message_id]
            return
        download.attempts.pop(claimant, None)
        download.judged_for.pop(claimant, None)
        self._end_lease(download, claimant)
        self._tell(download, but=claimant)

    @staticmethod
    def _tried(download: _Download, claimant: DownloadPeer) -> None:
        standing = download.announcers[claimant]
        if standing is not None:
            download.untried[standing] -= 1
            download.announcers[claimant] = None

    @staticmethod
    def _end_lease(download: _Download, claimant: DownloadPeer) -> None:
        if download.leaseholder is claimant:
            download.leaseholder = None

    @staticmethod
    def _tell(download: _Download, but: DownloadPeer) -> None:
        for claimant in download.announcers:
            if claimant is not but:
                claimant.on_change()
