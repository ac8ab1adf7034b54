"""What the README shows is run here, line by line, as a newcomer would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def shown_commands() -> list[str]:
    blocks: list[str] = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stagepost.cli.main", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )


def capture_of_an_exchange(folder: Path) -> None:
    """A byte stream as a listening program would capture it: its handshake, and a request."""
    handshake = "00000000" + "0000" + "000d" + "8200a1191001821a8000002af4"
    answer = "00000000" + "8000" + "000c" + "8301191001821a8000002af4"
    request = "00000000" + "000f" + "0003" + "8200f4"
    reply = "00000000" + "800f" + "0005" + "83019ffff4"
    (folder / "capture.bin").write_bytes(bytes.fromhex(handshake + answer + request + reply))


def test_two_commands_come_first_and_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    first_two = shown_commands()[:2]

    assert first_two == ["make demo", "make test"]
    assert all(re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE) for command in first_two)


def test_every_other_command_does_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello\n")
    capture_of_an_exchange(tmp_path)
    commands = [command for command in shown_commands() if command.startswith("stagepost ")]
    assert len(commands) >= 5

    for command in commands:
        outcome = run(shlex.split(command)[1:], tmp_path)
        assert outcome.returncode == 0, f"{command}\n{outcome.stdout}{outcome.stderr}"
        assert outcome.stdout, command


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)

    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("profile", ["dmq-node", "seed"])
def test_demo_shows_the_decoded_exchange(profile: str, tmp_path: Path) -> None:
    outcome = run(["demo"], tmp_path)

    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr == ""
    shown = outcome.stdout.split(f"profile {profile}: a program submits")[1]
    for expected in (
        "SubmitMessage",
        "AcceptMessage",
        "AlreadyReceived",
        "ReplyMessagesBlocking",
        "read back",
    ):
        assert expected in shown
    assert "NOT VALID" not in outcome.stdout
    assert list(tmp_path.iterdir()) == []


def test_help_comes_without_loading_what_only_subcommands_need(tmp_path: Path) -> None:
    code = (
        "import sys; from stagepost.cli.main import run; run(['--help']); "
        "print(sorted(name for name in sys.modules if name in ('nacl', 'msgspec', 'asyncio')), file=sys.stderr)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )

    assert outcome.stderr.strip() == "[]"
