"""A validator's receipts: dated, signed, on disk where that is needed, packed, and out in the same turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.clock import Clock
from stagepost.ground.loop.turn_end import turn_end
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.overlay import ValidatorLinks
from stagepost.remp.queue.effects import Introduce, Tell, Telling
from stagepost.remp.receipts.message_status import MessageStatus, kind_of
from stagepost.remp.receipts.packing import ImmediatePacking, Packing
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import is_legal_step
from stagepost.validator.statements import Statements


class ReceiptSending:
    """Later receipts of a message have later dates, even within one millisecond: readers go by them."""

    def __init__(
        self,
        seed: bytes,
        links: ValidatorLinks,
        clock: Clock,
        statements: Statements,
        packing: Packing | None = None,
    ) -> None:
        self._seed = seed
        self._public_key = ed25519.public_key(seed)
        self.source_id = key_id(self._public_key)
        self.signed = 0
        self._links = links
        self._clock = clock
        self._statements = statements
        self._packing: Packing = packing or ImmediatePacking()
        self._timer: asyncio.TimerHandle | None = None
        self._is_put_off = False
        self._is_stopped = False

    @property
    def lost(self) -> int:
        """Receipts for full nodes that were away for too long."""
        return self._packing.lost

    def tell(self, tellings: Sequence[Telling]) -> None:
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
                spoken.append((one.full_node, self._said(one.message_id, status, said)))
        self._statements.say(said, lambda: self.repeat(spoken), is_repeated=is_repeated)

    def repeat(self, spoken: Iterable[tuple[bytes, Receipt]]) -> None:
        """What may be said as it is, each to the full node beside it."""
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
        """What was said of it before, and what is being said now."""
        return (*self._statements.lanes[message_id], *said.get(message_id, ()))

    def _said(self, message_id: bytes, status: MessageStatus, said: dict[bytes, list[Receipt]]) -> Receipt:
        """Several full nodes hear the same, one after the other: one receipt, one signature."""
        now = said.setdefault(message_id, [])
        if not now or now[-1].status != status:
            now.append(self._receipt(message_id, status, self._lane(message_id, said)))
        return now[-1]

    def _receipt(self, message_id: bytes, status: MessageStatus, lane: Sequence[Receipt]) -> Receipt:
        self.signed += 1
        now_ms = int(self._clock.unix_s() * 1_000)
        date_ms = max(now_ms, lane[-1].timestamp_ms + 1) if lane else now_ms
        receipt = Receipt(ExternalMessageId(message_id), status, date_ms, self.source_id)
        return receipt.with_signature(
            ed25519.sign(self._seed, receipt.signed_bytes, public_key=self._public_key)
        )

    def _plan(self) -> None:
        """What else comes up in this turn of the loop leaves in the same packet."""
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
        for packet in self._packing.packets(now):
            full_node = packet.full_node
            # What one could not be told now, in order, nothing that follows is tried for either.
            if full_node in away or not self._links.tell(full_node, packet.encode(self.source_id)):
                away.add(full_node)
                self._packing.put_back(packet, now)
        self._plan()


def _not_said(one: Introduce, lane: Sequence[Receipt]) -> Sequence[MessageStatus]:
    """Beside its lane: where the message stands now, if that follows and is not what was said last."""
    if not lane:
        return one.statuses
    last, now = lane[-1], one.statuses[-1]
    follows = is_legal_step(last.kind, kind_of(now))
    return (now,) if follows and last.status != now else ()
