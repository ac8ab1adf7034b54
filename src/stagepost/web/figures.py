"""Numbers for the overview and the page of validators, from the book: what happened lately, and who differs."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from stagepost.remp.receipts.status import Stage
from stagepost.remp.validator_sets import Session
from stagepost.remp.verdict.verdict import Conclusion
from stagepost.web.message_book import Kept, MessageBook

LATELY_MS = 300_000
BUCKETS = 60
"""Bars of the small drawings: five seconds each."""
REASONS_SHOWN = 6
SESSIONS_SHOWN = 8
STAGES = (Stage.QUEUED, Stage.INCLUDED, Stage.ACCEPTED)

_LONG_ID = re.compile(r"[0-9a-f]{16,}")
_REFUSED = frozenset(
    {Conclusion.REJECTED.value, Conclusion.REJECTED_BY_FULLNODE.value, Conclusion.LIKELY_REJECTED.value}
)


class Lately(msgspec.Struct, frozen=True):
    """The last minutes. `per_bucket` counts acceptances, `final_p50_ms` is None where nothing became final. `since_ms` is
    the time from which on the messages are known, where that is later than the minutes begin; None otherwise.
    """

    messages: int
    accepted: int
    accepted_per_s: float
    final_p50_ms: int | None
    final_p95_ms: int | None
    open: int
    oldest_open_ms: int | None
    oldest_open_id: str | None
    by_outcome: dict[str, int]
    reasons: list[tuple[str, int]]
    per_bucket: list[int]
    final_per_bucket: list[int | None]
    bad_receipts: int
    since_ms: int | None = None


def lately(book: MessageBook, now_ms: int) -> Lately:
    since_ms = now_ms - LATELY_MS
    width_ms = LATELY_MS // BUCKETS
    accepted = [0] * BUCKETS
    finals: list[list[int]] = [[] for _ in range(BUCKETS)]
    outcomes: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    open_ones: list[Kept] = []
    for kept in book.all(now_ms):
        verdict = kept.verdict
        if verdict is None:
            continue
        if kept.is_open:
            open_ones.append(kept)
        if (kept.first_ms or 0) >= since_ms:
            outcomes[verdict.verdict] += 1
        if verdict.verdict in _REFUSED and (kept.first_ms or 0) >= since_ms:
            # Reasons that name a message would be as many as there are messages.
            reasons[_LONG_ID.sub("…", kept.error) if kept.error else verdict.verdict] += 1
        if verdict.accepted_ms is not None and since_ms <= verdict.accepted_ms < now_ms:
            accepted[(verdict.accepted_ms - since_ms) // width_ms] += 1
        final_ms = kept.after_ms(verdict.finalized_ms)
        if (
            final_ms is not None
            and verdict.finalized_ms is not None
            and since_ms <= verdict.finalized_ms < now_ms
        ):
            finals[(verdict.finalized_ms - since_ms) // width_ms].append(final_ms)
    all_finals = [one for bucket in finals for one in bucket]
    oldest = min(open_ones, key=lambda kept: kept.order, default=None)
    minute = accepted[-BUCKETS // 5 :]
    whole_since_ms = book.whole_since_ms
    known_ms = now_ms - max(since_ms, whole_since_ms or 0)
    minute_ms = min(len(minute) * width_ms, max(width_ms, known_ms))
    return Lately(
        messages=sum(outcomes.values()),
        accepted=sum(accepted),
        accepted_per_s=sum(minute) / (minute_ms / 1_000),
        final_p50_ms=quantile(all_finals, 0.5),
        final_p95_ms=quantile(all_finals, 0.95),
        open=len(open_ones),
        oldest_open_ms=None if oldest is None else oldest.first_ms,
        oldest_open_id=None if oldest is None else oldest.message_id,
        by_outcome=dict(outcomes),
        reasons=reasons.most_common(REASONS_SHOWN),
        per_bucket=accepted,
        final_per_bucket=[quantile(bucket, 0.5) for bucket in finals],
        bad_receipts=sum(book.bad_by_reason.values()),
        since_ms=whole_since_ms if known_ms < LATELY_MS else None,
    )


class SessionSeat(msgspec.Struct, frozen=True):
    """Validator in one session. All figures are of the messages of that session; times count from the first
    SentToValidators of a message.
    """

    validator: str
    index: int
    source_id: str
    messages: int
    p50_ms: dict[str, int | None]
    p95_ms: dict[str, int | None]
    silent: int
    differs: int
    bad_signatures: int
    last_ms: int | None


class SessionFigures(msgspec.Struct, frozen=True):
    session_id: str
    wc: int
    shard: str
    catchain_seqno: int
    from_ms: int | None
    to_ms: int | None
    messages: int
    seats: list[SessionSeat]


def sessions_of(book: MessageBook, now_ms: int) -> list[SessionFigures]:
    """The sessions that decided the messages of the book, the newest first; without any, the newest known ones."""
    sets = book.sets
    if sets is None:
        return []
    decided: dict[str, list[Kept]] = defaultdict(list)
    for kept in book.all(now_ms):
        if kept.verdict is not None and kept.verdict.session_id is not None:
            decided[kept.verdict.session_id].append(kept)
    sessions = [sets.sessions[found] for one in decided if (found := bytes.fromhex(one)) in sets.sessions]
    ordered = sorted(sessions or sets.sessions.values(), key=lambda one: one.age_key, reverse=True)
    return [
        _figures(book, session, decided[session.session_id.hex()]) for session in ordered[:SESSIONS_SHOWN]
    ]


def _figures(book: MessageBook, session: Session, messages: Sequence[Kept]) -> SessionFigures:
    silent, differs = Counter[int](), Counter[int]()
    spoke: Counter[bytes] = Counter()
    bad: Counter[bytes] = Counter()
    last_ms: dict[bytes, int] = {}
    delays: dict[tuple[bytes, Stage], list[int]] = defaultdict(list)
    for kept in messages:
        assert kept.verdict is not None, "they are grouped by their verdicts' sessions"
        silent.update(kept.verdict.silent)
        if kept.verdict.verdict in (Conclusion.FINALIZED.value, Conclusion.ACCEPTED.value):
            differs.update(kept.verdict.rejected_by)
        spoke.update(kept.signers.keys())
        bad.update(kept.bad_by)
        for source_id, at_ms in kept.signers.items():
            last_ms[source_id] = max(at_ms, last_ms.get(source_id, 0))
        sent_ms = kept.sent_ms
        if sent_ms is not None:
            for reached, at_ms in kept.stage_ms.items():
                delays[reached].append(at_ms - sent_ms)
    seats = []
    sets = book.sets
    members = session.validators
    if sets is not None:
        # Places change with each session; people look for a machine by its name.
        order = sets.name_order
        members = tuple(sorted(members, key=lambda one: order(one.key_id, one.index)))
    for validator in members:
        seats.append(
            SessionSeat(
                f"V{validator.index + 1}"
                if sets is None
                else sets.name_of(validator.key_id, validator.index),
                validator.index,
                validator.key_id.hex(),
                spoke[validator.key_id],
                {stage.value: quantile(delays.get((validator.key_id, stage), ()), 0.5) for stage in STAGES},
                {stage.value: quantile(delays.get((validator.key_id, stage), ()), 0.95) for stage in STAGES},
                silent[validator.index],
                differs[validator.index],
                bad[validator.key_id],
                last_ms.get(validator.key_id),
            )
        )
    return SessionFigures(
        session.session_id.hex(),
        session.workchain,
        f"{session.shard:016x}",
        session.catchain_seqno,
        session.from_ms,
        session.to_ms,
        len(messages),
        seats,
    )


def quantile(values: Iterable[int], share: float) -> int | None:
    """The nearest rank; None of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


HEAT = ((2.0, 5), (1.5, 4), (1.25, 3), (1.1, 2))
"""Warmth of a cell from so many times the session's median on: people look for the validator that differs."""
HEAT_FROM_MS = 50
"""Milliseconds above the session's median up to which no cell is warm: such a difference is noise."""


def heat(session: SessionFigures, seat: SessionSeat, stage: str) -> int:
    own = seat.p50_ms[stage]
    usual = quantile((value for one in session.seats if (value := one.p50_ms[stage]) is not None), 0.5)
    if own is None or not usual or own - usual < HEAT_FROM_MS:
        return 0
    return next((warmth for times, warmth in HEAT if own >= times * usual), 0)


def as_objects(sessions: Iterable[SessionFigures]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(session) for session in sessions]
