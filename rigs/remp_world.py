"""Validators with real keys and the receipts they sign, for tests of verdicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import key_id
from stagepost.remp.receipts.message_status import (
    Accepted,
    Duplicate,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    SentToValidators,
    Timeout,
)
from stagepost.remp.receipts.receipt import Counting, ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Status, kind_named
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import Role, ValidatorSets, parse_validator_sets

MESSAGE = ExternalMessageId(bytes(range(32)))
FULL_NODE = 1_000
"""The number of the full node among those who sign."""


@lru_cache(maxsize=256)
def seed_of(number: int) -> bytes:
    return sha256(b"signer %d" % number).digest()


@lru_cache(maxsize=256)
def public_key_of(number: int) -> bytes:
    return ed25519.public_key(seed_of(number))


def source_of(number: int) -> bytes:
    return key_id(public_key_of(number))


def session_name(number: int) -> bytes:
    return sha256(b"session %d" % number).digest()


def session(
    number: int,
    validators: Sequence[int],
    *,
    seqno: int = 100,
    shard: str = "8000000000000000",
    from_ms: int | None = None,
    to_ms: int | None = None,
) -> dict[str, Any]:
    members = [
        {"index": index, "public_key": public_key_of(one).hex(), "key_id": source_of(one).hex(), "weight": 1}
        for index, one in enumerate(validators)
    ]
    return {
        "session_id": session_name(number).hex(),
        "wc": 0,
        "shard": shard,
        "catchain_seqno": seqno,
        "from_ms": from_ms,
        "to_ms": to_ms,
        "validators": members,
    }


def sets_file(*sessions: dict[str, Any], timeout_ms: int = 1_000) -> dict[str, Any]:
    full_node = {"public_key": public_key_of(FULL_NODE).hex(), "key_id": source_of(FULL_NODE).hex()}
    return {"message_timeout_ms": timeout_ms, "full_nodes": [full_node], "sessions": list(sessions)}


def sets_of(*sessions: dict[str, Any], timeout_ms: int = 1_000) -> ValidatorSets:
    return parse_validator_sets(json.dumps(sets_file(*sessions, timeout_ms=timeout_ms)).encode(), "sets")


def status_named(name: str, *, block: BlockId | None = None, total: int = 7) -> MessageStatus:
    kind = kind_named(name)
    assert kind is not None
    block_id = block or BlockId()
    match kind.status:
        case Status.NEW:
            return New()
        case Status.TIMEOUT:
            return Timeout()
        case Status.DUPLICATE:
            return Duplicate(block_id)
        case Status.REJECTED:
            return Rejected(kind.level, "no", block_id)
        case Status.IGNORED:
            return Ignored(kind.level, block_id)
        case Status.SENT_TO_VALIDATORS:
            return SentToValidators(3, total)
        case Status.ACCEPTED:
            return Accepted(kind.level, block_id)


def said(
    who: int, name: str, at_ms: int = 0, *, block: BlockId | None = None, total: int = 7, signed: bool = False
) -> Counting:
    """A receipt that counts. Signing costs time that most tests need not spend."""
    status = status_named(name, block=block, total=total)
    receipt = Receipt(MESSAGE, status, at_ms, source_of(who))
    if signed:
        receipt = receipt.sign(seed_of(who))
    return Counting(receipt, Role.FULL_NODE if who == FULL_NODE else Role.VALIDATOR)


def shard_block(shard: int, seqno: int = 7) -> BlockId:
    return BlockId(0, shard, seqno)
