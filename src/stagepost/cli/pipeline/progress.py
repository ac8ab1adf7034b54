"""Progress of a pipeline on standard error: every line for a person at a terminal, one in a while for a log."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stagepost.pipeline.tables.manifest import Manifest
    from stagepost.pipeline.tables.store import TableStore


LOG_LINE_EVERY_S = 5.0
"""Seconds, at least, between two lines of progress where no terminal shows them."""

POINTS = {
    "after write": "records are checked",
    "after messages": "messages are evaluated",
    "after manifest": "tables are committed",
}
"""Points of a commit that people are told of, and the words for them."""


class PipelineProgress:
    """Lines of one command. Off a terminal the first line is shown, and then the newest one every few seconds."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        *,
        is_terminal: Callable[[], bool] = lambda: sys.stderr.isatty(),
    ) -> None:
        self._now, self._is_terminal = now, is_terminal
        self._shown_at: float | None = None

    def say(self, text: str) -> None:
        now = self._now()
        is_due = self._shown_at is None or now - self._shown_at >= LOG_LINE_EVERY_S
        if is_due or self._is_terminal():
            self._shown_at = now
            click.echo(text, err=True)

    def at_point(self, point: str) -> None:
        """Say what a commit has done; for `Tables`."""
        if point in POINTS:
            self.say(POINTS[point])


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
