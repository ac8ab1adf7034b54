"""An honest program in a process of its own, beside attackers: what it measures is the node, not their event loop.

It says its pool's id, then `calm N` makes it submit and hear N messages, and `serve` makes it go on until `end`; both are
answered with one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagepost.dmq.conform.attacker import NodeTarget
from stagepost.dmq.conform.forged_messages import Forger
from stagepost.dmq.conform.honest_program import HonestProgram

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class OtherPool:
    """A pool whose keys are in another process."""

    pool_id: bytes


class HonestDriver:
    """The end of the other process that a test holds."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pool = OtherPool(bytes.fromhex(self._hear()["pool_id"]))

    def go_to(self, target: NodeTarget) -> None:
        self._say(f"{target.socket} {target.magic}")

    def calm(self, count: int) -> dict[str, Any]:
        self._say(f"calm {count}")
        return self._hear()

    def serve(self) -> None:
        self._say("serve")

    def end(self) -> dict[str, Any]:
        self._say("end")
        return self._hear()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the honest program ended"
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def honest_driver() -> Iterator[HonestDriver]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.honest_driver"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield HonestDriver(process)
    finally:
        process.kill()
        process.communicate()


# The other process


async def obey() -> None:
    pool = Forger()
    _tell({"pool_id": pool.pool_id.hex()})
    socket, magic = (await _line()).split()
    honest = HonestProgram(NodeTarget(0, Path(socket), int(magic)), pool)
    while line := await _line():
        word, *more = line.split()
        if word == "calm":
            for _ in range(int(more[0])):
                await honest.check()
            _tell(_measured(honest, None))
        else:
            _tell(await _serve_until_told(honest))
    await honest.leave()


async def _serve_until_told(honest: HonestProgram) -> dict[str, Any]:
    told = asyncio.create_task(_line())
    fault: str | None = None
    while not told.done():
        try:
            await honest.check()
        except Exception as error:
            fault = repr(error)
            break
    await told
    return _measured(honest, fault)


def _measured(honest: HonestProgram, fault: str | None) -> dict[str, Any]:
    """And begin to measure anew."""
    ordered = sorted(honest.latencies_s)
    p99_ms = round(ordered[int(len(ordered) * 0.99)] * 1_000, 2) if ordered else None
    honest.latencies_s.clear()
    return {"served": len(ordered), "p99_ms": p99_ms, "fault": fault}


async def _line() -> str:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


def _tell(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)


def main(arguments: Sequence[str]) -> None:
    assert not arguments
    asyncio.run(obey())


if __name__ == "__main__":
    main(sys.argv[1:])
