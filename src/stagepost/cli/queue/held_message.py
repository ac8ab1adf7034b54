"""One message that a running node holds: in a DMQ node's mempool, or without an end at a validator or full node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from stagepost.ground.files.durations import clock_text
from stagepost.ground.files.running_nodes import find_node, find_remp_node, held_messages, queued_messages

PAGE_ENTRIES = 1_000
NOT_HELD = 1


def show_held(data: Path, prefix: str, *, as_json: bool) -> int:
    """The exit code: 1 if nothing that is held begins so, or more than one message does."""
    found = [facts for facts in _held(data) if facts["message_id"].startswith(prefix)]
    if len(found) != 1:
        what = "holds no message" if not found else f"holds {len(found)} messages"
        click.echo(f"the node in {data} {what} whose id begins with {prefix}", err=True)
        for facts in found:
            click.echo(f"  {facts['message_id']}", err=True)
        return NOT_HELD
    (facts,) = found
    if as_json:
        click.echo(json.dumps(facts))
        return 0
    for name, value in facts.items():
        text = f"{value}  {clock_text(value / 1_000)} UTC" if name.endswith("_ms") else str(value)
        click.echo(f"{name.removesuffix('_ms'):<12} {text}")
    return 0


def _held(data: Path) -> Iterator[dict[str, Any]]:
    remp_node = find_remp_node(data)
    cursor: int | None = 0
    while cursor is not None:
        if remp_node is not None:
            waiting = queued_messages(remp_node, cursor, PAGE_ENTRIES)
            cursor = waiting.next if waiting.entries else None
            yield from map(msgspec.structs.asdict, waiting.entries)
        else:
            held = held_messages(find_node(data), cursor, PAGE_ENTRIES)
            cursor = held.next if held.entries else None
            for entry in held.entries:
                facts = msgspec.structs.asdict(entry)
                yield {**facts, "expires_at_ms": facts.pop("expires_at") * 1_000}
