"""The generated pages in docs/protocols are what the specs say now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def protocol_docs() -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        "protocol_docs", ROOT / "tools" / "protocol_docs.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_pages_are_up_to_date() -> None:
    kept = {
        path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "protocols").glob("*.md")
    }

    assert kept == protocol_docs().pages(), "run `make docs`"


def test_writing_again_removes_pages_of_protocols_that_are_gone(tmp_path: Path) -> None:
    stale = tmp_path / "gone.md"
    stale.write_text("old")

    protocol_docs().main(tmp_path)

    assert not stale.exists()
    assert (tmp_path / "handshake.md").exists()
