"""Traces in a real OpenTelemetry Collector, which is built with Go from its own modules: minutes, so not in the suite."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rigs.dashboard_world import DashboardWorld
from rigs.peer_builds import Unavailable, build_go_program
from rigs.results import Result
from stagepost.cli.main import run as run_command
from tests.soak.runs import Run
from tests.worlds.trace.otlp_receiver import SeenSpan, spans_in_file, tree_of

READY_WITHIN_S = 60.0
WRITTEN_WITHIN_S = 60.0
START_MS = 1_700_000_000_000
EXPECTED = {"finalized": "ok", "rejected": "error", "expired": "error"}
"""Status of the root span, by the story that the message has."""

CONFIGURATION = """
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:%d"}}}}
exporters: {file: {path: %s}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {traces: {receivers: [otlp], exporters: [file]}}
"""


def collect(run: Run) -> Iterator[Result]:
    """Send a delivered, a rejected and an expired message; their trees must be in the collector's file."""
    try:
        program = build_go_program("otel_collector")
    except Unavailable as missing:
        run.say(f"no collector: {missing.reason}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = DashboardWorld(folder / "data", START_MS)
        ids = {story: getattr(world, story)() for story in EXPECTED}
        world.close()
        found = _collected(program, folder)
    for story, message_id in ids.items():
        spans = [span for span in found if span.trace_id == message_id[:32]]
        tree = tree_of(spans)
        assert "end" in tree["message"], f"{story}: {tree}"
        root = next(span for span in spans if not span.parent_id)
        assert root.status == EXPECTED[story], f"{story} has the status {root.status}"
        run.say(f"{story}: {len(spans)} spans in the collector")
    yield from ()


def _collected(program: Path, folder: Path) -> list[SeenSpan]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    target, settings = folder / "spans.json", folder / "collector.yaml"
    settings.write_text(CONFIGURATION % (port, target))
    log = (folder / "collector.log").open("wb")
    collector = subprocess.Popen([program, "--config", f"file:{settings}"], stderr=log)
    try:
        until = time.monotonic() + READY_WITHIN_S
        while not _answers(port):
            assert collector.poll() is None, (folder / "collector.log").read_text()
            assert time.monotonic() < until, "the collector does not listen"
            time.sleep(0.1)
        endpoint = f"http://127.0.0.1:{port}"
        assert run_command(["telemetry", "--data", str(folder / "data"), "--otlp", endpoint, "--once"]) == 0
        until = time.monotonic() + WRITTEN_WITHIN_S
        while not target.exists() or not target.read_text().endswith("\n"):
            assert time.monotonic() < until, "the collector wrote nothing"
            time.sleep(0.1)
        return spans_in_file(target)
    finally:
        collector.terminate()
        collector.wait(30)
        log.close()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
