"""Key exchange and encrypted streams of libsodium: `crypto_kx` (X25519 and BLAKE2b) and `secretstream` (XChaCha20-Poly1305).

A stream carries pieces in their order: a piece that was changed, left out, repeated or moved does not open.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec
from nacl.bindings import (
    crypto_kx_client_session_keys,
    crypto_kx_seed_keypair,
    crypto_kx_server_session_keys,
    crypto_secretstream_xchacha20poly1305_ABYTES,
    crypto_secretstream_xchacha20poly1305_HEADERBYTES,
    crypto_secretstream_xchacha20poly1305_init_pull,
    crypto_secretstream_xchacha20poly1305_init_push,
    crypto_secretstream_xchacha20poly1305_pull,
    crypto_secretstream_xchacha20poly1305_push,
    crypto_secretstream_xchacha20poly1305_state,
    crypto_secretstream_xchacha20poly1305_TAG_FINAL,
    crypto_secretstream_xchacha20poly1305_TAG_MESSAGE,
    crypto_secretstream_xchacha20poly1305_TAG_REKEY,
)
from nacl.exceptions import CryptoError

EXCHANGE_KEY_BYTES = 32
STREAM_HEADER_BYTES: int = crypto_secretstream_xchacha20poly1305_HEADERBYTES
SEALED_EXTRA_BYTES: int = crypto_secretstream_xchacha20poly1305_ABYTES
"""Bytes by which a sealed piece is longer than its content."""

PLAIN_TAG: int = crypto_secretstream_xchacha20poly1305_TAG_MESSAGE
REKEY_TAG: int = crypto_secretstream_xchacha20poly1305_TAG_REKEY
"""Tag of a piece behind which both sides change the key of the stream."""
LAST_TAG: int = crypto_secretstream_xchacha20poly1305_TAG_FINAL


class StreamKeys(msgspec.Struct, frozen=True):
    """Keys of the two streams of one link, as one of its ends sees them."""

    receiving: bytes
    sending: bytes

    def __repr__(self) -> str:
        return "StreamKeys(…)"


class EphemeralKey:
    """Key pair of one link. `seed`: fresh random bytes that serve no other link and are kept nowhere."""

    def __init__(self, seed: bytes) -> None:
        self.public_key, self._secret = crypto_kx_seed_keypair(seed)

    def agree(self, theirs: bytes, context: bytes, *, is_client: bool) -> StreamKeys | None:
        """Return the keys that both ends draw from their ephemeral keys and from `context`, on which both must agree;
        None if `theirs` is not the public half of any key pair.
        """
        agree = crypto_kx_client_session_keys if is_client else crypto_kx_server_session_keys
        try:
            receiving, sending = agree(self.public_key, self._secret, theirs)
        except CryptoError:
            return None
        return StreamKeys(_bound(receiving, context), _bound(sending, context))


class StreamSealer:
    """Sending end of a stream; `header` is what the other end needs first."""

    def __init__(self, key: bytes) -> None:
        self._state = crypto_secretstream_xchacha20poly1305_state()
        self.header: bytes = crypto_secretstream_xchacha20poly1305_init_push(self._state, key)

    def seal(self, content: bytes, tag: int = PLAIN_TAG) -> bytes:
        return crypto_secretstream_xchacha20poly1305_push(self._state, content, None, tag)


class StreamOpener:
    """Receiving end of a stream that began with `header`."""

    def __init__(self, key: bytes, header: bytes) -> None:
        self._state = crypto_secretstream_xchacha20poly1305_state()
        crypto_secretstream_xchacha20poly1305_init_pull(self._state, header, key)

    def open(self, sealed: bytes) -> tuple[bytes, int] | None:
        """Return the content and tag of the next piece; None if `sealed` is not that piece."""
        try:
            return crypto_secretstream_xchacha20poly1305_pull(self._state, sealed)
        except CryptoError:
            return None


def _bound(key: bytes, context: bytes) -> bytes:
    return blake2b(context, digest_size=EXCHANGE_KEY_BYTES, key=key).digest()
