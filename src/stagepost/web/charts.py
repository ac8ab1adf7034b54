"""Charts of the Spark tables: rows in, plain figures out. The page draws them, and shows the same numbers as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stagepost.pipeline.tables.manifest import Manifest
from stagepost.remp.validator_sets import ValidatorSets
from stagepost.trace.reasons import error_words
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.sources import Sources
from stagepost.web.tables import Asking

STALE_MS = 15 * 60_000
"""Tables whose newest record is so much older than now, while the topic goes on, are marked."""
POINTS_MAX = 2_000
BARS_MAX = 40


class Series(msgspec.Struct, frozen=True):
    """`tone` names a colour of the page, so that light and dark both fit."""

    name: str
    x: list[Any]
    y: list[Any]
    tone: str


class Chart(msgspec.Struct, frozen=True):
    """`kind` is line, bar, or across: bars that lie, for names that are sentences. `empty` stands where there is nothing to draw."""

    key: str
    title: str
    about: str
    kind: str
    unit: str
    series: list[Series]
    is_time: bool = False
    is_stacked: bool = False
    empty: str = "nothing yet"

    @property
    def is_empty(self) -> bool:
        return not any(series.x for series in self.series)


class Run(msgspec.Struct, frozen=True):
    """Sources of the tables, and the time of their making."""

    written_ms: int
    as_of_ms: int | None
    from_ms: int | None
    to_ms: int | None
    records: int
    quarantined: int
    is_stale: bool
    behind_ms: int | None


_TONES = {
    "finalized": "blue",
    "accepted": "green",
    "included": "green",
    "queued": "quiet",
    "sent": "quiet",
    "rejected": "red",
    "rejected_by_fullnode": "red",
    "likely_rejected": "orange",
    "expired": "orange",
}
_STAGE_TONES = {"queued": "quiet", "included": "orange", "accepted": "green", "finalized": "blue"}


def run_of(sources: Sources, manifest: Manifest) -> Run:
    found = sources.tables.ask(_input_range)
    least_ms, most_ms = (None, None) if isinstance(found, Nothing | Unreadable) else found
    newest_ms = max((kept.arrived_ms for kept in sources.book.all(sources.now_ms())[:1]), default=None)
    behind_ms = None if newest_ms is None or most_ms is None else max(0, newest_ms - most_ms)
    return Run(
        manifest.written_ms,
        None if manifest.reports is None else manifest.reports.as_of_ms,
        least_ms,
        most_ms,
        manifest.total.rows,
        sum(manifest.total.quarantined.values()),
        behind_ms is not None and behind_ms > STALE_MS,
        behind_ms,
    )


def _input_range(asking: Asking) -> tuple[int | None, int | None]:
    if not asking.has("receipts"):
        return None, None
    (row,) = asking.rows("SELECT min(timestamp_ms) AS least, max(timestamp_ms) AS most FROM receipts")
    return row["least"], row["most"]


def charts_of(sources: Sources, names: tuple[str, ...] | None = None) -> list[Chart] | Nothing | Unreadable:
    wanted = [make for name, make in CHARTS.items() if names is None or name in names]
    sets = sources.book.sets
    return sources.tables.ask(
        lambda asking: [chart for make in wanted if (chart := make(asking, sets)) is not None]
    )


def _outcomes(asking: Asking, _sets: ValidatorSets | None) -> Chart | None:
    if not asking.has("messages"):
        return None
    rows = asking.rows(
        "WITH begun AS (SELECT verdict, least(sent_ms, queued_ms, included_ms, accepted_ms, finalized_ms, rejected_ms,"
        " timeout_ms) AS began_ms FROM messages),"
        " spans AS (SELECT greatest(1000, ((max(began_ms) - min(began_ms)) // 60000 + 1) * 1000) AS width_ms FROM begun)"
        " SELECT verdict, (began_ms // width_ms) * width_ms AS bucket, count(*) AS n FROM begun, spans"
        f" WHERE began_ms IS NOT NULL GROUP BY ALL ORDER BY bucket LIMIT {POINTS_MAX}"
    )
    series = []
    for verdict in dict.fromkeys(row["verdict"] for row in rows):
        own = [row for row in rows if row["verdict"] == verdict]
        series.append(
            Series(
                verdict,
                [row["bucket"] for row in own],
                [row["n"] for row in own],
                _TONES.get(verdict, "quiet"),
            )
        )
    return Chart("outcomes", "Outcomes", "messages by when they began", "bar", "", series, True, True)


def _stages(asking: Asking, _sets: ValidatorSets | None) -> Chart | None:
    if not asking.has("stage_latency"):
        return None
    rows = asking.rows(
        "SELECT stage, bucket_ms, max(p50_ms) AS p50, max(p95_ms) AS p95 FROM stage_latency"
        f" GROUP BY stage, bucket_ms ORDER BY bucket_ms LIMIT {POINTS_MAX}"
    )
    series = []
    found = {row["stage"] for row in rows}
    for stage in [*(stage for stage in _STAGE_TONES if stage in found), *sorted(found - _STAGE_TONES.keys())]:
        own = [row for row in rows if row["stage"] == stage]
        tone = _STAGE_TONES.get(stage, "quiet")
        for name in ("p50", "p95"):
            series.append(
                Series(f"{stage} {name}", [row["bucket_ms"] for row in own], [row[name] for row in own], tone)
            )
    return Chart("stages", "Time to each stage", "the slowest shard of each span", "line", "ms", series, True)


def _rejections(asking: Asking, _sets: ValidatorSets | None) -> Chart | None:
    if not asking.has("rejections"):
        return None
    rows = asking.rows(
        # Reasons that name a message would be as many as there are messages.
        "SELECT coalesce(nullif(regexp_replace(error, '[0-9a-f]{16,}', '…', 'g'), ''), 'no reason given') AS reason,"
        " count(DISTINCT message_id) AS n"
        f" FROM rejections GROUP BY reason ORDER BY n DESC, reason LIMIT {BARS_MAX}"
    )
    series = [
        Series("messages", [error_words(row["reason"]) for row in rows], [row["n"] for row in rows], "red")
    ]
    return Chart(
        "rejections", "Rejections", "messages by the reason that validators gave", "across", "", series
    )


def _quarantine(asking: Asking, _sets: ValidatorSets | None) -> Chart | None:
    if not asking.has("quarantine"):
        return None
    rows = asking.rows("SELECT reason, count(*) AS n FROM quarantine GROUP BY reason ORDER BY n DESC, reason")
    series = [Series("records", [row["reason"] for row in rows], [row["n"] for row in rows], "orange")]
    return Chart(
        "quarantine",
        "Quarantine",
        "records that do not count, by the first check that failed",
        "bar",
        "",
        series,
    )


def _seats(
    asking: Asking, columns: str, sets: ValidatorSets | None
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the rows of the newest sessions, and the name of each row's validator; with its session if there are several."""
    rows = asking.rows(
        f"SELECT session_id, validator, min(source_id) AS source_id, {columns} FROM validators"
        " GROUP BY session_id, validator ORDER BY session_id, validator"
    )
    known = {} if sets is None else sets.sessions
    sessions = [known.get(bytes.fromhex(row["session_id"])) for row in rows]
    ids = [bytes.fromhex(row["source_id"] or "") for row in rows]

    def order(place: int) -> tuple[Any, ...]:
        row, session = rows[place], sessions[place]
        age = 0 if session is None else -session.catchain_seqno
        name = ("", 0, row["validator"]) if sets is None else sets.name_order(ids[place], row["validator"])
        return session is None, age, row["session_id"], name

    places = sorted(range(len(rows)), key=order)[:BARS_MAX]
    several = len({rows[place]["session_id"] for place in places}) > 1
    names = []
    for place in places:
        row, session = rows[place], sessions[place]
        name = f"V{row['validator'] + 1}" if sets is None else sets.name_of(ids[place], row["validator"])
        number = row["session_id"][:6] if session is None else f"session {session.catchain_seqno}"
        names.append(f"{name} · {number}" if several else name)
    return names, [rows[place] for place in places]


