"""Ed25519 with libsodium's acceptance rules: canonical S, no small-order points, no cofactor.

Cardano nodes answer the same, and any other answer would split us from them. This is the only module that
touches the library.
"""

from __future__ import annotations

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

SEED_BYTES = 32
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """True if `signature` is valid; False for a forged one and for any wrong length."""
    # The library trusts the caller on lengths and would read past a short key.
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        return False
    return True


def public_key(seed: bytes) -> bytes:
    """The public key that belongs to the 32-byte secret `seed`."""
    _require_length("an Ed25519 seed", seed, SEED_BYTES)
    return crypto_sign_seed_keypair(seed)[0]


def sign(seed: bytes, message: bytes, *, public_key: bytes | None = None) -> bytes:
    """The 64-byte signature. Who signs often passes `public_key`, which saves deriving it each time.

    A `public_key` that is not the seed's gives signatures that reveal the seed: never take it from elsewhere.
    """
    _require_length("an Ed25519 seed", seed, SEED_BYTES)
    if public_key is None:
        public_key = crypto_sign_seed_keypair(seed)[0]
    _require_length("an Ed25519 public key", public_key, PUBLIC_KEY_BYTES)
    return crypto_sign(message, seed + public_key)[:SIGNATURE_BYTES]


def _require_length(what: str, value: bytes, length: int) -> None:
    if len(value) != length:
        raise ValueError(f"{what} has {length} bytes, found {len(value)}")
