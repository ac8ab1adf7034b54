"""Findings of `stagepost check` on nodes and outboxes, and the books of `stagepost queue check`.

A finding says in words what is fine and what wants attention, with the level that monitors read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import click

from stagepost.cli.send.lines import print_json
from stagepost.delivery.stores.outbox import OutboxContent
from stagepost.delivery.stores.reading import OutboxCheck, read_outbox
from stagepost.dmq.keys.signing_pair import PERIOD_S
from stagepost.errors import StagepostError
from stagepost.ground.files.durations import format_duration
from stagepost.ground.files.running_nodes import FULL_NODE, StatusFacts
from stagepost.ground.telemetry.status import DmqNodePage, FullNodePage, ValidatorPage, decoded, fetch

MEMPOOL_WARNING_SHARE = 0.8
MEMPOOL_CRITICAL_SHARE = 1.0
KES_WARNING_PERIODS = 3
"""36 hours, as on the public networks."""


class Level(IntEnum):
    """The value is the exit code that monitors read."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def colour(self) -> str:
        return ("green", "yellow", "red", "magenta")[self.value]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    part: str
    text: str


def findings_of(status: DmqNodePage, now: float) -> list[Finding]:
    """Return one finding for each part, in a fixed order, without the parts that the node does not mention."""
    findings = [_node(status, now), *_parts(status), _mempool(status, now)]
    if status.kes_periods_remaining is not None:
        findings.append(_keys(status.kes_periods_remaining))
    return findings


def _node(status: DmqNodePage, now: float) -> Finding:
    hot = sum(peer.state == "hot" for peer in status.peers)
    heard = "no message yet"
    if status.last_message_ms is not None:
        heard = f"last message {format_duration(max(0.0, now - status.last_message_ms / 1_000))} ago"
    text = f"up {format_duration(status.uptime_s)}, {hot} hot peer{'' if hot == 1 else 's'}, {heard}"
    if not status.ready:
        return Finding(Level.CRITICAL, "node", f"{text}; not ready: it accepts no messages")
    if hot == 0:
        return Finding(
            Level.WARNING, "node", f"{text}; nobody hears it: check the topology file and the network"
        )
    return Finding(Level.OK, "node", text)


def _parts(status: DmqNodePage) -> list[Finding]:
    return [
        Finding(Level.CRITICAL, name, reason) for name, reason in status.parts.items() if reason is not None
    ]


def _mempool(status: DmqNodePage, now: float) -> Finding:
    mempool = status.mempool
    shares = [
        used / limit
        for used, limit in ((mempool.messages, mempool.messages_max), (mempool.bytes, mempool.bytes_max))
        if limit > 0
    ]
    share = max(shares, default=0.0)
    text = (
        f"{mempool.messages} of {mempool.messages_max} messages, {mempool.bytes} of {mempool.bytes_max} bytes"
    )
    if mempool.oldest_ms is not None:
        text += f", oldest {format_duration(max(0.0, now - mempool.oldest_ms / 1_000))}"
    if share >= MEMPOOL_CRITICAL_SHARE:
        return Finding(
            Level.CRITICAL, "mempool", f"{text}; full: new messages are refused until old ones expire"
        )
    if share >= MEMPOOL_WARNING_SHARE:
        return Finding(Level.WARNING, "mempool", f"{text}; nearly full")
    return Finding(Level.OK, "mempool", text)


def _keys(periods: int) -> Finding:
    if periods <= 0:
        return Finding(
            Level.CRITICAL,
            "keys",
            "KES: no period left; renew the operational certificate, nothing can be signed",
        )
    ending = f"ends in about {format_duration(periods * PERIOD_S)}"
    text = f"KES: {periods} period{'' if periods == 1 else 's'} left ({ending})"
    if periods <= KES_WARNING_PERIODS:
        return Finding(Level.WARNING, "keys", f"{text}; renew the operational certificate")
    return Finding(Level.OK, "keys", text)


QUEUE_WARNING_SHARE = 0.8
OLDEST_WARNING_S = 300.0
OLDEST_CRITICAL_S = 3_600.0
EVICTIONS_LOOKED_BACK_S = 3_600.0
EVICTED = "ErrQueueEvicted"


