"""A trace as text: the verdict first, then the numbers, then one lane for each who has spoken or should have."""

from __future__ import annotations

from collections.abc import Iterator

import click

from stagepost.ground.files.durations import format_duration
from stagepost.remp.receipts.status import Status
from stagepost.remp.verdict.trace import Lane, Mark, Point, Trace, block_named, signatures_valid
from stagepost.remp.verdict.words import silent_words, verdict_words
from stagepost.trace.drawing import round_step

WIDTH = 62
"""Columns of the time axis."""
NAME_WIDTH = 12
TICKS = 8
LANE, OPEN_TAIL = "─", "┄"
LEGEND = "○ queued  ● included, accepted  ◆ final  ✕ rejected  ↩ returned to queue  ⚠ not trustworthy"

_LOUDEST = (Mark.UNTRUSTED, Mark.NEVER, Mark.FINAL, Mark.RETURNED, Mark.ON_ITS_WAY, Mark.QUEUED)
"""Which of two marks in one column is shown."""
_COLOURS = {
    Mark.QUEUED: "green",
    Mark.ON_ITS_WAY: "green",
    Mark.FINAL: "blue",
    Mark.NEVER: "red",
    Mark.RETURNED: "yellow",
    Mark.UNTRUSTED: "red",
}


def trace_lines(trace: Trace, *, only_trouble: bool = False) -> Iterator[str]:
    yield headline(trace)
    yield from _numbers(trace)
    yield ""
    axis = _Axis(trace)
    yield " " * (NAME_WIDTH + 2) + axis.ticks()
    for lane in trace.lanes:
        if not only_trouble or lane.troubles or not lane.points:
            yield axis.lane(lane)
    yield LEGEND
    for position, fault in trace.unreadable:
        yield f"not a receipt, {position}: {fault.text} ({fault.reason})"
    missing = _missing(trace)
    if missing:
        yield missing


def headline(trace: Trace) -> str:
    digits = trace.message_id.hex()
    shard, master_seqno = block_named(trace)
    where = [f"shard {shard}"] if shard is not None else []
    where += [f"master block {master_seqno}"] if master_seqno is not None else []
    text = f"{digits[:16]}…{digits[-6:]}   {verdict_words(trace.verdict)}"
    return f"{text:<45} {' · '.join(where)}".rstrip()


def _numbers(trace: Trace) -> Iterator[str]:
    verdict, first_ms = trace.verdict, trace.first_ms
    if verdict is not None and first_ms is not None:
        stages = [
            ("to queue", verdict.queued_ms),
            ("optimistic", verdict.included_ms),
            ("accepted", verdict.accepted_ms),
            ("final", verdict.finalized_ms),
        ]
        times = [f"{name} {_after(at_ms - first_ms)}" for name, at_ms in stages if at_ms is not None]
        if times:
            yield " · ".join(times)
    yield " · ".join(_counts(trace))


def _counts(trace: Trace) -> list[str]:
    parts: list[str] = []
    members = [lane for lane in trace.lanes if lane.name[:1] == "V" and " " not in lane.name]
    if members:
        lasts = [lane.last for lane in members if lane.last is not None]
        accepted = sum(point.mark in (Mark.ON_ITS_WAY, Mark.FINAL) for point in lasts)
        parts.append(f"{accepted} of {len(members)} validators accepted")
        timed_out = sum(point.receipt.status.status is Status.TIMEOUT for point in lasts)
        counts = {
            "rejected": sum(point.mark is Mark.NEVER for point in lasts) - timed_out,
            "timed out": timed_out,
            "returned": sum(point.mark is Mark.RETURNED for point in lasts),
            "queued": sum(point.mark is Mark.QUEUED for point in lasts),
        }
        parts += [f"{count} {word}" for word, count in counts.items() if count]
        silent = len(members) - len(lasts)
        if silent:
            parts.append(f"{silent} silent")
    valid, count = signatures_valid(trace)
    parts.append(f"{valid} of {count} signatures valid")
    return parts


def _missing(trace: Trace) -> str:
    """Return what an open message waits for."""
    verdict, first_ms = trace.verdict, trace.first_ms
    if verdict is None or not trace.is_open:
        return ""
    parts = []
    if silent := silent_words(verdict):
        parts.append(silent)
    if trace.as_of_ms is not None and first_ms is not None:
        open_for = format_duration(max(0, trace.as_of_ms - first_ms) / 1_000)
        parts.append(f"open {open_for} of {format_duration(trace.message_timeout_ms / 1_000)}")
    return f"waiting: {'; '.join(parts)}" if parts else ""


def _after(milliseconds: int) -> str:
    if abs(milliseconds) < 1_000:
        return f"{milliseconds} ms"
    return (
        f"{milliseconds / 1_000:.2f} s"
        if abs(milliseconds) < 10_000
        else format_duration(milliseconds / 1_000)
    )


class _Axis:
    """Time from left to right, the same for all lanes."""

    def __init__(self, trace: Trace) -> None:
        times = [point.timestamp_ms for point in trace.points]
        self._from_ms = min([*times, *([trace.first_ms] if trace.first_ms is not None else [])], default=0)
        self._zero_ms = trace.first_ms if trace.first_ms is not None else self._from_ms
        self._span_ms = max([*times, self._from_ms]) - self._from_ms or 1
        self._is_open = trace.is_open

    def column(self, at_ms: int) -> int:
        return round((at_ms - self._from_ms) / self._span_ms * (WIDTH - 1))

    def ticks(self) -> str:
        line = ""
        step_ms = round_step(self._span_ms / TICKS)
        at_ms = self._zero_ms - (self._zero_ms - self._from_ms) // step_ms * step_ms
        while at_ms <= self._from_ms + self._span_ms:
            column = self.column(at_ms)
            number = at_ms - self._zero_ms
            text = f"{number} ms" if number == 0 else f"{number}"
            if column > len(line) or not line:
                line = line.ljust(column) + text
            at_ms += step_ms
        return line

    def lane(self, lane: Lane) -> str:
        cells: dict[int, Point] = {}
        for point in lane.points:
            column = self.column(point.timestamp_ms)
            known = cells.get(column)
            if known is None or _LOUDEST.index(point.mark) <= _LOUDEST.index(known.mark):
                cells[column] = point
        first, last = min(cells, default=0), max(cells, default=-1)
        end = lane.last
        is_open = self._is_open and end is not None and end.mark not in (Mark.NEVER, Mark.FINAL)
        drawn = []
        for column in range(WIDTH):
            if column in cells:
                mark = cells[column].mark
                drawn.append(click.style(mark.value, fg=_COLOURS[mark]))
            elif first < column < last:
                drawn.append(LANE)
            else:
                drawn.append(OPEN_TAIL if is_open and column > last >= 0 else " ")
        name = _printable(lane.name)[:NAME_WIDTH]
        return f"{name:<{NAME_WIDTH}}  {''.join(drawn)}  {_label(lane)}".rstrip()


def _label(lane: Lane) -> str:
    """Trouble is said in words; of a full node, everything is."""
    if not lane.points:
        return "silent"
    if lane.name.startswith("full node"):
        return _printable(" → ".join(point.label for point in lane.points))
    return _printable(", ".join(point.label for point in lane.troubles))


def _printable(text: str) -> str:
    """Return the text without control characters: text from strangers must not steer the terminal."""
    return "".join(character if character.isprintable() else "·" for character in text)
