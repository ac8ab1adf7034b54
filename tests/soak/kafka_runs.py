"""Long runs with a real broker, which is killed under load again and again while a driver follows its topic."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from _pytest.outcomes import Skipped

from stagepost.node.kafka_settings import KafkaSettings
from stagepost.node.known_sets import SETS_FILE
from tests.kafka_driver_process import run_driver
from tests.kafka_runs import outages, table_rows
from tests.kafka_world import WorldBroker, world_broker
from tests.soak.results import Result, result
from tests.soak.runs import Run

BROKER_KILLS_BY_SCALE = {"commit": 20, "release": 20}
KILLS_PER_FOLDER = 5
ENDS_WITHIN_S = 120
ROOT = Path(__file__).parents[2]
TEST = "tests/soak/kafka_runs.py: kill -9 of a Kafka broker under load; its topic and its tables against the local ones"


def kill_broker(run: Run) -> Iterator[Result]:
    """P3: nothing lost, nothing twice, each key in order, and the same tables. The last kill of each folder is one in which the
    full node is restarted."""
    wanted = run.count(BROKER_KILLS_BY_SCALE)
    kills, faults = 0, []
    try:
        with world_broker() as broker:
            while kills < wanted:
                now = min(KILLS_PER_FOLDER, wanted - kills)
                with TemporaryDirectory() as name:
                    found = _killed_and_compared(Path(name), broker, now)
                kills += now
                faults += [f"after {kills} kills: {text}" for text in found]
                run.say(f"{kills} of {wanted} brokers killed, {len(faults)} faults")
    except Skipped as skipped:
        # Not proved here: that is a result as well, and not a pass.
        yield result("P3", TEST, "not run", faults=[str(skipped)], seed=run.seed)
        return
    figure = (
        f"{kills} kills of the broker, {len(faults)} with a loss, a repetition, another order or other tables"
    )
    yield result("P3", TEST, figure, faults=faults, seed=run.seed)


def _killed_and_compared(folder: Path, broker: WorldBroker, kills: int) -> list[str]:
    data, settings = folder / "devnet", broker.settings()
    followers: list[subprocess.Popen[bytes]] = []
    try:
        faults = asyncio.run(
            outages(
                data,
                broker,
                settings,
                kills - 1,
                when_ready=lambda: followers.append(_follow(folder, broker, settings)),
            )
        )
    finally:
        for follower in followers:
            follower.send_signal(signal.SIGTERM)
            try:
                follower.wait(ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                follower.kill()
                follower.wait()
    # A driver that gave up while the broker was away is one that is started again.
    ended = run_driver(folder, broker.access, settings.statuses.name, data / SETS_FILE, data=data)
    if ended.returncode:
        return [*faults, f"the last driver ended with {ended.returncode}: {ended.stderr[-500:]}"]
    from stagepost.pipeline.schemas import TABLES

    kafka, local = folder / "kafka", folder / "local"
    return faults + [
        f"table {name} differs" for name in TABLES if table_rows(kafka, name) != table_rows(local, name)
    ]


def _follow(folder: Path, broker: WorldBroker, settings: KafkaSettings) -> subprocess.Popen[bytes]:
    """`stagepost pipeline run` on the broker, for as long as it is let."""
    command = [
        sys.executable,
        "-m",
        "stagepost.cli.main",
        "pipeline",
        "run",
        "--kafka",
        broker.access.bootstrap,
    ]
    command += ["--topic", settings.statuses.name, "--validator-sets", str(folder / "devnet" / SETS_FILE)]
    command += ["--out", str(folder / "kafka"), "--master", "local[2]"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with (folder / "driver.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
