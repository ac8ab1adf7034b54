"""Key-evolving signatures: the Sum composition of any depth over Ed25519 and BLAKE2b-256 (depth 6 for DMQ).

A key of depth d is a binary tree with 2^d Ed25519 leaves, one per period. The verification key is the root of
the hash tree over the leaves' public keys. A raw signing key is

    leaf seed ‖ level 1 ‖ … ‖ level d        a level is: right-hand seed ‖ left key ‖ right key

with everything that past periods needed erased: a right-hand seed is all zero once its half has begun. So the
erased seeds, read as binary digits with level 1 the lowest, are the period. A signature is the leaf's Ed25519
signature and then the pairs of keys of each level, the path from the leaf to the root.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NoReturn

from stagepost.errors import KesExhausted, KeyFileError, LocalProtocolError, SigningError
from stagepost.ground.crypto import ed25519
from stagepost.ground.crypto.hashing import blake2b_256

__all__ = ["KesExhausted", "SigningKey", "leaf_key", "periods_of", "verify"]

DMQ_DEPTH = 6
DEPTH_MAX = 16
SEED_BYTES = 32
KEY_BYTES = 32
PAIR_BYTES = 2 * KEY_BYTES
LEVEL_BYTES = SEED_BYTES + PAIR_BYTES
PERIOD_SUFFIX_BYTES = 4

_ERASED = bytes(SEED_BYTES)
# Copying a fresh hash is a third cheaper than making one, and verification does so at every level.
_EMPTY_HASH = blake2b(digest_size=KEY_BYTES)


def periods_of(depth: int) -> int:
    """Return the number of periods that a key of `depth` serves."""
    return 1 << depth


def verify(verification_key: bytes, period: int, message: bytes, signature: bytes) -> bool:
    """Return True if the signature is valid at exactly this `period`; False for any wrong length or period.

    The depth follows from the length of the signature. CompactSum signatures have other lengths, so this
    refuses them.
    """
    leaf = leaf_key(verification_key, period, signature[ed25519.SIGNATURE_BYTES :])
    if leaf is None:
        return False
    return ed25519.verify(leaf, message, signature[: ed25519.SIGNATURE_BYTES])


class SigningKey:
    """Secret of one KES key at its present period. `evolve` moves the key forward; nothing moves it back.

    The secrets lie in one buffer that is overwritten in place. Python may have made copies on the way, so
    erasure is best effort.
    """

    __slots__ = (
        "_depth",
        "_is_erased",
        "_leaf_public_key",
        "_path",
        "_period",
        "_secret",
        "_verification_key",
    )

    def __init__(self, secret: bytearray, depth: int) -> None:
        """Take over `secret` without checking it. Only `generate` and `from_bytes` call this."""
        self._secret = secret
        self._depth = depth
        self._is_erased = False
        self._refresh()
        self._verification_key = blake2b_256(self._path[-PAIR_BYTES:]) if depth else self._leaf_public_key

    @classmethod
    def generate(cls, seed: bytes, depth: int = DMQ_DEPTH) -> SigningKey:
        """Return the key that `seed` determines, at period 0. Costs one Ed25519 derivation per period."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a KES seed has {SEED_BYTES} bytes, found {len(seed)}")
        if not 0 <= depth <= DEPTH_MAX:
            raise ValueError(f"a KES depth is 0 to {DEPTH_MAX}, found {depth}")
        secret = bytearray(_secret_bytes(depth))
        _generate_into(secret, seed, depth)
        return cls(secret, depth)

    @classmethod
    def from_bytes(cls, data: bytes) -> SigningKey:
        """Return the key in its raw form `data`, with or without its period appended as 4 big-endian bytes.

        Raise `KeyFileError` for other lengths, and for keys whose parts do not belong together. The check
        costs as much as making the key. It cannot find damage to the root's left key once the right half has
        begun: that damage gives another verification key, which no certificate names.
        """
        depth, rest = divmod(len(data) - SEED_BYTES, LEVEL_BYTES)
        if not 0 <= depth <= DEPTH_MAX or rest not in (0, PERIOD_SUFFIX_BYTES):
            raise KeyFileError(
                f"a raw KES signing key of depth d has 32 + 96·d bytes "
                f"({_secret_bytes(DMQ_DEPTH)} for depth {DMQ_DEPTH}), found {len(data)}",
                found=len(data),
            )
        length = _secret_bytes(depth)
        key = cls(bytearray(data[:length]), depth)
        key._require_consistent()
        if rest:
            stated = int.from_bytes(data[length:], "big")
            if stated != key._period:
                raise KeyFileError(
                    f"the KES signing key says it is at period {stated}, "
                    f"but its erased seeds say {key._period}",
                    found=stated,
                )
        return key

    @property
    def depth(self) -> int:
        return self._depth

    @property
    def verification_key(self) -> bytes:
        return self._verification_key

    @property
    def period(self) -> int:
        """Period of the key, counted from 0; the only period that it can sign for."""
        return self._period

    @property
    def periods_left(self) -> int:
        """Number of times that `evolve` can still be called."""
        return periods_of(self._depth) - 1 - self._period

    def to_bytes(self) -> bytes:
        """Return the raw form, as other implementations write it. Keep it secret."""
        self._require_secret()
        return bytes(self._secret)

    def sign(self, message: bytes) -> bytes:
        """Return a signature for the present period."""
        self._require_secret()
        leaf_seed = bytes(self._secret[:SEED_BYTES])
        return ed25519.sign(leaf_seed, message, public_key=self._leaf_public_key) + self._path

    def evolve(self) -> None:
        """Move to the next period and erase the secrets of this one; raise `KesExhausted` at the last period.

        This is like adding one in binary: the lowest level whose right half has not begun starts it, and
        everything below is made anew from that level's seed.
        """
        self._require_secret()
        level = next((i for i in range(self._depth) if not self._is_right(i)), None)
        if level is None:
            raise KesExhausted(
                f"the KES key has used its last period, {self._period}",
                advice="make a new KES key and a new operational certificate",
                found=self._period,
            )
        start = _secret_bytes(level)
        below = bytearray(start)
        made = _generate_into(below, bytes(self._secret[start : start + SEED_BYTES]), level)
        if made != self._right_key(level):
            # Before anything is erased: the key as it stands still signs for its present period.
            raise SigningError(
                f"the KES key of the period after {self._period} is not the one that its public key names",
                advice="restore the key file; this one is damaged",
                found=self._period,
            )
        self._secret[: start + SEED_BYTES] = below + _ERASED
        below[:] = bytes(start)
        self._refresh()

    def erase(self) -> None:
        """Overwrite the secret when it is no longer needed. The key cannot sign or evolve afterwards."""
        self._secret[:] = bytes(len(self._secret))
        self._is_erased = True

    def _require_secret(self) -> None:
        if self._is_erased:
            raise LocalProtocolError("this KES key was erased")

    def _is_right(self, level: int) -> bool:
        """Return True if the present period lies in the right half of `level`, whose seed is then erased."""
        start = _secret_bytes(level)
        return self._secret[start : start + SEED_BYTES] == _ERASED

    def _refresh(self) -> None:
        """Recompute what follows from the secret, so that signing does not have to."""
        self._leaf_public_key = ed25519.public_key(bytes(self._secret[:SEED_BYTES]))
        self._path = b"".join(
            self._secret[_secret_bytes(level) + SEED_BYTES : _secret_bytes(level + 1)]
            for level in range(self._depth)
        )
        self._period = sum(1 << level for level in range(self._depth) if self._is_right(level))

    def _require_consistent(self) -> None:
        """Raise `KeyFileError` unless the leaf hashes up to the root and each seed gives the key it promised.

        The check belongs here, and not at the change of a period: only then would nodes begin to refuse
        signatures.
        """
        fits = leaf_key(self._verification_key, self._period, self._path) == self._leaf_public_key and all(
            self._is_right(level) or self._right_key_made_anew(level) == self._right_key(level)
            for level in range(self._depth)
        )
        if not fits:
            raise KeyFileError(
                f"the KES signing key is damaged: its parts do not belong together at period {self._period}",
                advice="restore the key file from its last good copy of the same period, or make a new key",
            )

    def _right_key_made_anew(self, level: int) -> bytes:
        start = _secret_bytes(level)
        return _verification_key(bytes(self._secret[start : start + SEED_BYTES]), level)

    def _right_key(self, level: int) -> bytes:
        return self._path[level * PAIR_BYTES + KEY_BYTES : (level + 1) * PAIR_BYTES]

    def __repr__(self) -> str:
        return f"<KES signing key {self._verification_key.hex()}, depth {self._depth}, period {self._period}>"

    def __reduce__(self) -> NoReturn:
        # Copies made by pickle or copy would survive an evolution and defeat it.
        raise TypeError("a KES signing key is neither copied nor pickled; use to_bytes and keep it secret")


