"""Checks of records on topics other than that of statuses: plain Python, run in Spark's workers.

A DMQ message must be well-formed, under its own id, with a valid certificate, KES period and signature; rules
that need a clock or a list of pools are not checked. A delivery event must be one JSON object with the fields
of an event, under its own id. A part of a proof must be well-formed; whether the proof holds is found out with all its
parts (`proof_checks`). A record of stake must be a part of a distribution, under its own key. Copies are recognised by
`signed_hash`, as those of receipts are.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from stagepost.chain.proofs.proof_form import OwnPart, decode_part
from stagepost.delivery.effects import DeliveryEvent
from stagepost.dmq.message import DmqMessage
from stagepost.dmq.mithril.stake_parts import decode_stake_part
from stagepost.dmq.validation import check_proof
from stagepost.errors import DecodeError, ErrorCode, StagepostError
from stagepost.ground.identifiers import INT64_MAX
from stagepost.ground.wire.foreign_json import decode_foreign
from stagepost.pipeline.steps.record_checks import NOT_CHECKED, Checked, hash_text, short_hash
from stagepost.remp.hex_text import read_hash
from stagepost.topics import topic as topics

OUTCOMES_REMEMBERED_MAX = 10_000
"""Outcomes in one task, at most: a message comes from many peers, and its signature is verified once."""

PROFILE = "seed"
"""Name of the profile that reads every layout of a message."""

_Outcome = tuple[ErrorCode | None, bytes | None]
"""Reason and id."""


class OtherChecks:
    """The checks of one task."""

    def __init__(self) -> None:
        self._outcomes: dict[bytes, _Outcome] = {}
        self.signatures_looked_at = 0

    def check(self, topic: str, key: str | None, value: bytes | None) -> Checked:
        match topic:
            case topics.DMQ_MESSAGES:
                return self._dmq_message(key, value)
            case topics.DELIVERY_EVENTS:
                return _delivery_event(key, value)
            case topics.PROOFS:
                return _proof_part(key, value)
            case topics.STAKE:
                return _stake_part(key, value)
        return NOT_CHECKED

    def _dmq_message(self, key: str | None, value: bytes | None) -> Checked:
        if value is None:
            return _bad(ErrorCode.CBOR_TRUNCATED, key, value)
        reason, message_id = self._outcome(value)
        if message_id is None:
            return _bad(reason or ErrorCode.CBOR_INVALID, key, value)
        named = message_id.hex()
        if key is not None and key.lower() != named:
            return _bad(ErrorCode.MSG_BAD_ID, key, value)
        if reason is not None:
            return _bad(reason, key or named, value)
        return Checked(message_id=named, signed_hash=hash_text(sha256(message_id).digest()))

    def _outcome(self, value: bytes) -> _Outcome:
        digest = sha256(value).digest()
        known = self._outcomes.get(digest)
        if known is not None:
            return known
        outcome = self._judged(value)
        if len(self._outcomes) >= OUTCOMES_REMEMBERED_MAX:
            del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[digest] = outcome
        return outcome

    def _judged(self, value: bytes) -> _Outcome:
        try:
            message = DmqMessage.decode(value, profile=PROFILE)
        except StagepostError as error:
            return error.code, None
        self.signatures_looked_at += 1
        fault = check_proof(message)
        return None if fault is None else fault.code or ErrorCode.KES_SIGNATURE, message.message_id


def _delivery_event(key: str | None, value: bytes | None) -> Checked:
    try:
        event = decode_foreign(value or b"", DeliveryEvent)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _bad(ErrorCode.RECEIPT_FORMAT, key, value)
    is_in_range = 0 <= event.timestamp_ms <= INT64_MAX and 0 <= event.attempt <= INT64_MAX
    if not is_in_range or (key is not None and key.lower() != event.delivery_id.lower()):
        return _bad(ErrorCode.RECEIPT_FORMAT, key, value)
    # Not its bytes: the same event may be written in several ways.
    return Checked(message_id=event.delivery_id.lower(), signed_hash=short_hash(msgspec.json.encode(event)))


def _proof_part(key: str | None, value: bytes | None) -> Checked:
    """Return the part under its key. `source_id` is the master block that a message's own part rests on, and null for parts
    that messages share.
    """
    name = None if key is None else read_hash(key)
    try:
        part = decode_part(value or b"")
    except DecodeError:
        return _bad(ErrorCode.PROOF_INVALID, key, value)
    if name is None:
        return _bad(ErrorCode.PROOF_INVALID, key, value)
    master = part.master.hex() if isinstance(part, OwnPart) else None
    return Checked(message_id=name.hex(), signed_hash=short_hash(value), source_id=master)


def _stake_part(key: str | None, value: bytes | None) -> Checked:
    try:
        part = decode_stake_part(value or b"")
    except StagepostError as error:
        return _bad(error.code, key, value)
    if key is not None and key != part.key:
        return _bad(ErrorCode.RECEIPT_FORMAT, key, value)
    # The same part, asked again after a restart, is a copy.
    return Checked(message_id=part.key, signed_hash=short_hash(f"{part.digest}:{part.part}".encode()))


def _bad(reason: ErrorCode, key: str | None, value: bytes | None) -> Checked:
    return Checked(str(reason), key, raw_hash=short_hash(value))
