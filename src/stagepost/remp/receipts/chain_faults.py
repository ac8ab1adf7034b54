"""Faults that two receipts of one chain show by themselves: whoever has both needs nothing else of the chain, and no clock.

Receipts without links, of two sessions, or with a gap between them show nothing: what lies between may have been left out
by whoever shows them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.statements import PlacedLink, StatementLink
from stagepost.remp.receipts.status import is_legal_step


class ChainFault(StrEnum):
    EQUIVOCATION = "equivocation"  # two receipts in one place
    CONTRADICTION = "contradiction"  # a receipt that may not follow the one before it


class LinkedReceipt(NamedTuple):
    receipt: Receipt
    placed: PlacedLink

    @property
    def link(self) -> StatementLink:
        return self.placed.link


def fault_between(one: LinkedReceipt, other: LinkedReceipt) -> ChainFault | None:
    """Return what two receipts show, each of which its link names; None if an honest validator may have signed both."""
    if one.link.chain != other.link.chain or one.receipt.source_id != other.receipt.source_id:
        return None
    before, after = sorted((one, other), key=lambda linked: linked.link.number)
    if before.link.number == after.link.number:
        is_same = (before.link.before, before.link.receipt) == (after.link.before, after.link.receipt)
        return None if is_same else ChainFault.EQUIVOCATION
    if after.link.number != before.link.number + 1:
        return None
    if not after.link.is_next_after(before.link):
        return ChainFault.EQUIVOCATION
    is_legal = is_legal_step(before.receipt.kind, after.receipt.kind)
    return None if is_legal else ChainFault.CONTRADICTION


def why_unbound(linked: LinkedReceipt, public_key: bytes) -> str | None:
    """Return why the link does not bind the receipt; None if the holder of `public_key`, which has signed the receipt,
    has signed that this is its place.
    """
    receipt, statement, link = linked.receipt, linked.placed.statement, linked.link
    if statement.source_id != receipt.source_id:
        return "the statement is of another source than the receipt"
    if link.message_id != receipt.message_id:
        return "the link is of another message than the receipt"
    if link.receipt != receipt.hash:
        return "the link is of another receipt"
    if not statement.is_signed_by(public_key):
        return "the signature of the statement does not hold"
    return None
