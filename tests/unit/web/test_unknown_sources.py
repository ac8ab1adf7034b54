"""Each source of a data folder, damaged in every way, to every face: unknown with the reason, and never 0 or well."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra web is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")

from rigs.dashboard_world import DashboardWorld  # noqa: E402  # below what may be absent
from rigs.ordinary_rights import ordinary_rights  # noqa: E402
from stagepost.cli import main as command  # noqa: E402
from stagepost.client import AsyncClient, ClientLimits  # noqa: E402
from stagepost.delivery.stores.outbox_stores import OUTBOX_FILE, SqliteOutbox  # noqa: E402
from stagepost.errors import StagepostError, StorageError  # noqa: E402
from stagepost.ground.loop.clock import SystemClock  # noqa: E402
from stagepost.pipeline.tables.delta import LOG_FOLDER  # noqa: E402
from stagepost.pipeline.tables.manifest import COMMITS  # noqa: E402
from stagepost.remp.receipts.status_records import STATUSES_TOPIC  # noqa: E402
from stagepost.remp.validator_sets import SETS_FILE  # noqa: E402
from stagepost.trace import index as index_module  # noqa: E402
from stagepost.trace.index import INDEX_FILE, MessageIndex  # noqa: E402
from stagepost.trace.reading import read_trace  # noqa: E402
from stagepost.web.access.settings import WebSettings  # noqa: E402
from tests.browser.served import a_node, an_outbox, served  # noqa: E402
from tests.browser.tables_world import write_tables  # noqa: E402

NOW_MS = time.time_ns() // 1_000_000
LIMIT = 60


class Folder:
    """A data folder with every source: a topic with its sets and its index, an outbox, tables, and the note of a node."""

    def __init__(self, data: Path, message_id: str) -> None:
        self.data = data
        self.message_id = message_id
        self.file = {
            "outbox": data / "outbox" / OUTBOX_FILE,
            "sets": data / SETS_FILE,
            "topic": data / "topics" / STATUSES_TOPIC / "topic.json",
            "tables": data / "tables" / COMMITS / LOG_FOLDER / f"{1:020d}.json",
            "node": data / "node.json",
            "index": data / INDEX_FILE,
        }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """Make the folder that all tests copy; its node runs for as long as they do."""
    data = tmp_path_factory.mktemp("whole") / "data"
    world = DashboardWorld(data, NOW_MS - 10_000)
    message_id = world.finalized()
    world.close()
    an_outbox(data / "outbox", NOW_MS, waiting=2, dead=1)
    write_tables(data / "tables", NOW_MS, count=4)
    with a_node(data, NOW_MS):
        with MessageIndex(data) as index:
            index.catch_up()
        yield Folder(data, message_id)


@pytest.fixture
def folder(made: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(index_module, "VERIFY_EVERY_S", 0.0)
    shutil.copytree(made.data, tmp_path / "data")
    return Folder(tmp_path / "data", made.message_id)


# Damages


def missing(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flipped_byte(path: Path) -> None:
    """Flip one bit of the first byte: of a database's name, of a bracket."""
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def wrong_version(path: Path) -> None:
    if path.suffix == ".sqlite":
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
        return
    content = path.read_text()
    for known, other in (('"version": 1', '"version": 99'), ('"schema_version":', '"schema_version":9')):
        content = content.replace(known, other)
    path.write_text(content)


def no_permission(path: Path) -> None:
    # Threads that read tables may have root's rights from earlier on, so the folder says who may look.
    (path.parent if path.parent.name == LOG_FOLDER else path).chmod(0)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "missing": missing,
    "truncated": truncated,
    "flipped byte": flipped_byte,
    "wrong version": wrong_version,
    "no permission": no_permission,
    "directory": directory,
}
UNVERSIONED = {"sets", "node"}
"""Sources whose files have no version: unknown fields are faults of their own."""
MADE_ANEW = {"missing", "truncated", "flipped byte"}
"""Damages of the index that a look-up repairs from the topics."""
CELLS = [
    (source, damage)
    for source in ("outbox", "sets", "topic", "tables", "node", "index")
    for damage in DAMAGES
    if not (damage == "wrong version" and source in UNVERSIONED)
]


# Faces


