"""External messages to accounts of the embedded chain."""

from __future__ import annotations

import time
from hashlib import sha256

from stagepost.chain.accounts import WORKCHAIN
from stagepost.chain.contracts import ContractKind, primes_body, transfer_body
from stagepost.chain.messages import CanonicalMessage, read_message
from stagepost.remp.message import ExternalMessage

SIMULATED_EXPIRY_S = 1_800_000_240
"""Unix seconds at which messages expire by default: 240 s after simulated chains begin, which look 300 s ahead at least."""


def address(kind: ContractKind, number: int = 0, first_bits: int | None = None) -> bytes:
    """`first_bits`: the first byte, if it matters in which shard the account is."""
    middle = sha256(b"account %d of %d" % (number, kind)).digest()
    first = middle[:1] if first_bits is None else bytes([first_bits])
    return first + middle[1:31] + bytes([kind])


def expires_soon_s() -> int:
    """Return a second ten to twenty minutes ahead, the same one for ten minutes: equal messages have equal ids."""
    return int(time.time()) // 600 * 600 + 1_200


def external(
    account: bytes,
    body: bytes,
    salt: int = 0,
    expires_at_s: int = SIMULATED_EXPIRY_S,
    workchain: int = WORKCHAIN,
) -> ExternalMessage:
    data = CanonicalMessage(account, body, expires_at_s, salt, workchain).encode()
    return read_message(data, takes_cells=False).external


def a_transfer(
    source: bytes, to: bytes, amount: int, salt: int = 0, expires_at_s: int = SIMULATED_EXPIRY_S
) -> ExternalMessage:
    return external(source, transfer_body(to, amount, salt), salt, expires_at_s)


def some_primes(
    number: int, up_to: int = 10, salt: int = 0, expires_at_s: int = SIMULATED_EXPIRY_S
) -> ExternalMessage:
    return external(address(ContractKind.SUM_OF_PRIMES, number), primes_body(up_to), salt, expires_at_s)
