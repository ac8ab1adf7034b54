"""Validators of a devnet that break the rules, each in one way, and links that lose messages. Only a devnet
starts them.

    silent         receives everything, and sends nothing to anybody
    equivocating   signs another vote, another block of the queue and another receipt at the same place, and shows half of
                   the members one and half of them the other
    lying          reports to full nodes that it has refused a message in a block, right after it reported the block

Each is an honest validator behind links that are not honest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from itertools import zip_longest
from random import Random

import msgspec

from stagepost.catchain.block import UPDATE_ID, Block, HashVersion, block_id, data_hash, decode_update
from stagepost.chain.agreement.messages import decode_message
from stagepost.chain.agreement.votes import NO_BLOCK, VOTE_ID, Vote, VoteKind, signed_bytes
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import constructor_bytes, key_id
from stagepost.remp.links.overlay import Answered, Overlay, OverlayEvents, ValidatorLinks
from stagepost.remp.links.switchboard import read_said, said
from stagepost.remp.queue.records import payload_beside
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import MessageStatus, Rejected
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.statements import PacketStatement, StatementLink
from stagepost.remp.receipts.status import Level, Status

LIE = "refused, says a validator that does not tell the truth"
_BLOCK, _VOTE = constructor_bytes(UPDATE_ID), constructor_bytes(VOTE_ID)


class Behaviour(StrEnum):
    SILENT = "silent"
    EQUIVOCATING = "equivocating"
    LYING = "lying"


class FaultyLayer:
    """A layer between an honest validator and its links. `loss`: the part, from 0 to 1, of all messages to
    other members that gets lost.
    """

    def __init__(self, seed: bytes, random: Random, loss: float, behaviour: Behaviour | None = None) -> None:
        self._seed = seed
        self._random = random
        self._loss = loss
        self._behaviour = behaviour

    def overlay(self, overlay: Overlay) -> Overlay:
        match self._behaviour:
            case Behaviour.SILENT:
                return SilentOverlay()
            case Behaviour.EQUIVOCATING:
                overlay = EquivocatingOverlay(overlay, self._seed)
        return LossyOverlay(overlay, self._is_lost)

    def events(self, events: OverlayEvents) -> OverlayEvents:
        is_silent = self._behaviour is Behaviour.SILENT
        return LossyEvents(events, (lambda: True) if is_silent else self._is_lost)

    def links(self, links: ValidatorLinks) -> ValidatorLinks:
        match self._behaviour:
            case Behaviour.SILENT:
                return SilentLinks()
            case Behaviour.EQUIVOCATING:
                return UntrueLinks(links, self._seed, Status.NEW, later_ms=0)
            case Behaviour.LYING:
                return UntrueLinks(links, self._seed, Status.ACCEPTED, later_ms=1)
        return links

    def _is_lost(self) -> bool:
        return self._random.random() < self._loss


# Between members


class LossyOverlay:
    def __init__(self, overlay: Overlay, is_lost: Callable[[], bool]) -> None:
        self._overlay = overlay
        self._is_lost = is_lost

    def push(self, peer: int, frame: bytes) -> bool:
        return self._is_lost() or self._overlay.push(peer, frame)

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        if self._is_lost():
            asyncio.get_running_loop().call_later(timeout_s, answered, None)
        else:
            self._overlay.ask(peer, query, answered, timeout_s)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        self._overlay.refuse(peer, rule, text)


class SilentOverlay:
    def push(self, peer: int, frame: bytes) -> bool:
        return True

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        asyncio.get_running_loop().call_later(timeout_s, answered, None)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        pass


class LossyEvents:
    """`OverlayEvents` of which some answers are not sent."""

    def __init__(self, events: OverlayEvents, is_lost: Callable[[], bool]) -> None:
        self._events = events
        self._is_lost = is_lost

    def pushed(self, peer: int, frame: bytes) -> None:
        self._events.pushed(peer, frame)

    def asked(self, peer: int, query: bytes, reply: Callable[[bytes], None]) -> None:
        def maybe(answer: bytes) -> None:
            if not self._is_lost():
                reply(answer)

        self._events.asked(peer, query, maybe)

    def linked(self, peer: int) -> None:
        self._events.linked(peer)


class EquivocatingOverlay:
    """Members at odd places are shown the other version."""

    def __init__(self, overlay: Overlay, seed: bytes) -> None:
        self._overlay = overlay
        self._seed = seed
        self._own_id = key_id(ed25519.public_key(seed))

    def push(self, peer: int, frame: bytes) -> bool:
        shown = self.other_side(frame) if peer % 2 else None
        return self._overlay.push(peer, frame if shown is None else shown)

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        self._overlay.ask(peer, query, answered, timeout_s)

    def refuse(self, peer: int, rule: str, text: str) -> None:
        self._overlay.refuse(peer, rule, text)

    def other_side(self, frame: bytes) -> bytes | None:
        """Return the contradicting version of a frame; None for a frame that this validator cannot sign in
        two versions.
        """
        read = read_said(frame)
        if read is None:
            return None  # a part of something large
        channel_id, inner = read
        other: Vote | Block | None = None
        if inner.startswith(_VOTE):
            other = self._other_vote(channel_id, inner)
        elif inner.startswith(_BLOCK):
            other = self._other_block(decode_update(inner))
        return None if other is None else said(channel_id, other.encode())

    def _other_vote(self, session_id: bytes, frame: bytes) -> Vote | None:
        vote = decode_message(frame)
        if not isinstance(vote, Vote) or self._sign_vote(session_id, vote) != vote.signature:
            return None
        if vote.kind is VoteKind.SKIP:
            other = Vote(vote.validator, vote.slot, VoteKind.FINALISE, self._own_id, b"")
        elif vote.kind is VoteKind.FINALISE:
            other = Vote(vote.validator, vote.slot, VoteKind.SKIP, NO_BLOCK, b"")
        else:
            other = Vote(vote.validator, vote.slot, vote.kind, self._own_id, b"")
        return Vote(other.validator, other.slot, other.kind, other.block, self._sign_vote(session_id, other))

    def _sign_vote(self, session_id: bytes, vote: Vote) -> bytes:
        return ed25519.sign(self._seed, signed_bytes(session_id, vote.slot, vote.kind, vote.block))

    def _other_block(self, block: Block) -> Block | None:
        if self._sign_block(block) != block.signature:
            return None  # somebody else's, handed on
        payload = payload_beside(block.payload, (), -block.height)
        other = Block(
            block.incarnation,
            block.source,
            block.height,
            block.previous,
            block.dependencies,
            b"",
            payload,
        )
        return Block(
            other.incarnation,
            other.source,
            other.height,
            other.previous,
            other.dependencies,
            self._sign_block(other),
            payload,
        )

    def _sign_block(self, block: Block) -> bytes:
        of_data = data_hash(block.payload, block.previous, block.dependencies, HashVersion.WITH_REFERENCES)
        return ed25519.sign(self._seed, block_id(block.incarnation, self._own_id, block.height, of_data))


# To full nodes


class SilentLinks:
    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        return True


class UntrueLinks:
    """Beside each receipt of the given status sends another one, of a refusal, dated `later_ms` later: as the next one of
    its chain, or in the same place if `later_ms` is 0.
    """

    def __init__(self, links: ValidatorLinks, seed: bytes, status: Status, *, later_ms: int) -> None:
        self._links = links
        self._seed = seed
        self._status = status
        self._later_ms = later_ms

    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        packet = CombinedReceipt.decode(combined_receipt)
        bound = PacketStatement.decode(statement).links if statement else ()
        if not self._links.tell(full_node, combined_receipt, statement):
            return False
        for receipt, link in zip_longest(packet.receipts, bound):
            if self._is_lied_about(receipt.status):
                at_ms = receipt.timestamp_ms + self._later_ms
                lie = Receipt(receipt.message_id, Rejected(Level.QUEUE, LIE), at_ms, b"").sign(self._seed)
                said = () if link is None else (self._link_of(lie, link),)
                signed = PacketStatement(lie.source_id, said).sign(self._seed).encode() if said else b""
                self._links.tell(full_node, CombinedReceipt(lie.source_id, (lie,)).encode(), signed)
        return True

    def _link_of(self, lie: Receipt, true: StatementLink) -> StatementLink:
        if self._later_ms:
            return StatementLink(*true.chain, true.number + 1, true.receipt, lie.hash)
        return msgspec.structs.replace(true, receipt=lie.hash)

    def _is_lied_about(self, status: MessageStatus) -> bool:
        is_included = status.level is Level.SHARDCHAIN
        return status.status is self._status and (is_included or self._status is Status.NEW)
