"""The pages about transports, mini-protocols and names are true: their examples run, and every name on them exists."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stagepost import client, delivery, endpoints

DOCS = Path(__file__).parents[3] / "docs"
ROOMS = (delivery, endpoints, client)


@pytest.mark.parametrize(
    ("page", "lines"),
    [
        ("transports.md", ["bob got 900000", "acknowledged by bob: True"]),
        ("endpoints.md", ["messages: 0"]),
    ],
)
def test_the_example_of_a_page_runs(page: str, lines: list[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout.splitlines(), done.returncode) == (lines, 0), done.stderr


def found(name: str) -> Any:
    return next((getattr(room, name) for room in ROOMS if hasattr(room, name)), None)


def members(kind: Any) -> set[str]:
    names = set(dir(kind))
    if hasattr(kind, "__dataclass_fields__"):
        names |= {one.name for one in fields(kind)}
    return names | (set(kind.__struct_fields__) if issubclass(kind, msgspec.Struct) else set())


def test_every_name_on_the_right_exists() -> None:
    checked = 0
    for line in (DOCS / "names.md").read_text().splitlines():
        cells = line.split(" | ")
        if len(cells) != 2 or not line.startswith("|"):
            continue
        right = cells[1]
        for owner, member in re.findall(r"`([A-Z]\w+)\.(\w+)", right):
            assert member in members(found(owner)), f"{owner}.{member}"
            checked += 1
        listed = re.fullmatch(r"`([A-Z]\w+)`: (.*?) \|", right)
        if listed is not None:
            for member in re.findall(r"`(\w+)`", listed[2]):
                kind = found(listed[1]) or found(member)
                assert member in members(kind) or found(member), f"{listed[1]}: {member}"
                checked += 1
    assert checked > 40


def test_every_member_of_a_transport_is_on_its_page() -> None:
    page = (DOCS / "transports.md").read_text()
    public = {name for name in vars(delivery.Transport) if not name.startswith("_")}
    missing = {name for name in public if not re.search(rf"`{name}\b", page)}
    assert missing == set()
    for name in delivery.__all__:
        if name.startswith(("Send", "Socket", "Outgoing", "Incoming", "Published")):
            assert name in page, name


def test_every_endpoint_is_on_its_page() -> None:
    page = (DOCS / "endpoints.md").read_text()
    named = [name for name in endpoints.__all__ if name.endswith(("Client", "Server", "Config"))]
    assert [name for name in named if f"`{name}`" not in page] == []
