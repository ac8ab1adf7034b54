"""The picture of the README is what the code draws."""

from __future__ import annotations

from pathlib import Path

from tools import trace_picture

ROOT = Path(__file__).parents[3]


def test_the_readmes_picture_is_up_to_date(tmp_path: Path) -> None:
    drawn = tmp_path / "trace.svg"
    trace_picture.main(str(drawn))
    assert drawn.read_text() == (ROOT / "docs" / "images" / "trace.svg").read_text(), "run `make docs`"
