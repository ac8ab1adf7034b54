"""Records of the topics before that of statuses, good and bad."""

from __future__ import annotations

from typing import Any

from stagepost.dmq.message import DmqMessage
from tests.worlds.dmq.pool_signers import Signer

GOOD = [Signer().sign(number) for number in range(3)]
EVENT: dict[str, Any] = {
    "delivery_id": "ab" * 32,
    "status": "Acked",
    "tier": "acked",
    "topic": "demo",
    "timestamp_ms": 5,
    "attempt": 2,
    "dmq_id": GOOD[0].message_id.hex(),
    "error": None,
    "acked_by": ["relay"],
}


def broken() -> DmqMessage:
    """Whole, under the right id, with one other bit in its signature. No other message has its bytes."""
    whole = Signer().sign(9)
    raw = bytearray(whole.encode())
    raw[raw.index(whole.kes_signature) + 5] ^= 1
    return DmqMessage.decode(bytes(raw))
