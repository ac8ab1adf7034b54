"""Receipts with real signatures, and the lines that dumps and topics hold of them."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Any

from rigs.remp_world import seed_of
from stagepost.remp.receipts.message_status import (
    MessageStatus,
)
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.shard import MASTERCHAIN, WHOLE_SHARD, BlockId

EPOCH_MS = 1_700_000_000_000


SHARDS = ("4000000000000000", "c000000000000000")


@lru_cache(maxsize=20_000)
def message_id(number: int) -> ExternalMessageId:
    return ExternalMessageId(sha256(b"message %d" % number).digest())


def signed(number: int, who: int, status: MessageStatus, at_ms: int) -> Receipt:
    return Receipt(message_id(number), status, at_ms, b"").sign(seed_of(who))


def a_block(seqno: int, shard: str = SHARDS[0]) -> BlockId:
    root = sha256(b"block %d" % seqno).digest()
    return BlockId(0, int(shard, 16), seqno, root, sha256(root).digest())


def a_master_block(seqno: int) -> BlockId:
    root = sha256(b"master block %d" % seqno).digest()
    return BlockId(MASTERCHAIN, WHOLE_SHARD, seqno, root, sha256(root).digest())


def line_of(receipt: Receipt, arrived_ms: int | None = None, **more: Any) -> dict[str, Any]:
    """A line of a dump, as an object; `more` replaces or adds members."""
    found = {"key": receipt.message_id.hex(), "value": receipt.to_json(), "timestamp_ms": arrived_ms, **more}
    return {name: value for name, value in found.items() if value is not None}
