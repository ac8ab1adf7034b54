"""Receipts with real signatures, as many as are asked for: lives of messages that all go well, in one session of seven.

Every record is another one: nothing is copied, for copies of a receipt cost less than the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from shutil import copyfileobj

import msgspec

from rigs.receipt_lines import EPOCH_MS, a_block, a_master_block, message_id
from rigs.remp_world import FULL_NODE, public_key_of, seed_of, session, session_name, sets_file, source_of
from stagepost.ground.crypto import ed25519
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, SentToValidators
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status import Level

VALIDATORS = range(7)
SETS = json.dumps(sets_file(session(1, VALIDATORS), timeout_ms=240_000)).encode()
RECEIPTS_PER_MESSAGE = 2 + 3 * len(VALIDATORS)
"""Sent; queued, included and accepted by each validator; finalized."""


def receipts(count: int, first: int = 0) -> Iterator[tuple[Receipt, str]]:
    """Of messages from number `first` on, each with its session's id."""
    hint, given, number = session_name(1).hex(), 0, first
    while given < count:
        now_ms = EPOCH_MS + number
        for place, (who, status) in enumerate(_life(number)[: count - given]):
            yield _signed(number, who, status, now_ms + 10 * place), hint
        given += RECEIPTS_PER_MESSAGE
        number += 1


def write_dump(path: Path, count: int, first: int = 0, *, processes: int = 1) -> None:
    """Lines of so many receipts; several processes sign them side by side."""
    share = -(-count // processes)
    share += -share % RECEIPTS_PER_MESSAGE  # whole messages each, so that no two have the same
    starts = range(0, count, share)
    parts = [path.with_suffix(f".{start}") for start in starts]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        counts = [min(share, count - start) for start in starts]
        firsts = [first + start // RECEIPTS_PER_MESSAGE for start in starts]
        list(pool.map(_write, parts, counts, firsts))
    with path.open("wb") as file:
        for part in parts:
            with part.open("rb") as written:
                copyfileobj(written, file, 1 << 20)
            part.unlink()


def _write(path: Path, count: int, first: int) -> None:
    with path.open("wb") as file:
        for receipt, hint in receipts(count, first):
            line = {
                "key": receipt.message_id.hex(),
                "value": receipt.to_json(),
                "timestamp_ms": receipt.timestamp_ms + 5,
                "headers": {"session": hint},
            }
            file.write(msgspec.json.encode(line) + b"\n")


def _life(number: int) -> list[tuple[int, MessageStatus]]:
    return _life_in_block(1 + number % 1_000)


@lru_cache(maxsize=1_000)
def _life_in_block(seqno: int) -> list[tuple[int, MessageStatus]]:
    block = a_block(seqno)
    said: list[tuple[int, MessageStatus]] = [(FULL_NODE, SentToValidators(3, len(VALIDATORS)))]
    for step in (New(), Accepted(Level.COLLATOR, block), Accepted(Level.SHARDCHAIN, block)):
        said += [(one, step) for one in VALIDATORS]
    said.append((FULL_NODE, Accepted(Level.MASTERCHAIN, block, a_master_block(7))))
    return said


def _signed(number: int, who: int, status: MessageStatus, at_ms: int) -> Receipt:
    receipt = Receipt(message_id(number), status, at_ms, _source(who))
    signature = ed25519.sign(seed_of(who), receipt.signed_bytes, public_key=public_key_of(who))
    return receipt.with_signature(signature)


@lru_cache(maxsize=256)
def _source(who: int) -> bytes:
    return source_of(who)
