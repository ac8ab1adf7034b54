"""Statements that bind receipts: what is signed, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec
import pytest

from rigs.remp_world import public_key_of, seed_of
from stagepost.errors import DecodeError
from stagepost.ground.wire.tl import key_id
from stagepost.remp.receipts.statements import LINKS_MAX, PacketStatement, StatementLink

SESSION, MESSAGE, OTHER, ZERO = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32, bytes(32)
SOURCE = key_id(public_key_of(1))


def receipt(number: int) -> bytes:
    return sha256(b"receipt %d" % number).digest() if number else ZERO


def chain(first: int, last: int, message_id: bytes = MESSAGE) -> list[StatementLink]:
    return [
        StatementLink(SESSION, message_id, number, receipt(number - 1), receipt(number))
        for number in range(first, last + 1)
    ]


def again(links: Sequence[StatementLink]) -> PacketStatement:
    return PacketStatement.decode(PacketStatement(SOURCE, tuple(links)).encode())


def test_one_signature_covers_source_and_every_link() -> None:
    links = (*chain(3, 5), *chain(1, 2, OTHER))
    signed = PacketStatement(SOURCE, links).sign(seed_of(1))

    assert PacketStatement.decode(signed.encode()) == signed
    assert signed.is_signed_by(public_key_of(1))
    assert not signed.is_signed_by(public_key_of(2))
    assert (
        not PacketStatement(key_id(public_key_of(2)), links).sign(seed_of(1)).is_signed_by(public_key_of(1))
    )
    for changed in (links[:-1], links[1:], (*links, *chain(6, 6))):
        assert not msgspec.structs.replace(signed, links=changed).is_signed_by(public_key_of(1))


def test_chains_may_be_mixed_in_a_packet_and_begin_anywhere() -> None:
    left, right = chain(7, 8), chain(1, 2, OTHER)
    mixed = left[0], right[0], right[1], left[1]
    assert again(mixed).links == mixed


@pytest.mark.parametrize(
    "links",
    [
        [],
        chain(1, 1) + chain(3, 3),
        chain(1, 2) + chain(2, 2),
        chain(2, 2) + chain(1, 1),
        [*chain(1, 1), msgspec.structs.replace(chain(2, 2)[0], before=receipt(9))],
        [StatementLink(SESSION, MESSAGE, 0, ZERO, ZERO)],
    ],
    ids=["none", "gap", "twice", "backwards", "other receipt before", "empty chain"],
)
def test_a_statement_whose_links_do_not_follow_is_refused(links: list[StatementLink]) -> None:
    with pytest.raises(DecodeError):
        again(links)


@pytest.mark.parametrize(
    ("number", "before", "said"),
    [
        (0, ZERO, OTHER),
        (0, OTHER, ZERO),
        (1, OTHER, OTHER),
        (1, ZERO, ZERO),
        (2, ZERO, OTHER),
        (2, OTHER, ZERO),
    ],
)
def test_a_link_whose_number_and_hashes_differ_is_refused(number: int, before: bytes, said: bytes) -> None:
    with pytest.raises(DecodeError, match="not a valid link"):
        again([StatementLink(SESSION, MESSAGE, number, before, said)])


def test_a_statement_holds_as_many_links_as_a_packet_has_receipts() -> None:
    assert len(again(chain(1, LINKS_MAX)).links) == LINKS_MAX
    with pytest.raises(DecodeError):
        again(chain(1, LINKS_MAX + 1))


def test_a_statement_is_never_read_with_a_byte_more_or_less() -> None:
    data = PacketStatement(SOURCE, tuple(chain(1, 2))).encode()
    for cut in range(len(data)):
        with pytest.raises(DecodeError):
            PacketStatement.decode(data[:cut])
    with pytest.raises(DecodeError):
        PacketStatement.decode(data + bytes(4))
