"""Chains of a validator's own receipts: each receipt has one place, and no place contradicts the one before."""

from __future__ import annotations

import pytest

from rigs.remp_world import public_key_of, seed_of
from stagepost.errors import TlDecodeError
from stagepost.ground.wire.tl import ZERO_INT256, key_id
from stagepost.remp.receipts.message_status import Accepted, Ignored, MessageStatus, New, Timeout
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.statements import (
    LINK_HEADER_CHARACTERS_MAX,
    LINKS_SENT_MAX,
    PacketStatement,
    PlacedLink,
    read_link_header,
    sealed_parts,
)
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from stagepost.validator import receipt_chains
from stagepost.validator.receipt_chains import LINKS_KEPT, ReceiptChains

FIRST, SECOND = bytes([1]) * 32, bytes([2]) * 32
ONE, OTHER = ExternalMessageId(b"m" * 32), ExternalMessageId(b"o" * 32)
BLOCK = BlockId(seqno=7)
SOURCE = key_id(public_key_of(1))


def receipt(at_ms: int, status: MessageStatus | None = None, message_id: ExternalMessageId = ONE) -> Receipt:
    return Receipt(message_id, status or New(), at_ms, SOURCE).with_signature(bytes(64))


def begun(*sessions: bytes) -> ReceiptChains:
    chains = ReceiptChains()
    for number, one in enumerate(sessions):
        chains.session_began(one, 10 + number)
    return chains


def test_each_receipt_stands_behind_the_one_before_it() -> None:
    chains = begun(FIRST)
    one, two = receipt(1), receipt(2, Accepted(Level.SHARDCHAIN, BLOCK))
    first, second = chains.append(FIRST, one), chains.append(FIRST, two)
    assert (first.number, first.before, first.receipt) == (1, ZERO_INT256, one.hash)
    assert second.is_next_after(first)
    assert chains.newest(FIRST, ONE) == second
    assert (chains.link_of(one), chains.link_of(two)) == (first, second)
    assert chains.newest(SECOND, ONE) is None
    assert chains.append(FIRST, receipt(1, message_id=OTHER)).number == 1


def test_a_chain_goes_over_to_a_later_session_and_never_back() -> None:
    chains = begun(FIRST, SECOND)
    assert chains.session_for(ONE, FIRST) == FIRST
    chains.append(FIRST, receipt(1))
    assert chains.session_for(ONE, SECOND) == SECOND
    assert chains.append(SECOND, receipt(2, Ignored(Level.QUEUE))).number == 1
    assert chains.session_for(ONE, FIRST) == SECOND, (
        "what the older session says late stands in the newer chain"
    )
    chains.session_ended(FIRST)
    assert chains.session_for(ONE, FIRST) == SECOND
    assert chains.session_for(OTHER, FIRST) == FIRST


def test_what_may_not_follow_has_no_place() -> None:
    chains = begun(FIRST)
    assert chains.may_follow(FIRST, ONE, receipt(1, Timeout()).kind)
    chains.append(FIRST, receipt(1, Timeout()))
    assert not chains.may_follow(FIRST, ONE, receipt(2, New()).kind)
    assert not chains.may_follow(SECOND, ONE, receipt(2, New()).kind), "a closed message stays closed"
    assert chains.may_follow(FIRST, OTHER, receipt(2, New()).kind)
    chains.append(FIRST, receipt(1, Accepted(Level.SHARDCHAIN), message_id=OTHER))
    assert not chains.may_follow(FIRST, OTHER, receipt(2, New()).kind)
    assert chains.may_follow(SECOND, OTHER, receipt(2, New()).kind), (
        "the sender may not know that it is final"
    )


def test_links_at_hand_are_so_many_and_the_number_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt_chains, "MESSAGES_LINKED_MAX", 1)
    chains = begun(FIRST)
    said = [receipt(number) for number in range(1, LINKS_KEPT + 2)]
    for one in said:
        chains.append(FIRST, one)
    assert [chains.link_of(one) is None for one in said[:2]] == [True, False]
    chains.append(FIRST, receipt(1, message_id=OTHER))
    assert chains.link_of(said[-1]) is None
    assert chains.last_date_ms(ONE) == LINKS_KEPT + 1
    assert chains.append(FIRST, receipt(99)).number == LINKS_KEPT + 2


def test_a_statement_binds_what_it_can_and_parts_follow_in_order() -> None:
    chains = begun(FIRST)
    many = [receipt(number) for number in range(1, LINKS_SENT_MAX + 2)]
    links = [chains.append(FIRST, one) for one in many]
    by_hash = {one.hash: link for one, link in zip(many, links, strict=True)}

    def parts_of(*receipts: Receipt) -> list[tuple[int, int]]:
        parts = list(sealed_parts(receipts, lambda one: by_hash.get(one.hash)))
        assert [one for part, _ in parts for one in part] == list(receipts)
        for _, bound in parts:
            if bound:
                PacketStatement.decode(PacketStatement(SOURCE, bound).encode())
        return [(len(part), len(bound)) for part, bound in parts]

    unlinked = receipt(1_000)
    assert parts_of(*many) == [(LINKS_SENT_MAX, LINKS_SENT_MAX), (1, 1)]
    assert parts_of(many[0], unlinked, unlinked, many[1]) == [(1, 1), (2, 0), (1, 1)]
    assert parts_of(many[0], many[1], many[0], many[1]) == [(2, 2), (2, 2)], "a repeated lane"
    assert parts_of(many[0], many[2]) == [(1, 1), (1, 1)], "what lies between was lost"
    assert parts_of() == []


def test_the_header_names_statement_and_place_and_has_one_spelling() -> None:
    chains = begun(FIRST)
    links = tuple(chains.append(FIRST, receipt(number)) for number in range(1, LINKS_SENT_MAX + 1))
    statement = PacketStatement(SOURCE, links).sign(seed_of(1))
    for place in (0, LINKS_SENT_MAX - 1):
        text = PlacedLink(statement, place).to_header()
        assert len(text) <= LINK_HEADER_CHARACTERS_MAX
        found = read_link_header(text)
        assert (found.statement, found.link) == (statement, links[place])
    encoded = PlacedLink(statement, 0).to_header()[2:]
    for wrong in (
        "",
        encoded,
        f"-1:{encoded}",
        f"00:{encoded}",
        f"{LINKS_SENT_MAX}:{encoded}",
        f"{10**30}:{encoded}",
        f"0:{encoded}=",
        f"0: {encoded}",
        f"0:{encoded[4:]}",
        f"0:{'A' * LINK_HEADER_CHARACTERS_MAX}",
    ):
        with pytest.raises(TlDecodeError):
            read_link_header(wrong)
