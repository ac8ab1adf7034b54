"""The data envelope: topic, nonce and payload as the body of a network message.

    [1, 0, topic, nonce, created_ms, attempt, [* acker], payload, ? pad]
    [2, 0, topic, nonce, created_ms, attempt, [* acker], payload, trace_parent, ? pad]

Version 2 is written only for a message whose caller has a W3C trace context: releases that know version 1 alone take its
body for that of another program, and ignore it. A retry changes `attempt` and so the network's id; the delivery id does not depend on `attempt` and stays the same.

The receipt envelope: several ACKs and NACKs of a receiver.

    [1, 1, sender, [* [message_id, timestamp, ack_type, ? reason, ? retry_after_ms, ? text]], ? pad]

The receipt envelope travels as an ordinary authenticated message; its topic is by definition `/dep2p/sys/ack/1.0.0`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stagepost.delivery.identity import (
    DELIVERY_ID_BYTES,
    NONCE_BYTES,
    DeliveryId,
    delivery_id,
    identity_bytes,
)
from stagepost.delivery.status import TRANSIENT_REASONS, AckType, NackReason
from stagepost.errors import ErrorCode, StagepostError
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId
from stagepost.ground.wire.cbor import CborReader, write_array, write_bytes, write_text, write_unsigned
from stagepost.ground.wire.trace_context import TRACE_PARENT_BYTES, TraceParent

ENVELOPE_VERSION = 1
TRACED_VERSION = 2
"""Version of a data envelope that carries the trace context of the caller."""
DATA_VERSIONS = (ENVELOPE_VERSION, TRACED_VERSION)
DATA_KIND = 0
TOPIC_BYTES_MAX = 255
RESERVED_TOPIC_PREFIX = "/dep2p/sys/"
ACKERS_MAX = 64
BODY_BYTES_MIN = 90
BODY_BYTES_MAX = 2_000

_TIMESTAMP_BITS = 63
_ATTEMPT_BITS = 32
_LENGTH_WITHOUT_PAD = 8


class DataEnvelope(msgspec.Struct, frozen=True):
    """The data envelope of one attempt. `created_ms` is the sender's clock, in Unix milliseconds.

    The nodes in `ackers` are asked to acknowledge.
    """

    topic: str
    nonce: bytes
    created_ms: int
    payload: bytes
    attempt: int = 0
    ackers: tuple[PoolId, ...] = ()
    trace_parent: TraceParent | None = None

    def encode(self, body_bytes_max: int = BODY_BYTES_MAX) -> bytes:
        """Return the body of a network message, padded with zeros to the least that networks carry."""
        _check(self)
        trace = self.trace_parent
        items = [
            write_unsigned(ENVELOPE_VERSION if trace is None else TRACED_VERSION),
            write_unsigned(DATA_KIND),
            write_text(self.topic),
            write_bytes(self.nonce),
            write_unsigned(self.created_ms),
            write_unsigned(self.attempt),
            write_array(*(write_bytes(acker) for acker in self.ackers)),
            write_bytes(self.payload),
            *(() if trace is None else (write_bytes(trace.encode()),)),
        ]
        body = write_array(*items)
        if len(body) < BODY_BYTES_MIN:
            body = write_array(*items, zero_pad(BODY_BYTES_MIN - len(body)))
        if len(body) > body_bytes_max:
            room = body_bytes_max - (len(body) - len(self.payload))
            text = f"the payload has {len(self.payload)} bytes; with this topic {room} fit into a message"
            raise StagepostError(text, code=ErrorCode.MSG_BODY_SIZE, limit=room, found=len(self.payload))
        return body

    def delivery_id(self, sender: PoolId) -> DeliveryId:
        """Return the delivery id. `sender` is not in the envelope: it is the signer of the message around it."""
        return delivery_id(sender, self.topic, self.nonce, self.payload)


def read_data_envelope(body: bytes, payload_bytes_max: int = BODY_BYTES_MAX) -> DataEnvelope:
    """Read a data envelope of either version; raise `DecodeError` for any other body."""
    reader = CborReader(body)
    length = reader.array_length("envelope")
    version, kind = reader.unsigned(8, "envelope.version"), reader.unsigned(8, "envelope.kind")
    if version not in DATA_VERSIONS or kind != DATA_KIND:
        raise reader.invalid(f"envelope of version {version} and kind {kind} is not a data envelope", at=0)
    least = _LENGTH_WITHOUT_PAD + (version == TRACED_VERSION)
    if length not in (least, least + 1):
        raise reader.invalid(f"envelope has {length} elements, expected {least} or {least + 1}", at=0)
    topic = reader.text(TOPIC_BYTES_MAX, "envelope.topic")
    nonce = reader.byte_string(NONCE_BYTES, NONCE_BYTES, "envelope.nonce")
    created_ms = reader.unsigned(_TIMESTAMP_BITS, "envelope.createdMs")
    attempt = reader.unsigned(_ATTEMPT_BITS, "envelope.attempt")
    ackers = _read_ackers(reader)
    payload = reader.byte_string(0, payload_bytes_max, "envelope.payload")
    trace = _read_trace_parent(reader) if version == TRACED_VERSION else None
    if length > least and any(reader.byte_string(0, BODY_BYTES_MIN, "envelope.pad")):
        raise reader.invalid("envelope.pad holds something else than zeros", at=reader.offset)
    reader.finish("the envelope")
    if not topic:
        raise reader.invalid("envelope.topic is empty", at=0)
    return DataEnvelope(topic, nonce, created_ms, payload, attempt, ackers, trace)


def _read_trace_parent(reader: CborReader) -> TraceParent:
    at = reader.offset
    content = reader.byte_string(TRACE_PARENT_BYTES, TRACE_PARENT_BYTES, "envelope.traceParent")
    found = TraceParent.decode(content)
    if found is None:
        raise reader.invalid("envelope.traceParent has an id of zeros", at=at)
    return found


def _read_ackers(reader: CborReader) -> tuple[PoolId, ...]:
    count = reader.array_length("envelope.ackers")
    if count > ACKERS_MAX:
        raise reader.over_limit("the number of ackers", count, ACKERS_MAX)
    return tuple(
        PoolId(reader.byte_string(POOL_ID_BYTES, POOL_ID_BYTES, f"envelope.ackers[{index}]"))
        for index in range(count)
    )


def zero_pad(missing: int) -> bytes:
    """Return the shortest string of zeros that takes at least `missing` bytes with its head."""
    return next(pad for size in range(missing) if len(pad := write_bytes(bytes(size))) >= missing)


def _check(envelope: DataEnvelope) -> None:
    size = len(envelope.topic.encode())
    if not 1 <= size <= TOPIC_BYTES_MAX:
        raise _refused(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes, this one has {size}", size)
    if envelope.topic.startswith(RESERVED_TOPIC_PREFIX):
        raise _refused(f"topics that begin with {RESERVED_TOPIC_PREFIX} are reserved", envelope.topic)
    if len(envelope.nonce) != NONCE_BYTES:
        raise _refused(
            f"a nonce has {NONCE_BYTES} bytes, this one has {len(envelope.nonce)}", len(envelope.nonce)
        )
    if len(envelope.ackers) > ACKERS_MAX:
        raise _refused(f"at most {ACKERS_MAX} nodes can be asked to acknowledge", len(envelope.ackers))


def _refused(text: str, found: object) -> StagepostError:
    return StagepostError(text, code=ErrorCode.CONFIG_INVALID, found=found)


ACK_KIND = 1
ACK_TOPIC = "/dep2p/sys/ack/1.0.0"
ACK_TOPICS = frozenset({ACK_TOPIC, "/dep2p/sys/delivery/ack/1.0.0"})
"""Topics of receipts. The second is the name that another implementation uses: understood, never sent."""

SENDER_BYTES_MAX = 255
RECEIPTS_MAX = 64
"""Receipts, at most, in an envelope that is read; the size of a body allows about 43."""

RETRY_AFTER_MS_MAX = 30_000
REFUSAL_TEXT_BYTES_MAX = 200
"""Bytes of UTF-8, at most, of the text that a refusal carries to the sender; a longer one is cut."""
_REASON_BITS = 32
_RECEIPTS_LENGTH_WITHOUT_PAD = 4
_HEADS_BYTES_MAX = 5
"""Bytes of the heads of the envelope, its version and kind, and of a list with up to 64 elements."""


class AckReceipt(msgspec.Struct, frozen=True):
    """An acknowledgement or refusal. `timestamp_ms` is the receiver's clock when processing ended.

    An unknown reason stays a number.
    """

    message_id: bytes
    timestamp_ms: int
    ack_type: AckType
    reason: NackReason | int = NackReason.NONE
    retry_after_ms: int | None = None
    text: str = ""

    @property
    def is_transient(self) -> bool:
        """Return whether this is a refusal for now; a refusal with an unknown reason is."""
        return self.ack_type is AckType.NACK and is_transient(self.reason)


def is_transient(reason: NackReason | int) -> bool:
    return reason in TRANSIENT_REASONS or not isinstance(reason, NackReason)


class AckEnvelope(msgspec.Struct, frozen=True):
    """An envelope of receipts. `sender` is the acknowledging node; a reader must compare it with the signer."""

    sender: bytes
    receipts: tuple[AckReceipt, ...]

    def encode(self) -> bytes:
        items = [
            write_unsigned(ENVELOPE_VERSION),
            write_unsigned(ACK_KIND),
            write_bytes(self.sender),
            write_array(*map(_write_receipt, self.receipts)),
        ]
        body = write_array(*items)
        if len(body) < BODY_BYTES_MIN:
            body = write_array(*items, zero_pad(BODY_BYTES_MIN - len(body)))
        return body


def pack_receipts(sender: str, receipts: Iterable[AckReceipt]) -> list[AckEnvelope]:
    """Return as few envelopes as carry all receipts, each small enough for the body of a message."""
    identity = identity_bytes(sender)
    room = BODY_BYTES_MAX - len(write_bytes(identity)) - _HEADS_BYTES_MAX
    envelopes: list[AckEnvelope] = []
    batch: list[AckReceipt] = []
    size = 0
    for receipt in receipts:
        needed = len(_write_receipt(receipt))
        if batch and (size + needed > room or len(batch) == RECEIPTS_MAX):
            envelopes.append(AckEnvelope(identity, tuple(batch)))
            batch, size = [], 0
        batch.append(receipt)
        size += needed
    if batch:
        envelopes.append(AckEnvelope(identity, tuple(batch)))
    return envelopes


def read_ack_envelope(body: bytes) -> AckEnvelope:
    """Read an envelope of receipts; raise `DecodeError` for any other body."""
    reader = CborReader(body)
    length = reader.array_length("envelope")
    if length not in (_RECEIPTS_LENGTH_WITHOUT_PAD, _RECEIPTS_LENGTH_WITHOUT_PAD + 1):
        raise reader.invalid(f"ACK envelope has {length} elements, expected 4 or 5", at=0)
    version, kind = reader.unsigned(8, "envelope.version"), reader.unsigned(8, "envelope.kind")
    if (version, kind) != (ENVELOPE_VERSION, ACK_KIND):
        raise reader.invalid(f"envelope of version {version} and kind {kind} is not an ACK envelope", at=0)
    sender = reader.byte_string(1, SENDER_BYTES_MAX, "envelope.sender")
    count = reader.array_length("envelope.receipts")
    if not 1 <= count <= RECEIPTS_MAX:
        raise reader.over_limit("the number of receipts", count, RECEIPTS_MAX)
    receipts = tuple(_read_receipt(reader, f"envelope.receipts[{index}]") for index in range(count))
    if length > _RECEIPTS_LENGTH_WITHOUT_PAD and any(reader.byte_string(0, BODY_BYTES_MIN, "envelope.pad")):
        raise reader.invalid("envelope.pad holds something else than zeros", at=reader.offset)
    reader.finish("the envelope")
    return AckEnvelope(sender, receipts)


def _write_receipt(receipt: AckReceipt) -> bytes:
    items = [
        write_bytes(receipt.message_id),
        write_unsigned(receipt.timestamp_ms),
        write_unsigned(receipt.ack_type),
    ]
    text = bounded_text(receipt.text)
    if receipt.reason or receipt.retry_after_ms is not None or text:
        items.append(write_unsigned(receipt.reason))
    if receipt.retry_after_ms is not None or text:
        items.append(write_unsigned(receipt.retry_after_ms or 0))
    if text:
        items.append(write_text(text))
    return write_array(*items)


def bounded_text(text: str) -> str:
    """Return as much of the text as a refusal carries, without characters that could steer a terminal."""
    printable = "".join(character if character.isprintable() else " " for character in text)
    return printable.encode()[:REFUSAL_TEXT_BYTES_MAX].decode(errors="ignore")


def _read_receipt(reader: CborReader, where: str) -> AckReceipt:
    start = reader.offset
    length = reader.array_length(where)
    if not 3 <= length <= 6:
        raise reader.invalid(f"{where} has {length} elements, expected 3 to 6", at=start)
    message_id = reader.byte_string(DELIVERY_ID_BYTES, DELIVERY_ID_BYTES, f"{where}.messageId")
    timestamp_ms = reader.unsigned(_TIMESTAMP_BITS, f"{where}.timestamp")
    type_at = reader.offset
    number = reader.unsigned(8, f"{where}.ackType")
    if number not in (AckType.ACK, AckType.NACK):
        raise reader.invalid(f"{where}.ackType is {number}, expected 1 (ACK) or 2 (NACK)", at=type_at)
    ack_type = AckType(number)
    reason: NackReason | int = NackReason.NONE
    retry_after_ms = None
    if length > 3:
        found = reader.unsigned(_REASON_BITS, f"{where}.reason")
        reason = NackReason(found) if found <= max(NackReason) else found
    if length > 4:
        retry_after_ms = reader.unsigned(_REASON_BITS, f"{where}.retryAfterMs")
    text = reader.text(REFUSAL_TEXT_BYTES_MAX, f"{where}.text") if length > 5 else ""
    if length > 5 and not retry_after_ms:
        retry_after_ms = None
    if ack_type is AckType.ACK and (reason or text):
        raise reader.invalid(f"{where} is an ACK with reason {int(reason)} for a refusal", at=start)
    return AckReceipt(message_id, timestamp_ms, ack_type, reason, retry_after_ms, bounded_text(text))
