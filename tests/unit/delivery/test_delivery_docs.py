"""The page about reliable delivery is true: its example runs, its tables are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from stagepost.delivery import ReceiverConfig, ReliablePublisherConfig
from stagepost.delivery.errors import ALL_ERRORS

PAGE = (Path(__file__).parents[3] / "docs" / "delivery.md").read_text()


def test_the_example_runs_and_says_what_the_page_says() -> None:
    example = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, timeout=60, check=True
    )

    lines = re.sub(r"\b[0-9a-f]{8} ", "", done.stdout).splitlines()
    assert sorted(lines) == sorted(
        [
            "bob got one from alice",
            "acknowledged by bob",
            "not sent: no peer is connected, so nobody could get the message",
            "bob got three from alice",
            *("Pending", "Sent", "Acked", "Pending", "Failed", "Pending", "Queued", "Sent"),
        ]
    )


@pytest.mark.parametrize("config", [ReliablePublisherConfig, ReceiverConfig])
def test_every_setting_is_named_with_its_default(config: type) -> None:
    table = PAGE.split(f"| `{config.__name__}` | default |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.MULTILINE)

    assert rows == [(field.name, repr(field.default)) for field in fields(config)]


def test_every_error_is_named() -> None:
    table = PAGE.split("## Errors")[1].split("## Settings")[0]

    assert set(re.findall(r"`(Err\w+)`", table)) == {e.__name__ for e in ALL_ERRORS} - {"DeliveryError"}
