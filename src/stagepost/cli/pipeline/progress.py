"""Progress of a pipeline: lines on standard error, all at a terminal and one in a while for a log; metrics at a port of this machine."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.ground.identifiers import LOOPBACK_HOST

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
    from stagepost.pipeline.tables.look_up import topic_accounts
    from stagepost.pipeline.tables.manifest import counts
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


START_WITHIN_S = 30.0
"""Seconds, at most, for the server of metrics to start or to end."""
COMMITTED = "after manifest"
"""The point of a commit that is passed when the new manifest is there."""


@contextmanager
def watched(
    out: TableStore | Path, port: int | None, say: Callable[[str], None]
) -> Iterator[Callable[[str], None]]:
    """Serve metrics on the port and yield a function that takes the points of each commit. Without a port, serve nothing."""
    if port is None:
        yield lambda point: None
        return
    from stagepost.ground.telemetry.status_server import serve_status
    from stagepost.pipeline.metrics import PipelineMetrics
    from stagepost.pipeline.tables.manifest import read_manifest
    from stagepost.pipeline.tables.store import TableStore

    metrics = PipelineMetrics(read_manifest(TableStore.at(out)))

    def at_point(point: str) -> None:
        if point == COMMITTED and (manifest := read_manifest(TableStore.at(out))) is not None:
            metrics.committed(manifest)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="stagepost-metrics", daemon=True)
    thread.start()

    def on_loop(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(START_WITHIN_S)

    try:
        server = on_loop(serve_status(metrics, port))
        # A port that was chosen here cannot be known otherwise.
        (say if port else _tell)(f"metrics at http://{LOOPBACK_HOST}:{server.port}/metrics")
        try:
            yield at_point
        finally:
            on_loop(server.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_WITHIN_S)
        loop.close()


def _tell(text: str) -> None:
    click.echo(text, err=True)
