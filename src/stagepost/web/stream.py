"""Server-sent events: what was heard since, for as long as a visitor listens. Event ids are places in the topic.

event: rows       data: a list of rows, `type` says whether each is a receipt or a verdict that has changed
event: dropped    data: {"rows": N}, that many are not sent: too many at once, or no longer kept
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from stagepost.pipeline.tables.filter import MessageFilter
from stagepost.web.listing import seat_of
from stagepost.web.live import LiveRow, Since, event_id
from stagepost.web.message_book import ShownRecord, Told
from stagepost.web.sources import Sources

KEEP_ALIVE_S = 15.0
STREAMS_MAX = 256
ROWS_OF_EVENT_MAX = 500
ROWS_AT_BEGIN_MAX = 1_000


class _Chunk(NamedTuple):
    begin: int
    end: int
    rows_max: int
    data: bytes


class Streams:
    """All open ones. The same news for the same place is written once."""

    def __init__(self, sources: Sources) -> None:
        self.open = 0
        self._sources = sources
        self._last: _Chunk | None = None

    async def events(
        self, wanted: MessageFilter, seen: dict[int, int] | None, rows_max: int, begin: int
    ) -> AsyncIterator[bytes]:
        """`seen` are the next offsets that a visitor has not seen; without them it gets the newest `begin` rows first."""
        ring, pulse = self._sources.ring, self._sources.pulse
        is_wanted = row_filter(wanted, self._sources)
        since = ring.newest(begin) if seen is None else ring.after_places(seen)
        number = since.next_number
        self.open += 1
        try:
            yield b"retry: 1000\n" + _written(since, is_wanted, ROWS_OF_EVENT_MAX, self._sources)
            while not pulse.is_over():
                has_news = await pulse.wait(KEEP_ALIVE_S)
                if pulse.is_over():
                    return
                if not has_news:
                    yield b": still here\n\n"
                    continue
                part = self._shared(number, rows_max, wanted, is_wanted)
                number = part.end
                if part.data:
                    yield part.data
        finally:
            self.open -= 1

    def _shared(
        self, number: int, rows_max: int, wanted: MessageFilter, is_wanted: Callable[[LiveRow], bool]
    ) -> _Chunk:
        last = self._last
        is_plain = wanted == MessageFilter()
        end = self._sources.ring.next_number
        if is_plain and last is not None and (last.begin, last.end, last.rows_max) == (number, end, rows_max):
            return last
        since = self._sources.ring.since(number)
        chunk = _Chunk(
            number, since.next_number, rows_max, _written(since, is_wanted, rows_max, self._sources)
        )
        if is_plain:
            self._last = chunk
        return chunk


def _written(since: Since, is_wanted: Callable[[LiveRow], bool], rows_max: int, sources: Sources) -> bytes:
    rows = [row for row in since.rows if is_wanted(row)]
    dropped = since.dropped + max(0, len(rows) - rows_max)
    parts = []
    if dropped:
        parts.append(b'event: dropped\ndata: {"rows": %d}\n\n' % dropped)
    shown = rows[-rows_max:]
    if shown:
        identifier = event_id(sources.ring.next_offsets).encode()
        data = b",".join(row.data for row in shown)
        parts.append(b"id: " + identifier + b"\nevent: rows\ndata: [" + data + b"]\n\n")
    return b"".join(parts) or b"\n"


def row_filter(wanted: MessageFilter, sources: Sources) -> Callable[[LiveRow], bool]:
    """The filter's names, as far as a single row can be asked: times and layers before are for lists."""

    def is_wanted(live: LiveRow) -> bool:
        row = live.row
        if wanted.id is not None and not (row.message_id or "").startswith(wanted.id):
            return False
        if isinstance(row, Told):
            return not (wanted.kind or wanted.validator) and (
                not wanted.outcome or row.verdict in wanted.outcome
            )
        if wanted.kind and row.kind not in wanted.kind:
            return False
        if wanted.validator is not None and not _is_by(row, wanted.validator, sources):
            return False
        return not wanted.outcome or _verdict_of(row.message_id, sources) in wanted.outcome

    return is_wanted


def _is_by(row: ShownRecord, validator: str, sources: Sources) -> bool:
    if not validator.startswith("V"):
        return (row.source_id or "").startswith(validator)
    kept = None if row.message_id is None else sources.book.get(row.message_id, sources.now_ms())
    return kept is not None and row.source_id == seat_of(kept, validator, sources.book)


def _verdict_of(message_id: str | None, sources: Sources) -> Any:
    kept = None if message_id is None else sources.book.get(message_id, sources.now_ms())
    return None if kept is None or kept.verdict is None else kept.verdict.verdict
