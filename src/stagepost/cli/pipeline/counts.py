"""The account of a run, for people and as JSON: every input row is counted, repeated or quarantined."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stagepost.pipeline.tables.manifest import Manifest
    from stagepost.pipeline.tables.store import TableStore


def print_counts(manifest: Manifest, folder: TableStore | Path, *, as_json: bool) -> None:
    from stagepost.pipeline.tables.account import counts, topic_accounts
    from stagepost.pipeline.tables.store import TableStore

    found = counts(manifest)
    others = topic_accounts(TableStore.at(folder), manifest)
    if as_json:
        click.echo(
            json.dumps({**found, "topics": {name: account._asdict() for name, account in others.items()}})
        )
        return
    click.echo(
        f"{found['rows']} records: {found['counted']} counted, {found['repeated']} repeated, "
        f"{found['quarantined']} quarantined"
    )
    for reason, number in sorted(found["reasons"].items()):
        click.echo(f"  {reason:<20} {number}")
    for name, account in others.items():
        click.echo(
            f"{account.rows} records of {name}: {account.counted} counted, {account.repeated} repeated, "
            f"{account.quarantined} quarantined"
        )
        for reason, number in sorted(account.reasons.items()):
            click.echo(f"  {reason:<20} {number}")
