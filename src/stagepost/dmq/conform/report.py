"""The result of a whole run as values, and as one JSON object; the memory of the node as far as this machine shows it."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagepost.dmq.conform.attacker import NodeTarget, PassedBytes
from stagepost.dmq.conform.rules import MEMORY
from stagepost.dmq.conform.runner import CaseResult, CaseState

MEGABYTE = 1_000_000
MEMORY_GROWTH_MAX = 256 * 1024 * 1024
"""Bytes by which a whole run may let the node's memory grow."""
SAMPLE_EVERY_S = 0.25
CONNECTED_WITHIN_S = 5.0
"""Seconds for which a local socket is given to take a connection."""
ALL_HOLD, DEVIATIONS, COULD_NOT_LOOK = 0, 1, 2
"""Exit codes of the command."""
_RESIDENT = re.compile(r"^VmRSS:\s+(\d+) kB", re.MULTILINE)


@dataclass
class MemoryWatch:
    """Memory of the process behind a local socket. Both figures are None where nobody can see them."""

    began_bytes: int | None = None
    most_bytes: int | None = None

    @property
    def grown_bytes(self) -> int | None:
        if self.began_bytes is None or self.most_bytes is None:
            return None
        return self.most_bytes - self.began_bytes

    async def watch(self, target: NodeTarget) -> None:
        """Sample until cancelled."""
        pid = None if target.socket is None else await asyncio.to_thread(_pid_behind, target.socket)
        while pid is not None and (resident := _resident_bytes(pid)) is not None:
            self.began_bytes = resident if self.began_bytes is None else self.began_bytes
            self.most_bytes = max(resident, self.most_bytes or 0)
            await asyncio.sleep(SAMPLE_EVERY_S)


def _pid_behind(path: Path) -> int | None:
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(CONNECTED_WITHIN_S)
        try:
            end.connect(str(path))
            credentials = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        except (OSError, AttributeError):
            return None
    pid: int = struct.unpack("3i", credentials)[0]
    return pid or None


def _resident_bytes(pid: int) -> int | None:
    try:
        found = _RESIDENT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024


@dataclass
class ConformReport:
    """Result of a run. `left_out` counts cases that nobody asked for, by the reason."""

    place: str
    magic: int
    profile: str
    notes: Sequence[str]
    results: Sequence[CaseResult] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    memory: MemoryWatch = field(default_factory=MemoryWatch)
    seconds: float = 0.0

    def of(self, state: CaseState) -> list[CaseResult]:
        return [result for result in self.results if result.state is state]

    @property
    def memory_fault(self) -> str:
        grown = self.memory.grown_bytes
        if grown is None or grown <= MEMORY_GROWTH_MAX:
            return ""
        return f"the node's memory grew by {grown / MEGABYTE:,.0f} MB"

    @property
    def exit_code(self) -> int:
        if self.of(CaseState.DEVIATES):
            return DEVIATIONS
        return COULD_NOT_LOOK if self.of(CaseState.NOT_LOOKED) or not self.results else ALL_HOLD

    def as_json(self) -> dict[str, Any]:
        return {
            "node": self.place,
            "network_magic": self.magic,
            "profile": self.profile,
            "found": list(self.notes),
            "counts": {state.value: len(self.of(state)) for state in CaseState},
            "left_out": dict(self.left_out),
            "memory": {
                "rule": MEMORY.name,
                "grown_bytes": self.memory.grown_bytes,
                "differs": self.memory_fault,
            },
            "seconds": round(self.seconds, 1),
            "exit_code": self.exit_code,
            "cases": [_case_json(result) for result in self.results],
        }


def _case_json(result: CaseResult) -> dict[str, Any]:
    return {
        "name": result.case.name,
        "state": result.state.value,
        "rule": result.rule.name,
        "text": result.rule.text,
        "source": result.rule.source,
        "faults": sentences(result),
        "seconds": round(result.seconds, 3),
        "closed_after_s": None if result.closed_after_s is None else round(result.closed_after_s, 3),
        "said_bytes": result.transcript.said_bytes,
        "heard_bytes": result.transcript.heard_bytes,
        "bytes": [_piece_json(piece) for piece in result.transcript.pieces],
    }


def sentences(result: CaseResult) -> list[str]:
    """Return everything that is to be said about `result`."""
    return [text for text in (*result.faults, result.unserved, result.not_looked) if text]


def _piece_json(piece: PassedBytes) -> dict[str, Any]:
    return {
        "by": "kit" if piece.is_ours else "node",
        "after_s": round(piece.after_s, 3),
        "length": piece.length,
        "hex": piece.data.hex(),
    }
