"""Receipts of whole runs, as a full node would check them; and what becomes of them in the hands of those who lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec

from rigs.catchain_keys import seed_of
from stagepost.errors import ErrorCode
from stagepost.remp.receipts.message_status import Accepted, SentToValidators
from stagepost.remp.receipts.receipt import (
    FUTURE_MS_MAX,
    Counting,
    ExternalMessageId,
    Quarantined,
    Receipt,
    check,
)
from stagepost.remp.receipts.status import Kind, Level, Status, is_legal_step, kind_named
from stagepost.remp.shard import BlockId
from tests.worlds.chain.chain_world import START_MS
from tests.worlds.remp.primes_world import PrimesWorld

STRANGER = 500
"""A key that no session knows."""

SAMPLE = 60
ON_THE_WAY_MS = 10
BEFORE_ALL_MS = START_MS - 10_000
"""Milliseconds: before every session, also by a clock that differs as much as clocks may."""

Attempt = tuple[Receipt, int, ErrorCode]
"""A receipt, when it came, and the reason for which it must be refused."""


def check_receipts(world: PrimesWorld, seed: int) -> Counter[str]:
    """Count the receipts that count, and the lies that were refused, by reason. `AssertionError` at the first that was not."""
    random, found = Random(seed), Counter[str]()
    sources = {house.key_id: house for house in world.validators if house.fault is None}
    for house in world.full_nodes:
        sets = house.node.known_sets.sets
        receipts = [receipt for receipt in house.receipts if receipt.source_id in sources]
        for receipt in random.sample(receipts, min(SAMPLE, len(receipts))):
            outcome = check(receipt, sets, receipt.timestamp_ms + ON_THE_WAY_MS)
            assert isinstance(outcome, Counting), f"{receipt.kind.name}: {outcome}"
            found["counted"] += 1
            for lie, arrived_ms, reason in _lies(receipt, random):
                answer = check(lie, sets, arrived_ms)
                assert isinstance(answer, Quarantined), f"a lie about {receipt.kind.name} counts"
                assert answer.reason is reason, f"refused as {answer.reason}, not as {reason}"
                found[reason] += 1
        last = {(receipt.message_id, receipt.source_id): receipt.kind for receipt in receipts}
        found["illegal steps"] += sum(_illegal_steps_found(kind) for kind in last.values())
    return found


def _lies(receipt: Receipt, random: Random) -> Iterator[Attempt]:
    replace, arrived_ms = msgspec.structs.replace, receipt.timestamp_ms + 10
    # Altered on the way: whatever the signature covers.
    other_id = bytes(receipt.message_id[:-1]) + bytes([receipt.message_id[-1] ^ 1])
    yield replace(receipt, message_id=ExternalMessageId(other_id)), arrived_ms, ErrorCode.RECEIPT_SIGNATURE
    yield replace(receipt, timestamp_ms=receipt.timestamp_ms + 1), arrived_ms, ErrorCode.RECEIPT_SIGNATURE
    better = Accepted(Level.MASTERCHAIN, BlockId(0, 1 << 63, 5), BlockId(-1, 1 << 63, 5))
    yield replace(receipt, status=better), arrived_ms, ErrorCode.RECEIPT_SIGNATURE
    # Forged: another's name, one's own key.
    forged = replace(receipt, status=better).sign(seed_of(STRANGER))
    yield replace(forged, source_id=receipt.source_id), arrived_ms, ErrorCode.RECEIPT_SIGNATURE
    yield (
        replace(receipt, signature_text=receipt.signature_text[:-4]),
        arrived_ms,
        ErrorCode.RECEIPT_SIGNATURE,
    )
    yield replace(receipt, signature_text=""), arrived_ms, ErrorCode.RECEIPT_UNSIGNED
    # For another set: a key that no session has, and a validator before its first session.
    yield receipt.sign(seed_of(STRANGER)), arrived_ms, ErrorCode.RECEIPT_SOURCE
    early = replace(receipt, timestamp_ms=BEFORE_ALL_MS - random.randrange(1_000))
    yield early, arrived_ms, ErrorCode.RECEIPT_SOURCE
    # In a role that is not its own, and from a clock far ahead.
    yield replace(receipt, status=SentToValidators(3, 7)), arrived_ms, ErrorCode.RECEIPT_ROLE
    yield receipt, receipt.timestamp_ms - FUTURE_MS_MAX - 1, ErrorCode.RECEIPT_FUTURE


def _illegal_steps_found(last: Kind) -> int:
    """Count the ways to take back a closed message: each of them is an illegal step."""
    is_closed = last.status in (Status.REJECTED, Status.TIMEOUT) or last.name == "IncludedIntoAcceptedBlock"
    names = {"PutIntoQueue", "Timeout"} - {last.name} if is_closed else set()
    for name in names:
        kind = kind_named(name)
        assert kind is not None
        assert not is_legal_step(last, kind), f"{kind.name} after {last.name} passes"
    return len(names)
