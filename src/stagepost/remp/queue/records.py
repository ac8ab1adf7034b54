"""Records that validators exchange in the blocks of their graph, and the block payload that carries them.

A payload is an update of a validator session whose commits each hold one record in place of a signature: so
older nodes understand the frame. Each payload carries a running number, so no two payloads of a member are
equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec

from stagepost.catchain.block import decode_update, is_signed_by
from stagepost.catchain.budgets import PayloadContent, Rates
from stagepost.catchain.budgets import Totals as Totals
from stagepost.catchain.challenges import MemberChallenge
from stagepost.catchain.dates import DateRules
from stagepost.catchain.payloads import upper_part
from stagepost.errors import DecodeError, TlDecodeError
from stagepost.ground.crypto.ed25519 import SIGNATURE_BYTES
from stagepost.ground.wire.tl import (
    CONSTRUCTOR_BYTES,
    INT256_BYTES,
    LENGTH_SHORT_MAX,
    ZERO_INT256,
    Reader,
    Writer,
    constructor_bytes,
    constructor_id,
)
from stagepost.remp.receipts.statements import StatementLink, read_link
from stagepost.remp.shard import BlockId, read_block_id

RECORDS_MAX = 64
PAYLOAD_BYTES_MAX = 15 * 1024
"""Bytes, at most: a block has 16 KiB in all, and the rest is for its references and signatures."""

PAYLOADS_KEPT = 16
"""Decoded payloads cached: the graph judges what a payload holds just before the queue reads it."""

RECORD_BYTES_MAX = 8 * 1024
BLOCK_BYTES = 2_048
"""Bytes that each block counts beside its payload: every member checks its signatures and keeps its place in the graph,
however little it holds.
"""

DIGEST_IDS_MAX = 100
ERROR_TEXT_BYTES_MAX = 1_024

_COMMIT_BYTES_MIN = 44
_COMMIT_FRAME_BYTES = 40
_PAYLOAD_FRAME_BYTES = 20
_IDS_BYTES = 64

UPDATE_ID = constructor_id(
    "validatorSession.blockUpdate ts:long actions:(vector validatorSession.round.Message) state:int "
    "= validatorSession.BlockUpdate"
)
COMMIT_ID = constructor_id(
    "validatorSession.message.commit round:int candidate:int256 signature:bytes = validatorSession.round.Message"
)

HEADER_ID = constructor_id(
    "stagepost.remp.header message_id:int256 message_uid:int256 workchain:int account:int256 "
    "source_key_id:int256 source_idx:int masterchain_seqno:int timestamp:long handed_at:long signature:bytes "
    "= stagepost.remp.Record"
)
REJECT_ID = constructor_id(
    "stagepost.remp.reject message_id:int256 message_uid:int256 masterchain_seqno:int error:string "
    "= stagepost.remp.Record"
)
ACCEPT_ID = constructor_id(
    "stagepost.remp.accept message_id:int256 message_uid:int256 masterchain_seqno:int "
    "block_id:tonNode.blockIdExt = stagepost.remp.Record"
)
DIGEST_ID = constructor_id(
    "stagepost.remp.digest masterchain_seqno:int rejected:(vector tonNode.rempCatchainMessageIds) "
    "accepted:(vector tonNode.rempCatchainMessageIds) = stagepost.remp.Record"
)
TOTALS_ID = constructor_id(
    "stagepost.remp.totals date:long headers:long digests:long bytes:long = stagepost.remp.Record"
)
CHALLENGE_ID = constructor_id(
    "stagepost.remp.challenge accused:int256 last:stagepost.remp.link = stagepost.remp.Record"
)
ANSWER_ID = constructor_id("stagepost.remp.answer newest:stagepost.remp.link = stagepost.remp.Record")


_UPDATE = constructor_bytes(UPDATE_ID)
_FIRST_RECORD_AT = _PAYLOAD_FRAME_BYTES - 4 + _COMMIT_FRAME_BYTES
"""Bytes of a payload before its first record; the number of the payload follows the records."""
_TOTALS_BYTES = 1 + 36
"""Bytes of encoded totals, with their length and without padding."""
_BARE_BYTES = _PAYLOAD_FRAME_BYTES + _COMMIT_FRAME_BYTES + 40
"""Bytes of a payload that holds totals alone."""


class Ids(msgspec.Struct, frozen=True):
    message_id: bytes
    uid: bytes


class HandOver(msgspec.Struct, frozen=True):
    """Time at which a full node handed a message over, and the full node's signature of time, source and id; both
    empty if nobody has checked one.
    """

    at_ms: int = 0
    signature: bytes = b""


UNSIGNED = HandOver()


class Header(msgspec.Struct, frozen=True):
    """Announces a message that the author has received. Destination and time are in it, so that all
    validators order and route the message alike. `hand_over` shows that the source has sent it.
    """

    message_id: bytes
    uid: bytes
    workchain: int
    account: bytes
    source_key_id: bytes
    source_index: int
    masterchain_seqno: int
    timestamp_ms: int
    hand_over: HandOver = UNSIGNED


class RejectRecord(msgspec.Struct, frozen=True):
    """The author's collator has refused the message."""

    message_id: bytes
    uid: bytes
    masterchain_seqno: int
    error: str


