"""Content of an outbox, as rows for people and as objects for programs. Payloads are never shown.

Messages that a running node holds: in a DMQ node's mempool, or without an end at a validator or full node.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from stagepost.cli.exit_codes import DONE, NOT_THAT_OUTCOME, UNREACHABLE
from stagepost.cli.options.delivery import ID_PREFIX_DIGITS_MIN, EntryName
from stagepost.cli.options.shared import print_table
from stagepost.cli.send.lines import peer_text, print_json, shortened
from stagepost.delivery.identity import nonce_of_key
from stagepost.delivery.status import Tier
from stagepost.delivery.stores.outbox import DeadLetter, OutboxContent, OutboxRecord
from stagepost.delivery.stores.reading import read_outbox
from stagepost.errors import DecodeError, StorageError
from stagepost.ground.files.durations import clock_text, format_duration
from stagepost.ground.files.running_nodes import (
    StatusFacts,
    find_node,
    find_remp_node,
)
from stagepost.ground.telemetry.status import QueuedMessage
from stagepost.ground.telemetry.status_reading import held_messages, queued_messages
from stagepost.topics.log.file_topic import TOPICS_FOLDER

TEXT_SHOWN_MAX = 60

_WAITING_HEADER = ("place", "message", "topic", "tier", "status", "bytes", "attempts", "age")
_DEAD_HEADER = ("place", "message", "topic", "tier", "attempts", "failed", "error", "text")


def list_outbox(folder: Path, now: float, *, dead: bool, after: int, limit: int | None, as_json: bool) -> int:
    """List live messages or dead letters in the order of their places, so that `after` never skips an entry.

    Return the exit status: `UNREACHABLE` for a damaged outbox, of which a part was listed at most.
    """
    content = read_outbox(folder)
    entries: list[OutboxRecord | DeadLetter] = [*(content.dead_letters if dead else content.records)]
    entries = [entry for entry in entries if record_of(entry).sequence > after]
    entries.sort(key=lambda entry: record_of(entry).sequence)
    shown = entries if limit is None else entries[:limit]
    if as_json:
        for entry in shown:
            print_json(facts_of(entry))
        return report_damage(content, folder)
    if shown:
        header = _DEAD_HEADER if dead else _WAITING_HEADER
        print_table(header, [_row(entry, now) for entry in shown])
    if len(shown) < len(entries):
        flags = f"--outbox {folder}{' --dead' if dead else ''}"
        click.echo(f"more: stagepost queue ls {flags} --after {record_of(shown[-1]).sequence}")
    if not content.damage:
        _summarise(content, folder, dead)
    return report_damage(content, folder)


def report_damage(content: OutboxContent, folder: Path) -> int:
    """Say on stderr what is wrong with an outbox, if anything. Return the exit status that a reader ends with."""
    if not content.damage:
        return DONE
    waiting, letters = len(content.records), len(content.dead_letters)
    click.echo(
        f"unknown: the outbox in {folder} is damaged; what can be read of it: "
        f"{waiting} waiting, {letters} dead letter{'' if letters == 1 else 's'}",
        err=True,
    )
    for sentence in content.damage:
        click.echo(f"damage: {sentence}", err=True)
    click.echo(
        f"  `stagepost queue check --outbox {folder}` says more\n{StorageError.default_code}", err=True
    )
    return UNREACHABLE


def _summarise(content: OutboxContent, folder: Path, dead: bool) -> None:
    waiting, letters = len(content.records), len(content.dead_letters)
    if not waiting and not letters:
        click.echo("nothing waits, and there are no dead letters")
    elif dead:
        click.echo(
            "there are no dead letters"
            if not letters
            else f"replay: stagepost queue replay ID --outbox {folder}"
        )
    elif letters:
        click.echo(
            f"{waiting or 'nothing'} wait{'s' if waiting < 2 else ''}; "
            f"{letters} dead letter{'' if letters == 1 else 's'}: stagepost queue ls --outbox {folder} --dead"
        )


def record_of(entry: OutboxRecord | DeadLetter) -> OutboxRecord:
    return entry.record if isinstance(entry, DeadLetter) else entry


def facts_of(entry: OutboxRecord | DeadLetter) -> dict[str, Any]:
    record = record_of(entry)
    facts: dict[str, Any] = {
        "sequence": record.sequence,
        "delivery_id": record.delivery_id.hex(),
        "topic": record.topic,
        "tier": record.tier.value,
        "status": "Failed" if isinstance(entry, DeadLetter) else record.status.value,
        "bytes": len(record.payload),
        "created_ms": record.created_ms,
        "attempts": record.attempts,
        "critical_peers": list(record.ackers),
        "required": record.required,
        "maybe_duplicate": record.maybe_duplicate,
    }
    if (external_id := _external_id(record)) is not None:
        facts["external_id"] = external_id
    if isinstance(entry, DeadLetter):
        facts |= {"error": entry.error, "text": entry.text, "failed_ms": entry.failed_ms}
    return facts


def _row(entry: OutboxRecord | DeadLetter, now: float) -> tuple[str, ...]:
    record = record_of(entry)
    name, topic = shortened(record.delivery_id.hex()), _clipped(record.topic, 24)
    if isinstance(entry, DeadLetter):
        ago = f"{format_duration(max(0.0, now - entry.failed_ms / 1_000))} ago"
        text = _clipped(entry.text, TEXT_SHOWN_MAX)
        place = str(record.sequence)
        return (place, name, topic, record.tier.value, str(record.attempts), ago, entry.error, text)
    return (
        str(record.sequence),
        name,
        topic,
        record.tier.value,
        record.status.value,
        str(len(record.payload)),
        str(record.attempts),
        format_duration(max(0.0, now - record.created_ms / 1_000)),
    )


def show_entries(entries: Sequence[OutboxRecord | DeadLetter], now: float, as_json: bool) -> None:
    """Print every copy in full, with an empty line between two copies."""
    for number, entry in enumerate(entries):
        if as_json:
            print_json(facts_of(entry))
            continue
        if number:
            click.echo()
        _show_entry(entry, now)


def _show_entry(entry: OutboxRecord | DeadLetter, now: float) -> None:
    record = record_of(entry)
    lines = [
        ("message", record.delivery_id.hex()),
        ("place", str(record.sequence)),
        ("topic", _clipped(record.topic, 255)),
        ("tier", record.tier.value),
        ("status", "Failed" if isinstance(entry, DeadLetter) else record.status.value),
        ("made", f"{clock_text(record.created_ms / 1_000)} UTC, {_ago(record.created_ms, now)}"),
        ("payload", f"{len(record.payload)} bytes"),
        ("attempts", str(record.attempts)),
    ]
    if (external_id := _external_id(record)) is not None:
        lines.append(("external id", external_id))
    if record.tier is Tier.ACKED:
        peers = ", ".join(map(peer_text, record.ackers))
        lines.append(("acknowledged by", f"{record.required} needed of {len(record.ackers)}: {peers}"))
    if record.maybe_duplicate:
        lines.append(("beware", "receivers may have it already: it is older than what they remember"))
    if isinstance(entry, DeadLetter):
        lines += [
            ("failed", _ago(entry.failed_ms, now)),
            ("error", f"{entry.error}: {_clipped(entry.text, 400)}"),
        ]
    for name, value in lines:
        click.echo(f"{name:<16} {value}")


def _external_id(record: OutboxRecord) -> str | None:
    """Return the id of the external message that was sent; None for one that was not sent yet, and on other topics."""
    from stagepost.chain.messages import stamped_draft

    if not record.stamped_ms:
        return None
    try:
        return sha256(stamped_draft(record.payload, record.stamped_ms)).hexdigest()
    except DecodeError:
        return None


class UnknownMessage(click.ClickException):
    """No fault of anybody's: there is no such message, or more than one. Exit code 1."""

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self._advice = advice

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"{self.message}\n  {self._advice}", err=True)


