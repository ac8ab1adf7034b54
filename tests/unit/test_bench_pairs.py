"""Pairs of benchmark runs: whose turn it is, which figures count, and the limit on their ratio."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import pairs

PROGRAM = """
import json, pathlib, sys
assert sys.argv[1:] == ["--only", "network"]
pathlib.Path("results").mkdir(exist_ok=True)
with open("results/bench.jsonl", "a") as lines:
    for row in ({"name": "a message gross", "value": VALUE}, {"name": OWN, "value": 3.0}, {"name": "none", "value": 0.0}):
        print(json.dumps(row), file=lines)
with open("../turns", "a") as turns:
    print(pathlib.Path.cwd().name, file=turns)
"""


def made(folder: Path, value: float) -> Path:
    """Make a folder whose benchmark gives `value`, and a figure that the other folder does not give."""
    (folder / "bench").mkdir(parents=True)
    text = PROGRAM.replace("VALUE", str(value)).replace("OWN", repr(f"only of {folder.name}"))
    (folder / "bench" / "run.py").write_text(text)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    return folder


@pytest.mark.parametrize(("most", "code"), [(1.3, 0), (1.2, 1), (None, 0)])
def test_a_figure_of_both_revisions_is_held_against_the_limit(
    most: float | None,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = made(tmp_path / "before", 10.0)
    monkeypatch.setattr(pairs, "ROOT", made(tmp_path / "now", 12.5))
    limit = [] if most is None else ["--most", str(most)]
    assert pairs.main([str(before), "--only", "network", "--pairs", "2", *limit]) == code
    shown = capsys.readouterr().out
    assert "a message gross" in shown
    assert " 1.250 " in shown
    assert "only of" not in shown
    assert ("missed: a message gross is 1.250" in shown) == (code == 1)
    assert (tmp_path / "turns").read_text().split() == ["before", "now", "now", "before"]


def test_no_figure_of_that_name_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = made(tmp_path / "before", 10.0)
    monkeypatch.setattr(pairs, "ROOT", made(tmp_path / "now", 12.5))
    assert pairs.main([str(before), "--only", "network", "--pairs", "1", "--named", "absent"]) == 2


def test_earlier_lines_of_the_file_do_not_count(tmp_path: Path) -> None:
    folder = made(tmp_path / "now", 1.0)
    first = pairs.run_part(folder, "network")
    (folder / "bench" / "run.py").write_text((folder / "bench" / "run.py").read_text().replace("1.0", "2.0"))
    assert (first["a message gross"], pairs.run_part(folder, "network")["a message gross"]) == (1.0, 2.0)


def test_the_middle_pair_decides() -> None:
    runs = [({"x": 1.0}, {"x": value}) for value in (1.0, 1.1, 9.0)]
    found = pairs.ratios(runs)[0]
    assert found.middle == pytest.approx(1.1)
    assert (found.before, found.now) == (1.0, 1.1)