class Faces:
    """All faces of a folder: the dashboard with its tail at rest, and the command line."""

    def __init__(self, folder: Folder, client: Any, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._client = client
        self._capsys = capsys

    def run(self, *line: str) -> tuple[int, str]:
        self._capsys.readouterr()
        status = command.run([*line])
        said = self._capsys.readouterr()
        return status, said.out + said.err

    def get(self, path: str) -> tuple[int, str]:
        answer = self._client.get(path)
        return answer.status_code, answer.text

    def object(self, path: str) -> Any:
        return json.loads(self.get(path)[1])


@contextmanager
def faces_of(folder: Folder, capsys: pytest.CaptureFixture[str]) -> Iterator[Faces]:
    settings = WebSettings(folder.data, outbox=folder.data / "outbox")
    with served(settings) as server, httpx.Client(base_url=server.base, timeout=60) as client:
        yield Faces(folder, client, capsys)


def test_whole_sources_are_not_unknown(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    with faces_of(folder, capsys) as faces:
        status, told = faces.run("check", "--data", str(folder.data))
        assert status in (0, 1), told
        assert "every id can be looked up" in told
        assert faces.get("/readyz")[0] == 200
        assert 'stagepost_health{state="unknown"} 0.0' in faces.get("/metrics")[1]
        for line in COMMANDS.values():
            for one in line:
                assert faces.run(*filled(one, folder))[0] == 0, one
        asyncio.run(_asked_by_a_program(folder))


COMMANDS: dict[str, tuple[str, ...]] = {
    "outbox": (
        "queue ls --outbox OUTBOX",
        "queue check --outbox OUTBOX",
        "queue show ENTRY --outbox OUTBOX",
    ),
    "sets": (
        "trace ID --data DATA",
        "listen --data DATA --kind PutIntoQueue --since 10d --count 3",
        "telemetry --data DATA --once",
    ),
    "topic": (
        "trace ID --data DATA",
        "topic dump stagepost.remp.statuses --data DATA --out OUT",
        "telemetry --data DATA --once",
    ),
    "tables": ("export --tables TABLES --to csv --out OUT", "pipeline report --tables TABLES --out OUT"),
    "node": ("peers --data DATA",),
    "index": ("trace ID --data DATA", "telemetry ID --data DATA"),
}
"""Commands that read a source, with the words that a test fills in."""
TILES: dict[str, tuple[str, ...]] = {
    "outbox": ("Outbox",),
    "sets": ("Accepted", "Time to final", "Open", "Rejected", "Refused receipts"),
    "topic": ("Accepted", "Time to final", "Open", "Rejected", "Refused receipts"),
    "tables": (),
    "node": ("Peers", "KES left"),
    "index": (),
}
"""Tiles of the overview whose figures come from a source."""
API = {
    "outbox": "/api/v1/queues",
    "sets": "/api/v1/messages",
    "topic": "/api/v1/messages",
    "tables": "/api/v1/messages?source=tables",
    "node": "/api/v1/peers",
    "index": "/api/v1/messages/ID",
}
PAGES = {
    "outbox": "/queues",
    "sets": "/messages",
    "topic": "/messages",
    "tables": "/analytics",
    "node": "/peers",
    "index": "/trace/ID",
}


def filled(line: str, folder: Folder) -> list[str]:
    from stagepost.delivery.stores.reading import read_outbox

    words = {"DATA": str(folder.data), "OUTBOX": str(folder.data / "outbox"), "ID": folder.message_id}
    words |= {"OUT": str(folder.data / "out.csv"), "TABLES": str(folder.data / "tables")}
    if "ENTRY" in line:
        words["ENTRY"] = read_outbox(folder.data / "outbox").records[0].delivery_id.hex()
    (folder.data / "out.csv").unlink(missing_ok=True)
    return [words.get(word, word) for word in line.split()]


@pytest.mark.parametrize(("source", "damage"), CELLS, ids=[": ".join(cell) for cell in CELLS])
def test_a_damaged_source_is_unknown_to_every_face(
    folder: Folder, source: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [filled(line, folder) for line in COMMANDS[source]]
    if (source, damage) == ("tables", "no permission"):
        lines = []  # threads that were started earlier read them, with root's rights
    path = folder.file[source]
    DAMAGES[damage](path)
    with ordinary_rights() if damage == "no permission" else nullcontext(), faces_of(folder, capsys) as faces:
        if source == "index" and damage in MADE_ANEW:
            _is_made_anew(folder, faces)
            return
        status, told = faces.run("check", "--data", str(folder.data), "--outbox", str(folder.data / "outbox"))
        assert status == 3, told
        assert told.startswith("unknown "), told
        report = faces.object("/readyz")
        assert faces.get("/readyz")[0] == 503
        assert report["health"] == "unknown", report
        assert any(not part["ready"] and part["reason"] for part in report["parts"].values()), report
        _metrics_say_unknown(faces.get("/metrics")[1], source)
        overview = faces.get("/")[1]
        assert '<h2>Health</h2><p class="figure">unknown</p>' in overview
        for tile in TILES[source]:
            assert re.search(rf'<h2>{tile}</h2>\s*<p class="figure dim">[?–]</p>', overview), (tile, overview)
        _api_says_unknown(faces, source, folder)
        page_status, page = faces.get(PAGES[source].replace("ID", folder.message_id))
        assert page_status in (200, 503)
        assert "could not read" in page or page_status == 503 or NO_NODE in page, page
        for line in lines:
            status, told = faces.run(*line)
            assert status != 0, (line, told)
            assert told.strip(), line
        if source in ("sets", "topic", "index"):
            with pytest.raises(StagepostError) as caught:
                asyncio.run(_asked_by_a_program(folder))
            assert caught.value.text


async def _asked_by_a_program(folder: Folder) -> None:
    client = AsyncClient(None, ClientLimits(), SystemClock(), data=folder.data)
    try:
        await client.trace(folder.message_id)
    finally:
        await client.close()


NO_NODE = "no node runs here"


def _is_made_anew(folder: Folder, faces: Faces) -> None:
    status, told = faces.run("trace", folder.message_id, "--data", str(folder.data))
    assert status == 0, told
    status, told = faces.run("check", "--data", str(folder.data))
    assert status in (0, 1), told
    assert faces.get(f"/trace/{folder.message_id}")[0] == 200
    assert faces.get("/readyz")[0] == 200


def _metrics_say_unknown(shown: str, source: str) -> None:
    assert 'stagepost_health{state="unknown"} 1.0' in shown
    assert 'stagepost_health{state="good"} 0.0' in shown
    if source == "outbox":
        assert "stagepost_delivery_outbox_readable 0.0" in shown
        assert "stagepost_delivery_dead_letters" not in shown
        assert "stagepost_delivery_queue_messages" not in shown


def _api_says_unknown(faces: Faces, source: str, folder: Folder) -> None:
    status, text = faces.get(API[source].replace("ID", folder.message_id))
    if source == "outbox":
        assert faces.object(API[source])["outbox"]["state"] in ("unreadable", "damaged")
    elif source == "node" and status == 200:
        assert all(one["state"] == "unreadable" for one in json.loads(text)), text
    elif source == "tables" and status == 200:
        assert "note" in json.loads(text), text
    else:
        assert status == 503, text
        assert json.loads(text)["detail"]


def test_a_silent_node_is_unknown(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    note = json.loads(folder.file["node"].read_text())
    folder.file["node"].write_text(json.dumps({**note, "metrics_port": 1}))
    with faces_of(folder, capsys) as faces:
        status, told = faces.run("check", "--data", str(folder.data))
        assert status == 3
        assert "does not answer" in told
        assert faces.object("/readyz")["health"] == "unknown"


def test_no_flipped_bit_of_the_index_hides_a_message(folder: Folder) -> None:
    """Flip bits all over the file: every look-up finds the message whole, or says that it cannot look."""
    before = read_trace(folder.data, folder.message_id, NOW_MS)
    assert before.points
    path = folder.file["index"]
    with MessageIndex(folder.data) as index:
        index._file.empty_log()
    content = path.read_bytes()
    seed = 27
    random = Random(seed)
    refused = 0
    for _ in range(LIMIT):
        place, bit = random.randrange(len(content)), random.randrange(8)
        for one in path.parent.glob(f"{INDEX_FILE}*"):
            one.unlink()
        changed = bytearray(content)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)
        try:
            found = read_trace(folder.data, folder.message_id, NOW_MS)
        except StorageError:
            refused += 1
            continue
        assert found == before, (seed, place, bit)
    assert refused < LIMIT // 2


def test_a_salvaged_outbox_names_the_damaged_file(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder.file["outbox"]
    content = bytearray(path.read_bytes())
    content[4_096:4_104] = b"\xff" * 8
    path.write_bytes(content)
    asyncio.run(SqliteOutbox(folder.data / "outbox").close())
    assert (path.parent / f"{OUTBOX_FILE}.damaged-1").exists()
    with faces_of(folder, capsys) as faces:
        for line in ("check --data DATA --outbox OUTBOX", "queue check --outbox OUTBOX"):
            assert f"{OUTBOX_FILE}.damaged-1" in faces.run(*filled(line, folder))[1]
        assert faces.run("check", "--data", str(folder.data))[0] != 0
        assert f"{OUTBOX_FILE}.damaged-1" in faces.get("/queues")[1]
        assert f"{OUTBOX_FILE}.damaged-1" in faces.get("/")[1]
        assert faces.object("/api/v1/queues")["outbox"]["set_aside"] == [f"{OUTBOX_FILE}.damaged-1"]
