"""What must hold for what validators say to one another: receipts, queue records, blocks of the catchain, queries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from stagepost.catchain import payloads, queries
from stagepost.catchain.block import Block, Dependency, decode_update
from stagepost.catchain.payloads import ForkProof
from stagepost.errors import ConfigError, DecodeError
from stagepost.remp.message import MessageBody, MessageQuery, RempMessage
from stagepost.remp.queue import records as queue_records
from stagepost.remp.receipts import message_status
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.receipt import RECEIPT_BYTES_MAX, ExternalMessageId, Receipt, read_receipt
from stagepost.remp.receipts.receipt_fields import read_usual
from stagepost.remp.receipts.statements import PacketStatement, StatementLink
from stagepost.remp.receipts.status import Level
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import parse_validator_sets
from tests.fuzz.harness import Verdict, attempt, require

_SEED = bytes(range(32))
_ONE, _OTHER = bytes(range(32)), bytes(range(32, 64))
_BLOCK_ID = BlockId(-1, 1 << 63, 77, _ONE, _OTHER)


class _Form(NamedTuple):
    """`is_unique`: there is one way of writing it, so that what was read is written as it came."""

    name: str
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    is_unique: bool = True


def _read_proof_behind(data: bytes) -> tuple[bytes, ForkProof]:
    payload, proof = payloads.read_parts(data)
    return payload, ForkProof.decode(proof)


_FORMS = (
    _Form("receipt", read_receipt, lambda receipt: receipt.signed_bytes),
    _Form("message", RempMessage.decode, RempMessage.encode),
    _Form("body", MessageBody.decode, MessageBody.encode),
    _Form("query for a message", MessageQuery.decode, MessageQuery.encode),
    # Blocks may be listed that no receipt points at, or in another order than that of the receipts.
    _Form("combined receipt", CombinedReceipt.decode, CombinedReceipt.encode, is_unique=False),
    _Form("statement", PacketStatement.decode, PacketStatement.encode),
    _Form("record", queue_records.decode_record, queue_records.encode_record),
    # Its number means nothing to a reader.
    _Form(
        "payload",
        queue_records.decode_payload,
        lambda records: queue_records.encode_payload(records, 1),
        is_unique=False,
    ),
    _Form("update", decode_update, Block.encode),
    _Form("query", queries.decode_query, queries.encode_query),
    _Form("answer", queries.decode_answer, queries.encode_answer),
    _Form("fork proof", ForkProof.decode, ForkProof.encode),
    _Form(
        "fork proof behind a payload",
        _read_proof_behind,
        lambda parts: payloads.proof_behind(*parts),
    ),
)


def check_remp(data: bytes) -> Verdict:
    verdict = Verdict.REFUSED
    for form in _FORMS:
        value = attempt(partial(form.read, data), len(data), DecodeError)
        if value is None:
            continue
        verdict = Verdict.ACCEPTED
        again = form.write(value)
        require(form.read(again) == value, f"a {form.name} is read differently again")
        if form.is_unique:
            require(again == data, f"a {form.name} was read from bytes that we would not write")
    return max(verdict, _check_json(data), _check_sets(data))


def _check_json(data: bytes) -> Verdict:
    receipt = attempt(lambda: Receipt.from_json(data), len(data), DecodeError)
    if len(data) <= RECEIPT_BYTES_MAX and read_usual(data) is not None:
        require(receipt == Receipt._from_any_json(data, None), "two ways of reading a receipt differ")
    if receipt is None:
        return Verdict.REFUSED
    require(Receipt.from_json(receipt.to_json()) == receipt, "a receipt's own JSON says another thing")
    # What is signed must be writable whatever the text held, and its signature gets an answer.
    require(read_receipt(receipt.signed_bytes).signed_bytes == receipt.signed_bytes, "two binary forms")
    _ = receipt.signature, receipt.is_signed_by(_ONE)
    return Verdict.ACCEPTED


def _check_sets(data: bytes) -> Verdict:
    sets = attempt(lambda: (parse_validator_sets(data, "input"),), len(data), ConfigError)
    return Verdict.REFUSED if sets is None else Verdict.ACCEPTED


def remp_samples() -> tuple[bytes, ...]:
    statuses: tuple[message_status.MessageStatus, ...] = (
        message_status.SentToValidators(5, 7),
        message_status.New(),
        message_status.Rejected(Level.COLLATOR, "no such account", _BLOCK_ID),
        message_status.Accepted(Level.SHARDCHAIN, _BLOCK_ID, _BLOCK_ID),
        message_status.Ignored(Level.COLLATOR, _BLOCK_ID),
        message_status.Duplicate(_BLOCK_ID),
        message_status.Timeout(),
    )
    receipts = [
        Receipt(ExternalMessageId(_OTHER), status, 1_900_000_000_000, _ONE).sign(_SEED) for status in statuses
    ]
    links = StatementLink(_ONE, _OTHER, 1, bytes(32), _ONE), StatementLink(_ONE, _OTHER, 2, _ONE, _OTHER)
    records: tuple[queue_records.Record, ...] = (
        queue_records.Header(_ONE, _OTHER, 0, _ONE, _OTHER, 3, 77, 1_900_000_000_000),
        queue_records.Header(
            _ONE, _OTHER, 0, _ONE, _OTHER, 3, 77, 5, queue_records.HandOver(1_900_000_000_000, bytes(64))
        ),
        queue_records.RejectRecord(_ONE, _OTHER, 77, "no such account"),
        queue_records.Accept(_ONE, _OTHER, 77, _BLOCK_ID),
        queue_records.Digest(77, (queue_records.Ids(_ONE, _OTHER),), (queue_records.Ids(_OTHER, _ONE),)),
        queue_records.LinkChallenge(_ONE, links[1]),
        queue_records.LinkAnswer(links[0]),
    )
    totals = queue_records.Totals(1_900_000_000_000, 1, 3, 2_000)
    left, right = Dependency(2, 5, _ONE, bytes(64)), Dependency(2, 5, _OTHER, bytes(64))
    payload = queue_records.encode_payload((totals, *records), 9)
    block = Block(_ONE, 2, 6, left, (right, Dependency(3, 1, _ONE)), bytes(64), payload)
    asked: tuple[queries.Query, ...] = (
        queries.GetBlock(_ONE),
        queries.GetBlocks((_ONE, _OTHER)),
        queries.GetDifference((1, 0, 5)),
        queries.GetBlockHistory(_ONE, 9, (_OTHER,)),
    )
    answered: tuple[queries.Answer, ...] = (
        queries.Difference((1, 2)),
        queries.DifferenceFork(left, right),
        queries.BlockNotFound(),
        queries.BlockResult(block),
        queries.Sent(3),
    )
    return (
        *(receipt.signed_bytes for receipt in receipts),
        *(receipt.to_json().encode() for receipt in receipts),
        CombinedReceipt(receipts[0].source_id, tuple(receipts)).encode(),
        RempMessage(b"a message", _ONE, 1_900_000_000_000, bytes(64)).encode(),
        MessageBody(b"a message").encode(),
        MessageQuery(_ONE).encode(),
        *map(queue_records.encode_record, (totals, *records)),
        PacketStatement(_ONE, links).encode(),
        payload,
        block.encode(),
        *map(queries.encode_query, asked),
        *map(queries.encode_answer, answered),
        ForkProof(left, right).encode(),
        payloads.proof_behind(payload, ForkProof(left, right)),
        b'{"message_timeout_ms": 60000, "full_nodes": [], "sessions": []}',
    )