def cut_error(text: str) -> str:
    """Return as much of the error `text` as a record may hold. The receipt has all of it; the other
    validators need the vote, not the words.
    """
    return text.encode("utf-8", "replace")[:ERROR_TEXT_BYTES_MAX].decode("utf-8", "ignore")


class Accept(msgspec.Struct, frozen=True):
    """The author's collator has put the message into a block."""

    message_id: bytes
    uid: bytes
    masterchain_seqno: int
    block_id: BlockId


class Digest(msgspec.Struct, frozen=True):
    """Processed messages of one catchain, listed at the end of a session. Their bodies do not travel any
    more.
    """

    masterchain_seqno: int
    rejected: tuple[Ids, ...] = ()
    accepted: tuple[Ids, ...] = ()


def amounts_in(records: Sequence[Record], size: int) -> tuple[int, int, int]:
    """Return the headers, digest ids and bytes that a block with a payload of `size` bytes and these records counts. A
    challenge counts as a header: both make all others work.
    """
    digests = [one for one in records if isinstance(one, Digest)]
    return (
        sum(isinstance(one, Header | LinkChallenge) for one in records),
        sum(len(one.rejected) + len(one.accepted) for one in digests),
        size + BLOCK_BYTES,
    )


class LinkChallenge(msgspec.Struct, frozen=True):
    """The author asks the member with key id `accused` for its newest receipt of a message: `last` is the last one
    that is known, and names session and message.
    """

    accused: bytes
    last: StatementLink

    @property
    def challenge(self) -> MemberChallenge:
        return MemberChallenge(self.accused, subject_of(self.last))


def subject_of(link: StatementLink) -> bytes:
    """Return what a challenge about the chain of `link` asks for: its session and its message."""
    return link.session_id + link.message_id


def chain_of(subject: bytes) -> tuple[bytes, bytes]:
    """Return the session and the message of a `subject`."""
    return subject[:INT256_BYTES], subject[INT256_BYTES:]


class LinkAnswer(msgspec.Struct, frozen=True):
    """The newest link of the author's own receipts of a message, because somebody challenged it."""

    newest: StatementLink


Record: TypeAlias = Header | RejectRecord | Accept | Digest | Totals | LinkChallenge | LinkAnswer


def encode_record(record: Record) -> bytes:
    writer = Writer()
    match record:
        case Header():
            writer.write_constructor(HEADER_ID)
            writer.write_int256(record.message_id)
            writer.write_int256(record.uid)
            writer.write_int(record.workchain)
            writer.write_int256(record.account)
            writer.write_int256(record.source_key_id)
            writer.write_int(record.source_index)
            writer.write_int(record.masterchain_seqno)
            writer.write_long(record.timestamp_ms)
            writer.write_long(record.hand_over.at_ms)
            writer.write_bytes(record.hand_over.signature)
        case RejectRecord():
            writer.write_constructor(REJECT_ID)
            _write_judged(writer, record)
            writer.write_string(record.error)
        case Accept():
            writer.write_constructor(ACCEPT_ID)
            _write_judged(writer, record)
            record.block_id.write(writer)
        case Digest():
            writer.write_constructor(DIGEST_ID)
            writer.write_int(record.masterchain_seqno)
            _write_ids(writer, record.rejected)
            _write_ids(writer, record.accepted)
        case Totals():
            writer.write_constructor(TOTALS_ID)
            for value in msgspec.structs.astuple(record):
                writer.write_long(value)
        case LinkChallenge():
            writer.write_constructor(CHALLENGE_ID)
            writer.write_int256(record.accused)
            record.last.write(writer)
        case LinkAnswer():
            writer.write_constructor(ANSWER_ID)
            record.newest.write(writer)
    return writer.written()


