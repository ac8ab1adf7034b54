"""Who is who, and which message is which: node ids as text, their bytes on the wire, and the delivery id."""

from __future__ import annotations

from functools import lru_cache
from typing import NewType

from stagepost.ground.crypto.hashing import blake2b_256
from stagepost.ground.identifiers import POOL_ID_BYTES
from stagepost.ground.wire.cbor import ARRAY, BYTE_STRING, head, write_bytes, write_text

DeliveryId = NewType("DeliveryId", bytes)
"""32 bytes that never change over retries."""

DELIVERY_ID_BYTES = 32
DELIVERY_ID_DOMAIN = "dlv1"
NONCE_BYTES = 16
NONCE_PREFIX_BYTES = 8
HEADS_KEPT = 512
"""Node ids, beginnings of ids, and heads of payloads that are not written anew for each message."""

_HEX_DIGITS = frozenset("0123456789abcdef")


@lru_cache(maxsize=HEADS_KEPT)
def identity_bytes(node_id: str) -> bytes:
    """A pool id, 56 lower-case hex characters, is its 28 bytes; any other name is itself in UTF-8."""
    if len(node_id) == 2 * POOL_ID_BYTES and _HEX_DIGITS.issuperset(node_id):
        return bytes.fromhex(node_id)
    return node_id.encode()


def delivery_id(sender: bytes, topic: str, nonce: bytes, payload: bytes) -> DeliveryId:
    """`sender` is whoever signed the message; every part is delimited, so no two messages can share an id by shifting."""
    before_nonce = _before_nonce(sender, topic, len(nonce))
    return DeliveryId(blake2b_256(before_nonce + nonce + _head_of_bytes(len(payload)) + payload))


@lru_cache(maxsize=HEADS_KEPT)
def _before_nonce(sender: bytes, topic: str, nonce_bytes: int) -> bytes:
    """What ids of one sender and topic have in common: `["dlv1", sender, topic, nonce, payload]` up to the nonce."""
    parts = (head(ARRAY, 5), write_text(DELIVERY_ID_DOMAIN), write_bytes(sender), write_text(topic))
    return b"".join((*parts, head(BYTE_STRING, nonce_bytes)))


@lru_cache(maxsize=HEADS_KEPT)
def _head_of_bytes(size: int) -> bytes:
    return head(BYTE_STRING, size)


def nonce_of_key(key: str | bytes) -> bytes:
    """The same idempotency key gives the same nonce, and with the same topic and payload the same delivery id."""
    return blake2b_256(key.encode() if isinstance(key, str) else key)[:NONCE_BYTES]


def counted_nonce(prefix: bytes, counter: int) -> bytes:
    """`prefix` is random and belongs to one outbox; the counter is never used twice in it."""
    return prefix + counter.to_bytes(NONCE_BYTES - NONCE_PREFIX_BYTES, "big")
