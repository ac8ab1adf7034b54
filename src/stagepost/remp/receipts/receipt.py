"""The signed receipt: what one source says happened to one message. Binary form, JSON form, signature and
checks.

The signature covers the binary form; receipts travel on topics as JSON. Both forms hold the same, so each can
be made from the other. A block that the JSON form leaves out stands in the binary form as zeros.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import a2b_base64
from functools import lru_cache
from hashlib import sha256
from typing import NewType

import msgspec

from stagepost.errors import DecodeError, ErrorCode
from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import (
    Reader,
    Writer,
    constructor_bytes,
    constructor_id,
    int256_bytes,
    key_id,
    long_bytes,
)
from stagepost.remp.hex_text import JsonFault, read_object
from stagepost.remp.receipts import receipt_fields
from stagepost.remp.receipts.message_status import MessageStatus, Rejected, kind_of, read_status, write_status
from stagepost.remp.receipts.receipt_fields import read_usual
from stagepost.remp.receipts.status import Kind, Level, is_finally_accepted
from stagepost.remp.validator_sets import ReceiptSource, Role, ValidatorSets

ExternalMessageId = NewType("ExternalMessageId", bytes)
"""Representation hash of an external message's root cell: 32 bytes."""

RECEIPT_ID = constructor_id(
    "tonNode.rempReceipt message_id:int256 status:tonNode.RempMessageStatus timestamp:long source_id:int256 "
    "= tonNode.RempReceipt"
)
_BEGINNING = constructor_bytes(RECEIPT_ID)
RECEIPT_BYTES_MAX = 65_536
"""Bytes of the JSON form, at most."""

FUTURE_MS_MAX = 300_000
SIGNATURE_BYTES = 64
SIGNATURE_HEX_DIGITS = 128
SIGNATURE_BASE64_DIGITS = 88
_LAST_DIGITS = "AQgw"
"""Base64 digits that may stand before the two padding signs: any other would set bits behind the last byte,
and so be a second spelling of the same signature.
"""

STATUSES_REMEMBERED = 1_024
"""Statuses, at most, whose bytes are kept: all messages of a block have the same status."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """`signature_text` is as it was received, empty if unsigned; nobody decodes it before the signature is
    verified.
    """

    message_id: ExternalMessageId
    status: MessageStatus
    timestamp_ms: int
    source_id: bytes
    signature_text: str = ""

    @property
    def kind(self) -> Kind:
        return kind_of(self.status)

    @property
    def signed_bytes(self) -> bytes:
        status = self.status
        # A refusal's text may be long, and is seldom said twice.
        status_bytes = _write_anew(status) if isinstance(status, Rejected) else _bytes_of(status)
        source_id = int256_bytes(self.source_id)
        return b"".join(
            (
                _BEGINNING,
                int256_bytes(self.message_id),
                status_bytes,
                long_bytes(self.timestamp_ms),
                source_id,
            )
        )

    @property
    def hash(self) -> bytes:
        """Return the hash by which a link of a receipt chain names the receipt."""
        return sha256(self.signed_bytes).digest()

    @property
    def signature(self) -> bytes | None:
        """The 64 bytes of a signature in standard padded base64 or hexadecimal digits; None for anything
        else.
        """
        return read_signature(self.signature_text)

    def sign(self, seed: bytes) -> Receipt:
        """Return the receipt signed with an Ed25519 key; its source becomes that key's id."""
        ours = msgspec.structs.replace(self, source_id=key_id(ed25519.public_key(seed)))
        return ours.with_signature(ed25519.sign(seed, ours.signed_bytes))

    def with_signature(self, signature: bytes) -> Receipt:
        return msgspec.structs.replace(self, signature_text=b64encode(signature).decode("ascii"))

    def is_signed_by(self, public_key: bytes) -> bool:
        signature = self.signature
        return signature is not None and ed25519.verify(public_key, self.signed_bytes, signature)

    def to_json(self) -> str:
        """Return the form on topics, indented by two spaces, as published nodes write it."""
        fields: dict[str, object] = {
            "message_id": self.message_id.hex(),
            "timestamp": self.timestamp_ms,
            "source_id": self.source_id.hex(),
            "signature": self.signature_text,
            "kind": self.kind.name,
            **receipt_fields.write(self.status),
        }
        return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode("utf-8")

    @classmethod
    def from_json(cls, data: bytes | str, *, record_key: str | None = None) -> Receipt:
        """Read a receipt; `DecodeError` with code RECEIPT_FORMAT or RECEIPT_KIND if `data` is not one.

        `record_key` is the key of the topic record; it must be the message's id.
        """
        encoded = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
        if len(encoded) > RECEIPT_BYTES_MAX:
            text = f"the receipt has {len(encoded)} bytes, at most {RECEIPT_BYTES_MAX} fit"
            raise _fault(ErrorCode.RECEIPT_FORMAT, text)
        usual = read_usual(encoded)
        if usual is None or (record_key is not None and record_key.lower() != usual[0].hex()):
            return cls._from_any_json(data, record_key)
        message_id, status, timestamp_ms, source_id, signature = usual
        return cls(ExternalMessageId(message_id), status, timestamp_ms, source_id, signature)

    @classmethod
    def _from_any_json(cls, data: bytes | str, record_key: str | None) -> Receipt:
        try:
            common = receipt_fields.read_common(read_object(data))
        except JsonFault as fault:
            raise _fault(ErrorCode.RECEIPT_FORMAT, str(fault)) from None
        if record_key is not None and record_key.lower() != common.message_id.hex():
            raise _fault(ErrorCode.RECEIPT_FORMAT, "message_id is not the record's key")
        if common.kind is None:
            raise _fault(ErrorCode.RECEIPT_KIND, f"no kind is called {common.kind_text!r}")
        try:
            status = receipt_fields.read_status(common.kind, common.given)
        except JsonFault as fault:
            raise _fault(ErrorCode.RECEIPT_FORMAT, f"{common.kind.name}: {fault}") from None
        return cls(
            ExternalMessageId(common.message_id),
            status,
            common.timestamp_ms,
            common.source_id,
            common.signature,
        )