def _write_judged(writer: Writer, record: RejectRecord | Accept) -> None:
    writer.write_int256(record.message_id)
    writer.write_int256(record.uid)
    writer.write_int(record.masterchain_seqno)


def decode_record(data: bytes) -> Record:
    reader = Reader(data)
    record = _READERS[reader.read_constructor(*_READERS)](reader)
    reader.expect_end()
    return record


def _read_header(reader: Reader) -> Header:
    message_id, uid, workchain = reader.read_int256(), reader.read_int256(), reader.read_int()
    account, source_key_id = reader.read_int256(), reader.read_int256()
    source_index, seqno = reader.read_int(), reader.read_int()
    timestamp_ms, hand_over = reader.read_long(), _read_hand_over(reader)
    return Header(
        message_id, uid, workchain, account, source_key_id, source_index, seqno, timestamp_ms, hand_over
    )


def _read_hand_over(reader: Reader) -> HandOver:
    offset = reader.offset
    found = HandOver(reader.read_long(), reader.read_bytes(SIGNATURE_BYTES, "signature of the hand-over"))
    if found != UNSIGNED and len(found.signature) != SIGNATURE_BYTES:
        raise TlDecodeError(
            f"the hand-over at offset {offset} is not a valid one: it has a signature of {SIGNATURE_BYTES} bytes, or "
            f"neither time nor signature, not {found.at_ms} ms and {len(found.signature)} bytes",
            offset=offset,
            found=len(found.signature),
        )
    return found


def _read_reject(reader: Reader) -> RejectRecord:
    return RejectRecord(*_read_judged(reader), reader.read_string(ERROR_TEXT_BYTES_MAX))


def _read_accept(reader: Reader) -> Accept:
    return Accept(*_read_judged(reader), read_block_id(reader))


def _read_judged(reader: Reader) -> tuple[bytes, bytes, int]:
    return reader.read_int256(), reader.read_int256(), reader.read_int()


def _read_totals(reader: Reader) -> Totals:
    offset = reader.offset
    values = tuple(reader.read_long() for _ in Totals.__struct_fields__)
    if min(values) < 0:
        raise TlDecodeError(f"a date or a total is {min(values)}, and none is below 0", offset=offset)
    return Totals(*values)


_READERS: dict[int, Callable[[Reader], Record]] = {
    HEADER_ID: _read_header,
    REJECT_ID: _read_reject,
    ACCEPT_ID: _read_accept,
    DIGEST_ID: lambda reader: Digest(reader.read_int(), _read_ids(reader), _read_ids(reader)),
    TOTALS_ID: _read_totals,
    CHALLENGE_ID: lambda reader: LinkChallenge(reader.read_int256(), read_link(reader)),
    ANSWER_ID: lambda reader: LinkAnswer(read_link(reader)),
}


def _write_ids(writer: Writer, ids: Sequence[Ids]) -> None:
    writer.write_vector_count(len(ids))
    for one in ids:
        writer.write_int256(one.message_id)
        writer.write_int256(one.uid)


def _read_ids(reader: Reader) -> tuple[Ids, ...]:
    count = reader.read_vector_count(DIGEST_IDS_MAX, _IDS_BYTES)
    return tuple(Ids(reader.read_int256(), reader.read_int256()) for _ in range(count))


# The payload around them


def payload_bytes(records: Sequence[Record]) -> int:
    """Return the length of a payload with `records`, in bytes."""
    return _PAYLOAD_FRAME_BYTES + sum(map(record_bytes, records))


