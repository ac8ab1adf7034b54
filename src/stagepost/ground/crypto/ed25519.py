"""Ed25519 with libsodium's acceptance rules: canonical S, no small-order points, no cofactor.

Cardano nodes accept exactly the same signatures; any other rule would split us from them. No other module
touches the library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import BadSignatureError

SEED_BYTES = 32
PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64

Open: TypeAlias = Callable[[bytes, bytes], bool]

Claim: TypeAlias = tuple[bytes, bytes]
"""A public key, and a signature followed by the bytes that this key is said to have signed."""


def open_by_binding(signed: bytes, public_key: bytes) -> bool:
    """Return whether `public_key` made the signature in front of `signed`. The caller checks both lengths."""
    try:
        crypto_sign_open(signed, public_key)
    except BadSignatureError:
        return False
    return True


def _open_without_copy() -> Open:
    """Return the library's own `crypto_sign_open`, which does not copy the message as the binding does.

    The copy costs every message one part in thirty of its check. Where the binding is built differently,
    return `open_by_binding`.
    """
    try:
        from nacl._sodium import ffi, lib  # type: ignore[import-not-found,import-untyped,unused-ignore]

        crypto_sign_open, nowhere = lib.crypto_sign_open, ffi.NULL
    except (ImportError, AttributeError):
        return open_by_binding

    def open_nowhere(signed: bytes, public_key: bytes) -> bool:
        return bool(crypto_sign_open(nowhere, nowhere, signed, len(signed), public_key) == 0)

    return open_nowhere


_open = _open_without_copy()


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Return True if `signature` is valid; False for a forged signature and for any wrong length."""
    return len(signature) == SIGNATURE_BYTES and verify_signed(public_key, signature + message)


def verify_signed(public_key: bytes, signed: bytes) -> bool:
    """Do what `verify` does, for a message with its signature in front of it, which is how the library takes
    both."""
    # The library trusts the caller on lengths and would read past a short key.
    if len(public_key) != PUBLIC_KEY_BYTES or len(signed) < SIGNATURE_BYTES:
        return False
    return _open(signed, public_key)


def public_key(seed: bytes) -> bytes:
    """Return the public key that belongs to the 32-byte secret `seed`."""
    _require_length("an Ed25519 seed", seed, SEED_BYTES)
    return crypto_sign_seed_keypair(seed)[0]


def sign(seed: bytes, message: bytes, *, public_key: bytes | None = None) -> bytes:
    """Return the 64-byte signature. A caller that signs often passes `public_key`, which saves deriving it
    each time.

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
