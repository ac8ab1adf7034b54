"""The content of a trace's page beside its drawing: the verdict, its stages, its numbers, and each receipt
with its proof.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from stagepost.errors import ErrorCode
from stagepost.remp.receipts.receipt import Quarantined
from stagepost.remp.receipts.status import Status
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import SETS_FILE, ValidatorSets
from stagepost.remp.verdict.trace import Mark, Point, Trace, block_named, signatures_valid
from stagepost.remp.verdict.words import verdict_words
from stagepost.topics.log.file_topic import open_topic
from stagepost.trace.drawing import draw_trace
from stagepost.trace.words import span, tone

HEX_GROUP = 8
HEX_GROUPS_OF_LINE = 8


class Station(NamedTuple):
    """A stage of the message's way: `state` is reached, missed (the message ended before), or ahead."""

    name: str
    after_ms: int | None
    state: str


class ReceiptRow(NamedTuple):
    position: str
    lane: str
    kind: str
    mark: str
    sign: str
    after_ms: int
    timestamp_ms: int
    error: str
    signature: str
    refused: str | None


def trace_view(trace: Trace) -> dict[str, Any]:
    shard, master_seqno = block_named(trace)
    where = [f"shard {shard}"] if shard is not None else []
    where += [f"master block {master_seqno}"] if master_seqno is not None else []
    return {
        "trace": trace,
        "message_id": trace.message_id.hex(),
        "words": verdict_words(trace.verdict),
        "tone": tone(None if trace.verdict is None else trace.verdict.verdict),
        "where": " · ".join(where),
        "stations": stations(trace),
        "counts": counts(trace),
        "missing": missing(trace),
        "drawing": Markup(draw_trace(trace, within_page=True)),  # it escapes what others wrote
        "receipts": [
            _row(lane.name, point, trace.first_ms or 0) for lane in trace.lanes for point in lane.points
        ],
        "unreadable": trace.unreadable,
    }


def stations(trace: Trace) -> list[Station]:
    verdict, first_ms = trace.verdict, trace.first_ms
    if verdict is None or first_ms is None:
        return []
    times = [
        ("Sent", verdict.sent_ms),
        ("Queued", verdict.queued_ms),
        ("Included", verdict.included_ms),
        ("Accepted", verdict.accepted_ms),
        ("Final", verdict.finalized_ms),
    ]
    reached = max((place for place, (_, at_ms) in enumerate(times) if at_ms is not None), default=-1)
    found = []
    for place, (name, at_ms) in enumerate(times):
        if at_ms is not None:
            state = "reached"
        elif place < reached:
            state = "passed"
        else:
            state = "ahead" if trace.is_open else "missed"
        found.append(Station(name, None if at_ms is None else at_ms - first_ms, state))
    return found


def counts(trace: Trace) -> list[str]:
    """Return how many validators have which last status, and how many signatures are valid, as texts."""
    parts: list[str] = []
    members = [lane for lane in trace.lanes if lane.name[:1] == "V" and " " not in lane.name]
    if members:
        lasts = [lane.last for lane in members if lane.last is not None]
        accepted = sum(point.mark in (Mark.ON_ITS_WAY, Mark.FINAL) for point in lasts)
        timed_out = sum(point.receipt.status.status is Status.TIMEOUT for point in lasts)
        parts.append(f"{accepted} of {len(members)} validators accepted")
        numbers = {
            "rejected": sum(point.mark is Mark.NEVER for point in lasts) - timed_out,
            "timed out": timed_out,
            "returned": sum(point.mark is Mark.RETURNED for point in lasts),
            "queued": sum(point.mark is Mark.QUEUED for point in lasts),
            "silent": len(members) - len(lasts),
        }
        parts += [f"{count} {word}" for word, count in numbers.items() if count]
    valid, count = signatures_valid(trace)
    return [*parts, f"{valid} of {count} signatures valid"]


def missing(trace: Trace) -> str:
    """Return the validators that an open message waits for, and how long it may wait; empty if it is not
    open.
    """
    verdict = trace.verdict
    if verdict is None or not trace.is_open:
        return ""
    parts = []
    if verdict.silent and verdict.validators is not None:
        names = ", ".join(f"V{index + 1}" for index in verdict.silent)
        parts.append(f"{len(verdict.silent)} of {verdict.validators} silent ({names})")
    if trace.as_of_ms is not None and trace.first_ms is not None:
        open_for = span(max(0, trace.as_of_ms - trace.first_ms))
        parts.append(f"open {open_for} of {span(trace.message_timeout_ms)}")
    return "; ".join(parts)


def _row(lane: str, point: Point, first_ms: int) -> ReceiptRow:
    refused = point.refused
    return ReceiptRow(
        point.position,
        lane,
        point.receipt.kind.name,
        point.mark.name,
        point.mark.value,
        point.timestamp_ms - first_ms,
        point.timestamp_ms,
        getattr(point.receipt.status, "error", ""),
        signature_words(refused),
        None if refused is None else str(refused.reason),
    )


def signature_words(refused: Quarantined | None) -> str:
    """Return `valid`, `invalid`, `unknown signer` or `not checked`: a check that was not reached was not
    made.
    """
    if refused is None:
        return "valid"
    if refused.reason in (ErrorCode.RECEIPT_SIGNATURE, ErrorCode.RECEIPT_UNSIGNED):
        return "invalid"
    return "unknown signer" if refused.reason is ErrorCode.RECEIPT_SOURCE else "not checked"


def receipt_view(trace: Trace, position: str, data: Path) -> dict[str, Any] | None:
    """Return the proof of one receipt: its JSON, the signed bytes, the key, and the way to verify it again;
    None if there is none.
    """
    for lane in trace.lanes:
        for point in lane.points:
            if point.position == position:
                return _proof(lane.name, point, trace, data)
    return None


def _proof(lane: str, point: Point, trace: Trace, data: Path) -> dict[str, Any]:
    receipt = point.receipt
    text = _raw(point.position, data) or receipt.to_json()
    sets = ValidatorSets.load(data / SETS_FILE)
    source = sets.source(receipt.source_id, receipt.timestamp_ms)
    # Line breaks stand between the parts of JSON only, never inside of them.
    one_line = " ".join(text.split("\n"))
    verify = f"stagepost verify - --validator-sets {shlex.quote(str(data / SETS_FILE))}"
    return {
        "row": _row(lane, point, trace.first_ms or 0),
        "json": text,
        "signed_bytes": hex_lines(receipt.signed_bytes),
        "signed_length": len(receipt.signed_bytes),
        "public_key": None if isinstance(source, str) else source.public_key.hex(),
        "role": None if isinstance(source, str) else source.role.value,
        "refused_text": None if point.refused is None else point.refused.text,
        "command": f"printf '%s\\n' {shlex.quote(one_line)} | {verify}",
    }


def _raw(position: str, data: Path) -> str | None:
    """Return the record as it stands in the topic; None if it is not there."""
    partition, _, offset = position.partition(":")
    if not (partition.isdigit() and offset.isdigit()):
        return None
    reader = open_topic(data, STATUSES_TOPIC).reader()
    for batch in reader.batches(int(partition), int(offset), int(offset) + 1):
        for one in batch:
            return None if one.value is None else one.value.decode("utf-8", "replace")
    return None


def hex_lines(data: bytes) -> str:
    digits = data.hex()
    groups = [digits[at : at + HEX_GROUP] for at in range(0, len(digits), HEX_GROUP)]
    lines = [groups[at : at + HEX_GROUPS_OF_LINE] for at in range(0, len(groups), HEX_GROUPS_OF_LINE)]
    return "\n".join(" ".join(line) for line in lines)
