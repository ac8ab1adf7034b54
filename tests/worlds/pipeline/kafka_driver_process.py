"""A driver on Kafka in a process of its own, with Spark's connector; it may end itself, without any farewell, at a named point.

    python -m tests.worlds.pipeline.kafka_driver_process FILE

FILE is JSON: `kafka` (what a `KafkaAccess` is made of, its password among them), `topic`, `data` (a folder of local topics, or null), `sets`,
`out`, `out_local`, `point` and `rows_max`. The broker's topic is followed into `out`, then the local ones into `out_local`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagepost.topics.kafka.access import KafkaAccess, Secret

if TYPE_CHECKING:
    from stagepost.pipeline.tables.store import TableStore

ROWS_MAX = 100
KILLED = -signal.SIGKILL
NEVER = "never"


def main(path: str) -> None:
    from stagepost.pipeline.sources.kafka import KafkaRecords, connector_settings, require_broker
    from stagepost.pipeline.spark import start_session
    from stagepost.pipeline.stream import StreamOptions, follow
    from stagepost.pipeline.tables.manifest import read_manifest
    from stagepost.pipeline.tables.store import TableStore
    from stagepost.topics.kafka.jars import default_folder
    from tests.worlds.pipeline.pipeline_spark import SETTINGS

    told = json.loads(Path(path).read_text())

    def at_point(name: str) -> None:
        """Once something of this stream is in the tables: then there is something to lose, and to count twice."""
        if name == told["point"] and (manifest := read_manifest(out)) is not None and manifest.total.rows:
            os.kill(os.getpid(), signal.SIGKILL)

    access = _access(told["kafka"])
    sets, out = Path(told["sets"]), TableStore.at(told["out"], told["storage"])
    require_broker(access, [told["topic"]], out)
    settings = {**SETTINGS, **connector_settings(default_folder(os.environ))}
    spark = start_session("driver", master="local[2]", settings=settings, is_short=True)
    source = KafkaRecords(access, (told["topic"],))
    options = StreamOptions(None, sets, out, is_once=True, rows_max=told["rows_max"], source=source)
    follow(spark, options, at_point=at_point)
    if told["data"] is not None:
        local = StreamOptions(
            Path(told["data"]), sets, Path(told["out_local"]), is_once=True, rows_max=told["rows_max"]
        )
        follow(spark, local)
    spark.stop()


def _access(told: dict[str, Any]) -> KafkaAccess:
    if told["password"] is None:
        return KafkaAccess(told["bootstrap"])
    return KafkaAccess(
        told["bootstrap"],
        told["security_protocol"],
        told["sasl_mechanism"],
        told["username"],
        Secret(told["password"]),
        Path(told["ca_file"]),
    )


def run_driver(
    folder: Path,
    access: KafkaAccess,
    topic: str,
    sets: Path,
    *,
    data: Path | None = None,
    point: str = NEVER,
    rows_max: int = ROWS_MAX,
    out: TableStore | None = None,
) -> subprocess.CompletedProcess[str]:
    """Tables come to stand in `kafka`, or at `out`, and in `local` in that folder; the caller looks at how it ended."""
    kafka = {
        "bootstrap": access.bootstrap,
        "security_protocol": access.security_protocol,
        "sasl_mechanism": access.sasl_mechanism,
        "username": access.username,
        "password": None if access.password is None else access.password.reveal(),
        "ca_file": str(access.ca_file),
    }
    told = {
        "kafka": kafka,
        "topic": topic,
        "data": None if data is None else str(data),
        "sets": str(sets),
        "out": str(folder / "kafka") if out is None else out.address,
        "storage": {} if out is None else out.options,
        "out_local": str(folder / "local"),
        "point": point,
        "rows_max": rows_max,
    }
    file = folder / "driver.json"
    file.write_text(json.dumps(told))
    return subprocess.run(
        [sys.executable, "-m", "tests.worlds.pipeline.kafka_driver_process", str(file)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    main(sys.argv[1])