def find_entries(
    content: OutboxContent, name: EntryName, folder: Path | None = None
) -> list[OutboxRecord | DeadLetter]:
    """Return every copy of the one message that `name` fits; `UnknownMessage` if there is none, or more than one.

    `folder` is that of the outbox: its topic of delivery events knows the ids that the message has on the network.
    """
    matches = _matching(content, name)
    if not matches and folder is not None:
        for delivery_id in other_names(folder, name.key or name.prefix):
            matches += _matching(content, EntryName(delivery_id, name.place))
    if not matches:
        what = f"has {_named(name)}" + ("" if name.place is None else f" and the place {name.place}")
        raise UnknownMessage(
            f"no message in this outbox {what}",
            "it was sent, or was never there; `queue ls --outbox DIR` lists what waits, with --dead what failed",
        )
    if len({record_of(entry).delivery_id for entry in matches}) == 1:
        return matches
    listed = "\n".join(
        f"  {EntryName(record_of(entry).delivery_id.hex(), record_of(entry).sequence)}" for entry in matches
    )
    raise UnknownMessage(f"{len(matches)} messages have {_named(name)}:\n{listed}", "give more digits")


def _named(name: EntryName) -> str:
    is_id = len(name.prefix) >= ID_PREFIX_DIGITS_MIN and set("0123456789abcdef").issuperset(name.prefix)
    return f"an id that begins with {name.prefix}" if is_id else f"the idempotency key {name.key!r}"


