"""The state that one task's records leave behind, worked out while they are checked: plain Python, run in
Spark's workers.

Everything in it is a maximum, a minimum or a set. Partial states of any number of tasks, in any order and
with repetitions, join to the same whole (`state.merged`), so no record has to move to another worker for it.

A message has rows of two sorts: a row of each validator with its last status and time, and rows of all
validators together and of all full nodes, with facts that do not depend on the source. The first are many,
and the content of the second costs most to join.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from stagepost.pipeline.sources.dumps import Record
from stagepost.pipeline.steps.record_checks import ROLES, Checked
from stagepost.remp.receipts.status import KINDS, Stage, is_finally_accepted
from stagepost.remp.validator_sets import Role

VALIDATOR, FULL_NODES = ROLES[Role.VALIDATOR], ROLES[Role.FULL_NODE]
VALIDATORS = "validators"
"""Role of the row of all validators together. Like that of all full nodes it has no source."""
QUARANTINE = "quarantine"
"""Role of the row that holds the hashes of a message's quarantined records; it has no source."""
PROOF = "proof"
"""Role of the row of one proof; it has no source."""
OF_MESSAGES = (FULL_NODES, VALIDATORS, QUARANTINE, PROOF)
"""Roles of rows that are not of one validator."""

ROWS_MAX = 100_000
"""Rows of one part, at most. A task that has more writes them, and begins another part."""

Columns = list[Sequence[Any]]
"""Columns in the order of `schemas.STATE`."""


class _Meaning(NamedTuple):
    code: int
    stage: int | None
    """The place of its stage's time in a message's row."""
    is_final: bool


LAST, LAST_MS, FIRST_MS, HAS_FINALIZED, QUEUED_MS = range(5)
"""Places in a validator's row."""
TOTAL = len(Stage)
DELIVERY_ID, DMQ_ID, HASHES = TOTAL + 1, TOTAL + 2, TOTAL + 3
"""Places in a message's row, after the times of the stages."""
_WIDTH = HASHES + 1
_PROVED_WIDTH = 3
"""Columns of a proof's end, which no receipt has."""
_STAGE_PLACE = {stage: number for number, stage in enumerate(Stage)}
_QUEUED = _STAGE_PLACE[Stage.QUEUED]
_MEANINGS = {
    kind.name: _Meaning(
        8 * int(kind.level) + kind.rank,
        None if kind.stage is None else _STAGE_PLACE[kind.stage],
        is_finally_accepted(kind),
    )
    for kind in KINDS
}

_Key = tuple[str, str | None, str, str | None, int | None, str | None]


class PartialState:
    """Validators' rows by message, source, hint and named shard, the others by message and role, as in
    `schemas.STATE`.
    """

    def __init__(self) -> None:
        self._members: dict[_Key, list[Any]] = {}
        self._messages: dict[tuple[str, str], list[Any]] = {}

    def __len__(self) -> int:
        return len(self._members) + len(self._messages)

    def add(self, record: Record, checked: Checked) -> None:
        message_id = checked.message_id
        if message_id is None:
            return
        if checked.reason is not None:
            self._message(message_id, QUARANTINE, checked.raw_hash)
            return
        assert checked.kind is not None
        assert checked.timestamp_ms is not None
        meaning, time_ms = _MEANINGS[checked.kind], checked.timestamp_ms
        if checked.role == VALIDATOR:
            row = self._message(message_id, VALIDATORS, checked.signed_hash)
            self._add_member(record, checked, meaning, time_ms)
        else:
            row = self._message(message_id, FULL_NODES, checked.signed_hash)
        stage = meaning.stage
        if stage is not None and ((known := row[stage]) is None or time_ms < known):
            row[stage] = time_ms
        if (total := checked.total_validators) is not None and (
            (known := row[TOTAL]) is None or total > known
        ):
            row[TOTAL] = total
        if record.delivery_id is not None or record.dmq_id is not None:
            row[DELIVERY_ID] = _least(row[DELIVERY_ID], record.delivery_id)
            row[DMQ_ID] = _least(row[DMQ_ID], record.dmq_id)

    def _message(self, message_id: str, role: str, record_hash: str | None) -> list[Any]:
        row = self._messages.get((message_id, role))
        if row is None:
            row = self._messages[message_id, role] = [None] * _WIDTH
            row[HASHES] = {record_hash}
        else:
            row[HASHES].add(record_hash)
        return row

    def _add_member(self, record: Record, checked: Checked, meaning: _Meaning, time_ms: int) -> None:
        assert checked.message_id is not None
        key: _Key = (
            checked.message_id,
            checked.source_id,
            VALIDATOR,
            record.session_hint,
            checked.wc,
            checked.shard,
        )
        place = 64 * time_ms + meaning.code
        queued_ms = time_ms if meaning.stage == _QUEUED else None
        row = self._members.get(key)
        if row is None:
            self._members[key] = [place, time_ms, time_ms, meaning.is_final, queued_ms]
            return
        if place > row[LAST]:
            row[LAST], row[LAST_MS] = place, time_ms
        if time_ms < row[FIRST_MS]:
            row[FIRST_MS] = time_ms
        if meaning.is_final:
            row[HAS_FINALIZED] = True
        if queued_ms is not None and ((known := row[QUEUED_MS]) is None or queued_ms < known):
            row[QUEUED_MS] = queued_ms

    def parts(self) -> Iterator[Columns]:
        """Yield the columns of validators, and those of messages, each unless it is empty. A reader that
        wants one of them need not read the other.
        """
        if self._members:
            nothing = tuple(repeat(None, len(self._members)))
            last, last_ms, first_ms, has_finalized, queued_ms = zip(*self._members.values(), strict=True)
            stages = [queued_ms if place == _QUEUED else nothing for place in range(len(Stage))]
            said = [last, last_ms, first_ms, has_finalized, *stages]
            yield [*zip(*self._members, strict=True), *said, *repeat(nothing, _WIDTH - TOTAL + _PROVED_WIDTH)]
        if self._messages:
            nothing = tuple(repeat(None, len(self._messages)))
            message_ids, roles = zip(*self._messages, strict=True)
            *said, hashes = zip(*self._messages.values(), strict=True)
            yield [
                *(message_ids, nothing, roles, *repeat(nothing, 3)),
                *repeat(nothing, HAS_FINALIZED + 1),
                *said,
                [sorted(some) for some in hashes],
                *repeat(nothing, _PROVED_WIDTH),
            ]

    def rows(self) -> list[tuple[Any, ...]]:
        return [row for columns in self.parts() for row in zip(*columns, strict=True)]


def _least(known: str | None, other: str | None) -> str | None:
    if known is None or other is None:
        return other if known is None else known
    return min(known, other)
