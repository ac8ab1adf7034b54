"""Statements by which a validator binds its receipts to one another, and the links that they hold.

A receipt chain is what one validator says of one message in one session. Each link names the receipt and the one
before it, so a receipt cannot be left out unseen. One signature covers all links of a packet.

A full node to which a validator says nothing more asks other validators to challenge it (`AskedChallenge`), and hears of
the outcome from them (`ChallengeOutcome`).
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from stagepost.errors import ErrorCode, TlDecodeError
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import (
    CONSTRUCTOR_BYTES,
    ZERO_INT256,
    Reader,
    Writer,
    constructor_bytes,
    constructor_id,
    key_id,
)
from stagepost.remp.receipts.compact import RECEIPTS_MAX
from stagepost.remp.receipts.receipt import Receipt

LINKS_MAX = RECEIPTS_MAX
"""Links, at most, in one statement: as many as a packet has receipts."""

LINKS_SENT_MAX = 16
"""Links, at most, in a statement that is sent or taken: each receipt on the topic carries the whole statement, and the
headers of a record have 4,096 bytes in all.
"""

LINK_HEADER = "link"
"""Header of a record on the topic of statuses."""

LINK_HEADER_CHARACTERS_MAX = 3_072
"""Characters of the header, at most: a statement of `LINKS_SENT_MAX` links in base64, with the place before it."""

LINK_BYTES = 132

STATEMENT_ID = constructor_id(
    "stagepost.remp.statement source:int256 links:(vector stagepost.remp.link) = stagepost.remp.Statement"
)
SIGNED_STATEMENT_ID = constructor_id(
    "stagepost.remp.signedStatement source:int256 links:(vector stagepost.remp.link) signature:int512 "
    "= stagepost.remp.SignedStatement"
)
ASK_CHALLENGE_ID = constructor_id(
    "stagepost.remp.askChallenge accused:int256 last:stagepost.remp.link = stagepost.remp.AskChallenge"
)
OUTCOME_ID = constructor_id(
    "stagepost.remp.challengeOutcome accused:int256 session:int256 message:int256 block:bytes "
    "= stagepost.remp.ChallengeOutcome"
)

OUTCOME_BLOCK_BYTES_MAX = 16 * 1024
"""Bytes of the block in an outcome, at most: those of a whole block of a catchain."""


class StatementLink(msgspec.Struct, frozen=True):
    """Place of a receipt in its chain. `number` counts from 1; `before` and `receipt` are the SHA-256 of the
    signed bytes of the receipt before it, zero for none, and of the receipt itself. Number 0 stands for an empty chain.
    """

    session_id: bytes
    message_id: bytes
    number: int
    before: bytes
    receipt: bytes

    def write(self, writer: Writer) -> None:
        writer.write_int256(self.session_id)
        writer.write_int256(self.message_id)
        writer.write_unsigned_int(self.number)
        writer.write_int256(self.before)
        writer.write_int256(self.receipt)

    @property
    def chain(self) -> tuple[bytes, bytes]:
        return self.session_id, self.message_id

    def is_next_after(self, other: StatementLink) -> bool:
        """Return whether this link of the same chain follows `other` directly."""
        return self.number == other.number + 1 and self.before == other.receipt


def empty_chain(session_id: bytes, message_id: bytes) -> StatementLink:
    """Return the link that stands for a chain without receipts."""
    return StatementLink(session_id, message_id, 0, ZERO_INT256, ZERO_INT256)


def read_link(reader: Reader) -> StatementLink:
    """Read a link; `TlDecodeError` if its number and its hashes do not fit together."""
    offset = reader.offset
    session_id, message_id = reader.read_int256(), reader.read_int256()
    number, before, receipt = reader.read_unsigned_int(), reader.read_int256(), reader.read_int256()
    if (receipt == ZERO_INT256) != (number == 0) or (before == ZERO_INT256) != (number <= 1):
        raise TlDecodeError(
            f"link {number} at offset {offset} is not a valid link: the first one has no receipt before it, every "
            "later one has, and an empty chain has none",
            offset=offset,
            found=number,
        )
    return StatementLink(session_id, message_id, number, before, receipt)


class PacketStatement(msgspec.Struct, frozen=True):
    """The links of all receipts in one packet of the validator `source_id`, in the packet's order."""

    source_id: bytes
    links: tuple[StatementLink, ...]
    signature: bytes = bytes(ed25519.SIGNATURE_BYTES)

    @property
    def signed_bytes(self) -> bytes:
        writer = Writer()
        writer.write_constructor(STATEMENT_ID)
        self._write(writer)
        return writer.written()

    def sign(self, seed: bytes) -> PacketStatement:
        return msgspec.structs.replace(self, signature=ed25519.sign(seed, self.signed_bytes))

    def is_signed_by(self, public_key: bytes) -> bool:
        return self.source_id == key_id(public_key) and ed25519.verify(
            public_key, self.signed_bytes, self.signature
        )

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(SIGNED_STATEMENT_ID)
        self._write(writer)
        writer.write_int512(self.signature)
        return writer.written()

    def _write(self, writer: Writer) -> None:
        writer.write_int256(self.source_id)
        writer.write_vector_count(len(self.links))
        for link in self.links:
            link.write(writer)

    @classmethod
    def decode(cls, data: bytes) -> PacketStatement:
        """Decode a statement; `TlDecodeError` unless its links form chains without gaps. The signature is not checked."""
        reader = Reader(data)
        reader.read_constructor(SIGNED_STATEMENT_ID)
        source_id = reader.read_int256()
        count = reader.read_vector_count(LINKS_MAX, LINK_BYTES)
        links = tuple(read_link(reader) for _ in range(count))
        signature = reader.read_int512()
        reader.expect_end()
        _refuse_gaps(links)
        return cls(source_id, links, signature)


