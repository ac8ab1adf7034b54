"""The page of limits names tests and constants that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from stagepost.config.settings import SETTINGS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
LIMITS = PAGE.partition("\n## ")[0]


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", LIMITS))
    assert len(named) > 30

    for path, name in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{path} has no {name}"


def test_every_constant_and_setting_that_the_page_names_exists() -> None:
    rows = [line.split("|")[3] for line in LIMITS.splitlines() if line.startswith("| ")]
    assert len(rows) > 15
    for row in rows:
        sources = [
            (ROOT / "src" / "stagepost" / file).read_text()
            for file in re.findall(r"`(\w+(?:/\w+)+\.py)`", row)
        ]
        for constant in re.findall(r"`([A-Z][A-Z_]+)`", row) if sources else ():
            assert any(re.search(rf"^{constant}\b.*=", source, re.MULTILINE) for source in sources), constant
        for setting in re.findall(r"`(node\.\w+)`", row):
            assert setting in SETTINGS, setting
