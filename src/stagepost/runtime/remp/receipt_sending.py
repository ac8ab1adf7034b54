"""A validator's receipts: dated, signed, on disk where that is needed, packed, and out in the same turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from stagepost.crypto import ed25519
from stagepost.remp.queue_effects import Tell
from stagepost.remp.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipt_packing import ImmediatePacking, Packing
from stagepost.runtime.clock import Clock
from stagepost.runtime.remp.overlay import ValidatorLinks
from stagepost.runtime.remp.statements import Statements
from stagepost.wire.tl import key_id

DATED_MAX = 65_536
"""Messages of which the time of the last receipt is remembered; the one that was dated longest ago is forgotten."""


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
        self._dated: dict[bytes, int] = {}
        self._handle: asyncio.Handle | None = None
        self._is_stopped = False

    @property
    def lost(self) -> int:
        """Receipts for full nodes that were away for too long."""
        return self._packing.lost

    def tell(self, tells: Sequence[Tell]) -> None:
        # Several full nodes hear the same: one receipt, one signature.
        made: dict[tuple[bytes, object], Receipt] = {}
        said: dict[bytes, list[Receipt]] = {}
        spoken: list[tuple[bytes, Receipt]] = []
        for one in tells:
            key = one.message_id, one.status
            receipt = made.get(key)
            if receipt is None:
                receipt = made[key] = self._receipt(one)
                said.setdefault(one.message_id, []).append(receipt)
            spoken.append((one.full_node, receipt))
        self._statements.say(said, lambda: self.repeat(spoken))

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
        if self._handle is not None:
            self._handle.cancel()

    def _receipt(self, tell: Tell) -> Receipt:
        self.signed += 1
        receipt = Receipt(
            ExternalMessageId(tell.message_id), tell.status, self._date(tell.message_id), self.source_id
        )
        return receipt.with_signature(
            ed25519.sign(self._seed, receipt.signed_bytes, public_key=self._public_key)
        )

    def _date(self, message_id: bytes) -> int:
        now_ms = int(self._clock.unix_s() * 1_000)
        date_ms = max(now_ms, self._dated.pop(message_id, 0) + 1)
        self._dated[message_id] = date_ms
        if len(self._dated) > DATED_MAX:
            del self._dated[next(iter(self._dated))]
        return date_ms

    def _plan(self) -> None:
        """What else comes up in this turn of the loop leaves in the same packet."""
        at = self._packing.next_wake
        if self._handle is not None or at is None or self._is_stopped:
            return
        loop = asyncio.get_running_loop()
        delay_s = at - self._clock.mono_s()
        self._handle = loop.call_soon(self._send) if delay_s <= 0 else loop.call_later(delay_s, self._send)

    def _send(self) -> None:
        self._handle = None
        now = self._clock.mono_s()
        away: set[bytes] = set()
        for packet in self._packing.packets(now):
            full_node = packet.full_node
            # What one could not be told now, in order, nothing that follows is tried for either.
            if full_node in away or not self._links.tell(full_node, packet.encode(self.source_id)):
                away.add(full_node)
                self._packing.put_back(packet, now)
        self._plan()
