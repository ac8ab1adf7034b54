"""Complaints: two receipts in neighbouring places prove a broken promise to anybody, and a full node that lies convicts nobody."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from random import Random

import msgspec
import pytest

from stagepost.full_node.complaints import Complaint, ComplaintBook, fault_in
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import ZERO_INT256, key_id
from stagepost.remp.receipts.chain_faults import ChainFault, LinkedReceipt
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
from stagepost.remp.receipts.statements import PacketStatement, PlacedLink, StatementLink
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import Session, SetMember, ValidatorSets

FULL_NODE, ACCUSED, OTHER = (sha256(one).digest() for one in (b"full node", b"validator", b"another"))
MESSAGE, ELSE = ExternalMessageId(b"m" * 32), ExternalMessageId(b"e" * 32)
SESSION, NEXT = b"s" * 32, b"t" * 32
BLOCK = BlockId(0, 1 << 63, 5, b"r" * 32, b"f" * 32)
LIFE_MS = 1_000
NEW = New()
ACCEPTED = Accepted(Level.SHARDCHAIN, BLOCK)
INCLUDED = Accepted(Level.COLLATOR, BLOCK)
REJECTED = Rejected(Level.COLLATOR, "no", BLOCK)
HONEST: tuple[MessageStatus, ...] = (
    NEW,
    INCLUDED,
    Ignored(Level.SHARDCHAIN, BLOCK),
    NEW,
    Duplicate(BLOCK),
    ACCEPTED,
    Ignored(Level.MASTERCHAIN, BLOCK),
    NEW,
    Timeout(),
)


def the_sets() -> ValidatorSets:
    node = ed25519.public_key(FULL_NODE)
    keys = [ed25519.public_key(one) for one in (ACCUSED, OTHER)]
    members = tuple(SetMember(place, key, key_id(key)) for place, key in enumerate(keys))
    return ValidatorSets({key_id(node): node}, [Session(SESSION, 0, 1 << 63, 1, members)], LIFE_MS)


def chain(
    *statuses: MessageStatus,
    session: bytes = SESSION,
    message_id: ExternalMessageId = MESSAGE,
    seed: bytes = ACCUSED,
    first: int = 1,
) -> list[LinkedReceipt]:
    """Receipts that one validator signed one after the other, each bound by a statement of its own."""
    receipts = [
        Receipt(message_id, status, 10 * (first + at), b"").sign(seed) for at, status in enumerate(statuses)
    ]
    before = ZERO_INT256 if first == 1 else b"b" * 32
    hashes = [before, *(one.hash for one in receipts)]
    return [
        bound(receipt, StatementLink(session, message_id, first + at, *hashes[at : at + 2]), seed)
        for at, receipt in enumerate(receipts)
    ]


def bound(receipt: Receipt, link: StatementLink, seed: bytes = ACCUSED) -> LinkedReceipt:
    statement = PacketStatement(key_id(ed25519.public_key(seed)), (link,)).sign(seed)
    return LinkedReceipt(receipt, PlacedLink(statement, 0))


def complaints_of(shown: list[LinkedReceipt]) -> list[Complaint]:
    found: list[Complaint] = []
    book = ComplaintBook(FULL_NODE, LIFE_MS, found.append)
    for one in shown:
        book.heard(one.receipt, one.placed, one.receipt.timestamp_ms)
    return found


def accuse(kind: ChainFault, one: LinkedReceipt, other: LinkedReceipt, at_ms: int = 100) -> Complaint:
    """Make the complaint that a full node may make of whatever it holds."""
    pair = (one, other)
    evidence = tuple(linked.receipt.to_json() for linked in pair)
    links = tuple(linked.placed.to_header() for linked in pair)
    accused, message_id = one.receipt.source_id, one.receipt.message_id
    return Complaint(kind, message_id, accused, at_ms, b"", evidence, links).sign(FULL_NODE)


def twice_first() -> list[LinkedReceipt]:
    return [*chain(NEW), *chain(REJECTED)]


def other_before() -> list[LinkedReceipt]:
    one, two = chain(NEW, ACCEPTED)
    return [one, bound(two.receipt, msgspec.structs.replace(two.link, before=b"x" * 32))]


@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        (chain(NEW, ACCEPTED, REJECTED), ChainFault.CONTRADICTION),
        (chain(NEW, REJECTED, INCLUDED), ChainFault.CONTRADICTION),
        (chain(NEW, Timeout(), NEW), ChainFault.CONTRADICTION),
        (chain(NEW, ACCEPTED, REJECTED, first=7), ChainFault.CONTRADICTION),
        (twice_first(), ChainFault.EQUIVOCATION),
        (other_before(), ChainFault.EQUIVOCATION),
    ],
    ids=[
        "accepted, rejected",
        "rejected, included",
        "closed, opened",
        "in the middle",
        "two first",
        "two before",
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_broken_promise_is_complained_of_once_and_anybody_can_see_it(
    shown: list[LinkedReceipt], kind: ChainFault, seed: int
) -> None:
    """Whatever the order in which the receipts come, and however often."""
    given = [*shown, *shown]
    Random(seed).shuffle(given)
    (complaint,) = complaints_of(given)
    assert complaint.kind is kind
    assert fault_in(complaint, the_sets()) is None
    told = json.loads(complaint.to_json())
    assert (told["kind"], told["message_id"], len(told["evidence"]), len(told["links"])) == (
        kind,
        MESSAGE.hex(),
        2,
        2,
    )


def test_an_honest_validator_is_not_accused_whatever_is_left_out() -> None:
    honest = [*chain(*HONEST), *chain(Ignored(Level.QUEUE), NEW, ACCEPTED, session=NEXT)]
    for kept in range(1 << len(honest)):
        assert complaints_of([one for at, one in enumerate(honest) if kept >> at & 1]) == []


def spanned(shown: list[LinkedReceipt], seed: bytes = ACCUSED) -> list[LinkedReceipt]:
    """Bind receipts in neighbouring places by one statement that spans all of them."""
    links = tuple(one.link for one in shown)
    statement = PacketStatement(key_id(ed25519.public_key(seed)), links).sign(seed)
    return [LinkedReceipt(one.receipt, PlacedLink(statement, at)) for at, one in enumerate(shown)]


def overlapping(said: list[LinkedReceipt], size: int) -> list[LinkedReceipt]:
    """Bind every `size` neighbouring receipts by a statement, as an honest validator does that sends them again."""
    return [one for at in range(len(said) - size + 1) for one in spanned(said[at : at + size])]


@pytest.mark.parametrize("seed", range(5))
def test_overlapping_statements_of_an_honest_validator_accuse_nobody(seed: int) -> None:
    honest = chain(*HONEST)
    given = [one for size in range(1, len(honest) + 1) for one in overlapping(honest, size)]
    Random(seed).shuffle(given)
    assert complaints_of(given) == []
    assert complaints_of(given[: seed * 20 + 5]) == []


@pytest.mark.parametrize("place", range(1, 5))
@pytest.mark.parametrize("size", [2, 3])
def test_overlapping_statements_that_differ_convict_although_each_is_sound(place: int, size: int) -> None:
    """The statements of either side are sound by themselves; only together they show two receipts in one place."""
    one = chain(*HONEST)
    other = chain(*HONEST[:place], Timeout(), *HONEST[place + 1 :])
    hidden = [one[at] if at < place else other[at] for at in range(len(one))]
    halves = overlapping(one[: place + 2], size) + overlapping(hidden[place - 1 :], size)
    assert complaints_of(overlapping(one[: place + 2], size)) == []
    complaints = complaints_of(halves)
    assert ChainFault.EQUIVOCATION in {complaint.kind for complaint in complaints}
    assert all(fault_in(complaint, the_sets()) is None for complaint in complaints)


def test_receipts_without_links_prove_nothing() -> None:
    found: list[Complaint] = []
    book = ComplaintBook(FULL_NODE, LIFE_MS, found.append)
    for one in chain(NEW, ACCEPTED, REJECTED):
        book.heard(one.receipt, None, 10)
    assert found == []


def test_a_message_is_forgotten_a_life_after_its_last_receipt() -> None:
    one, two = chain(NEW, NEW)[0], chain(REJECTED)[0]
    for now_ms, count in ((10 + LIFE_MS, 1), (11 + LIFE_MS, 0)):
        found: list[Complaint] = []
        book = ComplaintBook(FULL_NODE, LIFE_MS, found.append)
        book.heard(one.receipt, one.placed, 10)
        book.tick(now_ms)
        book.heard(two.receipt, two.placed, now_ms)
        assert len(found) == count


# What a full node that lies about an honest validator may try. Each lie is refused.


def refused(complaint: Complaint) -> str:
    reason = fault_in(complaint, the_sets())
    assert reason is not None, "an honest validator is convicted"
    return reason


@pytest.mark.parametrize("kind", list(ChainFault))
def test_omitting_what_lies_between_convicts_nobody(kind: ChainFault) -> None:
    honest = chain(*HONEST)
    for before, after in ((honest[0], honest[3]), (honest[5], honest[7]), (honest[1], honest[8])):
        assert "show no" in refused(accuse(kind, before, after))


@pytest.mark.parametrize("kind", list(ChainFault))
def test_cutting_off_the_end_convicts_nobody(kind: ChainFault) -> None:
    """A validator that has closed the message looks as if it had never closed it."""
    first, second = chain(NEW, INCLUDED, ACCEPTED)[:2]
    assert "show no" in refused(accuse(kind, first, second, at_ms=1 << 40))
    alone = msgspec.structs.replace(
        accuse(kind, first, first), evidence=(first.receipt.to_json(),), links=(first.placed.to_header(),)
    )
    assert "does not show two receipts" in refused(alone.sign(FULL_NODE))


@pytest.mark.parametrize("kind", list(ChainFault))
@pytest.mark.parametrize("at_ms", [0, 10, 1 << 40])
def test_a_wrong_date_of_the_complaint_convicts_nobody(kind: ChainFault, at_ms: int) -> None:
    for before, after in pairwise(chain(*HONEST)):
        assert "show no" in refused(accuse(kind, before, after, at_ms))


def test_a_wrong_date_of_a_receipt_convicts_nobody() -> None:
    before, after = chain(NEW, ACCEPTED)
    redated = msgspec.structs.replace(after.receipt, timestamp_ms=5)
    assert "does not count" in refused(
        accuse(ChainFault.CONTRADICTION, before, LinkedReceipt(redated, after.placed))
    )


@pytest.mark.parametrize("kind", list(ChainFault))
def test_replayed_statements_convict_nobody(kind: ChainFault) -> None:
    """One receipt twice, and one receipt under two statements: the validator told it to two full nodes."""
    first, second = chain(NEW, ACCEPTED)
    together = PacketStatement(first.receipt.source_id, (first.link, second.link)).sign(ACCUSED)
    again = LinkedReceipt(first.receipt, PlacedLink(together, 0))
    for other in (first, again):
        assert "show no" in refused(accuse(kind, first, other))


@pytest.mark.parametrize("kind", list(ChainFault))
def test_a_statement_of_another_session_convicts_nobody(kind: ChainFault) -> None:
    last = chain(NEW, ACCEPTED)[1]
    for following in chain(NEW, INCLUDED, NEW, session=NEXT):
        assert "show no" in refused(accuse(kind, last, following))


@pytest.mark.parametrize("kind", list(ChainFault))
def test_a_statement_of_another_message_convicts_nobody(kind: ChainFault) -> None:
    one, other = chain(NEW, ACCEPTED), chain(NEW, REJECTED, message_id=ELSE)
    assert "another message" in refused(accuse(kind, one[1], other[1]))
    moved = LinkedReceipt(one[1].receipt, other[1].placed)
    assert "of another message than the receipt" in refused(accuse(kind, one[0], moved))


@pytest.mark.parametrize("kind", list(ChainFault))
def test_a_link_of_another_receipt_convicts_nobody(kind: ChainFault) -> None:
    first, second, third = chain(NEW, ACCEPTED, Ignored(Level.MASTERCHAIN, BLOCK))
    assert "of another receipt" in refused(accuse(kind, first, LinkedReceipt(third.receipt, second.placed)))


@pytest.mark.parametrize("kind", list(ChainFault))
def test_what_others_signed_convicts_nobody(kind: ChainFault) -> None:
    first, second = chain(NEW, ACCEPTED)
    others = chain(NEW, REJECTED, seed=OTHER)
    assert "another source" in refused(accuse(kind, first, others[1]))
    assert "another source than the receipt" in refused(
        accuse(kind, first, LinkedReceipt(second.receipt, others[1].placed))
    )
    forged = PacketStatement(second.receipt.source_id, (second.link,)).sign(OTHER)
    assert "signature of the statement" in refused(
        accuse(kind, first, LinkedReceipt(second.receipt, PlacedLink(forged, 0)))
    )


Spoil = Callable[[Complaint], Complaint]
SPOILT: list[tuple[str, Spoil]] = [
    ("its signature", lambda good: msgspec.structs.replace(good, timestamp_ms=99_999)),
    ("no full node", lambda good: msgspec.structs.replace(good, accuser=b"x" * 32)),
    ("show no equivocation", lambda good: resigned(good, kind=ChainFault.EQUIVOCATION)),
    ("another message", lambda good: resigned(good, message_id=ELSE)),
    ("cannot be read", lambda good: resigned(good, links=("", ""))),
    ("cannot be read", lambda good: resigned(good, evidence=("{}", "{}"))),
    ("does not show two", lambda good: resigned(good, links=good.links[:1])),
]


def resigned(complaint: Complaint, **fields: object) -> Complaint:
    return msgspec.structs.replace(complaint, **fields).sign(FULL_NODE)


@pytest.mark.parametrize(("reason", "spoil"), SPOILT)
def test_a_complaint_that_does_not_hold_is_refused_with_the_reason(reason: str, spoil: Spoil) -> None:
    (good,) = complaints_of(chain(NEW, ACCEPTED, REJECTED))
    assert reason in refused(spoil(good))
