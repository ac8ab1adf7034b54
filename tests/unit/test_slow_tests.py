"""The list of slow tests is made from durations, names tests that exist, and marks them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load_tool() -> ModuleType:
    specification = importlib.util.spec_from_file_location("slow_tests", ROOT / "tools" / "slow_tests.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


TOOL = load_tool()
LISTED = [line for line in TOOL.LIST.read_text().splitlines() if not line.startswith("#")]

MEASURED = """
============ slowest durations ============
0.40s call     tests/unit/test_a.py::test_cases[1 of 2]
0.09s setup    tests/unit/test_a.py::test_cases[2]
0.02s call     tests/unit/test_a.py::test_cases[2]
0.70s call     tests/unit/test_a.py::TestClass::test_alone
0.49s call     tests/unit/test_b.py::test_quick
passed
"""


def test_cases_of_a_function_count_together() -> None:
    assert TOOL.slow_functions(MEASURED.splitlines(), 0.5) == [
        "tests/unit/test_a.py::TestClass::test_alone",
        "tests/unit/test_a.py::test_cases",
    ]


@pytest.mark.parametrize("file", sorted({name.partition("::")[0] for name in LISTED}))
def test_listed_tests_exist(file: str) -> None:
    text = (ROOT / file).read_text()
    names = [name.removeprefix(f"{file}::") for name in LISTED if name.startswith(f"{file}::")]

    assert [name for name in names if not _is_defined(name, text)] == []


def _is_defined(name: str, text: str) -> bool:
    """Return whether `text` defines the function, or the state machine whose `runTest` Hypothesis defines."""
    holder, _, function = name.rpartition("::")
    return f"def {function}(" in text or (function == "runTest" and f"\n{holder} = " in text)


def test_listed_tests_and_those_of_groups_are_marked(request: pytest.FixtureRequest) -> None:
    slow = [
        item
        for item in request.session.items
        if item.nodeid.partition("[")[0].partition("@")[0] in LISTED
        or item.get_closest_marker("xdist_group") is not None
    ]

    assert [item.nodeid for item in slow if item.get_closest_marker("slow") is None] == []


def test_tests_of_groups_come_before_all_others(request: pytest.FixtureRequest) -> None:
    grouped = [item.get_closest_marker("xdist_group") is not None for item in request.session.items]

    assert grouped == sorted(grouped, reverse=True)
