"""The trace of one message as a drawing: lanes of every source that has spoken or should have, over time.

Plain SVG that needs no library and no script. Every mark carries a title, so that nothing is told by colour
or shape alone; trouble is written beside its lane. Time goes from left to right, to scale, except where
nothing happened for long: such a stretch is folded, and says how long it is. Times are never altered.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from stagepost.errors import ErrorCode
from stagepost.remp.receipts.status import Level
from stagepost.remp.verdict.trace import Lane, Mark, Point, StepLane, Trace
from stagepost.trace.reasons import error_words

FOLD_SHARE = 0.5
"""Part of the drawing: a longer stretch without any event is folded."""
FOLD_MS_MIN = 1_000
FOLD_WIDTH = 56.0
TICKS_MAX = 10


class TimeFold(NamedTuple):
    """A stretch of time that is drawn narrower than it is."""

    from_ms: int
    to_ms: int
    left: float
    right: float


class _Knot(NamedTuple):
    at_ms: int
    x: float


class TimeScale:
    """Maps a time in milliseconds to `x`, between 0 and `width`."""

    def __init__(self, times_ms: Sequence[int], width: float) -> None:
        ordered = sorted(set(times_ms)) or [0]
        self.from_ms, self.to_ms = ordered[0], ordered[-1]
        self.width = width
        gaps = _to_fold(ordered)
        span_ms = max(1, self.to_ms - self.from_ms - sum(to_ms - from_ms for from_ms, to_ms in gaps))
        self._per_ms = (width - FOLD_WIDTH * len(gaps)) / span_ms
        self.folds: list[TimeFold] = []
        knots = [_Knot(self.from_ms, 0.0)]
        for from_ms, to_ms in gaps:
            left = knots[-1].x + (from_ms - knots[-1].at_ms) * self._per_ms
            self.folds.append(TimeFold(from_ms, to_ms, left, left + FOLD_WIDTH))
            knots += [_Knot(from_ms, left), _Knot(to_ms, left + FOLD_WIDTH)]
        self._knots = knots

    def x(self, at_ms: float) -> float:
        for fold in self.folds:
            if fold.from_ms < at_ms < fold.to_ms:
                share = (at_ms - fold.from_ms) / (fold.to_ms - fold.from_ms)
                return fold.left + share * FOLD_WIDTH
        place = bisect_right(self._knots, at_ms, key=lambda knot: knot.at_ms) - 1
        knot = self._knots[max(place, 0)]
        return knot.x + (at_ms - knot.at_ms) * self._per_ms

    def ticks(self, zero_ms: int) -> list[int]:
        """Return round numbers of milliseconds after `zero_ms`, none inside of a fold."""
        step_ms = round_step(self.width / max(1, TICKS_MAX) / self._per_ms)
        first = -((zero_ms - self.from_ms) // step_ms) * step_ms
        found = range(first, self.to_ms - zero_ms + 1, step_ms)
        return [
            after_ms
            for after_ms in found
            if not any(fold.from_ms < zero_ms + after_ms < fold.to_ms for fold in self.folds)
        ]


def _to_fold(ordered: Sequence[int]) -> list[tuple[int, int]]:
    """Return the gaps to fold, longest first: each fold makes the rest of the drawing larger, and with it the
    share of the next gap.
    """
    gaps = sorted(
        pairwise(ordered),
        key=lambda gap: gap[0] - gap[1],
    )
    left_ms = ordered[-1] - ordered[0]
    folded: list[tuple[int, int]] = []
    for from_ms, to_ms in gaps:
        length_ms = to_ms - from_ms
        if length_ms < FOLD_MS_MIN or length_ms <= FOLD_SHARE * left_ms or length_ms == left_ms:
            break
        folded.append((from_ms, to_ms))
        left_ms -= length_ms
    return sorted(folded)


def round_step(least: float) -> int:
    """Return 1, 2 or 5 times a power of ten: the smallest that is not less than `least`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return factor * power
        power *= 10


WIDTH = 760
NAMES_WIDTH = 116
LABELS_WIDTH = 380
LANE_HEIGHT = 36
AXIS_HEIGHT = 36
MARGIN = 14
MARK_RADIUS = 6.0
LABEL_CHARACTERS_MAX = 52
_LONG_ID = re.compile(r"[0-9a-f]{32,}")

