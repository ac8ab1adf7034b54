"""The kept content of all receipts of one message: maxima, minima and sets, so that order and repetition
change nothing.

Two states are joined by joining their rows; a receipt that was counted in both is one in the join. The
verdict is not part of the state: it is worked out when somebody reads, from the state, the validator sets and
the time.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec

from stagepost.remp.hex_text import read_hash
from stagepost.remp.receipts.message_status import block_of
from stagepost.remp.receipts.receipt import Counting
from stagepost.remp.receipts.status import Kind, Stage, is_finally_accepted
from stagepost.remp.validator_sets import Role

Key = TypeVar("Key")
Position = tuple[int, int, int]
"""(timestamp, level, rank): the greatest position of a validator is its last status."""


class RowKey(NamedTuple):
    """The receipts of one validator with one session hint and one named shard, each of which may be missing."""

    source_id: bytes
    hint: bytes | None
    shard: tuple[int, int] | None


class ValidatorRow:
    __slots__ = ("first_ms", "has_finalized", "last", "last_kind")

    def __init__(self) -> None:
        self.first_ms: int | None = None
        self.last: Position | None = None
        self.last_kind: Kind | None = None
        self.has_finalized = False

    @property
    def last_ms(self) -> int:
        assert self.last is not None, "a row is made together with its first receipt"
        return self.last[0]

    def add(self, timestamp_ms: int, kind: Kind, *, has_finalized: bool) -> None:
        if self.first_ms is None or timestamp_ms < self.first_ms:
            self.first_ms = timestamp_ms
        position = timestamp_ms, int(kind.level), kind.rank
        if self.last is None or position > self.last:
            self.last, self.last_kind = position, kind
        self.has_finalized |= has_finalized

    def join(self, other: ValidatorRow) -> None:
        if other.first_ms is not None:
            self.first_ms = other.first_ms if self.first_ms is None else min(self.first_ms, other.first_ms)
        if other.last is not None and (self.last is None or other.last > self.last):
            self.last, self.last_kind = other.last, other.last_kind
        self.has_finalized |= other.has_finalized


class ProvedEnd(msgspec.Struct, frozen=True):
    """The end of a message that a checked proof shows. `kind` is `executed`, `never` or `executed_as`; `block` is the
    number of the master block, for which `signers` of `validators` signed; `executed_as` is the other message's id.
    """

    kind: str
    block: int
    signers: int
    validators: int
    executed_as: str | None = None

    @property
    def order(self) -> tuple[str, int, str]:
        """Return what ends of one message are ordered by: executed, executed_as, never, and then by the block."""
        return self.kind, self.block, self.executed_as or ""


class MessageState:
    """The state of one message. `add` counts a receipt, `join` another state; both may be repeated. `proved`: the end
    that a checked proof shows, which outranks every receipt.
    """

    def __init__(self) -> None:
        self.proved: ProvedEnd | None = None
        self.rows: dict[RowKey, ValidatorRow] = {}
        self.stages: dict[Stage, int] = {}
        self.full_node_first_ms: dict[tuple[bytes, str], int] = {}
        self.total_validators: int | None = None
        self.signed: set[bytes] = set()

    def add(self, counting: Counting, hint: str | None = None) -> None:
        """Count a receipt. `hint` is the session that the record's header names; a text that is not a session
        id counts as none.
        """
        receipt = counting.receipt
        kind = receipt.kind
        self.signed.add(receipt.signed_bytes)
        if kind.stage is not None:
            _keep_least(self.stages, kind.stage, receipt.timestamp_ms)
        if counting.role is Role.FULL_NODE:
            _keep_least(self.full_node_first_ms, (receipt.source_id, kind.name), receipt.timestamp_ms)
            total = getattr(receipt.status, "total_validators", None)
            if total is not None:
                self.total_validators = (
                    total if self.total_validators is None else max(self.total_validators, total)
                )
            return
        block = block_of(receipt.status)
        key = RowKey(
            receipt.source_id, read_hash(hint), (block.workchain, block.shard) if block.is_named else None
        )
        row = self.rows.setdefault(key, ValidatorRow())
        row.add(receipt.timestamp_ms, kind, has_finalized=is_finally_accepted(kind))

    def join(self, other: MessageState) -> None:
        for key, row in other.rows.items():
            self.rows.setdefault(key, ValidatorRow()).join(row)
        for stage, first_ms in other.stages.items():
            _keep_least(self.stages, stage, first_ms)
        for said, first_ms in other.full_node_first_ms.items():
            _keep_least(self.full_node_first_ms, said, first_ms)
        if other.total_validators is not None:
            self.total_validators = max(
                other.total_validators, self.total_validators or other.total_validators
            )
        self.signed |= other.signed
        if other.proved is not None:
            self.prove(other.proved)

    def prove(self, end: ProvedEnd) -> None:
        """Note the end that a checked proof shows. Of two that contradict each other, the one that says executed stays,
        so that the order in which they come changes nothing.
        """
        if self.proved is None or end.order < self.proved.order:
            self.proved = end

    def first_of_full_nodes(self, kind_name: str) -> int | None:
        return min(
            (first_ms for (_, name), first_ms in self.full_node_first_ms.items() if name == kind_name),
            default=None,
        )


def _keep_least(table: dict[Key, int], key: Key, value: int) -> None:
    known = table.get(key)
    if known is None or value < known:
        table[key] = value