def finding_of(folder: Path, queue_size: int, now: float) -> Finding:
    """Return one line on the outbox: an operator has to know whether it is full, old or loses messages. An outbox that cannot be read is unknown."""
    try:
        content = read_outbox(folder)
    except StagepostError as error:
        return Finding(
            Level.UNKNOWN, "queue", f"{error.text}; {error.advice}" if error.advice else error.text
        )
    waiting = len(content.records)
    text = f"outbox {'at least ' if content.damage else ''}{waiting} of {queue_size}"
    levels = [Level.OK]
    notes = []
    if waiting:
        oldest_s = max(0.0, now - min(record.created_ms for record in content.records) / 1_000)
        text += f", oldest {format_duration(oldest_s)}"
        if oldest_s >= OLDEST_WARNING_S:
            levels.append(Level.CRITICAL if oldest_s >= OLDEST_CRITICAL_S else Level.WARNING)
            notes.append("nothing takes them: see `stagepost peers`, then `stagepost queue flush`")
    evicted = _evicted_lately(content, now)
    if evicted:
        text += f", {evicted} evicted in the last hour"
        levels.append(Level.WARNING)
    if content.dead_letters:
        count = len(content.dead_letters)
        text += f", {count} dead letter{'' if count == 1 else 's'}"
    elif content.damage:
        text += ", dead letters unknown"
    if waiting >= queue_size:
        levels.append(Level.CRITICAL)
        notes.append("full: each new message pushes out an old one")
    elif waiting >= QUEUE_WARNING_SHARE * queue_size:
        levels.append(Level.WARNING)
        notes.append("nearly full")
    if content.damage or not content.has_totals or content.totals.live != waiting:
        levels.append(Level.CRITICAL)
        notes.append("its books do not balance or rows are damaged: see `stagepost queue check`")
    return Finding(max(levels), "queue", "; ".join([text, *notes]))


def _evicted_lately(content: OutboxContent, now: float) -> int:
    since_ms = (now - EVICTIONS_LOOKED_BACK_S) * 1_000
    return sum(letter.error == EVICTED and letter.failed_ms >= since_ms for letter in content.dead_letters)


def print_check(check: OutboxCheck, as_json: bool) -> bool:
    """Print the totals of the outbox and return whether they balance."""
    if as_json:
        print_json(_facts(check))
        return check.is_sound
    totals = check.totals
    click.echo(f"{_verdict(check.imbalance == 0)}  balance   {_balance(check)}")
    rows = f"{check.live} waiting, dead letters {check.dead_letters}, remembered keys {check.done_keys}"
    click.echo(f"{_verdict(not check.damage)}  rows      {rows}, {check.file_bytes} bytes on disk")
    for sentence in check.damage:
        click.echo(f"        {sentence}")
    if totals.failed:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(totals.failed.items()))
        click.echo(f"        failed: {reasons}")
    if check.used_by is not None:
        click.echo(f"        in use by process {check.used_by}")
    return check.is_sound


def _balance(check: OutboxCheck) -> str:
    totals, imbalance = check.totals, check.imbalance
    if imbalance is None:
        return f"unknown: the totals cannot be read; {check.live} waiting"
    balance = (
        f"published {totals.published} = acked {totals.acked} + sent {totals.sent_final}"
        f" + failed {sum(totals.failed.values())} + waiting {check.live}"
    )
    if not imbalance:
        return balance
    what = "missing" if imbalance > 0 else "too many"
    return balance.replace(" = ", " ≠ ") + f": {abs(imbalance)} {what}"


def _verdict(is_well: bool) -> str:
    return click.style("ok   ", fg="green") if is_well else click.style("wrong", fg="red")


def _facts(check: OutboxCheck) -> dict[str, Any]:
    totals = check.totals if check.has_totals else None
    return {
        "sound": check.is_sound,
        "published": None if totals is None else totals.published,
        "acked": None if totals is None else totals.acked,
        "sent_final": None if totals is None else totals.sent_final,
        "failed": None if totals is None else dict(totals.failed),
        "live": check.live,
        "imbalance": check.imbalance,
        "dead_letters": check.dead_letters,
        "damaged_rows": check.damaged_rows,
        "damage": list(check.damage),
        "used_by": check.used_by,
        "oldest_created_ms": check.oldest_created_ms,
        "file_bytes": check.file_bytes,
    }


def remp_findings(facts: StatusFacts) -> list[Finding]:
    """Return the findings of a full node or validator, in the words and levels of all nodes."""
    content = fetch(facts, "/status")
    status = decoded(content, FullNodePage) if facts.kind == FULL_NODE else decoded(content, ValidatorPage)
    findings = [_remp_node(status)]
    findings += [
        Finding(Level.CRITICAL, name, reason) for name, reason in status.parts.items() if reason is not None
    ]
    refusals = status.receipts_refused if isinstance(status, FullNodePage) else {}
    refused = sum(refusals.values())
    if refused:
        reasons = ", ".join(f"{count} {code}" for code, count in sorted(refusals.items()))
        text = f"{refused} receipt{'' if refused == 1 else 's'} refused since the start: {reasons}"
        findings.append(Finding(Level.WARNING, "receipts", text))
    return findings


def _remp_node(status: FullNodePage | ValidatorPage) -> Finding:
    up = f"{status.kind} up {format_duration(status.uptime_s)}"
    if isinstance(status, FullNodePage):
        linked = _counted(status.validators_linked, "validator")
        text = f"{up}, {linked} linked, {status.open} open, {status.finalized} finalized"
    else:
        linked = _counted(status.full_nodes_linked, "full node")
        text = f"{up}, {linked} linked, master block {status.master_block}, {status.messages} messages taken"
    return Finding(Level.OK, "node", text)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
