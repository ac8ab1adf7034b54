"""How an outbox does: the findings of `stagepost check`, and the books of `stagepost queue check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stagepost.cli.check.health import Finding, Level
from stagepost.cli.send.lines import print_json
from stagepost.delivery.stores.outbox import OutboxContent
from stagepost.delivery.stores.reading import OutboxCheck, read_outbox
from stagepost.errors import StagepostError
from stagepost.ground.files.durations import format_duration

QUEUE_WARNING_SHARE = 0.8
OLDEST_WARNING_S = 300.0
OLDEST_CRITICAL_S = 3_600.0
EVICTIONS_LOOKED_BACK_S = 3_600.0
EVICTED = "ErrQueueEvicted"


def finding_of(folder: Path, queue_size: int, now: float) -> Finding:
    """One line: full, old or losing messages is what an operator has to know. An outbox that cannot be read is unknown."""
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
    """Whether all is well; the books either way."""
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
