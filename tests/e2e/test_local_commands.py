"""The commands of a node's user against a real node process: send, listen, queue, peers, check, and a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stagepost.dmq.keys.pool_keys import make_keys
from stagepost.ground.crypto.hashing import format_pool_id, pool_id

START_TIMEOUT_S = 60.0
COMMAND = [sys.executable, "-m", "stagepost.cli.main"]
MAGIC = 2_147_483_690
# Commands run in another folder than the tests, so a relative search path would lead them astray.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}


def stagepost(folder: Path, *arguments: str, status: int = 0) -> list[Any]:
    """The JSON objects that a command prints."""
    done = subprocess.run(
        [*COMMAND, *arguments, "--json"],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@contextmanager
def running_node(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "node.log").open("ab") as log:
        process = subprocess.Popen(
            [
                *(
                    *COMMAND,
                    "node",
                    "dmq",
                    "--host-addr",
                    "127.0.0.1",
                    "--port",
                    "0",
                    "--pools",
                    "pools.json",
                ),
                *("--dmq-network-magic", str(MAGIC), "--json"),
            ],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=log,
            stderr=log,
        )
    try:
        wait_for_note(folder, process)
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(START_TIMEOUT_S)


def wait_for_note(folder: Path, process: subprocess.Popen[bytes]) -> None:
    note = folder / "stagepost-data" / "node.json"
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if note.exists() and json.loads(note.read_text())["pid"] == process.pid:
            return
        time.sleep(0.05)
    pytest.fail(f"the node did not start:\n{(folder / 'node.log').read_text()}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    os.chmod(tmp_path, 0o700)
    issued = make_keys(tmp_path / "keys", start_kes_period=0, issue_number=0)
    pool = format_pool_id(pool_id(issued.cold_verification_key))
    pools = {
        "max_kes_evolutions": 62,
        "slots_per_kes_period": 129_600,
        "pools": [{"pool_id": pool, "stake": 1}],
    }
    (tmp_path / "pools.json").write_text(json.dumps(pools))
    (tmp_path / "dmq.topology.json").write_text('{"localRoots": [], "publicRoots": []}')
    return tmp_path


@pytest.mark.slow
def test_commands_find_the_node_and_a_kill_loses_and_repeats_nothing(folder: Path) -> None:
    with running_node(folder) as node:
        sent = [
            stagepost(folder, "send", f"hello {profile}", "--keys", "keys", "--profile", profile)[0][
                "message_id"
            ]
            for profile in ("dmq-node", "gouroboros", "seed")
        ]
        (refused,) = stagepost(folder, "send", "too long", "--keys", "keys", "--ttl", "31m", status=1)
        assert (refused["outcome"], refused["code"]) == ("rejected", "MSG_EXPIRY_TOO_FAR")

        held = stagepost(folder, "queue", "ls")
        assert [entry["message_id"] for entry in held] == sent
        assert {entry["source"] for entry in held} == {"local"}
        assert stagepost(folder, "peers") == []
        levels = {finding["part"]: finding["level"] for finding in stagepost(folder, "check", status=1)}
        # Nobody hears a node without peers.
        assert levels == {
            "health": "warning",
            "node": "warning",
            "mempool": "ok",
            "keys": "ok",
            "index": "ok",
        }

        listener = subprocess.Popen(
            [*COMMAND, "listen", "--count", "4", "--json"],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert listener.stdout is not None
        heard = [json.loads(listener.stdout.readline())["message_id"] for _ in range(3)]
        node.kill()
        node.wait(START_TIMEOUT_S)
        assert stagepost(folder, "check", status=3)[0]["level"] == "unknown"

    with running_node(folder):
        (after,) = stagepost(folder, "send", "after the kill", "--keys", "keys")
        rest, _ = listener.communicate(timeout=START_TIMEOUT_S)
        heard += [json.loads(line)["message_id"] for line in rest.splitlines()]
        assert heard == [*sent, after["message_id"]]
        assert listener.returncode == 0

    assert stagepost(folder, "check", status=3)[0]["level"] == "unknown"


@pytest.mark.slow
def test_ctrl_c_ends_a_listener_with_130(folder: Path) -> None:
    with running_node(folder):
        stagepost(folder, "send", "hello", "--keys", "keys")
        listener = subprocess.Popen(
            [*COMMAND, "listen"],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert listener.stdout is not None
        assert "hello" in listener.stdout.readline()
        listener.send_signal(signal.SIGINT)
        _, errors = listener.communicate(timeout=START_TIMEOUT_S)
        assert (listener.returncode, "Traceback" in errors) == (130, False)
