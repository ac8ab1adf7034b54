"""The signed DMQ message: its id, the exact signed bytes, and its signer.

Ids and signatures cover bytes as received. A message therefore keeps its own bytes, and the node stores and
forwards them as they are; nothing here ever encodes a received message again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from functools import lru_cache

import msgspec

from stagepost.errors import ConfigError, DecodeError, ErrorCode, LocalProtocolError, SigningError, WireRule
from stagepost.ground.crypto.hashing import blake2b_256, pool_id
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.crypto.operational_certificate import OperationalCertificate
from stagepost.ground.identifiers import MESSAGE_ID_BYTES, MessageId, PoolId
from stagepost.ground.wire.cbor import CborReader, write_array, write_bytes, write_unsigned

BODY_BYTES_MIN = 90
BODY_BYTES_MAX = 2_000
MESSAGE_BYTES_MAX = 2_800
KES_SIGNATURE_BYTES = 448
COMPACT_KES_SIGNATURE_BYTES = 288
LEAF_SIGNATURE_BYTES = 64
VERIFICATION_KEY_BYTES = 32
COLD_SIGNATURE_BYTES = 64
EXPIRES_AT_BITS = 32
COUNTER_BITS = 64

NUMBERS_REMEMBERED_MAX = 4_096

_ANY_BYTES_MAX = 65_535


class MessageLayout(Enum):
    """Arrangement of the fields in a message; the value is the number of elements of the outer array."""

    FIVE = 5  # [id, [body, period, expiry], signature, certificate, cold key]
    FOUR = 4  # [[id, body, period, expiry], signature, certificate, cold key]: older, only where a profile allows it

    # Readers look up their layouts with every message; an enum's own hash is computed from its name each
    # time.
    __hash__ = object.__hash__


_PAYLOAD_ELEMENTS = {MessageLayout.FIVE: 3, MessageLayout.FOUR: 4}


class MessageSizes(msgspec.Struct, frozen=True):
    """Sizes that a network requires. The body's range differs between networks, KES fixes the rest."""

    body_bytes_min: int = BODY_BYTES_MIN
    body_bytes_max: int = BODY_BYTES_MAX


NETWORK_SIZES = MessageSizes()
FIVE_ONLY = frozenset({MessageLayout.FIVE})
FIVE_AND_FOUR = frozenset(MessageLayout)
LAYOUTS_BY_PROFILE = {"dmq-node": FIVE_ONLY, "gouroboros": FIVE_ONLY, "seed": FIVE_AND_FOUR}


class Spans(msgspec.Struct, frozen=True, gc=False):
    """Offsets of the parts of a message in its bytes: nearly all messages have the same ones.

    Parts after the signed bytes, whose length varies, are counted from their end.
    """

    signed_from: int
    kes_signature: int
    certificate: int
    kes_verification_key: int


