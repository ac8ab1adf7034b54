"""Servers and recipients as processes of their own, started and ended by id."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from bench.delivery.systems import NotAvailable

READY_WITHIN_S = 20.0
END_WITHIN_S = 10.0
ROOT = Path(__file__).parents[2]
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Processes:
    """Those of one system."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def ids(self) -> list[int]:
        return [process.pid for process in self._running]

    def start(self, command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
        with (folder / "output.log").open("ab") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        self._running.append(process)
        return process

    def start_python(self, module: str, *arguments: str, folder: Path) -> subprocess.Popen[bytes]:
        return self.start([sys.executable, "-m", module, *arguments], folder)

    def stop(self) -> None:
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                process.wait(END_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


async def until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Poll until the process is ready to serve."""
    deadline = time.monotonic() + READY_WITHIN_S
    while not is_ready():
        if process.poll() is not None:
            raise NotAvailable(f"{process.args!r} ended with {process.returncode}")
        if time.monotonic() > deadline:
            raise NotAvailable(f"{process.args!r} was not ready within {READY_WITHIN_S:g} s")
        await asyncio.sleep(0.02)


def accepts(port: int) -> bool:
    with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), timeout=0.2)):
        return True
    return False


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def program(name: str, where: str) -> str:
    """The path of an installed program, beside our interpreter or on the path."""
    found = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    found = found or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise NotAvailable(f"{name} is not installed ({where})")
    return found


def processor_s(process_ids: Sequence[int]) -> float:
    """Processor time that these processes have used so far, in all their threads."""
    total = 0
    for process_id in process_ids:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_S


def peak_megabytes(process_ids: Sequence[int]) -> float:
    """The most memory that these processes have had at once, added up."""
    total = 0
    for process_id in process_ids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1])
    return total / 1_024
