"""Operational certificates: the vector byte for byte, and every way not to be one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.crypto.operational_certificate import OperationalCertificate, issue

VECTORS = Path(__file__).parents[3] / "vectors" / "dmq"
ORIGIN: dict[str, Any] = json.loads((VECTORS / "opcert-poolid.json").read_text())["vectors"][0]
COLD_SEED = bytes.fromhex(ORIGIN["derived_cold_seed_hex"])
COLD_KEY = bytes.fromhex(ORIGIN["derived_cold_vk_hex"])
MESSAGE: dict[str, Any] = json.loads((VECTORS / "message-cbor.json").read_text())["vectors"][0]


def a_certificate(**changes: Any) -> OperationalCertificate:
    certificate = issue(
        kes.SigningKey.generate(bytes(32)).verification_key,
        issue_number=ORIGIN["issue_number"],
        start_kes_period=ORIGIN["start_kes_period"],
        cold_seed=COLD_SEED,
    )
    return msgspec.structs.replace(certificate, **changes)


def test_certificate_of_the_vector_is_reproduced_byte_for_byte() -> None:
    certificate = a_certificate()

    assert ed25519.public_key(COLD_SEED) == COLD_KEY
    assert certificate.signed_bytes.hex() == ORIGIN["signed_bytes_hex"]
    # CBOR: array of 4, 32 bytes, 0, 0, 64 bytes.
    encoded = f"845820{certificate.kes_verification_key.hex()}00005840{certificate.cold_signature.hex()}"
    assert encoded == ORIGIN["opcert_cbor_hex"]
    assert certificate.verify(COLD_KEY)


def test_certificate_inside_the_message_vector_is_valid() -> None:
    fields, facts = MESSAGE["fields"], MESSAGE["crypto_facts"]
    cold_key = bytes.fromhex(fields["cold_vk_hex"])
    certificate = OperationalCertificate(
        bytes.fromhex(fields["opcert"]["kes_vk_hex"]),
        fields["opcert"]["issue_number"],
        fields["opcert"]["start_kes_period"],
        bytes.fromhex(fields["opcert"]["cold_signature_hex"]),
    )

    assert certificate.verify(cold_key) is facts["opcert_valid"]
    assert pool_id(cold_key).hex() == facts["derived_pool_id_hex"]


def test_numbers_are_signed_as_eight_big_endian_bytes() -> None:
    certificate = issue(bytes(32), issue_number=1, start_kes_period=2**64 - 1, cold_seed=COLD_SEED)

    assert certificate.signed_bytes == bytes(32) + bytes([0, 0, 0, 0, 0, 0, 0, 1]) + b"\xff" * 8
    assert certificate.verify(COLD_KEY)


@pytest.mark.parametrize(
    "changes",
    [
        {"issue_number": 1},
        {"start_kes_period": 1},
        {"kes_verification_key": bytes(32)},
        {"kes_verification_key": b""},
        {"kes_verification_key": bytes(31)},
        {"kes_verification_key": bytes(33)},
        {"cold_signature": b""},
        {"cold_signature": bytes(63)},
        {"cold_signature": bytes(64)},
        {"cold_signature": bytes(65)},
        {"issue_number": -1},
        {"issue_number": 2**64},
        {"start_kes_period": -1},
        {"start_kes_period": 2**64},
        {"start_kes_period": 2**400},
    ],
    ids=str,
)
def test_altered_certificate_is_false_and_never_an_exception(changes: dict[str, Any]) -> None:
    assert a_certificate(**changes).verify(COLD_KEY) is False


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(32), bytes(33), ed25519.public_key(bytes(32))])
def test_wrong_cold_key_is_false(key: bytes) -> None:
    assert a_certificate().verify(key) is False


def test_every_flipped_bit_of_what_is_signed_is_noticed() -> None:
    certificate = a_certificate()
    signed = certificate.signed_bytes

    for bit in range(len(signed) * 8):
        altered = (int.from_bytes(signed, "big") ^ 1 << bit).to_bytes(len(signed), "big")
        forged = OperationalCertificate(
            altered[:32],
            int.from_bytes(altered[32:40], "big"),
            int.from_bytes(altered[40:], "big"),
            certificate.cold_signature,
        )
        assert not forged.verify(COLD_KEY)


def test_a_certificate_cannot_be_issued_for_impossible_values() -> None:
    with pytest.raises(ValueError, match="32 bytes, found 31"):
        issue(bytes(31), issue_number=0, start_kes_period=0, cold_seed=COLD_SEED)
    with pytest.raises(ValueError, match="issue_number is 0 to"):
        issue(bytes(32), issue_number=-1, start_kes_period=0, cold_seed=COLD_SEED)
    with pytest.raises(ValueError, match="start_kes_period is 0 to"):
        issue(bytes(32), issue_number=0, start_kes_period=2**64, cold_seed=COLD_SEED)


def test_equal_certificates_are_one_cache_key() -> None:
    assert len({a_certificate(), a_certificate()}) == 1
