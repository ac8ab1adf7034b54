"""The tutorial's commands and programs, run as they stand: both machines are this one."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rigs.optional import require
from stagepost.errors import ConfigError
from stagepost.pipeline.spark import find_java_home
from tests.worlds.devnet.devnet_runs import COMMAND, ENVIRONMENT, ROOT

pytestmark = pytest.mark.xdist_group("commands")

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
FIRST_MACHINE = "10.0.0.1"
WITHIN_S = 300


def section(number: int) -> str:
    parts = re.split(r"^## (?=\d\. )", PAGE, flags=re.MULTILINE)
    (found,) = [part for part in parts if part.startswith(f"{number}. ")]
    return found


def blocks(number: int, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section(number), re.DOTALL | re.MULTILINE)
    return [content for name, content in found if name == language]


def commands(number: int) -> list[list[str]]:
    lines = [line for block in blocks(number, "bash") for line in block.splitlines() if line]
    assert all(line.startswith("stagepost ") for line in lines)
    return [shlex.split(line)[1:] for line in lines]


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**ENVIRONMENT, "NO_COLOR": "1"},
        input="",
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def succeed(arguments: list[str], folder: Path) -> str:
    done = run(arguments, folder)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def running(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Until the block ends; then it is told to, as from the keyboard."""
    process = subprocess.Popen(
        arguments, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def until(path: Path) -> None:
    end = time.monotonic() + WITHIN_S
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.05)


def test_pages_that_are_linked_are_there() -> None:
    for text, name in ((PAGE, "tutorial"), (OPERATIONS, "operations")):
        targets = re.findall(r"\]\(([^)#]+)\)", text)
        assert targets, name
        assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []


def test_two_nodes_on_two_machines_and_programs_at_both() -> None:
    # The system allows no long names for sockets.
    with tempfile.TemporaryDirectory(prefix="stagepost-") as folder:
        _two_machines(Path(folder))


def _two_machines(folder: Path) -> None:
    new, show, node, check, peers, listen, send = commands(1)
    machines = [folder / "a", folder / "b"]
    pools, ids = [], []
    for machine in machines:
        machine.mkdir(mode=0o700)
        succeed(new, machine)
        assert "pool1" in succeed(show, machine)
        shown = json.loads(succeed([*show, "--json"], machine))
        pools.append(shown["pool_id"])
        ids.append(shown["pool_id_hex"])
    pools_block, topology_block = blocks(1, "json")
    written = pools_block.replace("pool1…first", pools[0]).replace("pool1…second", pools[1])
    assert json.loads(written)["pools"][0]["pool_id"] == pools[0]
    topology = json.loads(topology_block)
    for machine in machines:
        (machine / "pools.json").write_text(written)
    (machines[0] / "dmq.topology.json").write_text(json.dumps({**topology, "localRoots": []}))
    node = [word.replace(FIRST_MACHINE, "127.0.0.1") for word in node]
    # The port is the one thing that a test must not take as it stands.
    node[node.index("--port") + 1] = "0"
    with running([*COMMAND, *node], machines[0]):
        until(machines[0] / "node-data" / "node.json")
        facts = json.loads((machines[0] / "node-data" / "node.json").read_text())
        point = topology["localRoots"][0]["accessPoints"][0]
        point |= {"address": "127.0.0.1", "port": int(facts["tcp"][0].rpartition(":")[2])}
        (machines[1] / "dmq.topology.json").write_text(json.dumps(topology))
        with running([*COMMAND, *node], machines[1]):
            until(machines[1] / "node-data" / "node.json")
            _wait_for_peer(peers, machines[1])
            assert run(check, machines[1]).returncode == 0
            with running([*COMMAND, *listen], machines[1]) as listening:
                succeed(send, machines[0])
                shown, _ = listening.communicate(timeout=WITHIN_S)
            assert "hello from the first machine" in shown
            assert listening.returncode == 0
            _programs(machines, ids[1])


def _wait_for_peer(peers: list[str], machine: Path) -> None:
    end = time.monotonic() + WITHIN_S
    while '"hot"' not in run([*peers, "--json"], machine).stdout:
        assert time.monotonic() < end, "the nodes did not find each other"
        time.sleep(0.2)


def _programs(machines: list[Path], acknowledging_pool: str) -> None:
    (listen,) = commands(2)
    (program,) = blocks(2, "python")
    assert "POOL_ID_HEX" in program
    (machines[0] / "publish.py").write_text(program.replace("POOL_ID_HEX", acknowledging_pool))
    with running([*COMMAND, *listen], machines[1]) as listening:
        done = subprocess.run(
            [sys.executable, "publish.py"],
            cwd=machines[0],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"[0-9a-f]{64} was confirmed\n", done.stdout)
        shown, _ = listening.communicate(timeout=WITHIN_S)
    assert "an order" in shown
    assert listening.returncode == 0


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder in which the third part was done, and what its commands printed."""
    folder = tmp_path_factory.mktemp("tutorial")
    return folder, [succeed(one, folder) for one in commands(3)]


def test_one_message_is_traced_and_checked_by_anybody(net: tuple[Path, list[str]]) -> None:
    folder, shown = net
    devnet, heard, topics, _, _, verified = shown
    assert "20 messages" in devnet
    assert "stagepost.remp.statuses" in topics
    lines = heard.splitlines()
    assert len(lines) == 3
    message_id = lines[0].split()[1].partition("…")[0]
    assert len(message_id) == 8
    # Messages are few enough here that eight digits name one.
    (traces,) = blocks(3, "")
    for line in traces.splitlines():
        words = [message_id if word == "ID" else word for word in shlex.split(line)[1:]]
        text = succeed(words, folder)
        assert "--svg" in words or "Finalized" in text.splitlines()[0]
    assert (folder / "one.svg").read_text().startswith("<svg")
    assert verified


def test_tables_are_made_of_the_same_folder(net: tuple[Path, list[str]], tmp_path: Path) -> None:
    try:
        find_java_home(ENVIRONMENT, tmp_path)
    except ConfigError as error:
        require("java", error.text)
    folder, _ = net
    making, exporting = commands(4)
    assert "0 quarantined" in succeed(making, folder)
    succeed(exporting, folder)
    rows = (folder / "messages.csv").read_text().splitlines()
    assert len(rows) == 1 + 20
    assert sum("finalized" in row for row in rows[1:]) >= 19


def test_one_message_can_be_looked_at_byte_by_byte(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hello\n")
    (tmp_path / "capture.bin").write_bytes(capture_of_an_exchange())
    succeed(commands(1)[0], tmp_path)

    for command in commands(5):
        shown = succeed(command, tmp_path)
        assert shown or (tmp_path / command[command.index("--out") + 1]).stat().st_size


def capture_of_an_exchange() -> bytes:
    """A byte stream as a listening program would capture it: its handshake, and a request."""
    handshake = "00000000" + "0000" + "000d" + "8200a1191001821a8000002af4"
    answer = "00000000" + "8000" + "000c" + "8301191001821a8000002af4"
    request = "00000000" + "000f" + "0003" + "8200f4"
    reply = "00000000" + "800f" + "0005" + "83019ffff4"
    return bytes.fromhex(handshake + answer + request + reply)
