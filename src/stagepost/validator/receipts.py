"""A validator's receipts: dated, signed, linked, on disk, packed, and sent.

`Lanes` holds the receipts of each message, in order. All full nodes get the same lane of receipts: one that
sends a message later than others gets the lane again as it was, and nothing that was said to it alone.
`Statements` writes receipts and their links to disk before they are sent, because after a crash the validator must not
contradict them. With each packet `ReceiptSender` signs one statement, which holds the links of the packet's receipts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.clock import Clock
from stagepost.ground.loop.turn_end import turn_end
from stagepost.ground.wire.tl import ZERO_INT256, key_id
from stagepost.remp.links.overlay import ValidatorLinks
from stagepost.remp.queue.effects import Introduce, Tell, Telling
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import MessageStatus, kind_of
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.statements import PacketStatement, StatementLink, empty_chain, sealed_parts
from stagepost.remp.receipts.status import FIRST_KINDS, is_legal_step
from stagepost.validator.packing import Packet, PacketQueue
from stagepost.validator.receipt_chains import ReceiptChains
from stagepost.validator.session_store import LinkRow, SessionStore, StatementRow

LANES_MAX = 16_384
"""Messages, at most; a further one displaces the one whose last receipt is oldest. A lane takes about a
kilobyte.
"""

LANE_RECEIPTS_MAX = 16
"""Receipts of one message, at most. A message that goes to and fro loses the beginning of its lane, up to a
receipt that may stand first.
"""


class Lanes:
    def __init__(self) -> None:
        self._lanes: dict[bytes, tuple[Receipt, ...]] = {}

    def __getitem__(self, message_id: bytes) -> tuple[Receipt, ...]:
        """Return the receipts of a message; empty if there are none, or if they were forgotten."""
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


ROW_RECEIPTS_MAX = 128
"""Receipts in one row, at most: each may name two blocks, and a packet has room for twice as many."""

Then = Callable[[], None]


class Statements:
    """`earlier`: the last receipts of an earlier run of this node, by message; the session that resumes a
    message takes them from there. `catchain_seqno` is the present one of the masterchain, the clock of all
    messages' lives. `over`: messages whose receipts earlier runs have forgotten, by the catchain under which they did.
    """

    def __init__(self, store: SessionStore, catchain_seqno: Callable[[], int]) -> None:
        self.lanes = Lanes()
        self.chains = ReceiptChains()
        self.earlier: dict[bytes, tuple[Receipt, ...]] = {}
        self.over: dict[int, frozenset[bytes]] = {}
        self._store = store
        self._catchain_seqno = catchain_seqno
        self._spoken_under: dict[bytes, int] = {}
        """Under which catchain each message was spoken of last."""
        self._is_stopped = False
        for row in store.statements:
            if row.over:
                self.over[row.catchain_seqno] = self.over.get(row.catchain_seqno, frozenset()) | row.ids_over
            receipts = CombinedReceipt.decode(row.receipts).receipts
            links = row.links or (LinkRow(),) * len(receipts)
            for receipt, link in zip(receipts, links, strict=True):
                self.earlier[receipt.message_id] = self.lanes.extend(receipt.message_id, (receipt,))
                self._spoken_under[receipt.message_id] = row.catchain_seqno
                if link.number:
                    self.chains.restore(receipt, link.session_id, link.number, link.before)

    def say(
        self, receipts: Mapping[bytes, Sequence[Receipt]], then: Then, *, is_repeated: bool = False
    ) -> None:
        """Store the receipts, by message and in order, then call `then`, which sends them.

        `then` is called when neither the receipts nor anything that was stored before them can be forgotten any more, the
        bodies of their messages above all, and never before an earlier `then`. `is_repeated`: `then` also sends receipts
        that were sent before.
        """
        seqno = self._catchain_seqno()
        written: list[Receipt] = []
        for message_id, said in receipts.items():
            self.lanes.extend(message_id, said)
            written += said
            self._spoken_under[message_id] = seqno
        if not written and not is_repeated:
            then()
            return
        rows = [
            self._row(seqno, written[start : start + ROW_RECEIPTS_MAX])
            for start in range(0, len(written), ROW_RECEIPTS_MAX)
        ]
        self._store.put_statements(rows, partial(self._written_down, then))

    def newest(self, session_id: bytes, message_id: bytes, then: Callable[[StatementLink], None]) -> None:
        """Hand over the newest link of a chain as soon as it is on disk: after a crash nothing else may stand in its place."""
        link = self.chains.newest(session_id, message_id) or empty_chain(session_id, message_id)
        self.say({}, lambda: then(link), is_repeated=True)

    def forget_before(self, catchain_seqno: int, kept: Container[bytes] = ()) -> list[bytes]:
        """Forget the messages whose last receipt is from an older catchain: they have come to their ends. A session that
        has not ended keeps its chains, and so do the messages in `kept`, of which receipts are still to be signed: a chain that
        began anew would have two first links. Return those of an earlier run that no session has resumed, so that no queue
        of this run knows of their ends.
        """
        oldest_seqno = self.chains.oldest_seqno
        if oldest_seqno is not None:
            catchain_seqno = min(catchain_seqno, oldest_seqno)
        older = [message_id for message_id, seqno in self._spoken_under.items() if seqno < catchain_seqno]
        gone = [message_id for message_id in older if message_id not in kept]
        unknown = [message_id for message_id in gone if self.earlier.pop(message_id, None)]
        for message_id in gone:
            del self._spoken_under[message_id]
            self.lanes.forget(message_id)
            self.chains.forget(message_id)
        if gone:
            nothing = CombinedReceipt(ZERO_INT256, ()).encode()
            removed = StatementRow(self._catchain_seqno(), nothing, over=b"".join(gone))
            # Rows that hold receipts of kept messages, too, go a catchain later.
            self._store.remove_statements(catchain_seqno if len(gone) == len(older) else 0, removed)
        return unknown

    def stop(self) -> None:
        """Send nothing any more."""
        self._is_stopped = True

    def _row(self, seqno: int, receipts: Sequence[Receipt]) -> StatementRow:
        return StatementRow(
            seqno, _packed(receipts), tuple(map(_link_row, map(self.chains.link_of, receipts)))
        )

    def _written_down(self, then: Then) -> None:
        if not self._is_stopped:
            then()


def _link_row(link: StatementLink | None) -> LinkRow:
    return LinkRow() if link is None else LinkRow(link.session_id, link.number, link.before)


def _packed(receipts: Sequence[Receipt]) -> bytes:
    return CombinedReceipt(receipts[0].source_id, tuple(receipts)).encode()


class ReceiptSender:
    """Later receipts of a message have later dates, even within one millisecond: readers order them by date."""

    def __init__(
        self,
        seed: bytes,
        links: ValidatorLinks,
        clock: Clock,
        statements: Statements,
    ) -> None:
        self._seed = seed
        self._public_key = ed25519.public_key(seed)
        self.source_id = key_id(self._public_key)
        self.signed = 0
        self.withheld = 0
        """Receipts that were not made, because they would have contradicted the ones before them."""
        self._links = links
        self._clock = clock
        self._statements = statements
        self._packing = PacketQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._is_put_off = False
        self._is_stopped = False
        self._muted_until = 0.0
        self._muted: dict[bytes, None] = {}

    @property
    def lost(self) -> int:
        """Number of receipts lost because their full nodes were away for too long."""
        return self._packing.lost

    def mute(self, seconds: float) -> None:
        """Sign nothing for so long; and nothing ever about messages that come up meanwhile: receipts of theirs that were
        signed and forgotten could be contradicted."""
        self._muted_until = self._clock.mono_s() + seconds

    def _heard_of_muted(self, tellings: Sequence[Telling]) -> Sequence[Telling]:
        """Return the tellings about messages that may be spoken of."""
        if self._clock.mono_s() < self._muted_until:
            for one in tellings:
                self._muted[one.message_id] = None
            while len(self._muted) > LANES_MAX:
                del self._muted[next(iter(self._muted))]
        return [one for one in tellings if one.message_id not in self._muted]

    def tell(self, session_id: bytes, tellings: Sequence[Telling]) -> None:
        """Date, sign, link, store and send receipts that the queue of session `session_id` tells."""
        if self._muted_until:
            tellings = self._heard_of_muted(tellings)
        said: dict[bytes, list[Receipt]] = {}
        spoken: list[tuple[bytes, Receipt]] = []
        is_repeated = False
        for one in tellings:
            if isinstance(one, Tell):
                statuses: Sequence[MessageStatus] = (one.status,)
            else:
                lane = self._lane(one.message_id, said)
                is_repeated |= bool(lane)
                spoken += ((one.full_node, receipt) for receipt in lane)
                statuses = _not_said(one, lane)
            for status in statuses:
                receipt = self._said(session_id, one.message_id, status, said)
                if receipt is not None:
                    spoken.append((one.full_node, receipt))
        self._statements.say(said, lambda: self.repeat(spoken), is_repeated=is_repeated)

    def repeat(self, spoken: Iterable[tuple[bytes, Receipt]]) -> None:
        """Send receipts as they are, each to the full node beside it."""
        now = self._clock.mono_s()
        for full_node, receipt in spoken:
            self._packing.add(full_node, receipt, now)
        self._plan()

    def full_node_linked(self, full_node: bytes) -> None:
        self._packing.linked(full_node, self._clock.mono_s())
        self._plan()

    def stop(self) -> None:
        self._is_stopped = True
        self._statements.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _lane(self, message_id: bytes, said: Mapping[bytes, Sequence[Receipt]]) -> tuple[Receipt, ...]:
        """Return the earlier receipts of a message, and those that are being made now."""
        return (*self._statements.lanes[message_id], *said.get(message_id, ()))

    def _said(
        self, session_id: bytes, message_id: bytes, status: MessageStatus, said: dict[bytes, list[Receipt]]
    ) -> Receipt | None:
        """Return the receipt for a status. Several full nodes get the same, one after the other: one receipt,
        one signature. None for a status that would contradict the receipt before it in its chain, or a receipt that closed the message.
        """
        now = said.get(message_id, [])
        if not now or now[-1].status != status:
            chains = self._statements.chains
            in_session = chains.session_for(message_id, session_id)
            if not chains.may_follow(in_session, message_id, kind_of(status)):
                self.withheld += 1
                return None
            now = said.setdefault(message_id, now)
            now.append(self._receipt(message_id, status, self._lane(message_id, said)))
            chains.append(in_session, now[-1])
        return now[-1]

    def _receipt(self, message_id: bytes, status: MessageStatus, lane: Sequence[Receipt]) -> Receipt:
        self.signed += 1
        last_ms = lane[-1].timestamp_ms if lane else self._statements.chains.last_date_ms(message_id)
        now_ms = int(self._clock.unix_s() * 1_000)
        date_ms = now_ms if last_ms is None else max(now_ms, last_ms + 1)
        receipt = Receipt(ExternalMessageId(message_id), status, date_ms, self.source_id)
        return receipt.with_signature(
            ed25519.sign(self._seed, receipt.signed_bytes, public_key=self._public_key)
        )

    def _plan(self) -> None:
        """Plan the next sending, so that receipts made in the same turn of the loop leave in the same packet."""
        at = self._packing.next_wake
        if at is None or self._is_stopped:
            return
        delay_s = at - self._clock.mono_s()
        if delay_s <= 0:
            if not self._is_put_off:
                self._is_put_off = True
                turn_end()(self._send)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._send)

    def _send(self) -> None:
        self._is_put_off = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_stopped:
            return
        now = self._clock.mono_s()
        away: set[bytes] = set()
        signed: dict[tuple[StatementLink, ...], bytes] = {}
        for packet in self._packing.packets(now):
            full_node = packet.full_node
            for receipts, links in sealed_parts(packet.receipts, self._statements.chains.link_of):
                part = Packet(full_node, receipts)
                # Receipts stay in order: if one could not be sent to a full node, none that follows is tried.
                if full_node in away or not self._links.tell(
                    full_node, part.encode(self.source_id), self._statement(links, signed)
                ):
                    away.add(full_node)
                    self._packing.put_back(part, now)
        self._plan()

    def _statement(
        self, links: tuple[StatementLink, ...], signed: dict[tuple[StatementLink, ...], bytes]
    ) -> bytes:
        """Return the encoded statement with `links`, which is signed once for all full nodes; empty for no links."""
        if links and links not in signed:
            statement = PacketStatement(self.source_id, links)
            signature = ed25519.sign(self._seed, statement.signed_bytes, public_key=self._public_key)
            signed[links] = msgspec.structs.replace(statement, signature=signature).encode()
        return signed.get(links, b"")


def _not_said(one: Introduce, lane: Sequence[Receipt]) -> Sequence[MessageStatus]:
    """Return the statuses to report beside the lane: where the message stands now, if that may follow and is
    not the last receipt.
    """
    if not lane:
        return one.statuses
    last, now = lane[-1], one.statuses[-1]
    follows = is_legal_step(last.kind, kind_of(now))
    return (now,) if follows and last.status != now else ()
