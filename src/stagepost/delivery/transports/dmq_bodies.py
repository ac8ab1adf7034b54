"""The bodies of DMQ messages, made of deliveries and read back. The sender is the signer of the message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from stagepost.delivery.envelope import (
    ACK_KIND,
    ACK_TOPICS,
    BODY_BYTES_MAX,
    DATA_KIND,
    DATA_VERSIONS,
    RESERVED_TOPIC_PREFIX,
    AckReceipt,
    DataEnvelope,
    pack_receipts,
    read_ack_envelope,
    read_data_envelope,
)
from stagepost.delivery.identity import identity_bytes
from stagepost.delivery.transport import Incoming, IncomingAcks, Outgoing
from stagepost.dmq.message import DmqMessage
from stagepost.errors import ConfigError, DecodeError
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.identifiers import POOL_ID_BYTES, PoolId
from stagepost.ground.wire.trace_context import TRACE_PARENT_BYTES, TraceParent

POOLS_REMEMBERED_MAX = 4_096

# Envelope head, version, kind; nonce, creation time and attempt at their longest; the head of a long payload.
_FIXED_BYTES = 1 + 1 + 1 + 17 + 9 + 5 + 3
_ACKER_BYTES = 2 + POOL_ID_BYTES
_TRACE_BYTES = 2 + TRACE_PARENT_BYTES
_DATA_HEADS = tuple(bytes((version, DATA_KIND)) for version in DATA_VERSIONS)


def payload_room(topic: str, ackers: Sequence[str], body_bytes_max: int = BODY_BYTES_MAX) -> int:
    """Return the bytes of payload that fit at every attempt; negative if nothing fits."""
    topic_bytes = len(topic.encode())
    return (
        body_bytes_max
        - _FIXED_BYTES
        - _head_bytes(topic_bytes)
        - topic_bytes
        - _head_bytes(len(ackers))
        - len(ackers) * _ACKER_BYTES
    )


def data_body(message: Outgoing) -> bytes:
    """Return the body of a delivery; raise `StagepostError` if no body can carry it.

    A payload that leaves no room for the trace context goes without it.
    """
    envelope = envelope_of(message)
    room = payload_room(message.topic, message.ackers) - _TRACE_BYTES
    if envelope.trace_parent is not None and len(message.payload) > room:
        envelope = msgspec.structs.replace(envelope, trace_parent=None)
    return envelope.encode()


def envelope_of(message: Outgoing) -> DataEnvelope:
    """Return the envelope of an attempt; raise `ConfigError` for an acker whose name is not an id of 28 bytes."""
    return DataEnvelope(
        message.topic,
        message.nonce,
        message.created_ms,
        message.payload,
        message.attempt,
        tuple(acker_id(acker) for acker in message.ackers),
        TraceParent.parse(message.traceparent) if message.traceparent else None,
    )


def ack_bodies(sender: str, receipts: Sequence[AckReceipt]) -> list[tuple[bytes, int]]:
    """Return as few bodies as hold all receipts, each with the number of its receipts."""
    return [(envelope.encode(), len(envelope.receipts)) for envelope in pack_receipts(sender, receipts)]


def read_body(message: DmqMessage) -> Incoming | IncomingAcks | None:
    """Read a body; return None for a body of another program, since others use the network too."""
    sender = node_id_of(message.cold_verification_key)
    return read_envelope(message.body, sender, message.expires_at * 1_000, message.message_id)


def read_envelope(
    body: bytes,
    sender: str,
    expires_at_ms: int | None,
    network_id: bytes,
    payload_bytes_max: int = BODY_BYTES_MAX,
) -> Incoming | IncomingAcks | None:
    """Read a body that `sender` has signed; return None for a body that is no envelope."""
    # Version and kind follow the head of the array, so that most foreign bodies need no decoder.
    if body[1:3] == bytes((1, ACK_KIND)):
        return _read_acks(body, sender)
    if body[1:3] not in _DATA_HEADS:
        return None
    try:
        envelope = read_data_envelope(body, payload_bytes_max)
    except DecodeError:
        return None
    if envelope.topic.startswith(RESERVED_TOPIC_PREFIX):
        # Receipts in a data envelope; no other system message may reach an application.
        return _read_acks(envelope.payload, sender) if envelope.topic in ACK_TOPICS else None
    return Incoming(
        sender,
        envelope.topic,
        envelope.nonce,
        envelope.created_ms,
        envelope.attempt,
        tuple([acker.hex() for acker in envelope.ackers]),
        envelope.payload,
        expires_at_ms,
        network_id,
        "" if envelope.trace_parent is None else envelope.trace_parent.text,
    )


def _read_acks(body: bytes, carrier: str) -> IncomingAcks | None:
    try:
        envelope = read_ack_envelope(body)
    except DecodeError:
        return None
    return IncomingAcks(carrier, _identity_text(envelope.sender), envelope.receipts)


def _identity_text(identity: bytes) -> str:
    """Return the node id of these bytes."""
    return identity.hex() if len(identity) == POOL_ID_BYTES else identity.decode(errors="replace")


@lru_cache(maxsize=POOLS_REMEMBERED_MAX)
def node_id_of(cold_verification_key: bytes) -> str:
    """Return the pool id of a key as text, from a cache: few pools send many messages, and the hash takes longer."""
    return pool_id(cold_verification_key).hex()


def acker_id(acker: str) -> PoolId:
    """Return the pool id that `acker` spells in lower-case hex digits; raise `ConfigError` for any other name."""
    identity = identity_bytes(acker)
    if len(identity) != POOL_ID_BYTES:
        raise ConfigError(
            f"{acker!r} cannot acknowledge on a DMQ network: there a peer's name is its pool id, 56 hex digits",
            advice="`stagepost keys show` prints the pool id of a folder with keys",
            found=acker,
        )
    return PoolId(identity)


def _head_bytes(length: int) -> int:
    return 1 if length < 24 else 2 if length < 256 else 3
