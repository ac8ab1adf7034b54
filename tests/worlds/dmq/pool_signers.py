"""Pools that sign: messages that are valid in everything, and a stake distribution that knows their signers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.ground.crypto import ed25519
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.crypto.kes import SigningKey
from stagepost.ground.crypto.operational_certificate import OperationalCertificate, issue
from stagepost.ground.identifiers import PoolId

NOW = 1_900_000_000


@cache
def _kes_key_at(number: int, evolution: int) -> bytes:
    key = SigningKey.generate(bytes([100 + number]) * 32)
    for _ in range(evolution):
        key.evolve()
    return key.to_bytes()


@dataclass(frozen=True)
class Signer:
    """Pool `number`, with the certificate that it uses at present."""

    number: int = 0
    issue_number: int = 1
    start_kes_period: int = 0

    @property
    def cold_seed(self) -> bytes:
        return bytes([self.number + 1]) * 32

    @property
    def cold_key(self) -> bytes:
        return ed25519.public_key(self.cold_seed)

    @property
    def pool_id(self) -> PoolId:
        return PoolId(pool_id(self.cold_key))

    @property
    def certificate(self) -> OperationalCertificate:
        return _certificate(self)

    def sign(self, tag: int = 0, *, expires_at: int = NOW + 600, evolution: int = 0) -> DmqMessage:
        """The body is made from `tag`, so that another tag is another message."""
        return _signed(self, tag, expires_at, evolution)


@cache
def _certificate(signer: Signer) -> OperationalCertificate:
    key = SigningKey.from_bytes(_kes_key_at(signer.number, 0))
    return issue(
        key.verification_key,
        issue_number=signer.issue_number,
        start_kes_period=signer.start_kes_period,
        cold_seed=signer.cold_seed,
    )


@cache
def _signing_key(number: int, evolution: int) -> SigningKey:
    return SigningKey.from_bytes(_kes_key_at(number, evolution))


@cache
def _signed(signer: Signer, tag: int, expires_at: int, evolution: int) -> DmqMessage:
    return sign_message(
        tag.to_bytes(8, "big") * 12,
        key=_signing_key(signer.number, evolution),
        certificate=signer.certificate,
        cold_verification_key=signer.cold_key,
        kes_period=signer.start_kes_period + evolution,
        expires_at=expires_at,
    )


def decoded(message: DmqMessage, *, flip_at: int) -> DmqMessage:
    """The same message with one bit of its encoding changed, where that still is a message."""
    raw = bytearray(message.raw)
    raw[flip_at] ^= 1
    return DmqMessage.decode(bytes(raw))


@dataclass
class KnownPools:
    """A stake distribution that knows everybody, or only those in `stakes`."""

    stakes: dict[PoolId, int] | None = None
    is_ready: bool = True
    kes_evolutions_max: int = 62

    def stake(self, pool_id: PoolId) -> int | None:
        return 1 if self.stakes is None else self.stakes.get(pool_id)
