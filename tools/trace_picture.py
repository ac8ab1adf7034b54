"""Draws the picture of the README: receipts of an invented message, signed by keys that follow from numbers.

python tools/trace_picture.py docs/images/trace.svg
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

from stagepost.ground.crypto import ed25519
from stagepost.ground.wire.tl import key_id
from stagepost.remp.receipts.message_status import (
    Accepted,
    Ignored,
    MessageStatus,
    New,
    Rejected,
    SentToValidators,
)
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.receipts.status_records import StatusRecord
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import Session, SetMember, ValidatorSets
from stagepost.remp.verdict.trace import trace_of
from stagepost.trace.drawing import draw_trace

VALIDATORS = 7
FULL_NODE = 100
MESSAGE = ExternalMessageId(sha256(b"the message of the picture").digest())
WHOLE = 1 << 63
FIRST, SECOND = (BlockId(0, WHOLE, seqno, bytes([seqno]) * 32, bytes(32)) for seqno in (16, 17))
MASTER = BlockId(-1, WHOLE, 234, bytes(32), bytes(32))


def seed_of(number: int) -> bytes:
    return sha256(b"signer %d" % number).digest()


def said(number: int, status: MessageStatus, at_ms: int) -> StatusRecord:
    receipt = Receipt(MESSAGE, status, at_ms, b"").sign(seed_of(number))
    return StatusRecord(receipt.to_json().encode())


def story() -> list[StatusRecord]:
    told = [said(FULL_NODE, SentToValidators(3, VALIDATORS), 20)]
    told += [said(number, New(), 8 + 5 * number) for number in range(6)]
    for number in (0, 1, 2):
        told.append(said(number, Accepted(Level.COLLATOR, FIRST), 120 + 4 * number))
        told.append(said(number, Ignored(Level.SHARDCHAIN, FIRST), 260 + 9 * number))
        told.append(said(number, New(), 285 + 9 * number))
    told.append(said(4, Rejected(Level.COLLATOR, "contract error 52"), 430))
    for number in (0, 1, 2, 3, 5):
        told.append(said(number, Accepted(Level.COLLATOR, SECOND), 420 + 6 * number))
        told.append(said(number, Accepted(Level.SHARDCHAIN, SECOND), 590 + 7 * number))
    told.append(said(FULL_NODE, Accepted(Level.MASTERCHAIN, SECOND, MASTER), 910))
    return told


def sets() -> ValidatorSets:
    keys = [ed25519.public_key(seed_of(number)) for number in range(VALIDATORS)]
    members = tuple(SetMember(index, key, key_id(key)) for index, key in enumerate(keys))
    full_node = ed25519.public_key(seed_of(FULL_NODE))
    return ValidatorSets({key_id(full_node): full_node}, [Session(bytes(32), 0, WHOLE, 1, members)])


def main(path: str) -> None:
    Path(path).write_text(draw_trace(trace_of(MESSAGE, story(), sets(), 1_000)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
