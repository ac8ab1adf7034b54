"""A running pipeline, watched: metrics at a port of this machine, served by a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagepost.ground.identifiers import LOOPBACK_HOST

if TYPE_CHECKING:
    from stagepost.pipeline.tables.store import TableStore

START_WITHIN_S = 30.0
COMMITTED = "after manifest"
"""The point of a commit that is passed when the new manifest is there."""


@contextmanager
def watched(
    out: TableStore | Path, port: int | None, say: Callable[[str], None]
) -> Iterator[Callable[[str], None]]:
    """Gives what has to be told of the points of every commit. Without a port nothing is served."""
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
