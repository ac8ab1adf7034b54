"""The operational certificate: a pool's cold key vouches for a KES key from a start period on."""

from __future__ import annotations

import msgspec

from stagepost.ground.crypto import ed25519

WORD64_MAX = 2**64 - 1
KES_VERIFICATION_KEY_BYTES = 32


class OperationalCertificate(msgspec.Struct, frozen=True, gc=False):
    """Four fields of a certificate as they stand in a DMQ message; the cold verification key travels beside
    them."""

    kes_verification_key: bytes
    issue_number: int
    start_kes_period: int
    cold_signature: bytes

    @property
    def signed_bytes(self) -> bytes:
        """Return the 48 raw bytes (not CBOR) under the cold signature; raise `OverflowError` for numbers
        beyond 64 bits."""
        return (
            self.kes_verification_key
            + self.issue_number.to_bytes(8, "big")
            + self.start_kes_period.to_bytes(8, "big")
        )

    def claim(self, cold_verification_key: bytes) -> ed25519.Claim | None:
        """Return the claim that the cold key signed this certificate; None if a field cannot be part of a
        certificate."""
        if (
            len(self.kes_verification_key) == KES_VERIFICATION_KEY_BYTES
            and 0 <= self.issue_number <= WORD64_MAX
            and 0 <= self.start_kes_period <= WORD64_MAX
            and len(self.cold_signature) == ed25519.SIGNATURE_BYTES
        ):
            return cold_verification_key, self.cold_signature + self.signed_bytes
        return None

    def verify(self, cold_verification_key: bytes) -> bool:
        """Return True if the cold key signed this certificate; False if a field cannot be part of a
        certificate."""
        claim = self.claim(cold_verification_key)
        return claim is not None and ed25519.verify_signed(*claim)


def issue(
    kes_verification_key: bytes, *, issue_number: int, start_kes_period: int, cold_seed: bytes
) -> OperationalCertificate:
    """Return a certificate signed by the cold key whose secret seed is `cold_seed`."""
    if len(kes_verification_key) != KES_VERIFICATION_KEY_BYTES:
        raise ValueError(
            f"a KES verification key has {KES_VERIFICATION_KEY_BYTES} bytes, "
            f"found {len(kes_verification_key)}"
        )
    for name, value in (("issue_number", issue_number), ("start_kes_period", start_kes_period)):
        if not 0 <= value <= WORD64_MAX:
            raise ValueError(f"{name} is 0 to {WORD64_MAX}, found {value}")
    unsigned = OperationalCertificate(kes_verification_key, issue_number, start_kes_period, b"")
    return msgspec.structs.replace(unsigned, cold_signature=ed25519.sign(cold_seed, unsigned.signed_bytes))
