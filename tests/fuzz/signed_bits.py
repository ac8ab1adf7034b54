"""Promise S1: no message with a single bit changed passes all of decoding, id, certificate and KES signature."""

from __future__ import annotations

from dataclasses import dataclass, field

from stagepost.dmq.message import DmqMessage
from stagepost.errors import DecodeError
from stagepost.ground.crypto import kes
from tests.fuzz.samples import a_message, an_older_message


@dataclass(frozen=True)
class Sample:
    name: str
    raw: bytes
    profile: str


@dataclass
class Flips:
    """How far the altered messages of one sample came; `accepted` holds the bits that made no difference."""

    bits: int = 0
    undecodable: int = 0
    wrong_id: int = 0
    wrong_certificate: int = 0
    wrong_signature: int = 0
    accepted: list[int] = field(default_factory=list)


def sample_messages() -> tuple[Sample, Sample, Sample]:
    """The shortest body, a late period and a usual size, and the older layout, whose id is not a hash."""
    return (
        Sample("shortest body", a_message(90).raw, "dmq-node"),
        Sample("usual size, period 5", a_message(840, period=5).raw, "gouroboros"),
        Sample("older layout", an_older_message(200).raw, "seed"),
    )


def flip_every_bit(sample: Sample) -> Flips:
    found = Flips()
    for bit in range(8 * len(sample.raw)):
        altered = bytearray(sample.raw)
        altered[bit // 8] ^= 1 << bit % 8
        found.bits += 1
        count(bytes(altered), sample.profile, found, bit)
    return found


def count(data: bytes, profile: str, found: Flips, bit: int) -> None:
    try:
        message = DmqMessage.decode(data, profile=profile)
    except DecodeError:
        found.undecodable += 1
        return
    certificate = message.operational_certificate
    if not message.has_valid_id:
        found.wrong_id += 1
    elif not certificate.verify(message.cold_verification_key):
        found.wrong_certificate += 1
    elif not kes.verify(
        certificate.kes_verification_key, message.kes_evolution, message.signed_bytes, message.kes_signature
    ):
        found.wrong_signature += 1
    else:
        found.accepted.append(bit)
