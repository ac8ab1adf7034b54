"""Bodies as Mithril's signers write them, made by rules of their own: nothing here uses the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import cbor2

Entity = tuple[int, tuple[int, ...]]
"""Variant and its integers."""


def varint(value: int) -> bytes:
    if value < 251:
        return bytes([value])
    for marker, width in ((0xFB, 2), (0xFC, 4), (0xFD, 8)):
        if value < 1 << (8 * width):
            return bytes([marker]) + value.to_bytes(width, "little")
    raise ValueError(value)


def body(entity: Entity, sigma: bytes, indexes: Sequence[int], signer: int = 0, form: str = "cbor") -> bytes:
    variant, numbers = entity
    return framed(
        b"".join(map(varint, (variant, *numbers))),
        legacy_signature(sigma, indexes, signer)
        if form == "legacy"
        else newer_signature(sigma, indexes, signer),
    )


def framed(entity: bytes, signature: bytes) -> bytes:
    return len(entity).to_bytes(2, "big") + entity + len(signature).to_bytes(4, "big") + signature


def legacy_signature(sigma: bytes, indexes: Sequence[int], signer: int) -> bytes:
    numbers = b"".join(index.to_bytes(8, "big") for index in indexes)
    return len(indexes).to_bytes(8, "big") + numbers + sigma + signer.to_bytes(8, "big")


def newer_signature(sigma: bytes, indexes: Sequence[int], signer: int, **more: object) -> bytes:
    fields = {"sigma": list(sigma), "indexes": list(indexes), "signer_index": signer, **more}
    pairs = b"".join(cbor2.dumps(name) + cbor2.dumps(value) for name, value in fields.items())
    return b"\x01\xbf" + pairs + b"\xff"


def sigma_of(*what: object) -> bytes:
    """48 bytes that are the same for the same things: the real signature is deterministic, too."""
    return blake2b(repr(what).encode(), digest_size=48).digest()
