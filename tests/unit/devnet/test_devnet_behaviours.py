"""Validators of a devnet that break the rules: each breaks the rule that it is named for, and no other."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from stagepost.catchain.block import (
    Block,
    Dependency,
    HashVersion,
    block_id,
    data_hash,
    decode_update,
)
from stagepost.chain.agreement.messages import decode_message
from stagepost.chain.agreement.votes import NO_BLOCK, Vote, VoteKind, faulty_max, signed_bytes
from stagepost.devnet.behaviours import Behaviour, EquivocatingOverlay, FaultyLayer
from stagepost.devnet.devnet import DevnetPlan
from stagepost.devnet.faults import LOSS, with_faults
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.wire.tl import key_id
from stagepost.remp.links.overlay import Answered
from stagepost.remp.links.switchboard import read_said, said
from stagepost.remp.receipts.chain_faults import ChainFault, LinkedReceipt, fault_between, why_unbound
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.statements import PacketStatement, StatementLink, placed_in
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId

SEED = bytes([1]) * 32
PUBLIC_KEY = ed25519.public_key(SEED)
SESSION = bytes([2]) * 32
FULL_NODE = bytes([3]) * 32


class Links:
    """An overlay and links to full nodes that note what goes out."""

    def __init__(self) -> None:
        self.pushed: list[tuple[int, bytes]] = []
        self.told: list[bytes] = []
        self.statements: list[bytes] = []

    def push(self, peer: int, frame: bytes) -> bool:
        self.pushed.append((peer, frame))
        return True

    def ask(self, peer: int, query: bytes, answered: Answered, timeout_s: float) -> None:
        self.pushed.append((peer, query))
        answered(b"answer")

    def refuse(self, peer: int, rule: str, text: str) -> None:
        pass

    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        self.told.append(combined_receipt)
        self.statements.append(statement)
        return True


def a_vote(kind: VoteKind, block: bytes, seed: bytes = SEED) -> Vote:
    return Vote(0, 5, kind, block, ed25519.sign(seed, signed_bytes(SESSION, 5, kind, block)))


def shown(vote: bytes) -> tuple[bytes, bytes]:
    """What members at even and at odd places get to see."""
    links = Links()
    overlay = EquivocatingOverlay(links, SEED)
    for peer in (0, 1):
        overlay.push(peer, said(SESSION, vote))
    (_, even), (_, odd) = links.pushed
    return even, odd


@pytest.mark.parametrize("kind", [VoteKind.NOTARISE, VoteKind.FINALISE, VoteKind.SKIP])
def test_an_equivocating_one_signs_two_votes_that_exclude_each_other(kind: VoteKind) -> None:
    vote = a_vote(kind, NO_BLOCK if kind is VoteKind.SKIP else bytes([9]) * 32)
    even, odd = shown(vote.encode())
    assert even == said(SESSION, vote.encode())
    session_id, frame = read_said(odd) or (b"", b"")
    other = decode_message(frame)
    assert isinstance(other, Vote)
    assert (session_id, other.slot, other.validator) == (SESSION, vote.slot, vote.validator)
    assert (other.kind, other.block) != (vote.kind, vote.block)
    signed = signed_bytes(SESSION, other.slot, other.kind, other.block)
    assert ed25519.verify(PUBLIC_KEY, signed, other.signature)


def test_what_others_signed_is_handed_on_as_it_is() -> None:
    even, odd = shown(a_vote(VoteKind.NOTARISE, bytes([9]) * 32, seed=bytes([8]) * 32).encode())
    assert even == odd


def test_an_equivocating_one_makes_two_blocks_of_the_queue_at_one_height() -> None:
    previous = Dependency(4, 0, SESSION)
    version = HashVersion.WITH_REFERENCES

    def signature_of(payload: bytes) -> bytes:
        of_data = data_hash(payload, previous, (), version)
        return ed25519.sign(SEED, block_id(SESSION, key_id(PUBLIC_KEY), 1, of_data))

    block = Block(SESSION, 0, 1, previous, (), signature_of(b"payload"), b"payload")
    _, odd = shown(block.encode())
    other = decode_update((read_said(odd) or (b"", b""))[1])
    assert (other.source, other.height, other.previous) == (block.source, block.height, block.previous)
    assert other.data_hash(version) != block.data_hash(version)
    assert other.signature == signature_of(other.payload)


def told(behaviour: Behaviour, status: MessageStatus) -> list[LinkedReceipt]:
    links = Links()
    receipt = Receipt(ExternalMessageId(bytes(32)), status, 1_000, b"").sign(SEED)
    link = StatementLink(SESSION, receipt.message_id, 1, bytes(32), receipt.hash)
    packet = CombinedReceipt(receipt.source_id, (receipt,)).encode()
    statement = PacketStatement(receipt.source_id, (link,)).sign(SEED).encode()
    assert FaultyLayer(SEED, Random(1), 0.0, behaviour).links(links).tell(FULL_NODE, packet, statement)
    found: list[LinkedReceipt] = []
    for data, bound in zip(links.told, links.statements, strict=True):
        receipts = CombinedReceipt.decode(data).receipts
        placed = placed_in(PacketStatement.decode(bound), receipts)
        found += map(LinkedReceipt, receipts, placed)
    assert [why_unbound(one, PUBLIC_KEY) for one in found] == [None] * len(found)
    assert all(one.receipt.is_signed_by(PUBLIC_KEY) for one in found)
    return found


def test_what_a_lying_one_and_an_equivocating_one_tell_proves_it_against_them() -> None:
    included = Accepted(Level.SHARDCHAIN, BlockId(seqno=7))
    assert fault_between(*told(Behaviour.LYING, included)) is ChainFault.CONTRADICTION
    assert len(told(Behaviour.LYING, New())) == 1
    assert fault_between(*told(Behaviour.EQUIVOCATING, New())) is ChainFault.EQUIVOCATION
    assert told(Behaviour.SILENT, New()) == []


def test_a_silent_one_says_and_answers_nothing() -> None:
    async def main() -> None:
        links, answers = Links(), list[bytes | None]()
        faulty = FaultyLayer(SEED, Random(1), 0.0, Behaviour.SILENT)
        overlay = faulty.overlay(links)
        assert overlay.push(1, b"frame")
        overlay.ask(1, b"query", answers.append, 2.0)
        assert answers == []
        await asyncio.sleep(2.1)
        assert (links.pushed, answers) == ([], [None])

    run_in_virtual_time(main())


def test_links_lose_as_much_as_they_are_told_to() -> None:
    links = Links()
    overlay = FaultyLayer(SEED, Random(1), 0.25).overlay(links)
    assert all(overlay.push(1, b"frame") for _ in range(1_000))
    assert 700 < len(links.pushed) < 800


@pytest.mark.parametrize("validators", [4, 7, 10, 13])
def test_fewer_than_a_third_break_the_rules_and_the_seed_says_who(validators: int) -> None:
    plan = with_faults(DevnetPlan(validators, seed=5))
    assert plan == with_faults(DevnetPlan(validators, seed=5))
    assert plan.loss == LOSS
    assert len(plan.behaviours) == faulty_max(validators)
    assert 3 * len(plan.behaviours) < validators
    assert set(plan.behaviours) <= set(plan.names[:-1])
    others = [with_faults(DevnetPlan(validators, seed=seed)).behaviours for seed in range(20)]
    assert {behaviour for one in others for behaviour in one.values()} == set(Behaviour)
