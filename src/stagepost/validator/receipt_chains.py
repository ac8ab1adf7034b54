"""Chains of a validator's own receipts: the place of each receipt among those about one message in one session.

A chain that another session has taken over is never resumed, so its links stand next to each other in time, too. A
receipt that may not follow the one before it gets no place: whoever sent it would prove a contradiction.
"""

from __future__ import annotations

from typing import NamedTuple

from stagepost.ground.wire.tl import ZERO_INT256
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.statements import StatementLink
from stagepost.remp.receipts.status import Kind, is_closed, is_legal_step

MESSAGES_LINKED_MAX = 16_384
"""Messages, at most, whose links are at hand for sending again; the one that was silent longest goes first."""

LINKS_KEPT = 16
"""Links of one message, at most, that are at hand for sending again."""

_UNKNOWN = -1, -1


class ChainHead(NamedTuple):
    """Newest link of a chain, with kind and date of its receipt."""

    link: StatementLink
    kind: Kind
    timestamp_ms: int


class ReceiptChains:
    def __init__(self) -> None:
        self._heads: dict[bytes, dict[bytes, ChainHead]] = {}
        """By message and session, the session that spoke last at the end."""
        self._links: dict[bytes, dict[int, StatementLink]] = {}
        """By message and date of the receipt."""
        self._begun: dict[bytes, tuple[int, int]] = {}
        """Age of each session of this run: master catchain, then order of beginning."""

    def session_began(self, session_id: bytes, masterchain_seqno: int) -> None:
        self._begun.setdefault(session_id, (masterchain_seqno, len(self._begun)))

    def session_ended(self, session_id: bytes) -> None:
        self._begun.pop(session_id, None)

    @property
    def oldest_seqno(self) -> int | None:
        """Return the master catchain under which the oldest session began that has not ended; None if there is none."""
        return min((seqno for seqno, _ in self._begun.values()), default=None)

    def session_for(self, message_id: bytes, told_in: bytes) -> bytes:
        """Return the session whose chain a receipt continues that session `told_in` tells: the latest that has spoken of
        the message.
        """
        heads = self._heads.get(message_id)
        if not heads:
            return told_in
        spoke_last = next(reversed(heads))
        is_later = self._begun.get(told_in, _UNKNOWN) > self._begun.get(spoke_last, _UNKNOWN)
        return told_in if is_later and told_in not in heads else spoke_last

    def head(self, session_id: bytes, message_id: bytes) -> ChainHead | None:
        return self._heads.get(message_id, {}).get(session_id)

    def newest(self, session_id: bytes, message_id: bytes) -> StatementLink | None:
        """Return the newest link of the chain; None if this validator knows of none."""
        head = self.head(session_id, message_id)
        return None if head is None else head.link

    def last_date_ms(self, message_id: bytes) -> int | None:
        """Return the date of the newest receipt of the message in any session; None if there is none."""
        heads = self._heads.get(message_id)
        return None if not heads else max(head.timestamp_ms for head in heads.values())

    def may_follow(self, session_id: bytes, message_id: bytes, kind: Kind) -> bool:
        """Return whether a receipt of `kind` may stand next in the chain. A message that was closed in another session stays
        closed: readers order all receipts by date.
        """
        heads = self._heads.get(message_id)
        if not heads:
            return True
        last = next(reversed(heads.values())).kind
        return is_legal_step(last, kind) or (session_id not in heads and not is_closed(last.status))

    def append(self, session_id: bytes, receipt: Receipt) -> StatementLink:
        """Return the next link of the chain, which is that of `receipt`."""
        head = self.head(session_id, receipt.message_id)
        number, before = (0, ZERO_INT256) if head is None else (head.link.number, head.link.receipt)
        return self.restore(receipt, session_id, number + 1, before)

    def restore(self, receipt: Receipt, session_id: bytes, number: int, before: bytes) -> StatementLink:
        """Put back a link that an earlier run has made; call it in the order in which links were made."""
        message_id = receipt.message_id
        link = StatementLink(session_id, message_id, number, before, receipt.hash)
        heads = self._heads.setdefault(message_id, {})
        heads.pop(session_id, None)
        heads[session_id] = ChainHead(link, receipt.kind, receipt.timestamp_ms)
        links = self._links.pop(message_id, {})
        links[receipt.timestamp_ms] = link
        if len(links) > LINKS_KEPT:
            del links[next(iter(links))]
        self._links[message_id] = links
        if len(self._links) > MESSAGES_LINKED_MAX:
            del self._links[next(iter(self._links))]
        return link

    def link_of(self, receipt: Receipt) -> StatementLink | None:
        """Return the link of a receipt; None if it has none, or if the link is no longer at hand."""
        return self._links.get(receipt.message_id, {}).get(receipt.timestamp_ms)

    def forget(self, message_id: bytes) -> None:
        self._heads.pop(message_id, None)
        self._links.pop(message_id, None)
