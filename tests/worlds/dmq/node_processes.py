"""Real node processes on this machine, for tests: started by the command that operators type, ended by their id."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stagepost.client import AsyncClient
from stagepost.client.client import Connecting
from stagepost.dmq.message import DmqMessage, sign_message
from stagepost.ground.crypto import ed25519, kes
from stagepost.ground.crypto.hashing import pool_id
from stagepost.ground.crypto.operational_certificate import issue

NETWORK_MAGIC = 2_147_483_690
STARTED_WITHIN_S = 120.0
STOPPED_WITHIN_S = 60.0
TTL_S = 900


class Pool:
    """One sender: keys in memory, a certificate, and as many messages as a test wants."""

    def __init__(self) -> None:
        cold_seed = secrets.token_bytes(32)
        self.cold_verification_key = ed25519.public_key(cold_seed)
        self._key = kes.SigningKey.generate(secrets.token_bytes(32))
        self._certificate = issue(
            self._key.verification_key, issue_number=0, start_kes_period=0, cold_seed=cold_seed
        )

    def message(self, body: bytes | None = None) -> DmqMessage:
        return sign_message(
            secrets.token_bytes(120) if body is None else body,
            key=self._key,
            certificate=self._certificate,
            cold_verification_key=self.cold_verification_key,
            kes_period=0,
            expires_at=int(time.time()) + TTL_S,
        )


@dataclass
class NodeProcess:
    """One `stagepost node dmq`. Its folder outlives it, so that it can be killed and started again."""

    folder: Path
    pools_file: Path
    profile: str = "dmq-node"
    peers: Sequence[tuple[int, str]] = ()  # ports on this machine, each with the profile spoken there
    port: int = 0
    peers_host: str = "127.0.0.1"  # by which the topology file names this machine
    advertise: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of ours
    module: Sequence[str] = ("stagepost.cli.main",)  # another one may set a clock first
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def socket(self) -> Path:
        return self.folder / "dmq-node.socket"

    @property
    def facts(self) -> dict[str, object]:
        facts: dict[str, object] = json.loads((self.folder / "node.json").read_text())
        return facts

    def start(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        topology = self.folder / "dmq.topology.json"
        host, number = self.peers_host, len(self.peers)
        points = [{"address": host, "port": port, "profile": profile} for port, profile in self.peers]
        roots = [{"accessPoints": points, "advertise": self.advertise, "valency": number}] if points else []
        topology.write_text(json.dumps({"localRoots": roots, "publicRoots": []}))
        (self.folder / "node.json").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.module, "node", "dmq", *self._arguments(topology)],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )
        self._wait_until_started()

    def _arguments(self, topology: Path) -> list[str]:
        return [
            *("--host-addr", "127.0.0.1"),
            *("--port", str(self.port)),
            *("--local-socket", str(self.socket)),
            *("--topology-file", str(topology)),
            *("--dmq-network-magic", str(NETWORK_MAGIC)),
            *("--pools", str(self.pools_file)),
            *("--data", str(self.folder)),
            *("--profile", self.profile),
        ]

    def _wait_until_started(self) -> None:
        assert self.process is not None
        until = time.monotonic() + STARTED_WITHIN_S
        while not (self.folder / "node.json").exists():
            assert self.process.poll() is None, f"the node ended:\n{self.log}"
            assert time.monotonic() < until, f"the node did not start:\n{self.log}"
            time.sleep(0.02)
        address = str(self.facts["tcp"][0])  # type: ignore[index]
        self.port = int(address.rpartition(":")[2])

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        """As a power cut would, for the process: nothing is finished."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(STOPPED_WITHIN_S)

    def terminate(self) -> int:
        """In order; the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOPPED_WITHIN_S)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOPPED_WITHIN_S)

    def client(self, profile: str | None = None) -> Connecting:
        return AsyncClient.connect(self.socket, NETWORK_MAGIC, profile or self.profile)


def write_pools(path: Path, pools: Sequence[Pool]) -> Path:
    entries = [{"pool_id": pool_id(pool.cold_verification_key).hex(), "stake": 1} for pool in pools]
    content = {"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": entries}
    path.write_text(json.dumps(content))
    return path


@contextmanager
def ending(nodes: Sequence[NodeProcess]) -> Iterator[None]:
    """Whatever happens, no process of ours stays."""
    try:
        yield
    finally:
        for node in nodes:
            node.end()


async def heard(
    node: NodeProcess, wanted: set[bytes], within_s: float, profile: str | None = None
) -> list[bytes]:
    """Ids in the order in which a program at this node is told of them, until all wanted ones came."""
    told: list[bytes] = []
    async with node.client(profile) as client:
        try:
            async with asyncio.timeout(within_s):
                async for message in client.listen():
                    told.append(message.message_id)
                    if set(wanted) <= set(told):
                        return told
        except TimeoutError:
            missing = len(set(wanted) - set(told))
            raise AssertionError(f"{missing} of {len(wanted)} messages did not come:\n{node.log}") from None
    return told


def command(*arguments: str, folder: Path, within_s: float = 60) -> subprocess.CompletedProcess[str]:
    """One command line of `stagepost`, as typed."""
    return subprocess.run(
        [sys.executable, "-m", "stagepost.cli.main", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=within_s,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
