"""S9: every command that reads a secret refuses a file that others can reach, whatever its mode and whoever owns it.

The group of a KES key may share it, with a warning; no group may share a cold key.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from stagepost.cli.keys import keys
from stagepost.cli.message import message
from stagepost.cli.send.command import send
from stagepost.dmq.keys.pool_keys import COLD_SIGNING_KEY, KES_SIGNING_KEY
from stagepost.errors import ErrorCode, KeyFileError
from tests.hostile.storms import Figure

OWNER_MODES = (0o600, 0o400)
EVERY_MODE = tuple(owner | shared for owner in OWNER_MODES for shared in range(0o100))
SOMEBODY_ELSE = 12_345


def permissions(modes: Sequence[int] = EVERY_MODE) -> tuple[Figure, list[str]]:
    """Each secret file × each mode of group and others × each command that reads it; then each with another owner."""
    faults: list[str] = []
    tried = refused = 0
    with tempfile.TemporaryDirectory() as name, _core_limit_kept():
        folder = Path(name) / "pool"
        note = Path(name) / "note"
        note.write_bytes(bytes(200))
        _run(keys, "new", str(folder))
        for file, commands in _readers(folder, note).items():
            forbidden = 0o077 if file.name == COLD_SIGNING_KEY else 0o007
            for mode in modes:
                for command in commands:
                    file.chmod(mode)
                    tried += 1
                    is_refused = _is_refused(*command)
                    refused += is_refused
                    if is_refused is not bool(mode & forbidden):
                        faults.append(
                            f"{file.name} with mode {mode:04o}, {command[1:]}: refused is {is_refused}"
                        )
            file.chmod(0o600)
            if os.geteuid() == 0:
                os.chown(file, SOMEBODY_ELSE, -1)
                for command in commands:
                    tried += 1
                    is_refused = _is_refused(*command)
                    refused += is_refused
                    if not is_refused:
                        faults.append(f"{file.name} of another user, {command[1:]}: not refused")
                os.chown(file, 0, -1)
    figure: Figure = {
        "promise": "S9",
        "target": "permission matrix",
        "combinations": tried,
        "refused": refused,
        "other_owner": "tried" if os.geteuid() == 0 else "not tried: only root can give a file away",
        "failures": len(faults),
    }
    return figure, faults


def _readers(folder: Path, note: Path) -> dict[Path, list[tuple[object, ...]]]:
    """Which commands read which secret. None of them changes a file."""
    kes, cold = folder / KES_SIGNING_KEY, folder / COLD_SIGNING_KEY
    show = [(keys, "show", str(folder))]
    nowhere, evolved = str(folder / "no.socket"), str(folder.parent / "evolved")
    return {
        kes: [
            *show,
            (keys, "show", str(kes)),
            (keys, "evolve", str(kes), "--to", "0", "--out", evolved),
            (message, "make", str(note), "--keys", str(folder)),
            (send, str(note), "--keys", str(folder), "--socket", nowhere, "--network-magic", "1"),
        ],
        cold: [*show, (keys, "show", str(cold))],
    }


def _run(command: object, *arguments: str) -> BaseException | None:
    return CliRunner().invoke(command, list(arguments)).exception  # type: ignore[arg-type]


def _is_refused(command: object, *arguments: object) -> bool:
    error = _run(command, *map(str, arguments))
    return isinstance(error, KeyFileError) and error.code is ErrorCode.KEY_PERMISSIONS


@contextmanager
def _core_limit_kept() -> Iterator[None]:
    """Commands that read secrets turn core dumps off; they run in this process here."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
