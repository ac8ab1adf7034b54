"""The documentation as a site: built as `make site` builds it, complete, with working links, and searchable."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stagepost.cli.main import SUBCOMMANDS

ROOT = Path(__file__).parents[2]
WITHIN_S = 300
_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?:https?:)?//", re.IGNORECASE)


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=WITHIN_S, check=False, env=environment, cwd=ROOT
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", place)
    assert done.returncode == 0, done.stderr[-4_000:]
    return place


def test_every_page_is_there_and_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    docs = {
        str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in (ROOT / "docs").rglob("*.md")
    }
    docs = {re.sub(r"README\.html$", "index.html", name) for name in docs}

    assert docs <= pages
    assert {"index.html", "architecture.html", "rooms/delivery.html", "api/client.html"} <= pages
    assert {f"cli/{name}.html" for name in SUBCOMMANDS} <= pages
    assert [name for name in pages if _ELSEWHERE.search((site / name).read_text(encoding="utf-8"))] == []


def test_search_finds_commands_and_classes(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    titles = {entry["title"] for entry in entries}

    assert {"stagepost queue replay", "ReliablePublisher", "AsyncClient", "LocalMessageSubmission"} <= titles


def test_code_is_shown_as_it_is_typed(site: Path) -> None:
    """Bars in a table are no escapes on the site, and the example of a module is a block of code."""
    command = (site / "cli" / "conform.html").read_text(encoding="utf-8")
    assert "--profile [auto|dmq-node|gouroboros|seed]" in command
    pages = [path for path in site.rglob("*.html") if "repository" not in path.parts]
    cells = {path.name: re.findall(r"<td.*?</td>", path.read_text(), re.DOTALL) for path in pages}
    assert [name for name, found in cells.items() if any("\\|" in one for one in found)] == []

    client = (site / "api" / "client.html").read_text(encoding="utf-8")
    assert "<p>with Client.connect()" not in client


def test_files_of_the_repository_have_pages(site: Path) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    (target,) = set(re.findall(r'href="(repository/[^"#]*verify_proof\.py\.html)"', front))

    assert ">def<" in (site / target).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[gone](gone.md)", "gone.md"),
        ("[gone](../src/gone.py)", "gone.py"),
        ("[gone](node.md#gone)", "#gone"),
    ],
)
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path, line: str, fault: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "node.md").write_text("# A node\n")
    (docs / "index.md").write_text(f"# A page\n\n{line}\n")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[0]
    text = text.replace("hooks: [tools/site_pages.py]\n", "")
    (tmp_path / "mkdocs.yml").write_text(text)

    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")

    assert done.returncode != 0
    assert fault in done.stderr