STYLE = """
.trace{--ink:#1b1f24;--quiet:#59636e;--rule:#dfe4ea;--stripe:#f6f8fa;--paper:#ffffff;--green:#1a7f37;--orange:#9a6700;--red:#cf222e;--blue:#0969da;
font:13px system-ui,sans-serif;font-variant-numeric:tabular-nums}
@media (prefers-color-scheme:dark){.trace{--ink:#f0f6fc;--quiet:#9198a1;--rule:#2a313a;--stripe:#12181f;--paper:#0d1117;--green:#3fb950;--orange:#d29922;
--red:#f85149;--blue:#4493f8}}
.trace .paper{fill:var(--paper)}.trace .stripe{fill:var(--stripe)}.trace text{fill:var(--ink)}.trace .quiet{fill:var(--quiet)}.trace .rule{stroke:var(--rule)}
.trace .name{font-weight:600}.trace .tick{font-size:12px}.trace .label{fill:var(--red)}.trace .label.back-label{fill:var(--orange)}
.trace .life{stroke:var(--green);stroke-width:9;stroke-linecap:butt}.trace .life.level-0,.trace .life.level-1{opacity:.2}.trace .life.level-2{opacity:.4}
.trace .life.level-3{opacity:.65}.trace .life.level-4{opacity:.9}
.trace .tail{stroke:var(--quiet);stroke-width:2;stroke-dasharray:2 5}.trace .mute{stroke:var(--quiet);stroke-dasharray:1 7;stroke-linecap:round;opacity:.7}
.trace .back{stroke:var(--orange);fill:none;stroke-width:1.5}.trace .back-head{fill:var(--orange)}
.trace .fold{fill:var(--rule);opacity:.55}
.trace .queued{fill:var(--paper);stroke:var(--green);stroke-width:2}.trace .way{fill:var(--green);stroke:var(--paper);stroke-width:1.5}
.trace .final{fill:var(--blue);stroke:var(--paper);stroke-width:1.5}
.trace .never{stroke:var(--red);stroke-width:3;fill:none}.trace .returned{stroke:var(--orange);stroke-width:2.5;fill:none}
.trace .duplicate{fill:var(--paper);stroke:var(--quiet);stroke-width:1.5}
.trace .unknown{fill:none;stroke:var(--quiet);stroke-width:2;stroke-dasharray:3 2}
.trace .untrusted{fill:var(--paper);stroke:var(--red);stroke-width:2}.trace .untrusted-sign{fill:var(--red);font-weight:700;font-size:10px}
"""


def draw_trace(trace: Trace, *, within_page: bool = False) -> str:
    """Return a whole SVG document. `within_page`: the page has `STYLE` in its style sheet."""
    return "".join(_pieces(trace, within_page=within_page))


def _pieces(trace: Trace, *, within_page: bool) -> Iterator[str]:
    points = trace.points
    times = [point.timestamp_ms for point in points]
    times += [step.timestamp_ms for lane in trace.way.lanes for step in lane.points]
    zero_ms = trace.first_ms if trace.first_ms is not None else 0
    scale = TimeScale([*times, *([trace.first_ms] if trace.first_ms is not None else [])], WIDTH)
    before = trace.way.lanes
    height = AXIS_HEIGHT + LANE_HEIGHT * (len(before) + len(trace.lanes)) + MARGIN
    width = NAMES_WIDTH + WIDTH + LABELS_WIDTH + 2 * MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="trace" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><title>Life of message {trace.message_id.hex()}</title>'
        + ("" if within_page else f"<style>{STYLE}</style>")
        + f'<rect class="paper" width="{width}" height="{height}"/>'
    )
    bottom = height - MARGIN
    for number in range(0, len(before) + len(trace.lanes), 2):
        top = AXIS_HEIGHT + LANE_HEIGHT * number
        yield f'<rect class="stripe" y="{top}" width="{width}" height="{LANE_HEIGHT}"/>'
    for fold in scale.folds:
        yield _fold(fold, bottom)
    for after_ms in scale.ticks(zero_ms):
        yield _tick(after_ms, _at(scale, zero_ms + after_ms), bottom)
    for number, steps in enumerate(before):
        yield _step_lane(steps, AXIS_HEIGHT + LANE_HEIGHT * number + LANE_HEIGHT / 2, scale, zero_ms)
    for number, lane in enumerate(trace.lanes, start=len(before)):
        y = AXIS_HEIGHT + LANE_HEIGHT * number + LANE_HEIGHT / 2
        yield _lane(lane, y, scale, zero_ms, is_open=trace.is_open)
    yield "</svg>"


