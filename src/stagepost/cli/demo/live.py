"""`stagepost demo --live`: a small network, its stream of tables and its dashboard, until Ctrl-C."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from stagepost.cli.demo.tables import LOG_FILE, end_process, process_environment
from stagepost.cli.exit_codes import INTERRUPTED
from stagepost.cli.serve import dashboard_server

STREAM_EVERY = "3s"


def run_live(seed: int, data: Path, port: int | None, *, with_stream: bool) -> int:
    from stagepost.devnet.demo.findings import demo_folder
    from stagepost.ground.telemetry.logs import configure_logs

    click.echo(f"seed {seed} · starting 3 DMQ nodes, 1 full node, 4 validators · data in {data}", err=True)
    with demo_folder(data), (data / "log").open("a", encoding="utf-8") as log:
        configure_logs("info", "json", log)
        return asyncio.run(_run(seed, data, port, with_stream=with_stream))


async def _run(seed: int, data: Path, port: int | None, *, with_stream: bool) -> int:
    import signal

    from stagepost.devnet.demo.living import QUEUE_SIZE, living_demo
    from stagepost.web.access.security import hash_of, new_token
    from stagepost.web.access.settings import PORT, WebSettings
    from stagepost.web.living_demo import add_demo

    token = new_token()
    settings = WebSettings(
        data,
        port=PORT if port is None else port,
        token_hash=hash_of(token),
        open_reading=True,
        queue_size=QUEUE_SIZE,
    )
    heard: list[int] = []
    async with living_demo(seed, data) as demo:
        server, listener = dashboard_server(settings, token, lambda app: add_demo(app, demo))
        click.echo("break it at /demo · Ctrl-C ends it", err=True)
        with _stream(data) if with_stream else _nothing():
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            loop = asyncio.get_running_loop()
            while not server.started and not serving.done():
                await asyncio.sleep(0.05)
            # The server has put its own handlers in place by now; a signal shall end the network as well.
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, _end, server, heard, number)
            await serving
    return INTERRUPTED if signal.SIGINT in heard else 0


def _end(server: object, heard: list[int], number: int) -> None:
    heard.append(number)
    server.should_exit = True  # type: ignore[attr-defined]  # of a library that is loaded when it is needed


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _stream(data: Path) -> Iterator[None]:
    """Run the pipeline over the topics of `data` in a process of its own. Where Java is missing it ends at once, and its log
    says why."""
    command = [
        *(sys.executable, "-m", "stagepost.cli.main", "-q", "pipeline", "run"),
        *("--data", str(data), "--every", STREAM_EVERY),
    ]
    with (data / LOG_FILE).open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=process_environment(),
            start_new_session=True,
        )
        try:
            yield
        finally:
            end_process(process)
