"""The data envelope: topic, nonce and payload as the body of a network message, and the delivery id they give.

    [1, 0, topic, nonce, created_ms, attempt, [* acker], payload, ? pad]

A retry changes `attempt` and so the network's id; the delivery id does not depend on it and stays the same.
"""

from __future__ import annotations

import msgspec

from stagepost.delivery.identity import NONCE_BYTES, DeliveryId, delivery_id
from stagepost.errors import ErrorCode, StagepostError
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId
from stagepost.ground.wire.cbor import Reader, write_array, write_bytes, write_text, write_unsigned

ENVELOPE_VERSION = 1
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
    """`created_ms` is the sender's clock, in Unix milliseconds; `ackers` are asked to confirm."""

    topic: str
    nonce: bytes
    created_ms: int
    payload: bytes
    attempt: int = 0
    ackers: tuple[PoolId, ...] = ()

    def encode(self) -> bytes:
        """The body. A short one is padded with zeros to the least that networks carry."""
        _check(self)
        items = [
            write_unsigned(ENVELOPE_VERSION),
            write_unsigned(DATA_KIND),
            write_text(self.topic),
            write_bytes(self.nonce),
            write_unsigned(self.created_ms),
            write_unsigned(self.attempt),
            write_array(*(write_bytes(acker) for acker in self.ackers)),
            write_bytes(self.payload),
        ]
        body = write_array(*items)
        if len(body) < BODY_BYTES_MIN:
            body = write_array(*items, zero_pad(BODY_BYTES_MIN - len(body)))
        if len(body) > BODY_BYTES_MAX:
            room = BODY_BYTES_MAX - (len(body) - len(self.payload))
            text = f"the payload has {len(self.payload)} bytes; with this topic {room} fit into a message"
            raise StagepostError(text, code=ErrorCode.MSG_BODY_SIZE, limit=room, found=len(self.payload))
        return body

    def delivery_id(self, sender: PoolId) -> DeliveryId:
        """`sender` is not in the envelope: it is whoever signed the message around it."""
        return delivery_id(sender, self.topic, self.nonce, self.payload)


def read_data_envelope(body: bytes) -> DataEnvelope:
    """`DecodeError` for a body that is something else."""
    reader = Reader(body)
    length = reader.array_length("envelope")
    if length not in (_LENGTH_WITHOUT_PAD, _LENGTH_WITHOUT_PAD + 1):
        raise reader.invalid(f"envelope has {length} elements, expected 8 or 9", at=0)
    version, kind = reader.unsigned(8, "envelope.version"), reader.unsigned(8, "envelope.kind")
    if (version, kind) != (ENVELOPE_VERSION, DATA_KIND):
        raise reader.invalid(f"envelope of version {version} and kind {kind} is no data envelope", at=0)
    topic = reader.text(TOPIC_BYTES_MAX, "envelope.topic")
    nonce = reader.byte_string(NONCE_BYTES, NONCE_BYTES, "envelope.nonce")
    created_ms = reader.unsigned(_TIMESTAMP_BITS, "envelope.createdMs")
    attempt = reader.unsigned(_ATTEMPT_BITS, "envelope.attempt")
    ackers = _read_ackers(reader)
    payload = reader.byte_string(0, BODY_BYTES_MAX, "envelope.payload")
    if length > _LENGTH_WITHOUT_PAD and any(reader.byte_string(0, BODY_BYTES_MIN, "envelope.pad")):
        raise reader.invalid("envelope.pad holds something else than zeros", at=reader.offset)
    reader.finish("the envelope")
    if not topic:
        raise reader.invalid("envelope.topic is empty", at=0)
    return DataEnvelope(topic, nonce, created_ms, payload, attempt, ackers)


def _read_ackers(reader: Reader) -> tuple[PoolId, ...]:
    count = reader.array_length("envelope.ackers")
    if count > ACKERS_MAX:
        raise reader.over_limit("the number of ackers", count, ACKERS_MAX)
    return tuple(
        PoolId(reader.byte_string(POOL_ID_BYTES, POOL_ID_BYTES, f"envelope.ackers[{index}]"))
        for index in range(count)
    )


def zero_pad(missing: int) -> bytes:
    """The shortest string of zeros that takes at least `missing` bytes with its head."""
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
        raise _refused(f"at most {ACKERS_MAX} nodes can be asked to confirm", len(envelope.ackers))


def _refused(text: str, found: object) -> StagepostError:
    return StagepostError(text, code=ErrorCode.CONFIG_INVALID, found=found)