def find_dead_letters(content: OutboxContent, name: EntryName) -> list[DeadLetter]:
    """Return the dead letters that `name` fits; all of them if its prefix is empty."""
    if not name.prefix:
        return list(content.dead_letters)
    entries = find_entries(content, name)
    letters = [entry for entry in entries if isinstance(entry, DeadLetter)]
    if not letters:
        (record,) = (entry for entry in entries if not isinstance(entry, DeadLetter))
        raise UnknownMessage(
            f"message {record.delivery_id.hex()} has not failed: it is {record.status.value}",
            "`stagepost queue flush` sends what waits",
        )
    return letters


def _matching(content: OutboxContent, name: EntryName) -> list[OutboxRecord | DeadLetter]:
    entries: list[OutboxRecord | DeadLetter] = [*content.records, *content.dead_letters]
    found: list[OutboxRecord | DeadLetter] = []
    if not name.prefix or len(name.prefix) >= ID_PREFIX_DIGITS_MIN:
        found = [one for one in entries if record_of(one).delivery_id.hex().startswith(name.prefix)]
    if not found and name.key is not None:
        nonce = nonce_of_key(name.key)
        found = [one for one in entries if record_of(one).nonce == nonce]
    return [one for one in found if name.place in (None, record_of(one).sequence)]


def other_names(folder: Path, prefix: str) -> set[str]:
    """Return the ids, in all layers, of the messages of which one id begins with `prefix`, as far as topics tell."""
    from stagepost.trace.index import MessageIndex

    if not (folder / TOPICS_FOLDER).is_dir():
        return set()
    with MessageIndex(folder) as index:
        index.catch_up()
        found = index.find(prefix)
    return {name for ids in found for name in (*ids.message_ids, *ids.delivery_ids, *ids.dmq_ids)}


def _ago(unix_ms: int, now: float) -> str:
    return f"{format_duration(max(0.0, now - unix_ms / 1_000))} ago"


def _clipped(text: str, characters_max: int) -> str:
    printable = "".join(character if character.isprintable() else "·" for character in text)
    return printable if len(printable) <= characters_max else f"{printable[: characters_max - 1]}…"


PAGE_ENTRIES = 1_000


def show_held(data: Path, wanted: EntryName, *, as_json: bool) -> int:
    """Return the exit code: 1 if `wanted` names nothing that is held, or more than one message."""
    names = other_names(data, wanted.key or wanted.prefix)
    is_prefix = len(wanted.prefix) >= ID_PREFIX_DIGITS_MIN
    found = [
        facts
        for facts in _held(data)
        if (is_prefix and facts["message_id"].startswith(wanted.prefix)) or facts["message_id"] in names
    ]
    if len(found) != 1:
        what = "holds no message" if not found else f"holds {len(found)} messages"
        click.echo(f"the node in {data} {what} with {_named(wanted)}", err=True)
        for facts in found:
            click.echo(f"  {facts['message_id']}", err=True)
        if not found:
            click.echo(
                "  it is over, or was never there; `stagepost trace` shows what is known of it", err=True
            )
        return NOT_THAT_OUTCOME
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
    print_table(_HEADER, [_remp_queue_row(entry, now) for entry in shown])
    if cursor is not None:
        click.echo(f"more: stagepost queue ls --after {shown[-1].index}")


def _remp_queue_row(entry: QueuedMessage, now: float) -> tuple[str, ...]:
    return (
        str(entry.index),
        f"{entry.message_id[:8]}…{entry.message_id[-6:]}",
        entry.shard,
        entry.status,
        clock_text(entry.received_ms / 1_000),
        format_duration(max(0.0, now - entry.received_ms / 1_000)),
    )
