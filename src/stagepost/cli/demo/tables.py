"""The tables of the demonstration: the pipeline runs once over the folder, as anybody would run it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stagepost.cli.exit_codes import USAGE
from stagepost.devnet.demo.findings import TABLES_FOLDER
from stagepost.errors import StagepostError

LOG_FILE = "spark.log"
MADE_WITHIN_S = 300.0
"""What the command ends with when Java or a package is missing: nothing of the demonstration is wrong then."""
END_WITHIN_S = 15.0


class TablesAbsent(Exception):
    """Why there are none, in one sentence: nothing that this program could do is amiss."""


def make_tables(data: Path) -> None:
    command = [
        *(sys.executable, "-m", "stagepost.cli.main", "-q", "pipeline", "run", "--once", "--data", str(data)),
    ]
    with (data / LOG_FILE).open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=process_environment()
        )
        try:
            status = process.wait(MADE_WITHIN_S)
        except BaseException as error:
            end_process(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise _failed(data, f"was not done after {MADE_WITHIN_S:g} s") from None
            raise
    if status == USAGE:
        said = (data / LOG_FILE).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise TablesAbsent(said[0] if said else "the pipeline does not start here")
    if status != 0:
        raise _failed(data, f"ended with {status}")


def count_rows(data: Path) -> dict[str, int]:
    """Return the number of rows of every table that the run has made."""
    from stagepost.pipeline.tables.reader import TABLES, Reader  # as heavy as what it reads with

    reader = Reader(data / TABLES_FOLDER)
    try:
        held = {row["view_name"] for row in reader.sql("SELECT view_name FROM duckdb_views()")}
        return {
            name: int(reader.sql(f"SELECT count(*) AS rows FROM {name}")[0]["rows"]) if name in held else 0
            for name in TABLES
        }
    finally:
        reader.close()


def _failed(data: Path, what: str) -> StagepostError:
    return StagepostError(f"the pipeline {what}", advice=f"read {data / LOG_FILE}; --no-spark leaves it out")


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End the process in order, or kill it after `END_WITHIN_S`."""
    process.terminate()
    try:
        process.wait(END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def process_environment() -> dict[str, str]:
    """The process runs the same program as this one, wherever it was found."""
    here = str(Path(__file__).parents[3])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, known]))}
