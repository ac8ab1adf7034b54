"""Signed messages in quantity: many pools, one size, and a short form in which another process can take them over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.operational_certificate import OperationalCertificate, issue
from stagepost.ground.identifiers import PoolId

MESSAGE_BYTES = 1_500
POOLS = 100
EXPIRES_IN_S = 1_200
"""The first ones; a pool gives each of its messages a second of its own, as honest ones do."""
NETWORK_MAGIC = 2_147_483_690
"""No public network: pools may send as often as they like."""

_OVERHEAD_BYTES = 637
_BODY_BYTES = MESSAGE_BYTES - _OVERHEAD_BYTES


class AllPools:
    is_ready = True
    kes_evolutions_max = 62

    def stake(self, pool_id: PoolId) -> int | None:
        return 1


class Signers:
    """One pool after the other signs. Which pool and which body follow from the message's number alone."""

    def __init__(self, pools: int = POOLS) -> None:
        self._pools = [_pool(number) for number in range(pools)]
        self._expires_at = int(time.time()) + EXPIRES_IN_S

    def cold_keys(self) -> list[bytes]:
        return [cold_key for _, _, cold_key in self._pools]

    def sign(self, number: int) -> DmqMessage:
        key, certificate, cold_key = self._pools[number % len(self._pools)]
        message = sign_message(
            number.to_bytes(8, "big") + bytes(_BODY_BYTES - 8),
            key=key,
            certificate=certificate,
            cold_verification_key=cold_key,
            kes_period=500,
            expires_at=self._expires_at + number // len(self._pools),
        )
        assert len(message.raw) == MESSAGE_BYTES
        return message


def _pool(number: int) -> tuple[kes.SigningKey, OperationalCertificate, bytes]:
    cold_seed = number.to_bytes(32, "big")
    key = kes.SigningKey.generate((number + 1_000_000).to_bytes(32, "big"))
    certificate = issue(key.verification_key, issue_number=3, start_kes_period=500, cold_seed=cold_seed)
    return key, certificate, ed25519.public_key(cold_seed)


def write_messages(path: Path, count: int) -> None:
    signers = Signers()
    with path.open("wb") as file:
        for number in range(count):
            file.write(signers.sign(number).raw)


def read_messages(path: Path) -> Iterator[DmqMessage]:
    with path.open("rb") as file:
        while raw := file.read(MESSAGE_BYTES):
            yield DmqMessage.decode(raw)
