"""What a signed message proves by itself, and whether a change of any single bit is noticed."""

from __future__ import annotations

from collections.abc import Callable

from stagepost.dmq.message import DmqMessage
from stagepost.errors import DecodeError
from stagepost.ground.crypto import kes

MAX_KES_EVOLUTIONS = 62


def accepts(raw: bytes, profile: str) -> bool:
    """Layout and sizes, id, period, certificate and KES signature: cheapest first, nothing from outside."""
    try:
        message = DmqMessage.decode(raw, profile=profile)
    except DecodeError:
        return False
    certificate = message.operational_certificate
    return (
        message.has_valid_id
        and 0 <= message.kes_evolution < MAX_KES_EVOLUTIONS
        and certificate.verify(message.cold_verification_key)
        and kes.verify(
            certificate.kes_verification_key,
            message.kes_evolution,
            message.signed_bytes,
            message.kes_signature,
        )
    )


def flips_accepted(raw: bytes, accepted: Callable[[bytes], bool]) -> list[tuple[int, int]]:
    """(byte, bit) of every single flipped bit that is not noticed."""
    changed = bytearray(raw)
    found = []
    for at in range(len(changed)):
        for bit in range(8):
            changed[at] ^= 1 << bit
            if accepted(bytes(changed)):
                found.append((at, bit))
            changed[at] ^= 1 << bit
    assert bytes(changed) == raw
    return found
