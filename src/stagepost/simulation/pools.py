"""Pools for simulations: real keys and certificates, made once and shared by all worlds of a process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from random import Random

import msgspec

from stagepost.dmq.message import BODY_BYTES_MIN, DmqMessage, sign_message, write_certificate
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.hashing import blake2b_256, pool_id
from stagepost.ground.crypto.operational_certificate import OperationalCertificate, issue
from stagepost.ground.identifiers import MessageId, PoolId
from stagepost.ground.wire.cbor import write_array, write_bytes, write_unsigned

START_KES_PERIOD = 100
ISSUE_NUMBER = 5
STRANGER = 1_000_000
"""Number of a pool that is in no distribution."""
PAUPER = 1_000_001
"""Number of a pool without stake."""


class SimulatedPool:
    """Pool with its keys. The KES key stays in its first period, so that sharing it changes nothing."""

    def __init__(self, number: int) -> None:
        random = Random(f"pool {number}")
        self._cold_seed = random.randbytes(32)
        self._kes_key = kes.SigningKey.generate(random.randbytes(kes.SEED_BYTES))
        self.cold_verification_key = ed25519.public_key(self._cold_seed)
        self.pool_id = PoolId(pool_id(self.cold_verification_key))
        self.certificate = self.certificate_numbered(ISSUE_NUMBER)

    def certificate_numbered(self, issue_number: int) -> OperationalCertificate:
        return issue(
            self._kes_key.verification_key,
            issue_number=issue_number,
            start_kes_period=START_KES_PERIOD,
            cold_seed=self._cold_seed,
        )

    def message(
        self, body: bytes, expires_at: int, certificate: OperationalCertificate | None = None
    ) -> DmqMessage:
        return sign_message(
            body,
            key=self._kes_key,
            certificate=certificate or self.certificate,
            cold_verification_key=self.cold_verification_key,
            kes_period=START_KES_PERIOD,
            expires_at=expires_at,
        )

    def message_in_old_layout(self, message_id: bytes, body: bytes, expires_at: int) -> DmqMessage:
        """Return a message in the layout of four elements, whose id the sender chooses."""
        signed = write_array(
            write_bytes(message_id),
            write_bytes(body),
            write_unsigned(START_KES_PERIOD),
            write_unsigned(expires_at),
        )
        raw = write_array(
            signed,
            write_bytes(self._kes_key.sign(signed)),
            write_certificate(self.certificate),
            write_bytes(self.cold_verification_key),
        )
        return DmqMessage.decode(raw, profile="seed")


@cache
def simulated_pool(number: int) -> SimulatedPool:
    return SimulatedPool(number)


class SimulatedPools:
    """Stake distribution of the first `count` pools, and one pool without stake."""

    def __init__(self, count: int) -> None:
        self.is_ready = True
        self.kes_evolutions_max = 62
        self.members = [simulated_pool(number) for number in range(count)]
        self._stakes: dict[PoolId, int] = {pool.pool_id: 1_000 for pool in self.members}
        self._stakes[simulated_pool(PAUPER).pool_id] = 0

    def stake(self, pool_id: PoolId) -> int | None:
        return self._stakes.get(pool_id)


def a_body(random: Random) -> bytes:
    return random.randbytes(random.choice((BODY_BYTES_MIN, 200, 500, 2_000)))


def _altered(message: DmqMessage, raw: bytes) -> DmqMessage:
    return msgspec.structs.replace(message, raw=raw)


def _bad_signature(random: Random, message: DmqMessage) -> DmqMessage:
    at = message.raw.index(message.kes_signature) + random.randrange(64)
    raw = bytearray(message.raw)
    raw[at] ^= 1 << random.randrange(8)
    return _altered(message, bytes(raw))


def _bad_id(random: Random, message: DmqMessage) -> DmqMessage:
    other = MessageId(blake2b_256(random.randbytes(8)))
    return _altered(message, message.raw.replace(message.message_id, other, 1))


def _bad_body(random: Random, message: DmqMessage) -> DmqMessage:
    """Return the message with another body under its old signature, and with the id that fits that body."""
    body = random.randbytes(len(message.body))
    signed = message.signed_bytes.replace(message.body, body, 1)
    raw = message.raw.replace(message.signed_bytes, signed, 1)
    return _altered(message, raw.replace(message.message_id, blake2b_256(signed), 1))


FLAWS: Mapping[str, Callable[[Random, DmqMessage], DmqMessage]] = {
    "its signature is broken": _bad_signature,
    "its id is not its hash": _bad_id,
    "its body was exchanged": _bad_body,
}


def a_flawed_message(random: Random, pools: SimulatedPools, now_unix_s: float) -> tuple[DmqMessage, str]:
    """Return a message that no node may accept, and the reason."""
    body, expires_at = a_body(random), int(now_unix_s) + 600
    kind = random.choice([*FLAWS, "its pool is unknown", "its pool has no stake", "it expires too late"])
    if kind in FLAWS:
        return FLAWS[kind](random, random.choice(pools.members).message(body, expires_at)), kind
    if kind == "its pool is unknown":
        return simulated_pool(STRANGER).message(body, expires_at), kind
    if kind == "its pool has no stake":
        return simulated_pool(PAUPER).message(body, expires_at), kind
    return random.choice(pools.members).message(body, int(now_unix_s) + 1_900), kind
