"""A validator of a devnet as a process of its own: `stagepost node validator` with the files that the devnet wrote."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from stagepost.dmq.text_envelope import ColdSigningKey
from stagepost.node.remp_network import NETWORK_FILE
from stagepost.runtime import key_files
from stagepost.runtime.data_folder import make_private

KEY_FILE = "member.skey"
LOG_FILE = "log"
END_WITHIN_S = 15.0


class ProcessValidator:
    def __init__(self, seed: bytes, name: str, data: Path, shards: int, message_timeout_s: float) -> None:
        self._seed = seed
        self._name = name
        self._data = data
        self._shards = shards
        self._message_timeout_s = message_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def fault(self) -> str | None:
        process = self._process
        if process is None or process.poll() is None:
            return None
        return (
            f"{self._name} ended with {process.returncode}; its log is {self._data / self._name / LOG_FILE}"
        )

    async def start(self) -> None:
        folder = self._data / self._name
        make_private(folder, "data folder", advice="choose another folder with --data")
        key = folder / KEY_FILE
        if not key.exists():
            key_files.save(key, ColdSigningKey(self._seed))
        command = [
            *(sys.executable, "-m", "stagepost.cli.main", "node", "validator"),
            *("--network", str(self._data / NETWORK_FILE), "--key", str(key), "--data", str(folder)),
            *("--shards", str(self._shards), "--message-timeout", f"{self._message_timeout_s:g}s"),
        ]
        with (folder / LOG_FILE).open("ab") as log:
            # In a group of its own, so that Ctrl-C is ours to pass on.
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=_environment(), start_new_session=True
            )

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)


def _environment() -> dict[str, str]:
    """The processes run the same program as this one, wherever it was found."""
    here = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, known]))}
