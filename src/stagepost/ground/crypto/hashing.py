"""BLAKE2b in the two sizes that Cardano uses, and the pool id made from one of them."""

from __future__ import annotations

from hashlib import blake2b

POOL_ID_BYTES = 28

# Copying a fresh hash is a third cheaper than making one, and every message is hashed.
_EMPTY_256 = blake2b(digest_size=32)


def blake2b_224(content: bytes) -> bytes:
    return blake2b(content, digest_size=28).digest()


def blake2b_256(content: bytes) -> bytes:
    state = _EMPTY_256.copy()
    state.update(content)
    return state.digest()


def pool_id(cold_verification_key: bytes) -> bytes:
    """Return the 28 bytes that name a stake pool: the hash of its cold verification key."""
    return blake2b_224(cold_verification_key)
