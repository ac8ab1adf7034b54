"""The messages that one validator node knows, over all its sessions: one shelf for each catchain of the
masterchain.

A message stands on the shelf of the latest catchain under which any validator announced it, so that the order
of announcements does not matter; once it is final, it stands on the shelf of its master block. It is
forgotten with its shelf. Claims of other validators about a message are corrected by the message's own bytes
as soon as these arrive; until then the claims block no other message. `LifeWindow` counts a message's life in
catchains of the masterchain: the clock that all validators share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import msgspec

from stagepost.errors import LocalProtocolError
from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.message import ExternalMessage, Origin, UidKey, header_of, uid_key
from stagepost.remp.queue.message_states import CLOSED, FINAL, IN_SHARD, OPEN, place_of
from stagepost.remp.queue.records import Header
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, block_of
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId


class LifeWindow:
    """The range of catchain numbers whose messages may still be collated. What came under N is over at N + 2."""

    def __init__(self) -> None:
        self.current = -1
        self.lowest = 0
        self._since_ms = 0

    def __contains__(self, masterchain_seqno: int) -> bool:
        return self.lowest <= masterchain_seqno <= self.current

    def advance(self, masterchain_seqno: int, time_ms: int) -> None:
        """Start catchain `masterchain_seqno`, to which a master block of `time_ms` rotated; the present one changes nothing.
        `LocalProtocolError` for an earlier one, or an earlier time: a life that is over does not begin again.
        """
        if masterchain_seqno == self.current:
            return
        if masterchain_seqno < self.current or time_ms < self._since_ms:
            raise LocalProtocolError(
                f"master catchain {masterchain_seqno} of {time_ms} ms cannot follow {self.current} of {self._since_ms} ms",
                found=masterchain_seqno,
            )
        # A validator that begins now takes part in the previous one's messages as well.
        self.lowest = max(0, masterchain_seqno - 1)
        self.current, self._since_ms = masterchain_seqno, time_ms


LET_GO_CATCHAINS = 16
"""Catchains for which a message that is over is remembered as told: a liar that announces it anew makes nobody contradict
what was said.
"""

LET_GO_MAX = 131_072
"""Messages, at most, that are remembered so, about 12 MB; those of the oldest catchain go first."""

REFUSED_MAX = 16_384
"""Pairs, at most, of a message and a full node to which this validator refused it, about 3 MB; the oldest go first."""

ORIGINS_MAX = 8
"""Full nodes, at most, that hear of one message because other validators name them; those that sent it to this
validator do not count.
"""


class Standing(IntEnum):
    """The source of what this node knows of a message. A greater value outranks a smaller one."""

    FORWARDED_FINAL = 0  # another validator says that it was processed before
    FORWARDED_OPEN = 1  # another validator has forwarded it
    OWN = 2


class CachedMessage:
    __slots__ = ("_direct", "body", "first_seen_s", "header", "origins", "standing", "status")

    def __init__(self, header: Header, status: MessageStatus, standing: Standing, now: float) -> None:
        self.header = header
        self.status = status
        self.standing = standing
        self.first_seen_s = now
        self.body: ExternalMessage | None = None
        self.origins: dict[bytes, Origin] = {}
        self._direct: set[bytes] = set()

    @property
    def message_id(self) -> bytes:
        return self.header.message_id

    @property
    def sources(self) -> set[bytes]:
        """Full nodes that announcements of ours may name."""
        return {self.header.source_key_id, *self.origins}

    @property
    def named_header(self) -> Header:
        """Return the header with a full node that has sent the message, if the one that it names is not known to have: a
        member may have announced the message first, and named somebody else.
        """
        if self.header.source_key_id in self.origins or not self.origins:
            return self.header
        known = next(iter(self.origins.values()))
        return msgspec.structs.replace(
            self.header,
            source_key_id=known.source_key_id,
            source_index=known.source_index,
            hand_over=known.hand_over,
        )

    def add_origin(self, origin: Origin, *, is_direct: bool = False) -> bool:
        """Add a full node that is to hear what becomes of the message. Return False if it is known, or if other
        validators have named `ORIGINS_MAX`. `is_direct`: it has sent the message to this validator, and so needs no
        place among those.

        Two full nodes may send the same message, with different times; all of them hear of it.
        """
        source = origin.source_key_id
        if is_direct:
            self._direct.add(source)
        elif source not in self.origins and len(self.origins.keys() - self._direct) >= ORIGINS_MAX:
            return False
        is_new = source not in self.origins
        self.origins.setdefault(source, origin)
        return is_new


class Fresh(msgspec.Struct, frozen=True):
    uid: bytes


class UidTaken(msgspec.Struct, frozen=True):
    """A block holds the message `message_id`, this one or another, with the same body for the same account."""

    block_id: BlockId
    uid: bytes
    message_id: bytes


class TwinWaits(msgspec.Struct, frozen=True):
    """The message `message_id`, of a smaller id, waits with the same body for the same account: it goes first. Nothing is
    settled before a block holds one of the two.
    """

    message_id: bytes


class Absent(msgspec.Struct, frozen=True):
    pass


Freshness: TypeAlias = Fresh | UidTaken | TwinWaits | Absent


class ExpiredMessages(NamedTuple):
    """The messages that left the cache together with their shelves, and counts of how they ended."""

    messages: list[CachedMessage]
    total: int
    accepted: int
    rejected: int
    header_only: int

    @property
    def lost(self) -> int:
        return self.total - self.accepted - self.rejected - self.header_only


NOTHING_FORGOTTEN = -1


class MessageCache:
    def __init__(self, window: LifeWindow | None = None, *, checks_uids: bool = True) -> None:
        self.window = window or LifeWindow()
        self.forgotten_seqno = NOTHING_FORGOTTEN
        """Number of a catchain: an earlier run of this node may have reported messages up to it as in the queue."""
        self._checks_uids = checks_uids
        self._shelves: dict[int, dict[bytes, CachedMessage]] = {}
        self._by_uid: dict[UidKey, dict[bytes, None]] = {}
        self._let_go: dict[int, frozenset[bytes]] = {}
        self._refused: dict[bytes, None] = {}

    def __len__(self) -> int:
        return sum(len(shelf) for shelf in self._shelves.values())

    def __iter__(self) -> Iterator[CachedMessage]:
        for masterchain_seqno in sorted(self._shelves):
            yield from self._shelves[masterchain_seqno].values()

    def get(self, message_id: bytes) -> CachedMessage | None:
        for shelf in self._shelves.values():
            found = shelf.get(message_id)
            if found is not None:
                return found
        return None

    def was_let_go(self, message_id: bytes) -> bool:
        """Return whether the message was over here not long ago: `LET_GO_CATCHAINS`, and `LET_GO_MAX` messages.

        If a validator announces it under a later catchain, the message lives again. Full nodes have been told
        that it is over, and that report cannot be taken back.
        """
        return any(message_id in ids for ids in self._let_go.values())

    def note_refused(self, message_id: bytes, full_node: bytes) -> None:
        """Note that `full_node` is told now that this validator does not take its message."""
        self._refused[message_id + full_node] = None
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def was_refused(self, message_id: bytes, full_node: bytes) -> bool:
        """Return whether `full_node` was told that this validator does not take its message.

        Another validator may take the message and announce it. The refusal cannot be taken back, so this validator
        reports nothing more of the message to `full_node`.
        """
        return message_id + full_node in self._refused

    def note_let_go(self, message_ids: Iterable[bytes], masterchain_seqno: int | None = None) -> None:
        """Note that full nodes are told that these messages are over: under that catchain, or now."""
        over = frozenset(message_ids)
        seqno = self.window.current if masterchain_seqno is None else masterchain_seqno
        if over:
            self._let_go[seqno] = self._let_go.get(seqno, frozenset()) | over

    def add(self, header: Header, status: MessageStatus, standing: Standing, now: float) -> CachedMessage:
        """Add a message that is not in the cache yet; `LocalProtocolError` if it is."""
        if self.get(header.message_id) is not None:
            raise LocalProtocolError(
                f"message {header.message_id.hex()} is in the cache already", message_id=header.message_id
            )
        cached = CachedMessage(header, status, standing, now)
        self._shelves.setdefault(header.masterchain_seqno, {})[header.message_id] = cached
        self._by_uid.setdefault(uid_key(header), {})[header.message_id] = None
        return cached

    def remove(self, cached: CachedMessage) -> None:
        """Remove a message that is known only from a claim of a validator that is no longer believed."""
        del self._shelves[cached.header.masterchain_seqno][cached.message_id]
        self._forget_uid(uid_key(cached.header), cached.message_id)

    def raise_to(self, cached: CachedMessage, masterchain_seqno: int) -> None:
        """Move the message to the shelf of catchain `masterchain_seqno` if that one is later; an earlier one
        changes nothing.
        """
        header = cached.header
        if masterchain_seqno > header.masterchain_seqno:
            del self._shelves[header.masterchain_seqno][header.message_id]
            cached.header = msgspec.structs.replace(header, masterchain_seqno=masterchain_seqno)
            self._shelves.setdefault(masterchain_seqno, {})[header.message_id] = cached

    def give_body(self, cached: CachedMessage, body: ExternalMessage) -> None:
        """Keep the message's body; a second call changes nothing. The destination becomes what the bytes say,
        whatever was announced.
        """
        if body.message_id != cached.message_id:
            raise LocalProtocolError(
                f"the body of message {body.message_id.hex()} was given to message {cached.message_id.hex()}",
                message_id=cached.message_id,
            )
        if cached.body is None:
            cached.body = body
            self._set_header(cached, cached.header)

    def adopt_header(self, cached: CachedMessage, header: Header) -> None:
        """Replace a header that came from a claim without origin and destination by `header`. The message lives as
        long as the one of the two says that is older: neither a lie nor a message that is offered again after a
        restart prolongs a life.
        """
        del self._shelves[cached.header.masterchain_seqno][cached.message_id]
        seqno = min(cached.header.masterchain_seqno, header.masterchain_seqno)
        self._set_header(cached, msgspec.structs.replace(header, masterchain_seqno=seqno))
        self._shelves.setdefault(seqno, {})[cached.message_id] = cached

    def _set_header(self, cached: CachedMessage, header: Header) -> None:
        before, body = uid_key(cached.header), cached.body
        if body is not None:
            header = msgspec.structs.replace(
                header, uid=body.uid, workchain=body.workchain, account=body.account
            )
        cached.header = header
        now = uid_key(header)
        if now != before:
            self._forget_uid(before, cached.message_id)
            self._by_uid.setdefault(now, {})[cached.message_id] = None

    def freshness(self, message_id: bytes) -> Freshness:
        """Return whether the message may be collated: no message with the same body is in the chain, which comes first, and
        none with a smaller id waits.
        """
        cached = self.get(message_id)
        if cached is None or cached.body is None:
            return Absent()
        uid = cached.header.uid
        if _is_in_chain(cached):
            return UidTaken(block_of(cached.status), uid, message_id)
        if not self._checks_uids:
            return Fresh(uid)
        smaller: TwinWaits | None = None
        for other_id in sorted(self._by_uid.get(uid_key(cached.header), {})):
            other = self.get(other_id)
            # An announced id without bytes proves nothing: anybody can announce a smaller id for somebody else's body.
            if other is None or other is cached or (other.body is None and not _is_in_chain(other)):
                continue
            if _is_in_chain(other):
                return UidTaken(block_of(other.status), uid, other_id)
            if other_id < message_id and place_of(other.status) in OPEN:
                smaller = smaller or TwinWaits(other_id)
        return smaller or Fresh(uid)

    def index_final(
        self,
        message: ExternalMessage,
        masterchain_seqno: int,
        block_id: BlockId,
        master_id: BlockId,
        now: float,
    ) -> None:
        """Note that a master block holds the message. No later event takes that back."""
        status = Accepted(Level.MASTERCHAIN, block_id, master_id)
        cached = self.get(message.message_id)
        if cached is None:
            header = header_of(message, Origin(ZERO_INT256, -1, 0), masterchain_seqno)
            cached = self.add(header, status, Standing.OWN, now)
        self.raise_to(cached, masterchain_seqno)
        cached.status = status
        cached.standing = Standing.OWN
        self.give_body(cached, message)

    def advance(self, masterchain_seqno: int, time_ms: int) -> ExpiredMessages:
        """Start catchain `masterchain_seqno` by a master block of `time_ms`, the next tick of the clock of all messages.
        Return the messages that expire with it.
        """
        self.window.advance(masterchain_seqno, time_ms)
        gone: list[CachedMessage] = []
        for number in [number for number in self._shelves if number < self.window.lowest]:
            gone += self._shelves.pop(number).values()
        for cached in gone:
            self._forget_uid(uid_key(cached.header), cached.message_id)
        self.note_let_go(cached.message_id for cached in gone)
        oldest = self.window.current - LET_GO_CATCHAINS
        while self._let_go and (
            min(self._let_go) < oldest or sum(map(len, self._let_go.values())) > LET_GO_MAX
        ):
            del self._let_go[min(self._let_go)]
        with_body = [cached for cached in gone if cached.body is not None]
        accepted = sum(_is_in_chain(cached) for cached in with_body)
        rejected = sum(place_of(cached.status) in CLOSED for cached in with_body)
        return ExpiredMessages(gone, len(gone), accepted, rejected, len(gone) - len(with_body))

    def _forget_uid(self, key: UidKey, message_id: bytes) -> None:
        ids = self._by_uid.get(key)
        if ids is not None:
            ids.pop(message_id, None)
            if not ids:
                del self._by_uid[key]


def _is_in_chain(cached: CachedMessage) -> bool:
    return place_of(cached.status) in (IN_SHARD, FINAL)
