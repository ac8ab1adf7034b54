"""Pages of messages: by the filter that command line, URL and API share, from the book or from the tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from stagepost.errors import ConfigError
from stagepost.pipeline.tables.filter import MESSAGE_TIME, MessageFilter
from stagepost.remp.verdict.words import WORDS
from stagepost.web.message_book import Kept, MessageBook, row_of
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.sources import Sources

_CURSOR = re.compile(r"([0-9]{1,18})-([0-9a-f]{64})", re.ASCII)
COLUMNS = (
    "message_id", "verdict", "sent_ms", "queued_ms", "included_ms", "accepted_ms", "finalized_ms", "rejected_ms",
    "timeout_ms", "session_id", "validators", "queued_at", "rejected_by", "silent", "delivery_id", "dmq_id",
    "receipts", "receipts_bad", "proof", "proof_block", "executed_as",
)  # fmt: skip
"""Of the table `messages`: what exports hold, whichever source they come from."""


class ListSource(StrEnum):
    """`live`: the newest messages, as of now. `tables`: the whole history, as of the last run of the pipeline."""

    LIVE = "live"
    TABLES = "tables"


class Cursor(NamedTuple):
    """Rows behind this one: its time and id."""

    time_ms: int
    message_id: str

    @classmethod
    def read(cls, text: str) -> Cursor:
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ConfigError(
                f"{text[:90]!r} is not a valid cursor",
                advice="use the cursor that a page of the list returned",
            )
        return cls(int(found[1]), found[2])

    def text(self) -> str:
        return f"{self.time_ms}-{self.message_id}"


class Page(NamedTuple):
    """`total` is None where nobody has counted. `next` is None on the last page."""

    rows: list[dict[str, Any]]
    next: Cursor | None
    total: int | None


def page_of(
    sources: Sources, wanted: MessageFilter, source: ListSource, before: Cursor | None, limit: int
) -> Page | Nothing | Unreadable:
    if source is ListSource.TABLES:
        return _of_tables(sources, wanted, before, limit)
    if sources.tail.state is not None:
        return sources.tail.state
    matching = list(live_messages(sources, wanted))
    behind = matching if before is None else [kept for kept in matching if kept.order < before]
    shown = behind[:limit]
    following = Cursor(*shown[-1].order) if len(behind) > limit else None
    return Page([row_of(kept) for kept in shown], following, len(matching))


def live_messages(sources: Sources, wanted: MessageFilter) -> Iterator[Kept]:
    """Return the messages of the book that pass the filter, the newest first."""
    if wanted.topic is not None or wanted.pool is not None:
        name = "topic" if wanted.topic is not None else "pool"
        raise ConfigError(f"the filter {name} works with the tables only", advice="ask with source=tables")
    now_ms = sources.now_ms()
    return (kept for kept in sources.book.all(now_ms) if is_wanted(kept, wanted, sources.book))


def is_wanted(kept: Kept, wanted: MessageFilter, book: MessageBook) -> bool:
    time_ms = kept.order[0]
    return (
        (wanted.id is None or kept.message_id.startswith(wanted.id))
        and (not wanted.outcome or (kept.verdict is not None and kept.verdict.verdict in wanted.outcome))
        and (wanted.since_ms is None or time_ms >= wanted.since_ms)
        and (wanted.until_ms is None or time_ms < wanted.until_ms)
        and (not wanted.kind or not kept.kinds.isdisjoint(wanted.kind))
        and (wanted.validator is None or _has_signer(kept, wanted.validator, book))
    )


def _has_signer(kept: Kept, validator: str, book: MessageBook) -> bool:
    if not validator.startswith("V"):
        return any(source.hex().startswith(validator) for source in kept.signers)
    source_id = seat_of(kept, validator, book)
    return source_id is not None and bytes.fromhex(source_id) in kept.signers


def seat_of(kept: Kept, place: str, book: MessageBook) -> str | None:
    """Return the key id of the validator at a place, such as V3, of the session that decided a message."""
    session_id = None if kept.verdict is None else kept.verdict.session_id
    session = (
        None if book.sets is None or session_id is None else book.sets.sessions.get(bytes.fromhex(session_id))
    )
    index = int(place[1:]) - 1
    return session.validators[index].key_id.hex() if session is not None and index < session.size else None


# From the tables


def tables_query(wanted: MessageFilter, before: Cursor | None) -> tuple[str, list[Any]]:
    condition = wanted.messages()
    parameters = list(condition.parameters)
    text = condition.text
    if before is not None:
        text = f"({text}) AND ({MESSAGE_TIME}, m.message_id) < (?, ?)"
        parameters += [before.time_ms, before.message_id]
    query = f"SELECT m.*, {MESSAGE_TIME} AS first_ms FROM messages m WHERE {text} ORDER BY first_ms DESC, message_id DESC"
    return query, parameters


def _of_tables(
    sources: Sources, wanted: MessageFilter, before: Cursor | None, limit: int
) -> Page | Nothing | Unreadable:
    query, parameters = tables_query(wanted, before)
    condition = wanted.messages()

    def question(asking: Any) -> Page | Nothing:
        if not asking.has("messages"):
            return Nothing("the table of messages has not been made yet", "run the pipeline to its end once")
        rows = asking.rows(f"{query} LIMIT {limit + 1}", parameters)
        (counted,) = asking.rows(
            f"SELECT count(*) AS total FROM messages m WHERE {condition.text}", condition.parameters
        )
        shown = [_with_words(row) for row in rows[:limit]]
        has_more = len(rows) > limit
        following = Cursor(shown[-1]["first_ms"] or 0, shown[-1]["message_id"]) if has_more else None
        return Page(shown, following, counted["total"])

    return sources.tables.ask(question)


def _with_words(row: dict[str, Any]) -> dict[str, Any]:
    queued = f"Queued at {len(row['queued_at'] or ())} of {row['validators']}"
    return {**row, "words": WORDS.get(row["verdict"], queued), "error": "", "is_cut": False}
