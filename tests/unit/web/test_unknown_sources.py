"""Each damaged or missing source: every face says unknown with the reason, and none says 0 or well."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rigs.dashboard_world import DashboardWorld
from stagepost.cli import main as command
from stagepost.ground.telemetry.health import Health
from stagepost.pipeline.tables.delta import LOG_FOLDER
from stagepost.pipeline.tables.manifest import COMMITS
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.validator_sets import SETS_FILE
from stagepost.web.access.settings import WebSettings
from stagepost.web.app import metrics_text
from stagepost.web.sources import Sources
from tests.browser.served import a_node, an_outbox
from tests.browser.tables_world import write_tables

NOW_MS = 1_800_000_000_000


class Folder:
    """A data folder with every source. `gone` ends the node that runs in it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._stack = ExitStack()
        self.world = DashboardWorld(data, NOW_MS)
        self.world.finalized()
        self.world.close()
        an_outbox(data / "outbox", NOW_MS, waiting=2, dead=1)
        write_tables(data / "tables", NOW_MS, count=4)
        self._stack.enter_context(a_node(data, NOW_MS))

    def gone(self) -> None:
        self._stack.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    found = Folder(tmp_path / "data")
    yield found
    found.gone()


def no_sets(folder: Folder) -> None:
    (folder.data / SETS_FILE).unlink()


def damaged_sets(folder: Folder) -> None:
    (folder.data / SETS_FILE).write_text("{")


def damaged_topic(folder: Folder) -> None:
    (folder.data / "topics" / STATUSES_TOPIC / "topic.json").write_text("no topic")


def damaged_outbox(folder: Folder) -> None:
    (folder.data / "outbox" / "outbox.sqlite").write_bytes(b"no database" * 1_000)


def damaged_tables(folder: Folder) -> None:
    for path in (folder.data / "tables" / COMMITS / LOG_FOLDER).glob("*.json"):
        path.write_text("no commit")


def silent_node(folder: Folder) -> None:
    note = json.loads((folder.data / "node.json").read_text())
    folder.gone()
    (folder.data / "node.json").write_text(json.dumps(note))


def no_node(folder: Folder) -> None:
    folder.gone()
    (folder.data / "node.json").unlink(missing_ok=True)


DAMAGES: dict[str, tuple[Callable[[Folder], None], str]] = {
    "no sets": (no_sets, SETS_FILE),
    "damaged sets": (damaged_sets, SETS_FILE),
    "damaged topic": (damaged_topic, "topic"),
    "damaged outbox": (damaged_outbox, "outbox"),
    "damaged tables": (damaged_tables, "tables"),
    "silent node": (silent_node, "does not answer"),
    "no node": (no_node, "no node runs"),
}


def faces(folder: Folder, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, Sources]:
    capsys.readouterr()
    status = command.run(["check", "--data", str(folder.data)])
    sources = Sources(WebSettings(folder.data), now_ms=lambda: NOW_MS + 2_000)
    try:
        while sources.tail.step():
            pass
    except Exception:
        sources.tail.start()
        while sources.tail.state is None or type(sources.tail.state).__name__ == "Nothing":
            sources.tail.is_caught_up.wait(0.02)
        sources.tail.stop()
    return status, capsys.readouterr().out, sources


def test_whole_sources_are_not_unknown(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, sources = faces(folder, capsys)
    assert status != 3
    assert sources.health().health is not Health.UNKNOWN
    assert all(part["ready"] for part in sources.readiness().values())


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_or_missing_source_is_unknown_to_every_face(
    folder: Folder, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, words = DAMAGES[what]
    damage(folder)
    status, told, sources = faces(folder, capsys)
    assert status == 3, told
    assert told.startswith("unknown ")
    assert words in told
    report = sources.health()
    assert report.health is Health.UNKNOWN
    assert words in report.text
    faults = [part for part in sources.readiness().values() if not part["ready"]]
    assert any(words in part["reason"] for part in faults)
    shown = metrics_text(sources).decode()
    assert 'stagepost_health{state="unknown"} 1.0' in shown
    assert 'stagepost_health{state="good"} 0.0' in shown
