"""What one task's records leave behind, worked out while they are checked: plain Python, run in Spark's workers.

Everything in it is a maximum, a minimum or a set. Partial states of any number of tasks, in any order and with
repetitions, join to the same whole (`state.merged`), so no record has to move to another worker for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stagepost.pipeline.dump_lines import Record
from stagepost.pipeline.record_checks import ROLES, Checked
from stagepost.remp.status import KINDS, Stage, is_finally_accepted
from stagepost.remp.validator_sets import Role

VALIDATOR = ROLES[Role.VALIDATOR]
QUARANTINE = "quarantine"
"""Role of the row that holds the hashes of a message's quarantined records; it has no source."""

ROWS_MAX = 100_000
"""Of one part. A task that comes to more writes what it has, and begins another part."""


class _Meaning(NamedTuple):
    code: int
    stage: int | None
    """The place of its stage's time in a row."""
    is_final: bool


LAST, LAST_MS, FIRST_MS, HAS_FINALIZED, STAGES_FROM = range(5)
TOTAL = STAGES_FROM + len(Stage)
DELIVERY_ID, DMQ_ID, HASHES = TOTAL + 1, TOTAL + 2, TOTAL + 3
_WIDTH = HASHES + 1
_STAGE_PLACE = {stage: STAGES_FROM + number for number, stage in enumerate(Stage)}
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
    """Rows by message, source, role and, for validators, hint and named shard: as `schemas.STATE` has them."""

    def __init__(self) -> None:
        self._rows: dict[_Key, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, record: Record, checked: Checked) -> None:
        message_id = checked.message_id
        if message_id is None:
            return
        if checked.reason is not None:
            self._bad(message_id, checked.raw_hash)
            return
        role = checked.role
        assert role is not None
        assert checked.kind is not None
        assert checked.timestamp_ms is not None
        key: _Key = (
            (message_id, checked.source_id, role, record.session_hint, checked.wc, checked.shard)
            if role == VALIDATOR
            else (message_id, checked.source_id, role, None, None, None)
        )
        code, stage, is_final = _MEANINGS[checked.kind]
        time_ms = checked.timestamp_ms
        place = 64 * time_ms + code
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = [None] * _WIDTH
            row[LAST], row[LAST_MS], row[FIRST_MS], row[HAS_FINALIZED] = place, time_ms, time_ms, is_final
            row[HASHES] = {checked.signed_hash}
        else:
            if place > row[LAST]:
                row[LAST], row[LAST_MS] = place, time_ms
            if time_ms < row[FIRST_MS]:
                row[FIRST_MS] = time_ms
            if is_final:
                row[HAS_FINALIZED] = True
            row[HASHES].add(checked.signed_hash)
        if stage is not None and ((known := row[stage]) is None or time_ms < known):
            row[stage] = time_ms
        if (total := checked.total_validators) is not None and (
            (known := row[TOTAL]) is None or total > known
        ):
            row[TOTAL] = total
        if record.delivery_id is not None or record.dmq_id is not None:
            row[DELIVERY_ID] = _least(row[DELIVERY_ID], record.delivery_id)
            row[DMQ_ID] = _least(row[DMQ_ID], record.dmq_id)

    def _bad(self, message_id: str, raw_hash: int | None) -> None:
        key: _Key = (message_id, None, QUARANTINE, None, None, None)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = [None] * _WIDTH
            row[HASHES] = {raw_hash}
        else:
            row[HASHES].add(raw_hash)

    def columns(self) -> list[Sequence[Any]]:
        """In the order of `schemas.STATE`; none of an empty state."""
        rows = self._rows.values()
        found: list[Sequence[Any]] = [*zip(*self._rows, strict=True), *zip(*rows, strict=True)]
        if found:
            found[-1] = [sorted(row[HASHES]) for row in rows]
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        return list(zip(*self.columns(), strict=True))


def _least(known: str | None, other: str | None) -> str | None:
    if known is None or other is None:
        return other if known is None else known
    return min(known, other)