class DmqMessage(msgspec.Struct, frozen=True, gc=False):
    """Message as it was received, or as `sign_message` made it.

    It holds its bytes once and cuts parts out on request. Only the cold key is needed so often that it is
    kept beside them.
    """

    message_id: MessageId
    kes_period: int
    expires_at: int
    issue_number: int
    start_kes_period: int
    raw: bytes
    signed_until: int
    spans: Spans
    cold_verification_key: bytes
    layout: MessageLayout = MessageLayout.FIVE

    @classmethod
    def decode(cls, data: bytes, *, profile: str = "dmq-node") -> DmqMessage:
        """Return the one message in `data`; raise `DecodeError` for anything else."""
        layouts = LAYOUTS_BY_PROFILE.get(profile)
        if layouts is None:
            known = ", ".join(LAYOUTS_BY_PROFILE)
            raise ConfigError(
                f"there is no wire profile {profile!r}", advice=f"choose one of {known}", found=profile
            )
        reader = CborReader(data)
        message = read_message(reader, layouts)
        reader.finish("the message")
        return message

    def encode(self) -> bytes:
        return self.raw

    @property
    def body(self) -> bytes:
        raw, at = self.raw, self.spans.signed_from
        if raw[at : at + 2] == b"\x83\x59":  # three elements, the first a string of more than 255 bytes
            return raw[at + 4 : at + 4 + int.from_bytes(raw[at + 2 : at + 4], "big")]
        reader = CborReader(self.raw, offset=self.spans.signed_from, any_width=True)
        if reader.array_length("message.payload") > _PAYLOAD_ELEMENTS[MessageLayout.FIVE]:
            _fixed(reader, MESSAGE_ID_BYTES, None, "message.payload.messageId")
        return _body(reader, None)

    @property
    def signed_bytes(self) -> bytes:
        return self.raw[self.spans.signed_from : self.signed_until]

    @property
    def kes_signature(self) -> bytes:
        end, spans = self.signed_until, self.spans
        return self.raw[end + spans.kes_signature : end + spans.certificate]

    @property
    def proof(self) -> bytes:
        """The rest of the KES signature, the certificate and the cold key, side by side.

        The leaf's key, and every condition on it, follow from these bytes and the KES period alone.
        """
        return self.raw[self.signed_until + self.spans.kes_signature + LEAF_SIGNATURE_BYTES :]

    def has_proof(self, proof: bytes) -> bool:
        """Return whether the message has this `proof`, without cutting its own out, since every message needs
        this check."""
        start = self.signed_until + self.spans.kes_signature + LEAF_SIGNATURE_BYTES
        return start + len(proof) == len(self.raw) and self.raw.endswith(proof)

    @property
    def leaf_signed(self) -> bytes:
        """The part of the KES signature that a leaf's key made, followed by the signed bytes: the form in
        which they are checked."""
        raw, spans, end = self.raw, self.spans, self.signed_until
        start = end + spans.kes_signature
        size = spans.certificate - spans.kes_signature
        if size < LEAF_SIGNATURE_BYTES:
            raise LocalProtocolError(
                f"a KES signature has at least {LEAF_SIGNATURE_BYTES} bytes, not {size}",
                message_id=self.message_id,
                limit=LEAF_SIGNATURE_BYTES,
                found=size,
            )
        return raw[start : start + LEAF_SIGNATURE_BYTES] + raw[spans.signed_from : end]

    @property
    def kes_path(self) -> bytes:
        """The rest of the KES signature: the keys on the way from the leaf to the root."""
        end, spans = self.signed_until, self.spans
        return self.raw[end + spans.kes_signature + LEAF_SIGNATURE_BYTES : end + spans.certificate]

    @property
    def operational_certificate(self) -> OperationalCertificate:
        at = self.signed_until + self.spans.certificate
        return _certificate(CborReader(self.raw, offset=at, any_width=True), None)

    @property
    def kes_verification_key(self) -> bytes:
        at = self.signed_until + self.spans.kes_verification_key
        return self.raw[at : at + VERIFICATION_KEY_BYTES]

    @property
    def certificate_and_cold_key(self) -> bytes:
        """Both as they were written, side by side: the key under which a valid certificate is remembered."""
        return self.raw[self.signed_until + self.spans.certificate :]

    @property
    def pool_id(self) -> PoolId:
        return PoolId(pool_id(self.cold_verification_key))

    @property
    def kes_evolution(self) -> int:
        """Period of the KES key itself; negative if the message claims to be older than its certificate."""
        return self.kes_period - self.start_kes_period

    @property
    def has_valid_id(self) -> bool:
        """Return whether the id is the hash of the signed bytes. The older layout signs its id as given, so
        its id is always valid."""
        return self.layout is MessageLayout.FOUR or self.message_id == blake2b_256(
            self.raw[self.spans.signed_from : self.signed_until]
        )

    @property
    def key(self) -> tuple[MessageLayout, MessageId]:
        """Identity of a message: a message of the older layout chooses its id, and must not shadow another."""
        return self.layout, self.message_id


def read_message(
    reader: CborReader, layouts: Collection[MessageLayout], sizes: MessageSizes | None = NETWORK_SIZES
) -> DmqMessage:
    """Return the message at the reader's position. `sizes=None` checks the layout only, as toy-sized test
    vectors need."""
    if sizes is not None and MessageLayout.FIVE in layouts:
        message = read_usual_shape(reader.data, reader.offset, reader.end, sizes)
        if message is not None:
            reader.offset += len(message.raw)
            return message
    return _read_any_shape(reader, layouts, sizes)


# The usual shape as two patterns, before and after the body. They recognise nearly all traffic at a third of
# the cost of reading item by item; `_read_any_shape` reads every other message, or refuses it with the
# reason.
_UNSIGNED = rb"([\x00-\x17]|\x18.|\x19..|\x1a.{4}|\x1b.{8})"
_UNTIL_BODY = re.compile(rb"\x85\x58\x20(.{32})\x83(?:\x58(.)|\x59(..))", re.DOTALL)
_AFTER_BODY = re.compile(
    _UNSIGNED * 2
    + rb"\x59\x01\xc0.{448}\x84\x58\x20.{32}"
    + _UNSIGNED * 2
    + rb"\x58\x40.{64}\x58\x20(.{32})",
    re.DOTALL,
)
_USUAL_SPANS = Spans(
    signed_from=35,
    kes_signature=3,
    certificate=3 + KES_SIGNATURE_BYTES,
    kes_verification_key=6 + KES_SIGNATURE_BYTES,
)


