"""The first line of a message's record: why it is where it is, in words for people."""

from __future__ import annotations

import re
from collections import Counter

from stagepost.chain.contracts import CODE_WORDS
from stagepost.ground.files.durations import format_milliseconds
from stagepost.remp.receipts.status import Level, Status
from stagepost.remp.verdict.trace import Lane, Mark, Trace, signatures_valid
from stagepost.remp.verdict.verdict import Conclusion

NAMES_SHOWN = 3
"""Validators, at most, that a line names; the lanes show all of them."""

_CODE = re.compile(r"Contract rejected message with error code (-?[0-9]+)")


def error_words(text: str) -> str:
    """Return a text with the code of a contract's error first and in few words, so that nobody cuts the code off."""
    return _CODE.sub(_code_words, text)


def _code_words(found: re.Match[str]) -> str:
    words = CODE_WORDS.get(int(found[1]))
    return f"contract error {found[1]}" + (f" ({words})" if words else "")


def why(trace: Trace) -> str:
    """Return the reason in one sentence; empty where the state says everything."""
    if trace.verdict is None:
        return trace.way.why
    refused = _refusal(trace)
    if refused and (not trace.is_open or trace.verdict.rejected_ms is not None):
        return refused
    if trace.verdict.verdict == Conclusion.EXPIRED.value:
        return _expiry(trace)
    return _waiting(trace) if trace.is_open else ""


def member_name(lane: Lane) -> str:
    """Return the name of a validator with its address, where its network gave it one."""
    return lane.name if lane.address is None else f"{lane.name} ({lane.address})"


def _refusal(trace: Trace) -> str:
    """Return the reason that most sources give, and how many of them give it."""
    if trace.verdict is None or trace.verdict.finalized_ms is not None:
        return ""
    members = [lane for lane in trace.lanes if lane.seat is not None]
    for lane in trace.lanes:
        last = lane.last
        if last is None or lane.seat is not None or last.receipt.kind.level is not Level.FULLNODE:
            continue
        if last.receipt.status.status is Status.REJECTED:
            return f"rejected by the full node: {error_words(getattr(last.receipt.status, 'error', ''))}"
    errors: Counter[str] = Counter()
    for lane in members:
        last = lane.last
        if last is not None and last.mark is Mark.NEVER and last.receipt.status.status is Status.REJECTED:
            errors[error_words(getattr(last.receipt.status, "error", "")) or last.receipt.kind.name] += 1
    if not errors:
        return ""
    ((error, count),) = errors.most_common(1)
    return f"rejected: {error} by {count} of {len(members)}"


def _expiry(trace: Trace) -> str:
    """Return how long the message had, and which validators gave it up or said nothing."""
    members = [lane for lane in trace.lanes if lane.seat is not None]
    lasts = [lane.last for lane in members if lane.last is not None]
    timed_out = sum(last.receipt.status.status is Status.TIMEOUT for last in lasts)
    parts = [f"expired: not final within {format_milliseconds(trace.message_timeout_ms)}"]
    if timed_out:
        parts.append(f"timed out at {timed_out} of {len(members)}")
    if silent := _silent(trace):
        parts.append(f"silent: {silent}")
    return "; ".join(parts)


def _silent(trace: Trace) -> str:
    """Return the validators without any receipt, the first of them by name; empty if there are none."""
    silent = [lane for lane in trace.lanes if lane.seat is not None and not lane.points]
    shown = ", ".join(member_name(lane) for lane in silent[:NAMES_SHOWN])
    return shown + (f" and {len(silent) - NAMES_SHOWN} more" if len(silent) > NAMES_SHOWN else "")


def _waiting(trace: Trace) -> str:
    silent = _silent(trace)
    if not silent:
        return ""
    sent_ms = trace.verdict.sent_ms if trace.verdict is not None else None
    since_ms = sent_ms or trace.first_ms
    length = ""
    if trace.as_of_ms is not None and since_ms is not None:
        length = f", silent for {format_milliseconds(max(0, trace.as_of_ms - since_ms))}"
    return f"waiting for {silent}{length}"


def counts(trace: Trace) -> list[str]:
    """Return how many validators have which last status, and how many signatures are valid, as texts."""
    parts: list[str] = []
    members = [lane for lane in trace.lanes if lane.seat is not None]
    if members:
        lasts = [lane.last for lane in members if lane.last is not None]
        accepted = sum(point.mark in (Mark.ON_ITS_WAY, Mark.FINAL) for point in lasts)
        timed_out = sum(point.receipt.status.status is Status.TIMEOUT for point in lasts)
        parts.append(f"{accepted} of {len(members)} validators accepted")
        numbers = {
            "rejected": sum(point.mark is Mark.NEVER for point in lasts) - timed_out,
            "timed out": timed_out,
            "returned": sum(point.mark is Mark.RETURNED for point in lasts),
            "duplicate": sum(point.mark is Mark.DUPLICATE for point in lasts),
            "queued": sum(point.mark is Mark.QUEUED for point in lasts),
            "silent": len(members) - len(lasts),
        }
        parts += [f"{count} {word}" for word, count in numbers.items() if count]
    valid, count = signatures_valid(trace)
    return [*parts, f"{valid} of {count} signatures valid"] if count or not trace.way.lanes else parts


def missing(trace: Trace) -> str:
    """Return the validators that an open message waits for, and how long it may wait; empty if it is not
    open.
    """
    verdict = trace.verdict
    if verdict is None or not trace.is_open:
        return ""
    parts = []
    if verdict.silent and verdict.validators is not None:
        names = ", ".join(member_name(lane) for lane in trace.lanes if lane.seat in verdict.silent)
        parts.append(f"{len(verdict.silent)} of {verdict.validators} silent ({names})")
    if trace.as_of_ms is not None and trace.first_ms is not None:
        open_for = format_milliseconds(max(0, trace.as_of_ms - trace.first_ms))
        parts.append(f"open {open_for} of {format_milliseconds(trace.message_timeout_ms)}")
    return "; ".join(parts)
