"""Identifiers that travel through the system: distinct types with one text form each, and names that many rooms share."""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

MessageId = NewType("MessageId", bytes)
"""BLAKE2b-256 of a DMQ message's signed bytes: 32 bytes."""

PoolId = NewType("PoolId", bytes)
"""BLAKE2b-224 of a pool's cold verification key: 28 bytes."""

MESSAGE_ID_BYTES = 32
POOL_ID_BYTES = 28

# Names of topics, and the address that this machine has for itself: typed here and nowhere else.
MESSAGES_TOPIC = "stagepost.remp.messages"
"""Name of the topic in a full node's folder, and of the topic of reliable delivery, from which full nodes take messages."""
STATUSES_TOPIC = "stagepost.remp.statuses"
SESSIONS_TOPIC = "stagepost.remp.sessions"
PROOFS_TOPIC = "stagepost.remp.proofs"
DMQ_MESSAGES_TOPIC = "stagepost.dmq.messages"
STAKE_TOPIC = "stagepost.dmq.stake"
DMQ_PULLS_TOPIC = "stagepost.dmq.pulls"
DELIVERY_EVENTS_TOPIC = "stagepost.delivery.events"

LOOPBACK_HOST = "127.0.0.1"

INT64_MAX = (1 << 63) - 1
"""Greatest signed number of 64 bits: the greatest time in milliseconds, or number, that a table or a file of ours holds."""


def abbreviated(identifier: bytes) -> str:
    """Return the first 8 and last 6 hex digits, as screens show an id. Copies, JSON and links carry the whole
    id."""
    text = identifier.hex()
    return text if len(text) <= 14 else f"{text[:8]}…{text[-6:]}"


class LinkEncryption(StrEnum):
    """Setting of a node: plain links exist only where the operator allows them."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    OFF = "off"