def leaf_key(verification_key: bytes, period: int, path: bytes) -> bytes | None:
    """Return the leaf's public key if `path` leads from it to `verification_key` at `period`; None if not."""
    depth, rest = divmod(len(path), PAIR_BYTES)
    if rest or depth > DEPTH_MAX or len(verification_key) != KEY_BYTES or not 0 <= period < 1 << depth:
        return None
    key = verification_key
    for level in range(depth - 1, -1, -1):
        pair = path[level * PAIR_BYTES : (level + 1) * PAIR_BYTES]
        node = _EMPTY_HASH.copy()
        node.update(pair)
        if node.digest() != key:
            return None
        key = pair[KEY_BYTES:] if period >> level & 1 else pair[:KEY_BYTES]
    return key


def _secret_bytes(depth: int) -> int:
    return SEED_BYTES + LEVEL_BYTES * depth


def _generate_into(secret: bytearray, seed: bytes, depth: int) -> bytes:
    """Write the key of `depth` made from `seed` to the front of `secret`; return its verification key."""
    if depth == 0:
        secret[:SEED_BYTES] = seed
        return ed25519.public_key(seed)
    left_seed, right_seed = _split(seed)
    left = _generate_into(secret, left_seed, depth - 1)
    right = _verification_key(right_seed, depth - 1)
    secret[_secret_bytes(depth - 1) : _secret_bytes(depth)] = right_seed + left + right
    return blake2b_256(left + right)


def _verification_key(seed: bytes, depth: int) -> bytes:
    if depth == 0:
        return ed25519.public_key(seed)
    left_seed, right_seed = _split(seed)
    return blake2b_256(_verification_key(left_seed, depth - 1) + _verification_key(right_seed, depth - 1))


def _split(seed: bytes) -> tuple[bytes, bytes]:
    return blake2b_256(b"\x01" + seed), blake2b_256(b"\x02" + seed)
