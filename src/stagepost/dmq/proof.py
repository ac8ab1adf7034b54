"""What a message proves by itself, without a clock or a list of pools: id, certificate, period and signature."""

from __future__ import annotations

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.outcome import Rejected, rejected
from stagepost.errors import ErrorCode
from stagepost.ground.crypto import kes

KES_EVOLUTIONS_MAX = 62
"""How many periods a certificate serves on the public networks; the construction itself would allow 64."""


def check_id(message: DmqMessage) -> Rejected | None:
    if message.has_valid_id:
        return None
    return rejected(ErrorCode.MSG_BAD_ID, "the message id is not the hash of the signed bytes")


def check_period(message: DmqMessage, kes_evolutions_max: int = KES_EVOLUTIONS_MAX) -> Rejected | None:
    first = message.start_kes_period
    last = first + kes_evolutions_max - 1
    if first <= message.kes_period <= last:
        return None
    text = f"KES period {message.kes_period} is outside of the certificate's {first} to {last}"
    return rejected(ErrorCode.KES_PERIOD, text)


def check_certificate(message: DmqMessage) -> Rejected | None:
    if message.operational_certificate.verify(message.cold_verification_key):
        return None
    return rejected(ErrorCode.OPCERT_SIGNATURE, "the cold key did not sign this operational certificate")


def check_kes_signature(message: DmqMessage) -> Rejected | None:
    if kes.verify(
        message.kes_verification_key, message.kes_evolution, message.signed_bytes, message.kes_signature
    ):
        return None
    return rejected(
        ErrorCode.KES_SIGNATURE, f"the KES signature does not hold at evolution {message.kes_evolution}"
    )


def check_proof(message: DmqMessage, kes_evolutions_max: int = KES_EVOLUTIONS_MAX) -> Rejected | None:
    """The first fault, cheap checks before signatures; None if the message is what it says."""
    return (
        check_id(message)
        or check_period(message, kes_evolutions_max)
        or check_certificate(message)
        or check_kes_signature(message)
    )