def _at(scale: TimeScale, at_ms: int) -> float:
    return round(MARGIN + NAMES_WIDTH + scale.x(at_ms), 1)


def _tick(after_ms: int, x: float, bottom: float) -> str:
    text = f"{after_ms} ms" if abs(after_ms) < 1_000 else f"{after_ms / 1_000:g} s"
    return (
        f'<line class="rule" x1="{x}" x2="{x}" y1="{AXIS_HEIGHT - 8}" y2="{bottom}"/>'
        f'<text class="quiet tick" x="{x}" y="{AXIS_HEIGHT - 14}" text-anchor="middle">{text}</text>'
    )


def _fold(fold: TimeFold, bottom: float) -> str:
    left = round(MARGIN + NAMES_WIDTH + fold.left, 1)
    width = round(fold.right - fold.left, 1)
    length_s = (fold.to_ms - fold.from_ms) / 1_000
    return (
        f"<g><title>Nothing happened for {length_s:.1f} s</title>"
        f'<rect class="fold" x="{left}" y="{AXIS_HEIGHT - 8}" width="{width}" height="{bottom - AXIS_HEIGHT + 8}"/>'
        f'<text class="quiet folded" x="{left + width / 2}" y="{bottom + 11}" text-anchor="middle">'
        f"{length_s:.1f} s</text></g>"
    )


def _lane(lane: Lane, y: float, scale: TimeScale, zero_ms: int, *, is_open: bool) -> str:
    pieces = [f'<g class="lane" data-name="{escape(lane.name)}">']
    pieces.append(f'<text class="name" x="{MARGIN}" y="{y + 4}">{escape(lane.name)}</text>')
    if not lane.points:
        pieces.append(
            f'<line class="mute" x1="{MARGIN + NAMES_WIDTH}" x2="{MARGIN + NAMES_WIDTH + WIDTH}" y1="{y}" y2="{y}"/>'
        )
    counting = [point for point in lane.points if point.refused is None]
    for before, after in pairwise(counting):
        # A message that was given back is in the queue again.
        is_back = before.mark in (Mark.RETURNED, Mark.DUPLICATE)
        level = int(Level.QUEUE if is_back else before.receipt.kind.level)
        pieces.append(
            f'<line class="life level-{level}" x1="{_at(scale, before.timestamp_ms)}" '
            f'x2="{_at(scale, after.timestamp_ms)}" y1="{y}" y2="{y}"/>'
        )
    if is_open and counting and counting[-1].mark not in (Mark.NEVER, Mark.FINAL):
        start = _at(scale, counting[-1].timestamp_ms)
        end = MARGIN + NAMES_WIDTH + WIDTH + 24
        pieces.append(f'<line class="tail" x1="{start}" x2="{end}" y1="{y}" y2="{y}"/>')
    pieces += _arcs(counting, y, scale)
    pieces += [_mark(point, _at(scale, point.timestamp_ms), y, zero_ms, lane.name) for point in lane.points]
    pieces.append(_label(lane, y))
    pieces.append("</g>")
    return "".join(pieces)


def _step_lane(lane: StepLane, y: float, scale: TimeScale, zero_ms: int) -> str:
    pieces = [f'<g class="lane way-lane" data-name="{escape(lane.name)}">']
    pieces.append(f'<text class="name" x="{MARGIN}" y="{y + 4}">{escape(lane.name)}</text>')
    for before, after in pairwise(lane.points):
        start, end = _at(scale, before.timestamp_ms), _at(scale, after.timestamp_ms)
        pieces.append(f'<line class="life level-1" x1="{start}" x2="{end}" y1="{y}" y2="{y}"/>')
    for step in lane.points:
        title = escape(f"{step.label}, {lane.name}, {step.timestamp_ms - zero_ms:+} ms")
        shape = _shape(step.mark, _at(scale, step.timestamp_ms), y)
        pieces.append(f'<g class="mark" data-mark="{step.mark.name}"><title>{title}</title>{shape}</g>')
    words = ", ".join(step.label for step in lane.troubles)
    if words:
        x = MARGIN + NAMES_WIDTH + WIDTH + 34
        pieces.append(
            f'<text class="label" x="{x}" y="{y + 4}"><title>{escape(words)}</title>{escape(_cut(words))}</text>'
        )
    pieces.append("</g>")
    return "".join(pieces)


