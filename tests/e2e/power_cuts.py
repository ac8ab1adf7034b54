"""Power loss under load: a file system of its own on a loop device is cut off without writing its log out.

What had not been synced by then is gone, as after a power cut, while what a process was told in time is kept on
another disk. Needs root, mkfs.ext4 and loop devices; `PowerCutImpossible` says what is missing.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tests.e2e.test_kill_intake as intake_process
from rigs.line_reports import open_report
from stagepost.dmq.message import FIVE_ONLY, DmqMessage
from stagepost.dmq.node.stored_messages import SqliteStore
from stagepost.dmq.outcome import Accepted
from stagepost.errors import ErrorCode
from stagepost.ground.storage.layout import StoreRefused
from tests.e2e.test_kill_intake import BATCH, LANES, ROOT, Node, load_lines, look
from tests.worlds.dmq.pool_signers import Signer

IMAGE_BYTES = 64 * 1024 * 1024
LIFE_S_MAX = 0.4
CUTS_ON_ONE_DISK = 20
COMMAND_WITHIN_S = 60.0
MOUNT_AGAIN_S = 0.5

# _IOR('X', 125, u32) of Linux; the flag leaves the journal as it is on the device.
SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)


class PowerCutImpossible(Exception):
    """This machine has not what it takes; the text says what."""


class DiskCommandFailed(Exception):
    """What the system said to one of our commands."""


class CutDisk:
    """An ext4 file system in a file of `folder`, mounted beside it."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self.place = folder / "disk"
        if os.geteuid() != 0:
            raise PowerCutImpossible("mounting a loop device needs root")
        for program in ("mkfs.ext4", "mount", "umount"):
            if shutil.which(program) is None:
                raise PowerCutImpossible(f"there is no {program}")
        self.place.mkdir()
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        _run("mkfs.ext4", "-q", "-F", str(self._image))

    def mount(self) -> None:
        """Mount the image anew. Somebody's copy of our mounts (a namespace of another test) may keep the file system that was
        shut down, and Linux then mounts that one again: wait until it is gone.
        """
        give_up_at = time.monotonic() + COMMAND_WITHIN_S
        while True:
            _run("mount", "-o", "loop", str(self._image), str(self.place))
            probe = self.place / "probe"
            try:
                probe.touch()
                probe.unlink()
                return
            except OSError as error:
                self.unmount()
                if error.errno != errno.EIO or time.monotonic() > give_up_at:
                    raise
            time.sleep(MOUNT_AGAIN_S)

    def unmount(self) -> None:
        _run("umount", str(self.place))

    def let_go(self) -> None:
        """Whatever still uses it: a test that failed may have left a file open."""
        _run("umount", "--lazy", str(self.place))

    def cut(self) -> None:
        """From this instant on nothing reaches the disk, and whoever tries gets an error."""
        handle = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, NO_LOG_FLUSH)
        except OSError as error:
            raise PowerCutImpossible(f"the file system cannot be shut down: {error.strerror}") from error
        finally:
            os.close(handle)


@contextmanager
def a_disk(folder: Path) -> Iterator[CutDisk]:
    """`PowerCutImpossible` before anything has begun, or never."""
    disk = CutDisk(folder)
    try:
        disk.mount()
    except DiskCommandFailed as error:
        raise PowerCutImpossible(str(error)) from error
    try:
        disk.cut()
        disk.unmount()
        disk.mount()
        yield disk
    finally:
        disk.let_go()


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_WITHIN_S, env={**os.environ, "LC_ALL": "C"}
    )
    if done.returncode:
        raise DiskCommandFailed(f"{command[0]} failed: {done.stderr.strip()}")


# The process that loses its disk


class _NeverSynced(sqlite3.Connection):
    """The control: a build that forgets to wait for the disk, and is fine in all other respects."""

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return super().execute(statement.replace("synchronous = FULL", "synchronous = OFF"), *values)


