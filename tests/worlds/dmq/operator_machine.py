"""An operator's machine in a folder: the files and command lines of the public guides, and the node that they start.

The files are the bytes that the guide's commands write (`tests/vectors/cardano/guide`), and so is the service line.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stagepost.ground.crypto.hashing import pool_id
from tests.worlds.dmq.cardano_answers import LedgerState, generated_pools, vectors
from tests.worlds.dmq.node_processes import Pool

GUIDE = Path(__file__).parents[2] / "vectors" / "cardano" / "guide"
FILES = {entry["id"]: entry["file"] for entry in vectors("operator-files")["files"]}
MAINNET = vectors("genesis-and-clock")["genesis_files"][0]
WITHIN_S = 120.0
PROMETHEUS_PORT = 12_000
"""Port in the guide's configuration."""
DMQ_MAGIC = 2_912_307_721
CARDANO_MAGIC = 764_824_073


INSTALLED = Path(sys.executable).parent / "stagepost"
"""The installed program; an operator links it to the name that the service line has."""


def service_line(role: str) -> list[str]:
    """Return the words of ExecStart in the guide's service of this role."""
    lines = (GUIDE / f"dmq-{role}.service").read_text().splitlines()
    (line,) = (line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart="))
    return line.split()


def a_free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert isinstance(port, int)
        return port


class OperatorMachine:
    """A folder that stands for an operator's machine: the guide's absolute paths lie under it, its addresses are loopback.

    An untouched one is the root folder of a namespace: files and flags are the guide's, nothing is replaced.
    """

    def __init__(self, folder: Path, role: str, *, is_untouched: bool = False) -> None:
        self.folder = folder
        self.role = role
        self._is_untouched = is_untouched
        self.prometheus = PROMETHEUS_PORT if is_untouched else a_free_port()
        for name in ("opt/dmq", "dmq/ipc", "cardano/ipc", "cardano/config", "service"):
            (folder / name).mkdir(parents=True, mode=0o700, exist_ok=is_untouched)
        self.files = {
            f"{kind}-{role}.json": folder / f"opt/dmq/{kind}-{role}.json" for kind in ("config", "topology")
        }
        config, topology = ((GUIDE / name).read_bytes() for name in self.files)
        if not is_untouched:
            config = config.replace(b'"/cardano', f'"{folder}/cardano'.encode())
            config = config.replace(
                f"127.0.0.1 {PROMETHEUS_PORT}".encode(), f"127.0.0.1 {self.prometheus}".encode()
            )
            root = FILES[f"topology-{role}.json"]["localRoots"][0]["accessPoints"][0]
            topology = topology.replace(root["address"].encode(), b"127.0.0.1")
            topology = topology.replace(str(root["port"]).encode(), str(a_free_port()).encode())
        for path, content in zip(self.files.values(), (config, topology), strict=True):
            path.write_bytes(content)
        (folder / "cardano/config/shelley-genesis.json").write_bytes(MAINNET["file_text"].encode())
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def cardano_socket(self) -> Path:
        return self.folder / "cardano/ipc/node.socket"

    @property
    def dmq_socket(self) -> Path:
        return self.folder / "dmq/ipc/node.socket"

    def start(self) -> None:
        command = service_line(self.role)
        if self._is_untouched:
            program = Path(command[0])
            if not program.exists():
                program.symlink_to(INSTALLED)
        else:
            given = dict(zip(command[1::2], command[2::2], strict=True))
            given |= {"--host-addr": "127.0.0.1", "--port": str(a_free_port())}
            paths = {
                name: f"{self.folder}{value}" if value.startswith("/") else value
                for name, value in given.items()
            }
            command = [sys.executable, "-m", "stagepost.cli.main", "node", "dmq"]
            command += [word for pair in paths.items() for word in pair]
        with self._stdout.open("wb") as out, (self.folder / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder / "service",
                stdout=out,
                stderr=err,
                env={**os.environ},
            )

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log: every line of standard output is an object."""
        return [json.loads(line) for line in self._stdout.read_text().splitlines()]

    @property
    def _stdout(self) -> Path:
        return self.folder / "stdout"

    @property
    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "service/stagepost-data/node.json").read_text())
        return found

    def fetch(self, port: int, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=WITHIN_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    async def ready(self) -> tuple[int, str]:
        return await asyncio.to_thread(self.fetch, self.facts["metrics_port"], "/readyz")

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while True:
                assert self.process is not None
                assert self.process.poll() is None, (self.folder / "stderr").read_text() + (
                    self.folder / "stdout"
                ).read_text()
                try:
                    if what():
                        return
                except (OSError, ValueError):
                    pass
                await asyncio.sleep(0.05)

    def said(self, event: str) -> int:
        return sum(1 for line in self.lines if line["event"] == event)

    def end(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WITHIN_S)


@asynccontextmanager
async def operator_machine(
    folder: Path, role: str, *, is_untouched: bool = False
) -> AsyncIterator[OperatorMachine]:
    made = OperatorMachine(folder, role, is_untouched=is_untouched)
    made.start()
    try:
        await made.until(lambda: bool(made.facts))
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.wait(WITHIN_S)


def mainnet_ledger(*senders: Pool, others: int = 3_000) -> LedgerState:
    """A ledger with mainnet's magic and system start, in an epoch that lasts, with the senders and `others` pools."""
    pools = generated_pools(others)
    pools |= {pool_id(sender.cold_verification_key): (0, 5_000_000, 0) for sender in senders}

    class Mainnet(LedgerState):
        def system_start(self) -> bytes:
            return bytes.fromhex("831907e119010a1b0116253fec1c3000")

    return Mainnet(magic=CARDANO_MAGIC, epoch_s=10**10).with_pools(pools)
