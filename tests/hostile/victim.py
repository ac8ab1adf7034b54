"""A real node under attack: its process, and what it says of itself in its log and its metrics."""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from stagepost.dmq.conform.attacker import NodeTarget
from tests.worlds.dmq.node_processes import NETWORK_MAGIC, NodeProcess

_VIOLATION = re.compile(
    r'^stagepost_dmq_protocol_violations_total\{protocol="([^"]+)",rule="([^"]+)"\} ([0-9.]+)', re.MULTILINE
)
_REJECTION = re.compile(r'^stagepost_dmq_rejections_total\{reason="([^"]+)"\} ([0-9.]+)', re.MULTILINE)


class HasPoolId(Protocol):
    @property
    def pool_id(self) -> bytes: ...


def write_stakes(path: Path, stakes: Sequence[tuple[HasPoolId, int]]) -> Path:
    pools = [{"pool_id": forger.pool_id.hex(), "stake": stake} for forger, stake in stakes]
    path.write_text(json.dumps({"max_kes_evolutions": 62, "slots_per_kes_period": 129_600, "pools": pools}))
    return path


@dataclass(frozen=True)
class Counted:
    """The node's own counts: rules broken by (mini-protocol, code), messages refused by code."""

    violations: Counter[tuple[str, str]]
    rejections: Counter[str]


@dataclass
class Victim(NodeProcess):
    """A node with more flags than most tests need. Nothing of its code runs here."""

    flags: Sequence[str] = ("--unsafe-loopback-unlimited",)
    _log_offset: int = field(default=0, repr=False)
    _lines: list[dict[str, Any]] = field(default_factory=list, repr=False)

    def _arguments(self, topology: Path) -> list[str]:
        return [*super()._arguments(topology), *self.flags]

    @property
    def target(self) -> NodeTarget:
        return NodeTarget(self.port, self.socket, NETWORK_MAGIC)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert match is not None
        return int(match[1]) * 1024

    @property
    def processor_s(self) -> float:
        """Time that the node's threads have spent working, whatever else the machine did."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_lines(self) -> list[dict[str, Any]]:
        """Every line so far; the file is read on from where it was."""
        with (self.folder / "log").open("rb") as file:
            file.seek(self._log_offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._log_offset += len(whole)
        for line in whole.splitlines():
            try:
                self._lines.append(json.loads(line))
            except ValueError:
                self._lines.append({"level": "error", "event": line.decode(errors="replace")})
        return self._lines

    def faults_of_its_own(self) -> list[dict[str, Any]]:
        """Lines that no peer must be able to cause: errors, and anything with an exception."""
        return [line for line in self.log_lines() if line.get("level") == "error" or "exception" in line]

    async def counted(self) -> Counted:
        page = await asyncio.to_thread(self._fetch, "metrics")
        violations = Counter({(where, rule): int(float(n)) for where, rule, n in _VIOLATION.findall(page)})
        rejections = Counter({reason: int(float(n)) for reason, n in _REJECTION.findall(page)})
        return Counted(violations, rejections)

    async def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(await asyncio.to_thread(self._fetch, "status"))
        return status

    def _fetch(self, page: str) -> str:
        port = self.facts["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=30) as answer:
            return str(answer.read().decode())
