"""Totals of an outbox as `stagepost queue check` prints them."""

from __future__ import annotations

from typing import Any

import click

from stagepost.cli.send.lines import print_json
from stagepost.delivery.stores.reading import OutboxCheck


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
    for name in check.set_aside:
        click.echo(
            f"        {name}: was damaged; what could be read of it is in the outbox, the rest is lost"
        )
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
        "set_aside": list(check.set_aside),
        "used_by": check.used_by,
        "oldest_created_ms": check.oldest_created_ms,
        "file_bytes": check.file_bytes,
    }
