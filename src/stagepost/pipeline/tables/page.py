"""HTML page of the tables, complete in itself: no script, no outside address, charts as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from stagepost.errors import StorageError
from stagepost.ground.files.small_files import replace_file
from stagepost.pipeline.tables.manifest import counts
from stagepost.pipeline.tables.reader import Reader
from stagepost.pipeline.tables.store import TableStore

ROWS_SHOWN_MAX = 50
BAR_WIDTH, BAR_HEIGHT, LABEL_WIDTH = 420, 18, 190
# As the screens have them: blue is final, green the main path, orange a warning, red what will never be included.
COLOURS = {
    "finalized": "#2563eb",
    "accepted": "#16a34a",
    "included": "#16a34a",
    "queued": "#16a34a",
    "sent": "#16a34a",
    "likely_rejected": "#ea580c",
    "rejected": "#dc2626",
    "rejected_by_fullnode": "#dc2626",
    "expired": "#dc2626",
}
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#111;background:#fff}
table{border-collapse:collapse;width:100%;margin:.5rem 0 1.5rem}td,th{text-align:left;padding:.2rem .6rem;border-bottom:1px solid #ddd}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}code{font-size:.9em}h2{margin-top:2rem}
@media(prefers-color-scheme:dark){body{color:#eee;background:#111}td,th{border-color:#444}svg text{fill:#eee}}
"""


PAGE_MODE = 0o666
"""Bits, less the umask: a page is for whoever may read its folder."""


def write_page(where: TableStore | Path, out: Path) -> None:
    reader = Reader(where)
    try:
        text = page(reader)
    finally:
        reader.close()
    try:
        replace_file(out, text.encode(), PAGE_MODE)
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror}", advice="see --out") from error


def page(reader: Reader) -> str:
    found = counts(reader.manifest)
    verdicts = reader.sql(
        f"SELECT verdict, count(*) AS messages FROM {reader.known('messages')} GROUP BY ALL ORDER BY 2 DESC"
    )
    parts = [
        f"<p>as of {_time(found['as_of_ms'])} · {found['rows']:,} records: {found['counted']:,} counted, "
        f"{found['repeated']:,} repeated, {found['quarantined']:,} quarantined</p>",
        "<h2>Verdicts</h2>",
        bars([(row["verdict"], row["messages"], COLOURS[row["verdict"]]) for row in verdicts]),
        "<h2>Time since sending, by stage (median and p99, ms)</h2>",
        _latency(reader),
        "<h2>Quarantine</h2>",
        bars([(reason, number, "#ea580c") for reason, number in sorted(found["reasons"].items())]),
        "<h2>Validators</h2>",
        _table(
            reader,
            "SELECT day, session_id, 'V' || (validator + 1) AS validator, messages, silent, queued_first, median_queue_ms, "
            "p95_queue_ms, contradictions, bad_signatures, open_new FROM validators WHERE messages + silent > 0 "
            "ORDER BY contradictions DESC, silent DESC, day, session_id, validators.validator",
        ),
        "<h2>Alerts</h2>",
        _table(reader, "SELECT kind, subject, since_ms, detail FROM alerts ORDER BY kind, subject"),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>stagepost tables</title>'
        f"<style>{_STYLE}</style></head><body><h1>Stagepost tables</h1>{''.join(parts)}</body></html>\n"
    )


def bars(rows: Sequence[tuple[str, float, str]]) -> str:
    """A chart of bars; the numbers stand beside them, so colour and length are never the only way to read it."""
    if not rows:
        return "<p>none</p>"
    greatest = max(value for _, value, _ in rows) or 1
    lines = []
    for number, (label, value, colour) in enumerate(rows):
        y = number * (BAR_HEIGHT + 6)
        width = max(1, round(BAR_WIDTH * value / greatest))
        lines.append(
            f'<text x="{LABEL_WIDTH - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width}" height="{BAR_HEIGHT}" fill="{colour}"/>'
            f'<text x="{LABEL_WIDTH + width + 6}" y="{y + 14}">{value:,}</text>'
        )
    height = len(rows) * (BAR_HEIGHT + 6)
    view = f"0 0 {LABEL_WIDTH + BAR_WIDTH + 90} {height}"
    return f'<svg role="img" viewBox="{view}" width="100%" style="max-width:46rem" font-size="13">{"".join(lines)}</svg>'


def _latency(reader: Reader) -> str:
    rows = reader.sql(
        "SELECT stage, quantile_disc(took, 0.5) AS p50, quantile_disc(took, 0.99) AS p99 FROM ("
        "  UNPIVOT (SELECT queued_ms - sent_ms AS queued, included_ms - sent_ms AS included, "
        "    accepted_ms - sent_ms AS accepted, finalized_ms - sent_ms AS finalized FROM messages) "
        "  ON queued, included, accepted, finalized INTO NAME stage VALUE took) GROUP BY stage ORDER BY p50"
    )
    found: list[tuple[str, float, str]] = []
    for row in rows:
        found += [
            (f"{row['stage']} median", row["p50"], "#2563eb"),
            (f"{row['stage']} p99", row["p99"], "#93c5fd"),
        ]
    return bars(found)


def _table(reader: Reader, query: str) -> str:
    rows = reader.sql(query)
    if not rows:
        return "<p>none</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(_cells(row.values()))}</tr>" for row in rows[:ROWS_SHOWN_MAX])
    rest = f"<p>and {len(rows) - ROWS_SHOWN_MAX} more</p>" if len(rows) > ROWS_SHOWN_MAX else ""
    return f"<table><tr>{head}</tr>{body}</table>{rest}"


def _cells(values: Iterable[Any]) -> list[str]:
    return [
        f'<td class="n">{value:,}</td>' if isinstance(value, int) else f"<td>{_short(value)}</td>"
        for value in values
    ]


def _short(value: object) -> str:
    text = "" if value is None else str(value)
    head, _, rest = text.partition(":")
    if len(head) == 64:
        short = f"{head[:8]}…{head[-6:]}" + (f":{rest}" if rest else "")
        return f'<code title="{escape(text)}">{escape(short)}</code>'
    return escape(text)


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return "no moment (nothing says when)"
    try:
        return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
