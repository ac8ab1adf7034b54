"""The table `messages` worked out again in plain Python from the records, to hold the tables against.

It goes another way than the steps: record by record through `remp.receipt` and `remp.verdict`, without Spark, without
kept state, and without looking at what the checks said before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stagepost.chain.genesis import Genesis
from stagepost.chain.proofs.proof_form import MessageProof, OwnPart, decode_part
from stagepost.chain.proofs.proof_rules import ProofRefused, check_end
from stagepost.errors import DecodeError, ErrorCode, StorageError
from stagepost.pipeline.steps.proof_checks import ProofBook
from stagepost.pipeline.steps.record_checks import quarantined_id
from stagepost.pipeline.tables.damage import damage
from stagepost.pipeline.tables.manifest import Manifest, kept_genesis
from stagepost.pipeline.tables.reader import Reader
from stagepost.pipeline.tables.store import TableStore
from stagepost.remp.receipts.receipt import Counting, Receipt, check
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.remp.verdict.state import MessageState, ProvedEnd
from stagepost.remp.verdict.verdict import evaluate
from stagepost.topics.topic import PROOFS, STATUSES

ROWS_PER_FETCH = 10_000
DIFFERENCES_SHOWN_MAX = 20


class Difference(NamedTuple):
    subject: str
    column: str
    in_table: object
    recomputed: object


class Checking(NamedTuple):
    messages: int
    rows: int
    differences: list[Difference]


class _Life:
    def __init__(self) -> None:
        self.state = MessageState()
        self.delivery_id: str | None = None
        self.dmq_id: str | None = None


def check_tables(where: TableStore | Path, sets: ValidatorSets) -> Checking:
    """Compare `messages`, the number of rows by reason, and counted + repeated + quarantined with the input.

    `StorageError` for a file whose bytes are not those that were written: other readers do not look at the checksums of pages.
    """
    reader = Reader(where)
    try:
        manifest = reader.manifest
        if manifest.reports is None or not manifest.total.rows:
            raise StorageError(
                "the tables have not been evaluated yet", advice="run the pipeline to its end once"
            )
        found = _check(reader, manifest, sets)
        if not found.differences and (harm := damage(reader.store, manifest.versions, manifest.versions)):
            raise harm
        return found
    finally:
        reader.close()


def _check(reader: Reader, manifest: Manifest, sets: ValidatorSets) -> Checking:
    lives: dict[str, _Life] = {}
    bad: dict[str | None, set[bytes | None]] = {}
    reasons: Counter[str] = Counter()
    rows = passed = 0
    for key, value, arrived_ms, is_fault, hint, delivery_id, dmq_id in _records(reader):
        rows += 1
        found = _judge(key, value, arrived_ms, is_fault, sets)
        if isinstance(found, Counting):
            passed += 1
            life = lives.setdefault(found.receipt.message_id.hex(), _Life())
            life.state.add(found, hint)
            life.delivery_id = _least(life.delivery_id, delivery_id)
            life.dmq_id = _least(life.dmq_id, dmq_id)
        else:
            reasons[str(found)] += 1
            bad.setdefault(quarantined_id(key, value), set()).add(value)
    for message_id, end in _proofs(reader, manifest):
        if message_id in lives:
            lives[message_id].state.prove(end)
    differences = list(_compared(reader, lives, bad, manifest, sets))
    stored = Counter(manifest.total.quarantined)
    for reason in sorted(stored.keys() | reasons.keys()):
        if stored[reason] != reasons[reason]:
            differences.append(Difference("quarantine", reason, stored[reason], reasons[reason]))
    counted = sum(len(life.state.signed) for life in lives.values())
    if manifest.total.counted != counted:
        differences.append(Difference("receipts", "counted", manifest.total.counted, counted))
    entered = manifest.total.rows
    if entered != passed + sum(reasons.values()):
        differences.append(Difference("records", "rows", entered, rows))
    return Checking(len(lives), rows, differences)


def _records(reader: Reader) -> Iterator[tuple[Any, ...]]:
    found = reader.connection.execute(
        "SELECT key, value, arrived_ms, is_fault, session_hint, delivery_id, dmq_id FROM records WHERE topic = ?",
        [STATUSES],
    )
    while rows := found.fetchmany(ROWS_PER_FETCH):
        yield from rows


def _proofs(reader: Reader, manifest: Manifest) -> Iterator[tuple[str, ProvedEnd]]:
    """Yield the ends that proofs among the records show, each certificate and path checked again."""
    genesis = kept_genesis(reader.store, manifest)
    if genesis is None:
        return
    parts: dict[str, list[bytes]] = {}
    found = reader.connection.execute(
        "SELECT key, value FROM records WHERE topic = ? AND reason IS NULL", [PROOFS]
    )
    while rows := found.fetchmany(ROWS_PER_FETCH):
        for key, value in rows:
            parts.setdefault(key.lower(), []).append(value)
    own = [
        (key, part)
        for key, values in parts.items()
        for part in map(decode_part, values)
        if isinstance(part, OwnPart)
    ]
    book = ProofBook(reader.store, Genesis.decode(genesis))
    masters = book.look_at({part.master.hex() for _, part in own}, lambda keys: parts).masters
    for key, part in own:
        master = masters.get(part.master.hex())
        if master is None:
            continue
        try:
            end = check_end(MessageProof(0, (), None, part.shard, part.end), master)
        except ProofRefused:
            continue
        if end.message_id.hex() == key:
            by = None if end.executed_as is None else end.executed_as.hex()
            yield key, ProvedEnd(end.kind.value, master.block_id.seqno, master.signers, master.validators, by)


def _judge(
    key: str | None, value: bytes | None, arrived_ms: int | None, is_fault: bool, sets: ValidatorSets
) -> Counting | ErrorCode:
    if value is None or is_fault:
        return ErrorCode.RECEIPT_FORMAT
    try:
        found = check(Receipt.from_json(value, record_key=key), sets, arrived_ms)
    except DecodeError as error:
        return error.code
    return found if isinstance(found, Counting) else found.reason


def _least(known: str | None, other: str | None) -> str | None:
    return min(filter(None, (known, other)), default=None)


def _compared(
    reader: Reader,
    lives: dict[str, _Life],
    bad: dict[str | None, set[bytes | None]],
    manifest: Manifest,
    sets: ValidatorSets,
) -> Iterator[Difference]:
    assert manifest.reports is not None
    table = {row["message_id"]: row for row in reader.table("messages")}
    for message_id in sorted(table.keys() - lives.keys()):
        yield Difference(message_id, "message_id", message_id, None)
    for message_id, life in sorted(lives.items()):
        row = table.get(message_id)
        if row is None:
            yield Difference(message_id, "message_id", None, message_id)
            continue
        found = evaluate(
            life.state,
            sets,
            manifest.reports.as_of_ms,
            message_timeout_ms=manifest.reports.message_timeout_ms,
        )
        expected = {
            **msgspec.to_builtins(found),
            "message_id": message_id,
            "delivery_id": life.delivery_id,
            "dmq_id": life.dmq_id,
            "receipts_bad": len(bad.get(message_id, ())),
        }
        for name, given in row.items():
            wanted = expected[name]
            if given != (list(wanted) if isinstance(wanted, tuple) else wanted):
                yield Difference(message_id, name, given, wanted)
