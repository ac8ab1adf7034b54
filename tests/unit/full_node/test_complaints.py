"""Complaints: which promises they are about, that anybody can check them, and that nobody honest is accused."""

from __future__ import annotations

import json
from hashlib import sha256

import msgspec
import pytest

from stagepost.full_node.complaints import Complaint, ComplaintBook, ComplaintKind, fault_in
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import key_id
from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    Timeout,
)
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import Session, SetMember, ValidatorSets

FULL_NODE, ACCUSED = sha256(b"full node").digest(), sha256(b"validator").digest()
MESSAGE = ExternalMessageId(b"m" * 32)
BLOCK = BlockId(0, 1 << 63, 5, b"r" * 32, b"f" * 32)
LIFE_MS = 1_000
NEW = New()
ACCEPTED = Accepted(Level.SHARDCHAIN, BLOCK)
INCLUDED = Accepted(Level.COLLATOR, BLOCK)
REJECTED = Rejected(Level.COLLATOR, "no", BLOCK)


def the_sets() -> ValidatorSets:
    node, accused = ed25519.public_key(FULL_NODE), ed25519.public_key(ACCUSED)
    member = SetMember(0, accused, key_id(accused))
    session = Session(b"s" * 32, 0, 1 << 63, 1, (member,))
    return ValidatorSets({key_id(node): node}, [session], LIFE_MS)


def said(*statuses: tuple[int, MessageStatus]) -> list[Receipt]:
    return [Receipt(MESSAGE, status, at_ms, b"").sign(ACCUSED) for at_ms, status in statuses]


def complaints_of(receipts: list[Receipt], now_ms: int) -> list[Complaint]:
    found: list[Complaint] = []
    book = ComplaintBook(FULL_NODE, LIFE_MS, found.append)
    for receipt in receipts:
        book.heard(receipt, receipt.timestamp_ms)
    book.tick(now_ms)
    return found


@pytest.mark.parametrize(
    ("receipts", "kind"),
    [
        (said((10, NEW), (20, ACCEPTED), (30, REJECTED)), ComplaintKind.CONTRADICTION),
        (said((10, NEW), (20, REJECTED), (30, INCLUDED)), ComplaintKind.CONTRADICTION),
        (said((10, NEW), (20, ACCEPTED), (20, Timeout())), ComplaintKind.EQUIVOCATION),
        (said((10, NEW)), ComplaintKind.UNANSWERED),
        (said((10, NEW), (20, Duplicate(BLOCK))), ComplaintKind.UNANSWERED),
    ],
    ids=[
        "accepted, then rejected",
        "rejected, then included",
        "two at once",
        "never closed",
        "never settled",
    ],
)
def test_a_broken_promise_is_complained_of_once_and_anybody_can_see_it(
    receipts: list[Receipt], kind: ComplaintKind
) -> None:
    (complaint,) = complaints_of([*receipts, *receipts], receipts[-1].timestamp_ms + LIFE_MS + 1)
    assert complaint.kind is kind
    assert fault_in(complaint, the_sets()) is None
    shown = json.loads(complaint.to_json())
    assert (shown["kind"], shown["message_id"]) == (kind, MESSAGE.hex())


@pytest.mark.parametrize(
    "statuses",
    [
        [(10, NEW), (20, INCLUDED), (30, ACCEPTED)],
        [(10, NEW), (20, REJECTED), (30, ACCEPTED)],  # another has collated it, after it was funded
        [(10, NEW), (20, Ignored(Level.COLLATOR, BLOCK)), (30, NEW), (40, Timeout())],
        [(10, NEW), (20, ACCEPTED), (30, NEW), (40, ACCEPTED)],  # a crash made it forget
    ],
)
def test_an_honest_validator_is_not_accused(statuses: list[tuple[int, MessageStatus]]) -> None:
    assert complaints_of(said(*statuses), 10_000) == []


def test_the_life_of_a_message_is_waited_out() -> None:
    assert complaints_of(said((10, NEW)), 10 + LIFE_MS) == []


def test_a_final_message_is_nobodys_fault() -> None:
    found: list[Complaint] = []
    book = ComplaintBook(FULL_NODE, LIFE_MS, found.append)
    book.heard(said((10, NEW))[0], 10)
    book.finalized(MESSAGE)
    book.tick(10_000)
    assert found == []


def test_a_receipt_that_comes_after_the_end_owes_no_other_and_still_shows_contradictions() -> None:
    found: list[Complaint] = []
    book = ComplaintBook(FULL_NODE, LIFE_MS, found.append)
    book.finalized(MESSAGE)
    for receipt in said((10, NEW), (20, ACCEPTED), (30, REJECTED), (40, NEW)):
        book.heard(receipt, 10_000, is_final=True)
    book.tick(20_000)
    assert [one.kind for one in found] == [ComplaintKind.CONTRADICTION]


def test_a_complaint_that_does_not_hold_is_refused_with_the_reason() -> None:
    (good,) = complaints_of(said((10, NEW)), 10 + LIFE_MS + 1)
    replace, sets = msgspec.structs.replace, the_sets()
    assert "signature" in str(fault_in(replace(good, timestamp_ms=99_999), sets))
    stranger = replace(good, accuser=b"x" * 32)
    assert "no full node" in str(fault_in(stranger, sets))
    early = replace(good, timestamp_ms=20).sign(FULL_NODE)
    assert "show no unanswered" in str(fault_in(early, sets))
    other = replace(good, message_id=b"o" * 32).sign(FULL_NODE)
    assert "another message" in str(fault_in(other, sets))
    forged = said((10, NEW))[0].with_signature(bytes(64)).to_json()
    assert "does not count" in str(fault_in(replace(good, evidence=(forged,)).sign(FULL_NODE), sets))
