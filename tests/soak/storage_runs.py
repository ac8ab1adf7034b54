"""Long runs of tables on object storage: writers and the storage server are killed again and again; then tables are compared."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from rigs.object_storage import PROGRAM, ObjectStorage
from rigs.peer_builds import Unavailable, build_go_program
from rigs.results import Result, result
from tests.soak.runs import Run

DRIVER_KILLS_BY_SCALE = {"commit": 10, "release": 50}
SERVER_KILLS_BY_SCALE = {"commit": 5, "release": 20}
TEST = "tests/soak/storage_runs.py: two writers on object storage, kill -9 of writers and of the server"


def kill_storage(run: Run) -> Iterator[Result]:
    """P2 on object storage: two writers at once into one table, and no row is lost, doubled or changed, whoever is killed."""
    drivers, servers = run.count(DRIVER_KILLS_BY_SCALE), run.count(SERVER_KILLS_BY_SCALE)
    if missing := _missing():
        yield result("P2", TEST, "not run", faults=[missing], seed=run.seed)
        return
    from tests.worlds.pipeline.storage_kills import kill_and_compare

    with TemporaryDirectory() as name:
        storage = ObjectStorage(Path(name) / "objects")
        storage.start()
        try:
            found = kill_and_compare(storage, "tables", run.seed, drivers, servers)
        finally:
            storage.kill()
    faults = list(found.faults)
    if found.driver_kills < drivers or found.server_kills < servers:
        faults.append("fewer were killed than asked for")
    figure = (
        f"{found.driver_kills} kills of writers, {found.server_kills} of the server, {found.batches} batches"
    )
    yield result("P2", TEST, f"{figure}, {len(faults)} faults", faults=faults, seed=run.seed)


def _missing() -> str:
    """Name what cannot be had here: that is a result as well, and not a pass."""
    try:
        build_go_program(PROGRAM)
    except Unavailable as error:
        return error.reason
    return "" if importlib.util.find_spec("deltalake") else "the package deltalake is not installed"
