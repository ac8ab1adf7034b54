"""Things that tests and benchmarks use where they can be had, and the one switch that turns skips into failures."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

OPTIONAL_THINGS = frozenset({"atheris", "browser", "go", "java", "kafka", "rust", "spin"})


def required_things() -> frozenset[str]:
    """What `STAGEPOST_REQUIRE` names: tests that need it may not skip."""
    return frozenset(
        filter(None, (name.strip() for name in os.environ.get("STAGEPOST_REQUIRE", "").split(",")))
    )


def require(name: str, reason: str) -> NoReturn:
    """Called where an optional thing is missing: skips, or fails when `STAGEPOST_REQUIRE` names it."""
    assert name in OPTIONAL_THINGS, f"{name} is not one of {sorted(OPTIONAL_THINGS)}"
    if name in required_things():
        pytest.fail(f"{name} is required by STAGEPOST_REQUIRE: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}", allow_module_level=True)
