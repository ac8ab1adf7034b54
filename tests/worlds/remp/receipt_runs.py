"""Receipts of whole runs, as a full node would check them; and what becomes of them in the hands of those who lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.errors import ErrorCode
from stagepost.ground.wire.tl import key_id
from stagepost.remp.receipts.message_status import Accepted, SentToValidators, kind_of
from stagepost.remp.receipts.receipt import (
    FUTURE_MS_MAX,
    Counting,
    ExternalMessageId,
    Quarantined,
    Receipt,
    check,
)
from stagepost.remp.receipts.status import Level, Status, is_legal_step, kind_named
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import Session, Validator, ValidatorSets
from tests.worlds.remp.session_chain import MasterBlock
from tests.worlds.remp.session_checks import SessionRun

STRANGER = 500
"""A key that no session knows."""

SAMPLE = 60
EPOCH_MS = 1_800_000_000_000

Attempt = tuple[Receipt, int, ErrorCode]
"""A receipt, when it came, and the reason for which it must be refused."""


def sets_of(run: SessionRun) -> ValidatorSets:
    """Who validates from when on. A validator goes on speaking of what it was given, so windows stay open."""
    sessions = []
    for master in [entry for entry in run.world.chain.log if isinstance(entry, MasterBlock)]:
        for plan in master.begun:
            validators = tuple(
                Validator(index, public_key_of(number), key_id(public_key_of(number)))
                for index, number in enumerate(plan.members)
            )
            sessions.append(
                Session(
                    plan.session_id,
                    plan.shard.workchain,
                    plan.shard.prefix,
                    plan.number,
                    validators,
                    EPOCH_MS + int(master.at_s * 1_000),
                )
            )
    return ValidatorSets({}, sessions)


def check_receipts(run: SessionRun, seed: int) -> Counter[str]:
    """How many counted, and how many lies were refused, by reason. Raises AssertionError at the first that was not."""
    random, sets, found = Random(seed), sets_of(run), Counter[str]()
    for node in run.world.honest:
        sample = random.sample(node.receipts, min(SAMPLE, len(node.receipts)))
        for at_s, message_id, status in sample:
            at_ms = EPOCH_MS + int(at_s * 1_000)
            receipt = Receipt(ExternalMessageId(message_id), status, at_ms, b"").sign(seed_of(node.number))
            outcome = check(receipt, sets, at_ms + 10)
            assert isinstance(outcome, Counting), f"node {node.number}'s {receipt.kind.name}: {outcome}"
            found["counted"] += 1
            for lie, arrived_ms, reason in _lies(receipt, random):
                answer = check(lie, sets, arrived_ms)
                assert isinstance(answer, Quarantined), f"a lie about {receipt.kind.name} counts"
                assert answer.reason is reason, f"refused as {answer.reason}, not as {reason}"
                found[reason] += 1
        found["illegal steps"] += _illegal_steps_found(run, node.number)
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
    early = replace(receipt, timestamp_ms=EPOCH_MS - 1 - random.randrange(1_000))
    yield early, arrived_ms, ErrorCode.RECEIPT_SOURCE
    # In a role that is not its own, and from a clock far ahead.
    yield replace(receipt, status=SentToValidators(3, 7)), arrived_ms, ErrorCode.RECEIPT_ROLE
    yield receipt, receipt.timestamp_ms - FUTURE_MS_MAX - 1, ErrorCode.RECEIPT_FUTURE


def _illegal_steps_found(run: SessionRun, number: int) -> int:
    """A validator that takes back what it has closed is noticed, each time."""
    found = 0
    node = run.world.nodes[number]
    for statuses in node.told.values():
        last = kind_of(statuses[-1])
        is_closed = last.status in (Status.REJECTED, Status.TIMEOUT)
        if is_closed or last.name == "IncludedIntoAcceptedBlock":
            for name in {"PutIntoQueue", "Timeout"} - {last.name}:
                kind = kind_named(name)
                assert kind is not None
                assert not is_legal_step(last, kind), f"{kind.name} after {last.name} passes"
                found += 1
    return found