def _write_anew(status: MessageStatus) -> bytes:
    writer = Writer()
    write_status(writer, status)
    return writer.written()


_bytes_of = lru_cache(STATUSES_REMEMBERED)(_write_anew)


def read_receipt(data: bytes) -> Receipt:
    """Read the boxed binary form, which has no signature."""
    reader = Reader(data)
    reader.read_constructor(RECEIPT_ID)
    message_id = ExternalMessageId(reader.read_int256())
    status = read_status(reader)
    timestamp_ms = reader.read_long()
    source_id = reader.read_int256()
    reader.expect_end()
    return Receipt(message_id, status, timestamp_ms, source_id)


def read_signature(text: str) -> bytes | None:
    if len(text) == SIGNATURE_BASE64_DIGITS and text[-3] in _LAST_DIGITS:
        try:
            signature = a2b_base64(text, strict_mode=True)
        except ValueError:
            return None
        return signature if len(signature) == SIGNATURE_BYTES else None
    if len(text) == SIGNATURE_HEX_DIGITS:
        try:
            return bytes.fromhex(text) if text.isalnum() else None
        except ValueError:
            return None
    return None


def _fault(code: ErrorCode, text: str) -> DecodeError:
    return DecodeError(f"{code}: {text}", code=code)


# Checks of a receipt


class Counting(msgspec.Struct, frozen=True):
    """A receipt that passed every check."""

    receipt: Receipt
    role: Role


class Quarantined(msgspec.Struct, frozen=True):
    """The first check that a receipt failed. `reason` is its code, one of those that begin with RECEIPT_."""

    reason: ErrorCode
    text: str


NOT_SIGNED = Quarantined(ErrorCode.RECEIPT_SIGNATURE, "the signature does not hold")


def check(receipt: Receipt, sets: ValidatorSets, arrived_ms: int | None = None) -> Counting | Quarantined:
    """Check a receipt that could be read. The signature, which costs most, comes last."""
    source = check_but_signature(receipt, sets, arrived_ms)
    if isinstance(source, Quarantined):
        return source
    if not receipt.is_signed_by(source.public_key):
        return NOT_SIGNED
    return Counting(receipt, source.role)


def check_but_signature(
    receipt: Receipt, sets: ValidatorSets, arrived_ms: int | None = None
) -> ReceiptSource | Quarantined:
    """Run all checks before that of the signature. Return the source whose signature the receipt must bear,
    or the failed check.
    """
    if not receipt.signature_text:
        return Quarantined(ErrorCode.RECEIPT_UNSIGNED, "the signature is empty")
    source = sets.source(receipt.source_id, receipt.timestamp_ms)
    if isinstance(source, str):
        return Quarantined(ErrorCode.RECEIPT_SOURCE, source)
    kind = receipt.kind
    if not _may_sign(source.role, kind):
        return Quarantined(ErrorCode.RECEIPT_ROLE, f"a {source.role.value} does not sign {kind.name}")
    if arrived_ms is not None and receipt.timestamp_ms - arrived_ms > FUTURE_MS_MAX:
        ahead_s = (receipt.timestamp_ms - arrived_ms) / 1_000
        return Quarantined(ErrorCode.RECEIPT_FUTURE, f"dated {ahead_s:.0f} s after its arrival")
    return source


def _may_sign(role: Role, kind: Kind) -> bool:
    if role is Role.FULL_NODE:
        return kind.level is Level.FULLNODE or is_finally_accepted(kind)
    return kind.level is not Level.FULLNODE
