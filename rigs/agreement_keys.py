"""Keys of the validators of an agreement, by number."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from stagepost.ground.crypto import ed25519


@lru_cache(maxsize=64)
def seed_of(index: int) -> bytes:
    return sha256(b"validator %d" % index).digest()


@lru_cache(maxsize=64)
def public_key_of(index: int) -> bytes:
    return ed25519.public_key(seed_of(index))
