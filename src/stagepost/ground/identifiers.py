"""Distinct types for the identifiers that travel through the system, one text form each."""

from __future__ import annotations

from typing import NewType

MessageId = NewType("MessageId", bytes)
"""BLAKE2b-256 of a DMQ message's signed bytes: 32 bytes."""

PoolId = NewType("PoolId", bytes)
"""BLAKE2b-224 of a pool's cold verification key: 28 bytes."""

MESSAGE_ID_BYTES = 32
POOL_ID_BYTES = 28


def abbreviated(identifier: bytes) -> str:
    """Return the first 8 and last 6 hex digits, as screens show an id. Copies, JSON and links carry the whole
    id."""
    text = identifier.hex()
    return text if len(text) <= 14 else f"{text[:8]}…{text[-6:]}"
