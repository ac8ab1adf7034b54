"""A trace as text: the verdict first, then the numbers, then one lane for each who has spoken or should have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from stagepost.ground.files.durations import format_milliseconds
from stagepost.remp.verdict.trace import (
    Lane,
    Mark,
    Point,
    StepLane,
    Trace,
    WayStep,
    block_named,
)
from stagepost.remp.verdict.words import end_words
from stagepost.trace.drawing import round_step
from stagepost.trace.reasons import counts, error_words, missing, why

WIDTH = 62
"""Columns of the time axis."""
NAME_WIDTH = 14
TICKS = 8
LANE, OPEN_TAIL = "─", "┄"
LEGEND = "○ queued  ● included, accepted  ◆ final  ✕ rejected  ↩ returned to queue  ◦ another collator has it  ⚠ not trustworthy"

_LOUDEST = (
    Mark.UNTRUSTED,
    Mark.NEVER,
    Mark.FINAL,
    Mark.RETURNED,
    Mark.ON_ITS_WAY,
    Mark.QUEUED,
    Mark.DUPLICATE,
)
"""Which of two marks in one column is shown."""
_COLOURS = {
    Mark.QUEUED: "green",
    Mark.ON_ITS_WAY: "green",
    Mark.FINAL: "blue",
    Mark.NEVER: "red",
    Mark.RETURNED: "yellow",
    Mark.DUPLICATE: "white",
    Mark.UNTRUSTED: "red",
}


def trace_lines(trace: Trace, *, only_trouble: bool = False) -> Iterator[str]:
    yield headline(trace)
    reason = why(trace)
    if reason:
        yield _printable(reason)
    yield from _numbers(trace)
    yield ""
    axis = _Axis(trace)
    yield " " * (NAME_WIDTH + 2) + axis.ticks()
    for steps in trace.way.lanes:
        if not only_trouble or steps.troubles:
            yield axis.steps(steps)
    for lane in trace.lanes:
        if not only_trouble or lane.troubles or not lane.points:
            yield axis.lane(lane)
    yield LEGEND
    for position, fault in trace.unreadable:
        yield f"not a receipt, {position}: {fault.text} ({fault.reason})"
    waiting = missing(trace)
    if waiting:
        yield f"waiting: {waiting}"


def headline(trace: Trace) -> str:
    digits = trace.message_id.hex()
    shard, master_seqno = block_named(trace)
    where = [f"shard {shard}"] if shard is not None else []
    where += [f"master block {master_seqno}"] if master_seqno is not None else []
    text = f"{digits[:16]}…{digits[-6:]}   {trace.words}"
    return f"{text:<45} {' · '.join(where)}".rstrip()


def end_line(trace: Trace) -> str:
    """Return the proved end with the number of signers, or that the end is not known yet."""
    proved = trace.proved
    signed = "" if proved is None else f", {proved.signers} of {proved.validators} validators signed"
    return f"end {end_words(trace.verdict)}{signed}"


def _numbers(trace: Trace) -> Iterator[str]:
    verdict, first_ms = trace.verdict, trace.first_ms
    if verdict is not None and first_ms is not None:
        stages = [
            ("to queue", verdict.queued_ms),
            ("optimistic", verdict.included_ms),
            ("accepted", verdict.accepted_ms),
            ("final", verdict.finalized_ms),
        ]
        times = [
            f"{name} {format_milliseconds(at_ms - first_ms)}" for name, at_ms in stages if at_ms is not None
        ]
        if times:
            yield " · ".join(times)
    yield " · ".join(counts(trace))
    yield end_line(trace)


class _Axis:
    """Time from left to right, the same for all lanes."""

    def __init__(self, trace: Trace) -> None:
        times = [point.timestamp_ms for point in trace.points]
        times += [step.timestamp_ms for lane in trace.way.lanes for step in lane.points]
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
        end = lane.last
        is_open = self._is_open and end is not None and end.mark not in (Mark.NEVER, Mark.FINAL)
        return self._line(lane.name, lane.points, _label(lane), is_open=is_open)

    def steps(self, lane: StepLane) -> str:
        """Return a lane of the way before the full node, with everything that happened in words."""
        words = _printable(" → ".join(step.label for step in lane.points))
        return self._line(lane.name, lane.points, words, is_open=False)

    def _line(self, name: str, points: Sequence[Point | WayStep], label: str, *, is_open: bool) -> str:
        cells: dict[int, Mark] = {}
        for point in points:
            column = self.column(point.timestamp_ms)
            known = cells.get(column)
            if known is None or _LOUDEST.index(point.mark) <= _LOUDEST.index(known):
                cells[column] = point.mark
        first, last = min(cells, default=0), max(cells, default=-1)
        drawn = []
        for column in range(WIDTH):
            if column in cells:
                mark = cells[column]
                drawn.append(click.style(mark.value, fg=_COLOURS[mark]))
            elif first < column < last:
                drawn.append(LANE)
            else:
                drawn.append(OPEN_TAIL if is_open and column > last >= 0 else " ")
        shown = _printable(name)[:NAME_WIDTH]
        return f"{shown:<{NAME_WIDTH}}  {''.join(drawn)}  {label}".rstrip()


def _label(lane: Lane) -> str:
    """Trouble is said in words; of a full node, everything is."""
    if not lane.points:
        return "silent"
    if lane.name.startswith("full node"):
        return _printable(error_words(" → ".join(point.label for point in lane.points)))
    return _printable(error_words(", ".join(point.label for point in lane.troubles)))


def _printable(text: str) -> str:
    """Return the text without control characters: text from strangers must not steer the terminal."""
    return "".join(character if character.isprintable() else "·" for character in text)
