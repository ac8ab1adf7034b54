"""BLAKE2b in the two sizes that Cardano uses; the pool id made from one of them, and its two text forms: 56 hex digits, and
bech32 with the prefix `pool`.
"""

from __future__ import annotations

import string
from hashlib import blake2b

from stagepost.errors import ConfigError
from stagepost.ground.crypto import bech32

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


POOL_ID_PREFIX = "pool"

_HEX_DIGITS = frozenset(string.hexdigits)
_ADVICE = "give the id as printed by `stagepost keys show`: pool1… or 56 hex digits"


def format_pool_id(pool_id: bytes) -> str:
    """Return the bech32 form of `pool_id`; `pool_id.hex()` is the other form."""
    if len(pool_id) != POOL_ID_BYTES:
        raise ValueError(f"a pool id has {POOL_ID_BYTES} bytes, found {len(pool_id)}")
    return bech32.encode(POOL_ID_PREFIX, pool_id)


def parse_pool_id(text: str) -> bytes:
    """Return the 28 bytes that `text` names in either form; raise `ConfigError` for any other text."""
    # No hex text begins with the p of the prefix, so the two forms cannot be confused.
    if text and _HEX_DIGITS.issuperset(text):
        if len(text) != 2 * POOL_ID_BYTES:
            raise _refusal(text, f"a pool id in hex has {2 * POOL_ID_BYTES} digits, found {len(text)}")
        return bytes.fromhex(text)
    try:
        prefix, pool_id = bech32.decode(text)
    except ConfigError as error:
        raise _refusal(text, error.text) from error
    if prefix != POOL_ID_PREFIX:
        raise _refusal(text, f"expected the bech32 prefix {POOL_ID_PREFIX!r}, found {prefix!r}")
    if len(pool_id) != POOL_ID_BYTES:
        raise _refusal(text, f"a pool id has {POOL_ID_BYTES} bytes, found {len(pool_id)}")
    return pool_id


def _refusal(text: str, why: str) -> ConfigError:
    shown = text if len(text) <= bech32.TEXT_CHARACTERS_MAX else text[: bech32.TEXT_CHARACTERS_MAX] + "…"
    return ConfigError(f"{shown!r} is not a pool id: {why}", advice=_ADVICE, found=shown)
