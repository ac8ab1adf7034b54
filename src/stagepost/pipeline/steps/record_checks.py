"""Checks of one status record, in their order, and the columns that the tables keep of it: plain Python, run
in Spark's workers.

A signature is verified once for all copies of a receipt that one task sees: its validity depends on nothing
else.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple, TypeAlias

from stagepost.errors import DecodeError, ErrorCode
from stagepost.remp.hex_text import JsonFault, read_hash, read_object
from stagepost.remp.receipts.message_status import MessageStatus, Rejected, SentToValidators, block_of
from stagepost.remp.receipts.receipt import FUTURE_MS_MAX, RECEIPT_BYTES_MAX, Quarantined, Receipt, check
from stagepost.remp.receipts.status import Kind
from stagepost.remp.validator_sets import Role, ValidatorSets

OUTCOMES_REMEMBERED_MAX = 100_000
"""Outcomes in one task, at most. Beyond it the oldest are forgotten, and their copies checked again."""

ROLES = {Role.FULL_NODE: "full_node", Role.VALIDATOR: "validator"}


class Checked(NamedTuple):
    """Result of checking a record: the reason of its refusal, or the columns that the tables hold of a receipt."""

    reason: str | None = None
    message_id: str | None = None
    signed_hash: str | None = None
    raw_hash: str | None = None
    kind: str | None = None
    timestamp_ms: int | None = None
    source_id: str | None = None
    role: str | None = None
    total_validators: int | None = None
    error: str | None = None
    block_id: str | None = None
    block_seqno: int | None = None
    shard: str | None = None
    wc: int | None = None
    mc_block_id: str | None = None
    mc_block_seqno: int | None = None


NOT_CHECKED = Checked()
"""The result for a record on another topic."""

_OutcomeKey: TypeAlias = tuple[bytes, str, bool]
_Outcome: TypeAlias = tuple[str | None, str | None]
"""Reason and role."""


class RecordChecks:
    """The checks of one task."""

    def __init__(self, sets: ValidatorSets) -> None:
        self._sets = sets
        self._outcomes: dict[_OutcomeKey, _Outcome] = {}
        self.signatures_looked_at = 0

    def check(
        self, key: str | None, value: bytes | None, arrived_ms: int | None, *, is_fault: bool
    ) -> Checked:
        if value is None or is_fault:
            return _unreadable(ErrorCode.RECEIPT_FORMAT, key, value)
        try:
            receipt = Receipt.from_json(value, record_key=key)
        except DecodeError as error:
            return _unreadable(error.code, key, value)
        digest = sha256(receipt.signed_bytes).digest()
        reason, role = self._outcome(receipt, digest, arrived_ms)
        return described(receipt, digest, reason, role, value)

    def _outcome(self, receipt: Receipt, digest: bytes, arrived_ms: int | None) -> _Outcome:
        # The outcome depends on the signed bytes, the signature, and whether the receipt came from the future.
        is_future = arrived_ms is not None and receipt.timestamp_ms - arrived_ms > FUTURE_MS_MAX
        entry = digest, receipt.signature_text, is_future
        known = self._outcomes.get(entry)
        if known is not None:
            return known
        self.signatures_looked_at += 1
        found = check(receipt, self._sets, arrived_ms)
        outcome: _Outcome = (
            (str(found.reason), None) if isinstance(found, Quarantined) else (None, ROLES[found.role])
        )
        if len(self._outcomes) >= OUTCOMES_REMEMBERED_MAX:
            del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[entry] = outcome
        return outcome


HASH_BYTES = 16
"""Bytes of a SHA-256 by which records are told apart: two of them alike by chance are not to be expected."""


def short_hash(data: bytes | None) -> str:
    return hash_text(sha256(b"" if data is None else b"\1" + data).digest())


def hash_text(digest: bytes) -> str:
    return digest[:HASH_BYTES].hex()


def quarantined_id(key: str | None, value: bytes | None) -> str | None:
    """Return the message that a bad row is counted with: by its key, or else by its value, where that is
    clear.
    """
    if key is not None:
        return key.lower() if read_hash(key) is not None else key
    if value is None or len(value) > RECEIPT_BYTES_MAX:
        return None
    try:
        named = [given for name, given in read_object(value) if name == "message_id"]
    except JsonFault:
        return None
    message_id = read_hash(named[0]) if len(named) == 1 else None
    return None if message_id is None else message_id.hex()


def _unreadable(reason: ErrorCode, key: str | None, value: bytes | None) -> Checked:
    return Checked(str(reason), quarantined_id(key, value), raw_hash=short_hash(value))


def described(receipt: Receipt, digest: bytes, reason: str | None, role: str | None, value: bytes) -> Checked:
    status: MessageStatus = receipt.status
    block, master = block_of(status), getattr(status, "master_id", None)
    kind: Kind = receipt.kind
    # A receipt that could be read stands under its own id, which is the key's where there is one.
    return Checked(
        reason,
        receipt.message_id.hex(),
        hash_text(digest),
        None if reason is None else short_hash(value),
        kind.name,
        receipt.timestamp_ms,
        receipt.source_id.hex(),
        role,
        status.total_validators if isinstance(status, SentToValidators) else None,
        status.error if isinstance(status, Rejected) else None,
        *((block.root_hash.hex(), block.seqno) if block.is_named else (None, None)),
        *((f"{block.shard:016x}", block.workchain) if block.is_named else (None, None)),
        *((master.root_hash.hex(), master.seqno) if master is not None and master.is_named else (None, None)),
    )
