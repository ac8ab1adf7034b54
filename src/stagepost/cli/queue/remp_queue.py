"""Messages without an end, at a validator or a full node, as rows for people and as objects for programs."""

from __future__ import annotations

import click
import msgspec

from stagepost.cli.options.tables import print_table
from stagepost.ground.files.durations import clock_text, format_duration
from stagepost.ground.files.running_nodes import QueuedMessage, StatusFacts, queued_messages

PAGE_ENTRIES = 1_000

_HEADER = ("index", "message", "shard", "status", "received", "age")


def list_remp_queue(facts: StatusFacts, now: float, after: int, limit: int | None, *, as_json: bool) -> None:
    """`limit` None: all of them."""
    shown: list[QueuedMessage] = []
    cursor: int | None = after
    while cursor is not None and (limit is None or len(shown) < limit):
        count = PAGE_ENTRIES if limit is None else min(PAGE_ENTRIES, limit - len(shown))
        page = queued_messages(facts, cursor, count)
        shown.extend(page.entries)
        # A page that leads nowhere would be asked for again and again.
        cursor = page.next if page.entries else None
    if as_json:
        for entry in shown:
            click.echo(msgspec.json.encode(entry))
        return
    if not shown:
        click.echo("nothing waits" if after == 0 else f"nothing waits behind index {after}")
        return
    print_table(_HEADER, [_row(entry, now) for entry in shown])
    if cursor is not None:
        click.echo(f"more: stagepost queue ls --after {shown[-1].index}")


def _row(entry: QueuedMessage, now: float) -> tuple[str, ...]:
    return (
        str(entry.index),
        f"{entry.message_id[:8]}…{entry.message_id[-6:]}",
        entry.shard,
        entry.status,
        clock_text(entry.received_ms / 1_000),
        format_duration(max(0.0, now - entry.received_ms / 1_000)),
    )