def _validators(asking: Asking, sets: ValidatorSets | None) -> Chart | None:
    if not asking.has("validators"):
        return None
    columns = "sum(messages) AS messages, max(median_queue_ms) AS p50, max(p95_queue_ms) AS p95"
    names, rows = _seats(asking, columns, sets)
    heard = [place for place, row in enumerate(rows) if row["messages"]]
    shown = [names[place] for place in heard]
    series = [
        Series("median", shown, [rows[place]["p50"] for place in heard], "green"),
        Series("p95", list(shown), [rows[place]["p95"] for place in heard], "orange"),
    ]
    return Chart(
        "validators", "Time to the queue", "of each validator in its session", "across", "ms", series
    )


def _trust(asking: Asking, sets: ValidatorSets | None) -> Chart | None:
    if not asking.has("validators"):
        return None
    counted = {"silent": "silent", "contradictions": "contradictions", "bad signatures": "bad_signatures"}
    columns = ", ".join(f"sum({one}) AS {one}" for one in counted.values())
    names, rows = _seats(asking, columns, sets)
    tones = ("quiet", "orange", "red")
    series = [
        Series(name, list(names), [int(row[column] or 0) for row in rows], tone)
        for (name, column), tone in zip(counted.items(), tones, strict=True)
    ]
    return Chart(
        "trust", "Silence and contradictions", "messages, by validator", "across", "", series, False, True
    )


CHARTS: dict[str, Callable[[Asking, ValidatorSets | None], Chart | None]] = {
    "outcomes": _outcomes,
    "stages": _stages,
    "rejections": _rejections,
    "quarantine": _quarantine,
    "validators": _validators,
    "trust": _trust,
}