def _connect_without_sync(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=_NeverSynced)


async def load(folder: Path, accepted: Path, seed: int, is_control: bool) -> None:
    """Several lanes submit; every acceptance is reported, after the fact, to a file on another disk."""
    if is_control:
        vars(intake_process)["SqliteStore"] = partial(SqliteStore, connect=_connect_without_sync)
    node = Node(folder)
    report = open_report(accepted)
    expires_at = int(time.time()) + 900
    print("ready", flush=True)

    async def lane(number: int) -> None:
        tag = seed * 1_000_000 + number * 100_000
        while True:
            messages = [Signer(number).sign(tag + step, expires_at=expires_at) for step in range(BATCH)]
            tag += BATCH
            outcomes = await node.intake.submit_many(messages, "load")
            for message, outcome in zip(messages, outcomes, strict=True):
                if isinstance(outcome, Accepted):
                    os.write(report, message.raw.hex().encode() + b"\n")
                else:
                    # After the cut there is no disk, and nothing else may be the reason.
                    assert outcome.code is ErrorCode.STORAGE_UNAVAILABLE, outcome

    async with asyncio.TaskGroup() as lanes:
        for number in range(LANES):
            lanes.create_task(lane(number))


def live_and_lose_power(disk: CutDisk, accepted: Path, seed: int, life_s: float, is_control: bool) -> None:
    code = (
        "import asyncio; from pathlib import Path; from tests.e2e.power_cuts import load; "
        f"asyncio.run(load(Path({str(disk.place)!r}), Path({str(accepted)!r}), {seed}, {is_control}))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(("src", "."))}
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        # Real time, since a real process is to lose its disk somewhere in the middle of its work.
        time.sleep(life_s)
        assert process.poll() is None, "the process ended before its disk did"
        # Who loses power says nothing more. Linux lets an fsync that is under way at this instant succeed now and
        # then, so what is told from here on would have been told by nobody.
        told_bytes = accepted.stat().st_size if accepted.exists() else 0
        disk.cut()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    if accepted.exists():
        os.truncate(accepted, told_bytes)
    disk.unmount()
    disk.mount()


def count_lost(folder: Path, accepted: dict[bytes, DmqMessage]) -> int:
    """How many accepted messages are gone; whatever else the control build has done to its file.

    All of them are, if there is so little left of the file that the store is refused.
    """

    async def look_only() -> set[bytes]:
        try:
            node = Node(folder)
        except StoreRefused:
            return set()
        held = {entry.message.message_id for entry in node.mempool.after(0, 1_000_000, FIVE_ONLY)}
        await node.close()
        return set(held)

    return len(accepted.keys() - asyncio.run(look_only()))


def cut_loop(folder: Path, seed: int, cuts: int) -> int:
    """Live, lose power, look: `cuts` times on one disk. How many were accepted in all; every one must be there."""
    chance = random.Random(seed)
    report = folder / "accepted"
    with a_disk(folder) as disk:
        for cut in range(cuts):
            live_and_lose_power(disk, report, cut, chance.uniform(0.01, LIFE_S_MAX), is_control=False)
            outcomes = asyncio.run(look(disk.place, load_lines(report), chance))
            assert not any(isinstance(outcome, Accepted) for outcome in outcomes), "a replay was accepted"
    return len(load_lines(report))


def lost_by_the_control(folder: Path, seed: int, cuts: int) -> int:
    """The same with a build that never waits for the disk, on a fresh disk each time. How many messages it lost."""
    chance = random.Random(seed)
    lost = 0
    for cut in range(cuts):
        turn = folder / f"control-{cut}"
        turn.mkdir()
        report = turn / "accepted"
        with a_disk(turn) as disk:
            live_and_lose_power(disk, report, cut, chance.uniform(0.1, LIFE_S_MAX), is_control=True)
            lost += count_lost(disk.place, load_lines(report))
    return lost