def _cut(whole: str) -> str:
    whole = _LONG_ID.sub(lambda found: f"{found[0][:8]}…{found[0][-6:]}", whole)
    return whole if len(whole) <= LABEL_CHARACTERS_MAX else whole[: LABEL_CHARACTERS_MAX - 1] + "…"


def _arcs(points: list[Point], y: float, scale: TimeScale) -> Iterator[str]:
    """Yield arcs from where a message was given back to where it had stood in the queue."""
    queued: Point | None = None
    for point in points:
        if point.mark is Mark.QUEUED:
            queued = point
        elif point.mark is Mark.RETURNED and queued is not None:
            start, end = _at(scale, point.timestamp_ms), _at(scale, queued.timestamp_ms)
            top = y - LANE_HEIGHT * 0.85
            middle = round((start + end) / 2, 1)
            landing = y - MARK_RADIUS - 1
            yield (
                f'<path class="back" d="M{start} {y - MARK_RADIUS}Q{middle} {top} {end} {landing}">'
                f"<title>Back to the queue</title></path>"
                f'<path class="back-head" d="M{end} {landing}l7 -1.5l-4 -5z"/>'
            )


def _mark(point: Point, x: float, y: float, zero_ms: int, lane: str) -> str:
    after_ms = point.timestamp_ms - zero_ms
    said = "counts" if point.refused is None else f"does not count: {point.refused.text}"
    title = escape(f"{error_words(point.label)}, {lane}, {after_ms:+} ms, {said}")
    if point.refused is not None and point.refused.reason is ErrorCode.RECEIPT_SOURCE:
        shape = f'<circle class="unknown" cx="{x}" cy="{y}" r="{MARK_RADIUS - 1}"/>'
    else:
        shape = _shape(point.mark, x, y)
    return f'<g class="mark" data-mark="{point.mark.name}"><title>{title}</title>{shape}</g>'


def _shape(mark: Mark, x: float, y: float) -> str:
    r = MARK_RADIUS
    match mark:
        case Mark.QUEUED:
            return f'<circle class="queued" cx="{x}" cy="{y}" r="{r - 1}"/>'
        case Mark.ON_ITS_WAY:
            return f'<circle class="way" cx="{x}" cy="{y}" r="{r}"/>'
        case Mark.FINAL:
            return f'<path class="final" d="M{x} {y - r - 2}l{r + 2} {r + 2}l-{r + 2} {r + 2}l-{r + 2} -{r + 2}z"/>'
        case Mark.NEVER:
            side = 2 * r - 2
            return (
                f'<path class="never" d="M{x - r + 1} {y - r + 1}l{side} {side}m0 -{side}l-{side} {side}"/>'
            )
        case Mark.RETURNED:
            return f'<path class="returned" d="M{x + r} {y + r - 2}h-{r}a{r - 1} {r - 1} 0 0 1 0 -{2 * r - 2}h{r - 2}m-3 -3l3 3l-3 3"/>'
        case Mark.DUPLICATE:
            return f'<circle class="duplicate" cx="{x}" cy="{y}" r="{r - 2}"/>'
        case Mark.UNTRUSTED:
            return (
                f'<path class="untrusted" d="M{x} {y - r - 2}l{r + 2} {2 * r + 2}h-{2 * r + 4}z"/>'
                f'<text class="untrusted-sign" x="{x}" y="{y + r - 1}" text-anchor="middle">!</text>'
            )


def _label(lane: Lane, y: float) -> str:
    """Return the label of a lane: only trouble and silence are written out; titles have the rest."""
    x = MARGIN + NAMES_WIDTH + WIDTH + 34
    if not lane.points:
        return f'<text class="quiet silent" x="{x}" y="{y + 4}">silent</text>'
    troubles = lane.troubles
    if not troubles:
        return ""
    said = Counter(error_words(point.label) for point in troubles)
    whole = ", ".join(label if times == 1 else f"{label} × {times}" for label, times in said.items())
    is_returned = all(point.mark is Mark.RETURNED for point in troubles)
    kind = "label back-label" if is_returned else "label"
    return (
        f'<text class="{kind}" x="{x}" y="{y + 4}"><title>{escape(whole)}</title>{escape(_cut(whole))}</text>'
    )