def _refuse_gaps(links: tuple[StatementLink, ...]) -> None:
    if not links:
        raise TlDecodeError("a statement without links is not a valid statement: it binds nothing", offset=0)
    newest: dict[tuple[bytes, bytes], StatementLink] = {}
    for place, link in enumerate(links):
        before = newest.get(link.chain)
        if link.number == 0 or (before is not None and not link.is_next_after(before)):
            raise TlDecodeError(
                f"link {place} of a statement is number {link.number} of its chain, and does not follow the one before",
                offset=0,
                found=link.number,
            )
        newest[link.chain] = link


class PlacedLink(NamedTuple):
    """A link with the statement that holds it, at `place` counted from 0."""

    statement: PacketStatement
    place: int
    is_early: bool = False
    """True where the statement came before its session, so that nobody has checked its signature yet."""

    @property
    def link(self) -> StatementLink:
        return self.statement.links[self.place]

    def to_header(self) -> str:
        """Return the form on the topic: place, colon, and the statement in base64."""
        return f"{self.place}:{b64encode(self.statement.encode()).decode('ascii')}"


def read_link_header(text: str) -> PlacedLink:
    """Read the header `link` of a record; `TlDecodeError` if it is not one. The signature is not checked."""
    place, colon, encoded = text.partition(":")
    if len(text) > LINK_HEADER_CHARACTERS_MAX or not colon or not (place.isascii() and place.isdecimal()):
        raise TlDecodeError("the header of a link is a place, a colon and a statement in base64", offset=0)
    try:
        statement = PacketStatement.decode(b64decode(encoded, validate=True))
    except (Base64Error, ValueError):
        raise TlDecodeError("the statement in the header of a link is not valid base64", offset=0) from None
    placed = PlacedLink(statement, int(place[:10]))
    if placed.place >= len(statement.links) or placed.to_header() != text:
        raise TlDecodeError(
            f"the header names link {place[:10]} of a statement with {len(statement.links)}, or spells it otherwise",
            offset=0,
        )
    return placed


