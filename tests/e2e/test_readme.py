"""What the README shows is run here, line by line, as a newcomer would."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
        input="",
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
        written = re.search(r"--out (\S+)", command)
        assert (tmp_path / written[1]).stat().st_size if written else outcome.stdout, command


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)

    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def block_after(heading: str, language: str) -> str:
    section = README.split(f"## {heading}\n")[1]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found.group(1)


@contextmanager
def running(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on until it is told to end, as from the keyboard."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)
        if process.stdout is not None:
            process.stdout.close()


def a_pool_that_may_send(folder: Path) -> None:
    run(["keys", "new", "my-pool"], folder)
    shown = json.loads(run(["keys", "show", "my-pool/cold.vkey", "--json"], folder).stdout)
    pools = [{"pool_id": shown["pool_id"], "stake": 1}]
    content = {"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": pools}
    (folder / "pools.json").write_text(json.dumps(content))
    (folder / "dmq.topology.json").write_text(json.dumps({"localRoots": [], "publicRoots": []}))


def test_node_section_and_python_section_work_together(tmp_path: Path) -> None:
    a_pool_that_may_send(tmp_path)
    lines = block_after("Run a node", "").replace("\\\n", " ").splitlines()
    node, send, listen, check = (shlex.split(line.split(" #")[0])[1:] for line in lines)
    command = ["-m", "stagepost.cli.main"]

    # The port is the one thing that a test must not take as it stands.
    with running([*command, *node, "--port", "0"], tmp_path):
        until = time.monotonic() + 30
        while not (tmp_path / "node-data" / "node.json").exists():
            assert time.monotonic() < until, "the node did not start"
            time.sleep(0.05)
        assert run(send, tmp_path).returncode == 0
        with running([*command, *listen], tmp_path) as listening:
            assert listening.stdout is not None
            assert "hello" in listening.stdout.readline()
        assert run(check, tmp_path).returncode == 1, "nobody is connected yet: a warning"
        made = run(["message", "make", "-", "--keys", "my-pool", "--pad", "--out", "m.cbor"], tmp_path)
        assert made.returncode == 0, made.stderr
        prelude = (
            "from pathlib import Path\nfrom stagepost.dmq.message import DmqMessage\n"
            "message = DmqMessage.decode(Path('m.cbor').read_bytes())\n"
        )
        script = tmp_path / "program.py"
        script.write_text(prelude + block_after("Use it from Python", "python"))
        with running(["-u", str(script)], tmp_path) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "Accepted()\n"
            assert len(program.stdout.readline().split()) == 2


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
