"""What became of the demonstration's messages: counted from the topic of statuses in its folder, and from nothing else."""

from __future__ import annotations

from collections import Counter
from math import ceil
from pathlib import Path

import msgspec

from stagepost.remp.receipts.receipt import Counting, Quarantined, Receipt
from stagepost.remp.receipts.status_records import check_record, read_record
from stagepost.remp.validator_sets import SETS_FILE, ValidatorSets
from stagepost.remp.verdict.state import MessageState
from stagepost.remp.verdict.verdict import Conclusion, Verdict, evaluate
from stagepost.trace.reading import topic_records

FULL_NODE = "full node"


class RefusedReceipt(msgspec.Struct, frozen=True):
    """`who`: whom it names as its source, as people see it; None if nobody knows that key."""

    reason: str
    who: str | None
    count: int


class DemoFindings(msgspec.Struct, frozen=True):
    """`verdicts` by their names in the tables. Times are from `SentToValidators` to `Finalized`; None if none is final."""

    verdicts: dict[str, int]
    final_p50_ms: int | None
    final_p95_ms: int | None
    receipts: int
    verified: int
    refused: tuple[RefusedReceipt, ...]

    @property
    def messages(self) -> int:
        return sum(self.verdicts.values())


def findings_in(data: Path, as_of_ms: int) -> DemoFindings:
    sets = ValidatorSets.load(data / SETS_FILE)
    states: dict[bytes, MessageState] = {}
    refused: Counter[tuple[str, str | None]] = Counter()
    receipts = verified = 0
    for record in topic_records(data):
        receipts += 1
        checked = check_record(record, sets)
        if isinstance(checked, Counting):
            verified += 1
            message_id = checked.receipt.message_id
            states.setdefault(message_id, MessageState()).add(checked, record.session_hint)
        else:
            receipt = read_record(record)
            who = None if isinstance(receipt, Quarantined) else _name_of(receipt, sets)
            refused[str(checked.reason), who] += 1
    verdicts = [found for state in states.values() if (found := evaluate(state, sets, as_of_ms)) is not None]
    times = sorted(_final_ms(one) for one in verdicts if one.verdict == Conclusion.FINALIZED.value)
    return DemoFindings(
        dict(Counter(one.verdict for one in verdicts)),
        _share(times, 0.50),
        _share(times, 0.95),
        receipts,
        verified,
        tuple(
            RefusedReceipt(reason, who, count) for (reason, who), count in sorted(refused.items(), key=str)
        ),
    )


def _name_of(receipt: Receipt, sets: ValidatorSets) -> str | None:
    """By its place in the newest session that it may speak for at that time."""
    if receipt.source_id in sets.full_nodes:
        return FULL_NODE
    places = [
        (session.age_key, validator.index)
        for session, validator in sets.memberships(receipt.source_id).values()
        if session.meets(receipt.timestamp_ms, receipt.timestamp_ms)
    ]
    return f"V{max(places)[1] + 1}" if places else None


def _final_ms(verdict: Verdict) -> int:
    """What is final was sent before; a clock that was set back in between makes it 0."""
    assert verdict.finalized_ms is not None
    return 0 if verdict.sent_ms is None else max(0, verdict.finalized_ms - verdict.sent_ms)


def _share(times: list[int], share: float) -> int | None:
    """The least time within which this share of them came."""
    return times[ceil(share * len(times)) - 1] if times else None
