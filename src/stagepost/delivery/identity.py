"""The identities of nodes and messages: node ids as text, their bytes on the wire, and the delivery id."""

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
"""Items, at most, in each cache of node ids, beginnings of ids, and heads of payloads."""

_HEX_DIGITS = frozenset("0123456789abcdef")


@lru_cache(maxsize=HEADS_KEPT)
def identity_bytes(node_id: str) -> bytes:
    """Return the 28 bytes of a pool id (56 lower-case hex characters), or any other name in UTF-8."""
    if len(node_id) == 2 * POOL_ID_BYTES and _HEX_DIGITS.issuperset(node_id):
        return bytes.fromhex(node_id)
    return node_id.encode()


def delivery_id(sender: bytes, topic: str, nonce: bytes, payload: bytes) -> DeliveryId:
    """Return the delivery id of a message. `sender` is the signer.

    Every part is delimited, so that no two messages can share an id by shifting bytes between parts.
    """
    before_nonce = _before_nonce(sender, topic, len(nonce))
    return DeliveryId(blake2b_256(before_nonce + nonce + _head_of_bytes(len(payload)) + payload))


@lru_cache(maxsize=HEADS_KEPT)
def _before_nonce(sender: bytes, topic: str, nonce_bytes: int) -> bytes:
    """Return the common beginning of one sender's ids on a topic: `["dlv1", sender, topic, nonce, payload]` up to the nonce."""
    parts = (head(ARRAY, 5), write_text(DELIVERY_ID_DOMAIN), write_bytes(sender), write_text(topic))
    return b"".join((*parts, head(BYTE_STRING, nonce_bytes)))


@lru_cache(maxsize=HEADS_KEPT)
def _head_of_bytes(size: int) -> bytes:
    return head(BYTE_STRING, size)


def nonce_of_key(key: str | bytes) -> bytes:
    """Return the nonce of an idempotency key: with the same topic and payload it gives the same delivery id."""
    return blake2b_256(key.encode() if isinstance(key, str) else key)[:NONCE_BYTES]


def counted_nonce(prefix: bytes, counter: int) -> bytes:
    """Return a nonce of random `prefix`, which belongs to one outbox, and a counter that the outbox never repeats."""
    return prefix + counter.to_bytes(NONCE_BYTES - NONCE_PREFIX_BYTES, "big")