def record_bytes(record: Record) -> int:
    """Return the bytes that `record` takes in a payload."""
    length = len(encode_record(record))
    return _COMMIT_FRAME_BYTES + -(-(length + (1 if length <= LENGTH_SHORT_MAX else 4)) // 4) * 4


def encode_payload(records: Sequence[Record], number: int) -> bytes:
    """Encode one block's payload. `number` distinguishes this payload from all others of the same member."""
    writer = Writer()
    writer.write_constructor(UPDATE_ID)
    writer.write_long(0)
    writer.write_vector_count(len(records))
    for record in records:
        writer.write_constructor(COMMIT_ID)
        writer.write_int(0)
        writer.write_int256(ZERO_INT256)
        writer.write_bytes(encode_record(record))
    writer.write_int(number)
    return writer.written()


def date_in(payload: bytes) -> int | None:
    """Return the date in a payload, in Unix milliseconds; None if the payload does not begin with one, or has not its
    form.
    """
    first = payload[_FIRST_RECORD_AT : _FIRST_RECORD_AT + _TOTALS_BYTES]
    if payload[:CONSTRUCTOR_BYTES] != _UPDATE or len(first) < _TOTALS_BYTES or first[0] != _TOTALS_BYTES - 1:
        return None
    try:
        record = decode_record(first[1:])
    except DecodeError:
        return None
    return record.date_ms if isinstance(record, Totals) else None


def is_bare(payload: bytes) -> bool:
    """Return whether a payload holds date and totals and nothing else."""
    return len(payload) == _BARE_BYTES and date_in(payload) is not None


def content_of(payload: bytes) -> PayloadContent | None:
    """Return the totals that a payload states, and what it holds; None if any part of it cannot be understood, or if
    it does not begin with totals.
    """
    try:
        records = decode_payload(payload)
    except DecodeError:
        return None
    first = records[0] if records else None
    if not isinstance(first, Totals):
        return None
    challenges = tuple(one.challenge for one in records if isinstance(one, LinkChallenge))
    answers = tuple(subject_of(one.newest) for one in records if isinstance(one, LinkAnswer))
    return PayloadContent(first, amounts_in(records, len(payload)), challenges, answers)


def answers_in(payload: bytes) -> tuple[StatementLink, ...]:
    """Return the answers to challenges in a payload; none if any part of it cannot be understood."""
    try:
        records = decode_payload(payload)
    except DecodeError:
        return ()
    return tuple(one.newest for one in records if isinstance(one, LinkAnswer))


def answer_in_block(frame: bytes, public_key: bytes, subject: bytes) -> StatementLink:
    """Return the newest link about `subject` that the holder of `public_key` states in a block, given as it travels among
    the members of some session; `DecodeError` if its signature does not hold or if it has no such answer.
    """
    block = decode_update(frame)
    if not is_signed_by(block, public_key):
        raise TlDecodeError("the block with an answer is not signed by the challenged validator", offset=0)
    for newest in answers_in(upper_part(block.payload) or b""):
        if subject_of(newest) == subject:
            return newest
    raise TlDecodeError("the block has no answer about that message", offset=0)


def date_rules(starts_ms: int, skew_ms: int, rates: Rates | None = None) -> DateRules:
    """Return the rules of a session whose payloads hold these records."""
    return DateRules(starts_ms, skew_ms, date_in, is_bare, content_of, rates or Rates())


def payload_beside(payload: bytes, records: Sequence[Record], number: int) -> bytes:
    """Return another payload, with the date of `payload` and true totals, for the place of `payload` in its author's
    chain: what a member that contradicts itself would write.
    """
    content = content_of(payload) or PayloadContent(Totals(), (0, 0, 0))
    said = content.totals
    before = Totals(0, *(total - own for total, own in zip(said.amounts, content.amounts, strict=True)))
    amounts = amounts_in(records, payload_bytes([said, *records]))
    return encode_payload([before.plus(amounts, said.date_ms), *records], number)


def has_totals(records: Sequence[Record]) -> bool:
    """Return whether the records of a payload begin with its date and its author's totals."""
    return bool(records) and isinstance(records[0], Totals)


def decode_payload(data: bytes) -> list[Record]:
    """Decode a block's payload. Raise `DecodeError` if any part of it cannot be understood: then none of its
    records counts.
    """
    return list(_decoded(data))


@lru_cache(maxsize=PAYLOADS_KEPT)
def _decoded(data: bytes) -> tuple[Record, ...]:
    reader = Reader(data)
    reader.read_constructor(UPDATE_ID)
    if reader.read_long():
        raise TlDecodeError("the time in a queue's payload is not 0, and must be", offset=4)
    records: list[Record] = []
    for _ in range(reader.read_vector_count(RECORDS_MAX, _COMMIT_BYTES_MIN)):
        reader.read_constructor(COMMIT_ID)
        offset = reader.offset
        if reader.read_int() or reader.read_int256() != ZERO_INT256:
            raise TlDecodeError(
                "a commit in a queue's payload names a round or a candidate, and must not", offset=offset
            )
        record = decode_record(reader.read_bytes(RECORD_BYTES_MAX, "record"))
        if isinstance(record, Totals) and records:
            raise TlDecodeError(
                f"date and totals are record {len(records)} of a payload, and must be the first",
                offset=offset,
            )
        records.append(record)
    reader.read_int()
    reader.expect_end()
    return tuple(records)
