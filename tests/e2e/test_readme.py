"""What the README shows is what a newcomer gets: the two commands, and the output of the demo, line by line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rigs.optional import require
from stagepost.errors import ConfigError
from stagepost.pipeline.spark import find_java_home
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT, ROOT, WITHIN_S

pytestmark = pytest.mark.xdist_group("commands")

README = (ROOT / "README.md").read_text(encoding="utf-8")
MESSAGES = 40

_LANE = re.compile(r"^  (full node|program|peers|DMQ node|dmq-\d+|pool|validator-\d+) .*$")
_TIMES = re.compile(r"\d+(?:\.\d+)? ?(?:ms|s|m)\b")
_HEX = re.compile(r"\b[0-9a-f]{8,64}(?:…[0-9a-f]{6})?\b")
_NUMBER = re.compile(r"\d[\d ]*(?=\D|$)")


def shown_commands() -> list[str]:
    blocks: list[str] = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def sample_output() -> list[str]:
    found: list[str] = re.findall(r"```\n(seed \d.*?)```", README, re.DOTALL)
    (sample,) = found
    return sample.splitlines()


def shape(lines: list[str]) -> list[str]:
    """Without what differs from run to run: ids, numbers and times, and how one message fared on its way."""
    shaped = []
    for line in lines:
        if lane := _LANE.match(line):
            shaped.append(f"  {lane[1]} …")
        elif line.startswith("  ○ "):
            shaped.append(line)
        elif line.startswith("  "):
            shaped.append("  …")
        else:
            plain = _TIMES.sub("T", _HEX.sub("ID", line))
            shaped.append(re.sub(r"\s+", " ", _NUMBER.sub("# ", plain)).strip())
    return shaped


def test_two_commands_come_first_and_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert shown_commands() == ["make demo", "make test"]
    assert all(re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE) for command in shown_commands())


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)

    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_shapes_tell_outputs_apart() -> None:
    sample = sample_output()
    assert shape(sample) == shape([line.replace("7 validators", "9 validators") for line in sample])
    for wrong in (sample[1:], [line.replace("finalized", "lost") for line in sample], sample[:-1]):
        assert shape(sample) != shape(wrong)


def test_the_demo_prints_what_is_shown(tmp_path: Path) -> None:
    try:
        find_java_home(ENVIRONMENT, tmp_path)
    except ConfigError as error:
        require("java", error.text)

    done = subprocess.run(
        [*COMMAND, "demo", "--messages", str(MESSAGES)],
        cwd=tmp_path,
        env={**ENVIRONMENT, "NO_COLOR": "1"},
        input="",
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert shape(done.stdout.splitlines()) == shape(sample_output())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stagepost-demo"]