def sealed_parts(
    receipts: Sequence[Receipt], link_of: Callable[[Receipt], StatementLink | None]
) -> Iterator[tuple[tuple[Receipt, ...], tuple[StatementLink, ...]]]:
    """Cut the receipts of a packet into parts that one statement binds each; receipts without links stand in parts of
    their own, without any.
    """
    part: list[Receipt] = []
    links: list[StatementLink] = []
    newest: dict[tuple[bytes, bytes], StatementLink] = {}
    for receipt in receipts:
        link = link_of(receipt)
        before = None if link is None else newest.get(link.chain)
        does_not_follow = link is not None and before is not None and not link.is_next_after(before)
        is_full = len(links) >= LINKS_SENT_MAX
        if part and (is_full or does_not_follow or (link is None) == bool(links)):
            yield tuple(part), tuple(links)
            part, links, newest = [], [], {}
        part.append(receipt)
        if link is not None:
            links.append(link)
            newest[link.chain] = link
    if part:
        yield tuple(part), tuple(links)


def placed_in(statement: PacketStatement, receipts: Sequence[Receipt]) -> list[PlacedLink]:
    """Return the link of each of the `receipts` that came with `statement`; `TlDecodeError` names a statement that does
    not fit them.
    """
    if len(statement.links) > LINKS_SENT_MAX:
        raise _misfit(f"a statement has {len(statement.links)} links; at most {LINKS_SENT_MAX} are taken")
    if len(receipts) != len(statement.links):
        raise _misfit(f"a statement of {len(statement.links)} links came with {len(receipts)} receipts")
    for place, (receipt, link) in enumerate(zip(receipts, statement.links, strict=True)):
        if link.message_id != receipt.message_id or link.receipt != receipt.hash:
            raise _misfit(f"link {place} of a statement is not that of receipt {place} of the packet")
    return [PlacedLink(statement, place) for place in range(len(receipts))]


def _misfit(text: str) -> TlDecodeError:
    return TlDecodeError(text, code=ErrorCode.RECEIPT_FORMAT, offset=0)


class AskedChallenge(msgspec.Struct, frozen=True):
    """Request of a full node to a validator: challenge the member with key id `accused`, of whose chain `last` is the last
    link that the full node knows.
    """

    accused: bytes
    last: StatementLink

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(ASK_CHALLENGE_ID)
        writer.write_int256(self.accused)
        self.last.write(writer)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> AskedChallenge:
        reader = Reader(data)
        reader.read_constructor(ASK_CHALLENGE_ID)
        asked = cls(reader.read_int256(), read_link(reader))
        reader.expect_end()
        return asked


class ChallengeOutcome(msgspec.Struct, frozen=True):
    """Outcome of a challenge that a full node has asked for. `block` is the block of the accused that holds its answer,
    as it travels among the members, so its signature vouches for the answer; empty if the validator that tells this has
    blamed the accused.
    """

    accused: bytes
    session_id: bytes
    message_id: bytes
    block: bytes = b""

    def encode(self) -> bytes:
        writer = Writer()
        writer.write_constructor(OUTCOME_ID)
        for one in (self.accused, self.session_id, self.message_id):
            writer.write_int256(one)
        writer.write_bytes(self.block)
        return writer.written()

    @classmethod
    def decode(cls, data: bytes) -> ChallengeOutcome:
        reader = Reader(data)
        reader.read_constructor(OUTCOME_ID)
        ids = reader.read_int256(), reader.read_int256(), reader.read_int256()
        outcome = cls(*ids, reader.read_bytes(OUTCOME_BLOCK_BYTES_MAX, "block"))
        reader.expect_end()
        return outcome


_ASK, _OUTCOME, _STATEMENT = (
    constructor_bytes(one) for one in (ASK_CHALLENGE_ID, OUTCOME_ID, SIGNED_STATEMENT_ID)
)


def is_statement(data: bytes) -> bool:
    """Return whether the object that a validator sent is a statement, and not a packet of receipts."""
    return data[:CONSTRUCTOR_BYTES] == _STATEMENT


def is_outcome(data: bytes) -> bool:
    """Return whether the object that a validator sent is the outcome of a challenge."""
    return data[:CONSTRUCTOR_BYTES] == _OUTCOME


def is_asked_challenge(data: bytes) -> bool:
    """Return whether the object that a full node sent asks for a challenge, and is no message."""
    return data[:CONSTRUCTOR_BYTES] == _ASK
