"""Numbers, times and ids as pages write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from stagepost.ground.files.durations import format_duration, format_milliseconds
from stagepost.remp.verdict.verdict import Conclusion

THIN_SPACE = "\u202f"
NOTHING = "–"

_TONES = {
    Conclusion.FINALIZED.value: "final",
    Conclusion.EXECUTED_AS.value: "bad",
    Conclusion.ACCEPTED.value: "good",
    Conclusion.INCLUDED.value: "good",
    Conclusion.QUEUED.value: "open",
    Conclusion.SENT.value: "open",
    Conclusion.LIKELY_REJECTED.value: "warn",
    Conclusion.REJECTED.value: "bad",
    Conclusion.REJECTED_BY_FULLNODE.value: "bad",
    Conclusion.EXPIRED.value: "bad",
}


def tone(verdict: str | None) -> str:
    """Return the class that colours a verdict; the word always stands beside it."""
    return _TONES.get(verdict or "", "bad")


def short_id(identifier: str | None) -> str:
    """Return the first 8 and the last 6 digits."""
    if not identifier:
        return NOTHING
    return identifier if len(identifier) <= 16 else f"{identifier[:8]}…{identifier[-6:]}"


def number(value: float | int | None) -> str:
    if value is None:
        return NOTHING
    text = f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
    return text.replace(",", THIN_SPACE)


def span(milliseconds: float | None) -> str:
    """Return a length of time as text, or the sign for nothing."""
    return NOTHING if milliseconds is None else format_milliseconds(milliseconds)


def ago(time_ms: int | None, now_ms: int) -> str:
    if time_ms is None:
        return NOTHING
    return f"{format_duration(max(0, now_ms - time_ms) / 1_000)} ago"


def clock(time_ms: int | None) -> Markup:
    """Return the time of day with milliseconds, with the whole date as its title. All times are UTC."""
    if time_ms is None:
        return Markup(NOTHING)
    try:
        moment = datetime.fromtimestamp(time_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return escape(str(time_ms))
    shown = moment.strftime("%H:%M:%S.") + f"{time_ms % 1_000:03d}"
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        moment.isoformat(timespec="milliseconds"), moment.strftime("%Y-%m-%d ") + shown, shown
    )


def moment_words(time_ms: int | None) -> str:
    if time_ms is None:
        return NOTHING
    try:
        return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)


def spark(values: list[Any], width: int = 240, height: int = 36) -> Markup:
    """Return a small drawing of bars, the newest at the right, with gaps where a value is not known."""
    most = max((value for value in values if value is not None), default=0) or 1
    step = width / max(1, len(values))
    bars = []
    for place, value in enumerate(values):
        if value:
            tall = max(1.5, value / most * height)
            bars.append(
                f'<rect x="{place * step:.1f}" y="{height - tall:.1f}" width="{step - 1:.1f}" height="{tall:.1f}" rx="1"/>'
            )
    return Markup(
        f'<svg class="spark" viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">'
        f'<line x1="0" x2="{width}" y1="{height - 0.5}" y2="{height - 0.5}"/>{"".join(bars)}</svg>'
    )


FILTERS = {
    "tone": tone,
    "short": short_id,
    "number": number,
    "span": span,
    "clock": clock,
    "moment": moment_words,
    "date": lambda time_ms: moment_words(int(time_ms))[:10],
    "spark": spark,
}