class UsualShape:
    """Known shape of a message of the newer layout, by which a framer skips it: whatever its size, without
    its meaning."""

    initial = 0x85
    items = 13
    depth = 2

    def end(self, data: bytes | bytearray, start: int) -> int | None:
        before = _UNTIL_BODY.match(data, start)
        if before is None:
            return None
        _, short_length, long_length = before.groups()
        body_bytes = short_length[0] if short_length is not None else int.from_bytes(long_length, "big")
        after = _AFTER_BODY.match(data, before.end() + body_bytes)
        return None if after is None else after.end()


USUAL_SHAPE = UsualShape()


@lru_cache(maxsize=NUMBERS_REMEMBERED_MAX)
def _number(item: bytes) -> int:
    """Return the integer that a CBOR item holds. Periods and counters are nearly always the same few numbers,
    and a cached one costs a third of reading it."""
    return item[0] if len(item) == 1 else int.from_bytes(item[1:], "big")


def read_usual_shape(data: bytes, start: int, end: int, sizes: MessageSizes) -> DmqMessage | None:
    before = _UNTIL_BODY.match(data, start, end)
    if before is None:
        return None
    message_id, short_length, long_length = before.groups()
    body_bytes = short_length[0] if short_length is not None else int.from_bytes(long_length, "big")
    if not sizes.body_bytes_min <= body_bytes <= sizes.body_bytes_max:
        return None
    body_start = before.end()
    after = _AFTER_BODY.match(data, body_start + body_bytes, end)
    if after is None:
        return None
    kes_period, expires_at, issue_number, start_period, cold_key = after.groups()
    expires_at_unix_s = int.from_bytes(expires_at[1:], "big") if len(expires_at) > 1 else expires_at[0]
    if expires_at_unix_s >> EXPIRES_AT_BITS:
        return None
    return DmqMessage(
        MessageId(message_id),
        _number(kes_period),
        expires_at_unix_s,
        _number(issue_number),
        _number(start_period),
        data[start : after.end()],
        after.end(2) - start,
        _USUAL_SPANS,
        cold_key,
    )


def _read_any_shape(
    reader: CborReader, layouts: Collection[MessageLayout], sizes: MessageSizes | None
) -> DmqMessage:
    # Running nodes accept longer integer forms inside messages, so a stricter reader would split the network.
    inner = CborReader(reader.data, offset=reader.offset, end=reader.end, any_width=True)
    start = inner.offset
    layout = _read_outer_head(inner, layouts)
    message_id = b""
    if layout is MessageLayout.FIVE:
        message_id = _fixed(inner, MESSAGE_ID_BYTES, sizes, "message.messageId")
    payload_start = inner.offset
    inner.array(_PAYLOAD_ELEMENTS[layout], "message.payload")
    if layout is MessageLayout.FOUR:
        message_id = _fixed(inner, MESSAGE_ID_BYTES, sizes, "message.payload.messageId")
    _body(inner, sizes)
    kes_period = inner.unsigned(COUNTER_BITS, "message.payload.kesPeriod")
    expires_at = inner.unsigned(EXPIRES_AT_BITS, "message.payload.expiresAt")
    payload_end = inner.offset
    kes_signature = _kes_signature(inner, sizes)
    certificate_start = inner.offset
    certificate = _certificate(inner, sizes)
    cold_key = _fixed(inner, VERIFICATION_KEY_BYTES, sizes, "message.coldVerificationKey")
    reader.offset = inner.offset
    return DmqMessage(
        MessageId(message_id),
        kes_period,
        expires_at,
        certificate.issue_number,
        certificate.start_kes_period,
        inner.data[start : inner.offset],
        payload_end - start,
        Spans(
            signed_from=payload_start - start,
            kes_signature=certificate_start - len(kes_signature) - payload_end,
            certificate=certificate_start - payload_end,
            kes_verification_key=_content_after_heads(inner.data, certificate_start) - payload_end,
        ),
        cold_key,
        layout,
    )


def _content_after_heads(data: bytes, start: int) -> int:
    """Return the offset of the content of the certificate's first string."""
    reader = CborReader(data, offset=start, any_width=True)
    reader.array_length("message.operationalCertificate")
    key = reader.byte_string(0, _ANY_BYTES_MAX, "message.operationalCertificate.kesVerificationKey")
    return reader.offset - len(key)


def _read_outer_head(reader: CborReader, layouts: Collection[MessageLayout]) -> MessageLayout:
    start = reader.offset
    count = reader.array_length("message")
    for layout in MessageLayout:
        if layout.value == count:
            if layout not in layouts:
                raise reader.invalid(
                    "message has the older layout of 4 elements, which this profile refuses",
                    at=start,
                    rule=WireRule.OLDER_MESSAGE_LAYOUT,
                )
            return layout
    wanted = " or ".join(str(layout.value) for layout in MessageLayout if layout in layouts)
    raise reader.invalid(
        f"message has {count} elements, expected {wanted}", at=start, rule=WireRule.WRONG_ELEMENT_COUNT
    )


