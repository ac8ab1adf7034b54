"""Pairs of benchmark runs: whose turn it is, which figures count, and the limit on their ratio."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import pairs

PROGRAM = """
import json, pathlib, sys
assert sys.argv[1:] in (["--only", "network"], ["--only", "network", "--rounds", "5"])
pathlib.Path("results").mkdir(exist_ok=True)
with open("results/bench.jsonl", "a") as lines:
    for row in ({"name": "a message gross", "value": VALUE}, {"name": OWN, "value": 3.0}, {"name": "none", "value": 0.0}):
        print(json.dumps(row), file=lines)
with open("../turns", "a") as turns:
    print(pathlib.Path.cwd().name, file=turns)
"""

DELIVERY_PROGRAM = """
import json, pathlib, sys
assert sys.argv[1:] == ["--only", "stagepost"]
pathlib.Path("results").mkdir(exist_ok=True)
row = {"system": "stagepost queued", "window": 256, "processor_s_per_1000": COST, "per_s": 1_000.0}
pathlib.Path("results/bench-delivery.jsonl").write_text(json.dumps(row) + chr(10))
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
    assert pairs.main([str(before), "--only", "network", "--pairs", "2", "--rounds", "5", *limit]) == code
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


def test_a_rate_is_turned_round_so_that_more_is_always_worse() -> None:
    rows = (
        {"name": "messages", "value": 4.0, "unit": "messages/s"},
        {"name": "idle", "value": 4.0, "unit": "ms/s"},
    )
    assert pairs.read_figures("\n".join(map(json.dumps, rows))) == {"messages": 0.25, "idle": 4.0}


def test_delivery_is_measured_by_its_own_program_and_in_another_clone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, cost in (("before", 2.0), ("after", 3.0)):
        folder = made(tmp_path / name, 0.0)
        program = folder / "bench" / "delivery" / "beside.py"
        program.parent.mkdir()
        program.write_text(DELIVERY_PROGRAM.replace("COST", str(cost)))
    arguments = [
        str(tmp_path / "before"),
        "--now",
        str(tmp_path / "after"),
        "--only",
        "delivery",
        "--pairs",
        "1",
    ]
    assert pairs.main([*arguments, "--most", "1.4"]) == 1
    shown = capsys.readouterr().out
    assert "missed: stagepost queued, window 256: processor time of a message, ms is 1.500" in shown
    assert "missed: stagepost queued, window 256: time of a message, ms" not in shown
