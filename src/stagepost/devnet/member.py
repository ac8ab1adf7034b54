"""Members of a devnet as processes of their own: `stagepost node validator` and `stagepost node full` with
the files that the devnet wrote.

A faulty validator runs this module instead, which no command starts: `stagepost node validator` behind links
that are not honest.

    python -m stagepost.devnet.member --fault lying --loss 0.02 --network … --key … --data …
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from stagepost.devnet.behaviours import Behaviour, FaultyLayer
from stagepost.dmq.key_texts import ColdSigningKey
from stagepost.dmq.keys import key_files
from stagepost.full_node.network import NETWORK_FILE
from stagepost.ground.files.data_folder import make_private
from stagepost.validator.process import run_validator

KEY_FILE = "member.skey"
LOG_FILE = "log"
END_WITHIN_S = 15.0
COMMANDS = "stagepost.cli.main"


class MemberProcess:
    """The member's key and log are in a folder of its name in the folder of the devnet; `data` is the folder
    of its state.
    """

    def __init__(self, seed: bytes, name: str, devnet: Path, data: Path, command: Sequence[str]) -> None:
        self._seed = seed
        self._name = name
        self._devnet = devnet
        self._data = data
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def fault(self) -> str | None:
        process = self._process
        if process is None or process.poll() is None:
            return None
        log = self._devnet / self._name / LOG_FILE
        return f"{self._name} ended with {process.returncode}; its log is {log}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        folder = self._devnet / self._name
        make_private(folder, "data folder", advice="choose another folder with --data")
        key = folder / KEY_FILE
        if not key.exists():
            key_files.save(key, ColdSigningKey(self._seed))
        network = self._devnet / NETWORK_FILE
        command = [
            *(sys.executable, "-m", *self._command),
            *("--network", str(network), "--key", str(key), "--data", str(self._data)),
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
    """Return the environment in which a process runs the same program as this one, wherever that was found."""
    here = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, known]))}


HONEST = "none"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="devnet_member", description=__doc__)
    for name in ("--network", "--key", "--data"):
        parser.add_argument(name, required=True, type=Path)
    parser.add_argument("--fault", default=HONEST, choices=[HONEST, *Behaviour])
    parser.add_argument("--loss", default=0.0, type=float)
    parser.add_argument("--shards", default=1, type=int)
    parser.add_argument("--message-timeout", required=True, type=float, metavar="SECONDS")
    options = parser.parse_args(arguments)
    seed = key_files.load_as(ColdSigningKey, options.key).seed
    behaviour = None if options.fault == HONEST else Behaviour(options.fault)
    return run_validator(
        options.network,
        options.key,
        options.data,
        shards=options.shards,
        message_timeout_s=options.message_timeout,
        log_level="WARNING",
        between=FaultyLayer(seed, Random(seed), options.loss, behaviour),
    )


if __name__ == "__main__":
    sys.exit(main())
