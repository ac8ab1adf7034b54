"""`stagepost queue`: what waits, in a node's mempool, in a validator's queue and in a publisher's outbox."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagepost.cli.options.shared import data_option, json_option, path_option
from stagepost.cli.queue.outbox import check_balance, flush, replay, show

if TYPE_CHECKING:
    from stagepost.ground.telemetry.status import HeldMessage

PAGE_ENTRIES = 1_000
ENTRIES_SHOWN = 50

_HEADER = ("index", "message", "pool", "bytes", "received", "from", "expires")


@click.group()
def queue() -> None:
    """List, send, replay or check waiting messages.

    `ls` and `show --data` read a running node: the mempool of a DMQ node, the queues of a validator, the open messages of a
    full node. `ls --outbox` and all other commands work on the outbox of a publisher and its dead letters.

    \b
    Example:
      stagepost queue ls --outbox stagepost-outbox
    """


for command in (show, flush, replay, check_balance):
    queue.add_command(command)


@queue.command()
@data_option
@path_option("--outbox", help="List this outbox instead of a running node.")
@click.option("--dead", is_flag=True, help="With --outbox: list the dead letters.")
@click.option(
    "--after", type=click.IntRange(min=0), default=0, help="Begin after the message with this index."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=ENTRIES_SHOWN,
    show_default=True,
    help="Number of messages to list.",
)
@click.option("--all", "everything", is_flag=True, help="List all messages.")
@json_option
@click.pass_context
def ls(
    context: click.Context,
    data: Path | None,
    outbox: Path | None,
    dead: bool,
    after: int,
    limit: int,
    everything: bool,
    as_json: bool,
) -> None:
    """List the messages of a running node in order of arrival, or of an outbox in order of sending.

    For a DMQ node these are its mempool, for a validator its queues, for a full node the messages that have not ended.

    \b
    Example:
      stagepost queue ls --limit 20
      stagepost queue ls --data validator-1
      stagepost queue ls --outbox stagepost-outbox --dead
    """
    import time

    if outbox is not None:
        from stagepost.cli.queue.listing import list_outbox

        count = None if everything else limit
        status = list_outbox(outbox, time.time(), dead=dead, after=after, limit=count, as_json=as_json)
        context.exit(status)
    if dead:
        raise click.UsageError("--dead needs --outbox: a node's mempool has no dead letters", context)

    from stagepost.cli.options.shared import print_table
    from stagepost.ground.files.running_nodes import DATA_DIR, find_node, find_remp_node
    from stagepost.ground.telemetry.status_reading import held_messages

    remp_node = find_remp_node(data or Path(DATA_DIR))
    if remp_node is not None:
        from stagepost.cli.queue.listing import list_remp_queue

        list_remp_queue(remp_node, time.time(), after, None if everything else limit, as_json=as_json)
        return
    facts = find_node(data or Path(DATA_DIR))
    shown: list[HeldMessage] = []
    cursor: int | None = after
    wanted = None if everything else limit
    while cursor is not None and (wanted is None or len(shown) < wanted):
        count = PAGE_ENTRIES if wanted is None else min(PAGE_ENTRIES, wanted - len(shown))
        page = held_messages(facts, cursor, count)
        if as_json:
            for entry in page.entries:
                click.echo(json.dumps(_facts(entry)))
        shown.extend(page.entries)
        # A page that leads nowhere would be asked for again and again.
        cursor = page.next if page.entries else None
    if as_json:
        return
    if not shown:
        click.echo("nothing is held" if after == 0 else f"nothing is held behind index {after}")
        return
    print_table(_HEADER, [_row(entry, time.time()) for entry in shown])
    if cursor is not None:
        click.echo(f"more: stagepost queue ls --after {shown[-1].index}")


def _facts(entry: HeldMessage) -> dict[str, str | int]:
    import msgspec

    facts: dict[str, str | int] = msgspec.structs.asdict(entry)
    del facts["expires_at"]
    return facts | {"expires_at_ms": entry.expires_at * 1_000}


def _row(entry: HeldMessage, now: float) -> tuple[str, ...]:
    from stagepost.ground.files.durations import clock_text, format_duration

    left_s = entry.expires_at - now
    return (
        str(entry.index),
        _shortened(entry.message_id),
        entry.pool_id if len(entry.pool_id) <= 18 else f"{entry.pool_id[:10]}…{entry.pool_id[-4:]}",
        str(entry.bytes),
        clock_text(entry.received_ms / 1_000),
        entry.source,
        f"in {format_duration(left_s)}" if left_s > 0 else f"{format_duration(-left_s)} ago",
    )


def _shortened(message_id: str) -> str:
    return message_id if len(message_id) <= 14 else f"{message_id[:8]}…{message_id[-6:]}"