def _fixed(reader: CborReader, size: int, sizes: MessageSizes | None, what: str) -> bytes:
    if sizes is None:
        return reader.byte_string(0, _ANY_BYTES_MAX, what)
    return reader.byte_string(size, size, what)


def _body(reader: CborReader, sizes: MessageSizes | None) -> bytes:
    what = "message.payload.body"
    if sizes is None:
        return reader.byte_string(0, _ANY_BYTES_MAX, what)
    try:
        return reader.byte_string(sizes.body_bytes_min, sizes.body_bytes_max, what)
    except DecodeError as fault:
        if fault.found is not None:  # a size, and the wrong one
            fault.code, fault.rule = ErrorCode.MSG_BODY_SIZE, WireRule.BODY_SIZE
        raise


def _kes_signature(reader: CborReader, sizes: MessageSizes | None) -> bytes:
    try:
        return _fixed(reader, KES_SIGNATURE_BYTES, sizes, "message.kesSignature")
    except DecodeError as fault:
        if fault.found == COMPACT_KES_SIGNATURE_BYTES:
            fault.advice = (
                "288 bytes is a CompactSum signature; DMQ uses the plain Sum construction of 448 bytes"
            )
        raise


def _certificate(reader: CborReader, sizes: MessageSizes | None) -> OperationalCertificate:
    where = "message.operationalCertificate"
    reader.array(4, where)
    return OperationalCertificate(
        _fixed(reader, VERIFICATION_KEY_BYTES, sizes, f"{where}.kesVerificationKey"),
        reader.unsigned(COUNTER_BITS, f"{where}.issueNumber"),
        reader.unsigned(COUNTER_BITS, f"{where}.startKesPeriod"),
        _fixed(reader, COLD_SIGNATURE_BYTES, sizes, f"{where}.coldSignature"),
    )


def sign_message(
    body: bytes,
    *,
    key: SigningKey,
    certificate: OperationalCertificate,
    cold_verification_key: bytes,
    kes_period: int,
    expires_at: int,
) -> DmqMessage:
    """Return a message signed for `kes_period`. Evolve the key to that period first, in place and for good."""
    _check_signable(body, key, certificate, kes_period, expires_at)
    while certificate.start_kes_period + key.period < kes_period:
        key.evolve()
    payload = write_array(write_bytes(body), write_unsigned(kes_period), write_unsigned(expires_at))
    raw = write_array(
        write_bytes(blake2b_256(payload)),
        payload,
        write_bytes(key.sign(payload)),
        write_certificate(certificate),
        write_bytes(cold_verification_key),
    )
    return read_usual_shape(raw, 0, len(raw), NETWORK_SIZES) or _read_any_shape(
        CborReader(raw), FIVE_ONLY, None
    )


def write_certificate(certificate: OperationalCertificate) -> bytes:
    return write_array(
        write_bytes(certificate.kes_verification_key),
        write_unsigned(certificate.issue_number),
        write_unsigned(certificate.start_kes_period),
        write_bytes(certificate.cold_signature),
    )


def _check_signable(
    body: bytes, key: SigningKey, certificate: OperationalCertificate, kes_period: int, expires_at: int
) -> None:
    if not BODY_BYTES_MIN <= len(body) <= BODY_BYTES_MAX:
        text = f"the body has {len(body)} bytes; the network takes {BODY_BYTES_MIN} to {BODY_BYTES_MAX}"
        limit = BODY_BYTES_MAX if len(body) > BODY_BYTES_MAX else BODY_BYTES_MIN
        advice = (
            "fill it up; `stagepost message make --pad` does so with zeros"
            if len(body) < limit
            else "send less"
        )
        raise SigningError(text, code=ErrorCode.MSG_BODY_SIZE, limit=limit, found=len(body), advice=advice)
    if not 0 <= expires_at < 1 << EXPIRES_AT_BITS:
        text = f"expires_at is {expires_at}; it must be Unix seconds that fit in {EXPIRES_AT_BITS} bits"
        raise SigningError(text, code=ErrorCode.MSG_EXPIRY_TOO_FAR, found=expires_at)
    if certificate.kes_verification_key != key.verification_key:
        text = "the operational certificate was issued for another KES key"
        raise SigningError(text, code=ErrorCode.OPCERT_SIGNATURE, advice="issue a certificate for this key")
    first = certificate.start_kes_period + key.period
    last = first + key.periods_left
    if not first <= kes_period <= last:
        text = f"KES period {kes_period} is outside of what this key can sign for: {first} to {last}"
        raise SigningError(text, code=ErrorCode.KES_PERIOD, limit=first, found=kes_period)
