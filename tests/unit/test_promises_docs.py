"""docs/promises.md says what its result lines say, and the parts of `make soak` speak of promises that it has."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Iterable
from pathlib import Path
from textwrap import dedent
from types import ModuleType

from rigs.promise_mutants import MUTANTS, Mutant
from tests.soak.parts import PARTS
from tests.soak.suite_runs import SUITE

ROOT = Path(__file__).parents[2]
LINE = {
    "promise": "N1",
    "test": "tests/fuzz",
    "figure": "7 inputs, 0 failures",
    "passed": True,
    "seed": 3,
    "scale": "commit",
    "date": "2026-11-15T10:00:00+00:00",
    "revision": "abc",
    "command": "python tests/soak/run.py",
    "processors": 2,
    "machine": "x86_64",
    "python": "3.11.7",
}


def promises_docs() -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        "promises_docs", ROOT / "tools" / "promises_docs.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_page_and_kept_lines_agree() -> None:
    tool = promises_docs()
    lines = tool.read_lines(ROOT / "docs" / "promises.jsonl")

    assert lines
    assert [line["promise"] for line in lines] == list(tool.newest(lines)), "one line per promise, in order"
    assert (ROOT / "docs" / "promises.md").read_text(encoding="utf-8") == tool.page(tool.newest(lines)), (
        "run `make docs`"
    )


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing_tests(names: Iterable[str]) -> list[str]:
    """Node ids and paths among `names` that lead nowhere."""
    found = []
    for name in names:
        path, _, function = name.partition("::")
        place = ROOT / path
        is_there = place.exists() and (not function or function.partition("[")[0] in functions_of(place))
        found += [] if is_there else [name]
    return found


def test_every_promise_has_a_mutant() -> None:
    assert set(MUTANTS) == set(promises_docs().statements())
    assert all(MUTANTS.values())


def test_every_test_that_a_promise_or_a_mutant_names_is_there() -> None:
    """A move that renames a test must not leave its promise without a test."""
    page = promises_docs()
    named = {test for tests in SUITE.values() for test in tests}
    for mutant in (mutant for found in MUTANTS.values() for mutant in found):
        named.update(mutant.tests if isinstance(mutant, Mutant) else [mutant.test])
    for line in page.read_lines(ROOT / "docs" / "promises.jsonl"):
        named.update(re.findall(r"\btests/[\w/]+\.py\b|\brigs/[\w/]+\.py\b", str(line["test"])))
    assert len(named) > 50
    assert missing_tests(named) == []


def test_a_test_that_is_gone_is_noticed() -> None:
    gone = ["tests/unit/test_nothing.py", "tests/unit/test_promises_docs.py::test_of_nothing"]
    assert missing_tests([*gone, "tests/unit/test_promises_docs.py"]) == gone


def not_plantable(code: str) -> list[str]:
    """Return what a mutant's code imports or replaces, and the sources do not have."""
    tree = ast.parse(dedent(code))
    known: dict[str, object] = {}
    missing = []
    for line in tree.body:
        if isinstance(line, ast.Import | ast.ImportFrom):
            try:
                exec(ast.unparse(line), known)
            except ImportError as error:
                missing.append(str(error))
    for line in tree.body:
        for target in line.targets if isinstance(line, ast.Assign) else ():
            if isinstance(target, ast.Attribute):
                try:
                    eval(ast.unparse(target), dict(known))
                except (AttributeError, NameError) as error:
                    missing.append(str(error))
    return missing


def test_every_mutant_replaces_something_that_is_there() -> None:
    mutants = [mutant for found in MUTANTS.values() for mutant in found if isinstance(mutant, Mutant)]

    assert {mutant.name: gone for mutant in mutants if (gone := not_plantable(mutant.code))} == {}


def test_a_mutant_of_something_that_is_gone_is_noticed() -> None:
    assert not_plantable("from stagepost.nowhere import nothing") != []
    assert not_plantable("from stagepost import errors\nerrors.gone = None") != []
    assert not_plantable("from stagepost import errors\nerrors.StagepostError = None") == []


def test_newest_line_of_a_full_run_is_taken_over_and_stays(tmp_path: Path) -> None:
    tool = promises_docs()
    later = {**LINE, "date": "2026-11-16T10:00:00+00:00", "figure": "9 inputs", "passed": False}
    a_try = {**later, "date": "2026-11-17T10:00:00+00:00", "scale": "sample", "figure": "1 input"}
    unknown = {**later, "promise": "Z9"}
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in (later, LINE, a_try, unknown)))

    tool.main(tmp_path / "promises.md", results)
    text = (tmp_path / "promises.md").read_text(encoding="utf-8")
    results.unlink()
    tool.main(tmp_path / "promises.md", results)

    assert "9 inputs" in text
    assert "**broken**" in text
    assert "7 inputs" not in text
    assert "1 input " not in text
    assert "not run" in text
    assert "0 kept, 1 broken" in text
    assert (tmp_path / "promises.md").read_text(encoding="utf-8") == text


def test_every_part_speaks_of_known_promises() -> None:
    known = promises_docs().statements()

    assert {promise for part in PARTS for promise in part.promises} <= known.keys()
    assert len({part.name for part in PARTS}) == len(PARTS)


def test_a_run_that_broke_the_promise_is_not_hidden_by_a_later_one_that_kept_it(tmp_path: Path) -> None:
    tool = promises_docs()
    broken = {**LINE, "passed": False}
    kept = {**LINE, "date": "2026-11-15T11:00:00+00:00"}
    results = tmp_path / "results.jsonl"
    results.write_text("".join(json.dumps(line) + "\n" for line in (broken, kept)))

    tool.main(tmp_path / "promises.md", results)
    tool.main(tmp_path / "promises.md", results)
    text = (tmp_path / "promises.md").read_text(encoding="utf-8")
    results.unlink()
    tool.main(tmp_path / "promises.md", results)

    assert "kept; **broken in 1 of 2 runs** of this revision" in text
    assert (tmp_path / "promises.md").read_text(encoding="utf-8") == text
    later = {**kept, "date": "2026-11-16T11:00:00+00:00", "revision": "def"}
    assert tool.newest([broken, kept, later])["N1"]["broken_runs"] == 0
