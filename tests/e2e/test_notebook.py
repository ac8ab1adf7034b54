"""The notebook runs from its first cell to its last, and is kept without what came out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.devnet.devnet_runs import ENVIRONMENT, ROOT

pytestmark = pytest.mark.xdist_group("commands")

NOTEBOOK = ROOT / "examples" / "one_message.ipynb"
WITHIN_S = 120


def test_it_is_kept_without_outputs_and_is_small() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))

    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert NOTEBOOK.stat().st_size < 10_000


def test_every_cell_runs_and_the_message_becomes_final(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the test extra brings it")
    nbclient = pytest.importorskip("nbclient", reason="the test extra brings it")
    # A kernel is a process of its own: it has to find the package, and writes below a folder that goes with the test.
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    nbclient.NotebookClient(
        notebook, timeout=WITHIN_S, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    texts = [
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]
    shown = "".join(texts)
    assert "4 validators" in shown
    assert shown.count("Finalized") >= 1
    assert "(1060, 1)" in shown
    drawings = [
        output.data["image/svg+xml"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/svg+xml" in output.get("data", {})
    ]
    assert len(drawings) == 1
    assert all(f"validator-{number}" in drawings[0] for number in range(1, 5))


def test_every_example_is_run_by_some_test() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    examples = [path.name for path in (ROOT / "examples").iterdir() if path.suffix in (".py", ".ipynb")]
    assert len(examples) >= 5
    assert [name for name in examples if name not in texts] == []
