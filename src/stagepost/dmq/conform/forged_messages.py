"""Signed messages, true and forged, made with libsodium and hashlib alone."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from hashlib import blake2b

from nacl.signing import SigningKey

from stagepost.dmq.conform.cbor_bytes import array, octets, uint

KES_DEPTH = 6
BODY_BYTES = 120
TTL_S = 900


def hashed(data: bytes) -> bytes:
    return blake2b(data, digest_size=32).digest()


def some_id() -> bytes:
    """Return the id of a message that does not exist."""
    return secrets.token_bytes(32)


def _halves(seed: bytes) -> tuple[bytes, bytes]:
    return hashed(b"\x01" + seed), hashed(b"\x02" + seed)


def _kes_key(seed: bytes, depth: int) -> bytes:
    if depth == 0:
        return bytes(SigningKey(seed).verify_key)
    left, right = _halves(seed)
    return hashed(_kes_key(left, depth - 1) + _kes_key(right, depth - 1))


@dataclass
class Forger:
    """Keys of a pool, at one KES evolution. A forger signs whatever it is told to, also what is wrong."""

    cold: SigningKey = field(default_factory=lambda: SigningKey(secrets.token_bytes(32)))
    evolution: int = 0
    kes_seed: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def __post_init__(self) -> None:
        seed = self.kes_seed
        pairs: list[bytes] = []  # from the top
        period = self.evolution
        for depth in range(KES_DEPTH, 0, -1):
            left, right = _halves(seed)
            pairs.append(_kes_key(left, depth - 1) + _kes_key(right, depth - 1))
            half = 1 << (depth - 1)
            seed, period = (left, period) if period < half else (right, period - half)
        self.kes_key = hashed(pairs[0])
        self._leaf = SigningKey(seed)
        self._path = b"".join(reversed(pairs))

    @property
    def cold_key(self) -> bytes:
        return bytes(self.cold.verify_key)

    @property
    def pool_id(self) -> bytes:
        return blake2b(self.cold_key, digest_size=28).digest()

    def kes_signature(self, payload: bytes) -> bytes:
        return self._leaf.sign(payload).signature + self._path

    def certificate_signature(self, issue_number: int, start_period: int) -> bytes:
        signed = self.kes_key + issue_number.to_bytes(8, "big") + start_period.to_bytes(8, "big")
        return self.cold.sign(signed).signature


@dataclass(frozen=True)
class ForgedMessage:
    """`identifier` is what the message says that its id is."""

    identifier: bytes
    raw: bytes


def message(
    forger: Forger,
    *,
    body: bytes | None = None,
    body_cbor: bytes | None = None,
    lives_s: int = TTL_S,
    expires_cbor: bytes | None = None,
    period: int | None = None,
    issue_number: int = 0,
    start_period: int = 0,
    identifier: bytes | None = None,
    kes_signature: bytes | None = None,
    certificate_signature: bytes | None = None,
    kes_key: bytes | None = None,
    cold_key: bytes | None = None,
    surplus: tuple[bytes, ...] = (),
    layout: int = 5,
) -> ForgedMessage:
    """Right in everything that is not given."""
    period = start_period + forger.evolution if period is None else period
    fields = (
        body_cbor or octets(secrets.token_bytes(BODY_BYTES) if body is None else body),
        uint(period),
        expires_cbor or uint(int(time.time()) + lives_s),
    )
    if layout == 4:
        identifier = identifier or secrets.token_bytes(32)
        payload = array(octets(identifier), *fields)
    else:
        payload = array(*fields)
        identifier = hashed(payload) if identifier is None else identifier
    tail = (
        octets(forger.kes_signature(payload) if kes_signature is None else kes_signature),
        array(
            octets(forger.kes_key if kes_key is None else kes_key),
            uint(issue_number),
            uint(start_period),
            octets(
                forger.certificate_signature(issue_number, start_period)
                if certificate_signature is None
                else certificate_signature
            ),
        ),
        octets(forger.cold_key if cold_key is None else cold_key),
        *surplus,
    )
    front = (payload,) if layout == 4 else (octets(identifier), payload)
    return ForgedMessage(identifier, array(*front, *tail))
