"""Who is who, and which message is which: node ids as text, their bytes on the wire, and the delivery id."""

from __future__ import annotations

from typing import NewType

from stagepost.crypto.hashing import blake2b_256
from stagepost.identifiers import POOL_ID_BYTES
from stagepost.wire.cbor import write_array, write_bytes, write_text

DeliveryId = NewType("DeliveryId", bytes)
"""32 bytes that never change over retries."""

DELIVERY_ID_BYTES = 32
DELIVERY_ID_DOMAIN = "dlv1"
NONCE_BYTES = 16
NONCE_PREFIX_BYTES = 8

_HEX_DIGITS = frozenset("0123456789abcdef")


def identity_bytes(node_id: str) -> bytes:
    """A pool id, 56 lower-case hex characters, is its 28 bytes; any other name is itself in UTF-8."""
    if len(node_id) == 2 * POOL_ID_BYTES and _HEX_DIGITS.issuperset(node_id):
        return bytes.fromhex(node_id)
    return node_id.encode()


def delivery_id(sender: bytes, topic: str, nonce: bytes, payload: bytes) -> DeliveryId:
    """`sender` is whoever signed the message; every part is delimited, so no two messages can share an id by shifting."""
    return DeliveryId(
        blake2b_256(
            write_array(
                write_text(DELIVERY_ID_DOMAIN),
                write_bytes(sender),
                write_text(topic),
                write_bytes(nonce),
                write_bytes(payload),
            )
        )
    )


def nonce_of_key(key: str | bytes) -> bytes:
    """The same idempotency key gives the same nonce, and with the same topic and payload the same delivery id."""
    return blake2b_256(key.encode() if isinstance(key, str) else key)[:NONCE_BYTES]


def counted_nonce(prefix: bytes, counter: int) -> bytes:
    """`prefix` is random and belongs to one outbox; the counter is never used twice in it."""
    return prefix + counter.to_bytes(NONCE_BYTES - NONCE_PREFIX_BYTES, "big")
