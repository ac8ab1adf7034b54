"""The outbox of a publisher, shown, and emptied by the same command that people type.

Flushing signs messages, so it happens in a process of its own: this program never holds a key.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from stagepost.delivery.stores.outbox import DeadLetter, OutboxContent, OutboxRecord
from stagepost.errors import ErrorCode, StagepostError, StorageError
from stagepost.web.outcomes import Nothing, Unreadable
from stagepost.web.sources import Sources

ENTRIES_SHOWN = 200
TIMEOUT_S = 12.0
"""How long the command may try; with its start it stays below the time that a request may take."""
OUTPUT_LINES_MAX = 50
OUTPUT_BYTES_MAX = 256 * 1024
EVICTED = "ErrQueueEvicted"


def queues_object(sources: Sources) -> dict[str, Any]:
    """For the API: each queue, or why it cannot be told."""
    return {"outbox": _outbox_object(sources), "mempools": _mempools(sources)}


def _outbox_object(sources: Sources) -> dict[str, Any]:
    content = sources.outbox()
    if isinstance(content, Unreadable):
        return {"state": "unreadable", "reason": content.text, "code": content.code}
    if isinstance(content, Nothing):
        return {"state": "nothing", "reason": content.text}
    waiting = [entry_object(record) for record in content.records[:ENTRIES_SHOWN]]
    dead = [entry_object(letter) for letter in content.dead_letters[:ENTRIES_SHOWN]]
    found = {**outbox_figures(content, sources), "waiting": waiting, "dead_letters": dead}
    if content.damage:
        return {"state": "damaged", "reason": content.damage[0], "code": StorageError.default_code, **found}
    return {"state": "read", **found}


def outbox_figures(content: OutboxContent, sources: Sources) -> dict[str, Any]:
    """Return the figures of an outbox. Those of a damaged one are None, for nobody knows them; `readable_messages` and
    `readable_dead` are how many rows are whole."""
    readable = {"readable_messages": len(content.records), "readable_dead": len(content.dead_letters)}
    known: dict[str, Any] = {
        "messages": len(content.records),
        "oldest_ms": min((record.created_ms for record in content.records), default=None),
        "dead": len(content.dead_letters),
        "evicted": content.totals.failed.get(EVICTED, 0),
        "published": content.totals.published,
        "acked": content.totals.acked,
        "sent": content.totals.sent_final,
        "failed": sum(content.totals.failed.values()),
    }
    if content.damage:
        known = dict.fromkeys(known)
    place = {
        "folder": str(sources.outbox_folder),
        "capacity": content.queue_size or sources.settings.queue_size,
    }
    damage = {"damage": list(content.damage), "set_aside": list(content.set_aside)}
    return {**place, **known, **readable, **damage}


def entry_object(entry: OutboxRecord | DeadLetter) -> dict[str, Any]:
    """Never the payload."""
    record = entry.record if isinstance(entry, DeadLetter) else entry
    found: dict[str, Any] = {
        "sequence": record.sequence,
        "delivery_id": record.delivery_id.hex(),
        "topic": record.topic,
        "tier": record.tier.value,
        "status": "Failed" if isinstance(entry, DeadLetter) else record.status.value,
        "bytes": len(record.payload),
        "attempts": record.attempts,
        "created_ms": record.created_ms,
    }
    if isinstance(entry, DeadLetter):
        found |= {"error": entry.error, "text": entry.text, "failed_ms": entry.failed_ms}
    return found


def _mempools(sources: Sources) -> list[dict[str, Any]]:
    nodes = sources.nodes()
    if isinstance(nodes, Unreadable):
        return [{"node": str(sources.settings.data), "state": "unreadable", "reason": nodes.text}]
    if isinstance(nodes, Nothing):
        return []
    found: list[dict[str, Any]] = []
    for seen in nodes:
        if isinstance(seen.status, Unreadable):
            found.append({"node": str(seen.folder), "state": "unreadable", "reason": seen.status.text})
        else:
            mempool = seen.status.mempool
            found.append(
                {
                    "node": str(seen.folder),
                    "state": "read",
                    "messages": mempool.messages,
                    "capacity": mempool.messages_max,
                    "bytes": mempool.bytes,
                    "bytes_max": mempool.bytes_max,
                    "oldest_ms": mempool.oldest_ms,
                }
            )
    return found


class EmptyingFailed(StagepostError):
    """The command could not be started at all."""

    default_code = ErrorCode.NOT_READY


def command_line(sources: Sources, verb: str, message: str | None = None) -> list[str]:
    """Return the command that a person would type, from `queue` on."""
    settings = sources.settings
    folder = sources.outbox_folder
    if folder is None:
        raise EmptyingFailed("there is no outbox here", advice="name it with --outbox")
    if settings.keys is None:
        raise EmptyingFailed(
            "this dashboard was started without keys, so it cannot send",
            advice=f"start it with --keys, or type: stagepost queue {verb} --outbox {folder} --keys DIR",
        )
    which = [] if verb == "flush" else ["--all"] if message is None else [message]
    options = ["--outbox", str(folder), "--keys", str(settings.keys), "--data", str(settings.data)]
    return ["queue", verb, *which, *options, "--timeout", f"{TIMEOUT_S - 2:g}s"]


async def run_queue_command(sources: Sources, verb: str, message: str | None = None) -> dict[str, Any]:
    """`flush`, or `replay` of one dead letter or all: its exit status, and what it said line by line."""
    line = command_line(sources, verb, message)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stagepost.cli.main", *line, "--json",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    began = time.monotonic()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            out, errors = await process.communicate()
    except TimeoutError:
        process.terminate()
        out, errors = await process.communicate()
    finally:
        sources.outbox.forget()
    lines = out[:OUTPUT_BYTES_MAX].decode("utf-8", "replace").splitlines()
    return {
        "command": f"stagepost {' '.join(line)}",
        "exit_status": process.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "events": [json.loads(one) for one in lines[-OUTPUT_LINES_MAX:] if one.startswith("{")],
        "text": errors[:OUTPUT_BYTES_MAX].decode("utf-8", "replace").strip(),
    }
