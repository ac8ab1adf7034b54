"""D4 on real nodes: disks that are full, that fail at any call, whose fsync fails. Nothing accepted is lost.

What a program is told: STORAGE_UNAVAILABLE while it lasts, and yes again as soon as it is over.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import subprocess
import tempfile
import time
import urllib.error
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stagepost.dmq.conform.attacker import NOTIFICATION, OTHER_SIDE, Attacker
from stagepost.dmq.conform.cbor_bytes import FALSE, array, uint
from stagepost.dmq.conform.forged_messages import Forger, message
from stagepost.dmq.conform.honest_program import submit
from tests.hostile.disk_shim import FOR_EVER, Calls, DiskControl, NotToBeHad
from tests.hostile.storms import Figure
from tests.hostile.victim import Victim, write_stakes
from tests.worlds.dmq.node_processes import ending

ACCEPTS_AGAIN_WITHIN_S = 5.0
TRIED_BEYOND = 3
"""A sweep over all calls ends when so many orders in a row met no call any more."""
CALLS_MAX = 400
OFFERED_MAX = 5_000
TMPFS_BYTES = 3_000_000
BALLAST_BYTES = 1_000_000
FILE_BYTES_MAX = 1_000_000
BIG_BODY_BYTES = 1_900


@dataclass
class Watched:
    """A node, and what an onlooker knows of it: what it has accepted, and what it has refused for want of a disk."""

    victim: Victim
    pool: Forger
    accepted: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    healed_s: list[float] = field(default_factory=list)

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            self.faults.append(text)

    async def offer(self, body_bytes: int = 120) -> bool:
        """One message; whether it was taken. Any answer but yes and STORAGE_UNAVAILABLE is a fault."""
        sent = message(self.pool, body=os.urandom(body_bytes))
        answer = await submit(self.victim.target, sent)
        if answer == [1]:
            self.accepted.add(sent.identifier)
            return True
        self.refused.add(sent.identifier)
        self.require(_is_for_want_of_a_disk(answer), f"a message was answered with {answer!r}")
        return False

    async def offer_until_taken(self) -> None:
        """The disk is well again; the node must notice within its time."""
        began = time.monotonic()
        while not await self.offer():
            if time.monotonic() - began > ACCEPTS_AGAIN_WITHIN_S:
                self.faults.append(f"nothing is accepted {ACCEPTS_AGAIN_WITHIN_S:g} s after the disk is well")
                return
        self.healed_s.append(time.monotonic() - began)

    async def look(self) -> None:
        """Everything accepted is shown, and nothing that was refused."""
        shown = set(await listed(self.victim))
        self.require(self.accepted <= shown, f"{len(self.accepted - shown)} accepted messages are gone")
        self.require(not self.refused & shown, f"{len(self.refused & shown)} refused messages are held")

    def restart_and_look(self) -> None:
        """After kill -9: what was accepted is there, and the store is whole."""
        self.victim.kill()
        self.victim.start()
        asyncio.run(self.look())
        damage = [line for line in self.victim.log_lines() if "damaged" in str(line.get("event"))]
        self.require(not damage, f"the store was damaged: {damage[:1]}")

    def figure(self, target: str, **more: object) -> Figure:
        return {
            "promise": "D4",
            "target": target,
            "accepted": len(self.accepted),
            "refused": len(self.refused),
            "accepts_again_after_s": round(max(self.healed_s, default=0.0), 3),
            **more,
            "failures": len(self.faults),
        }


def _is_for_want_of_a_disk(answer: Any) -> bool:
    match answer:
        case [2, [_, str(text)]]:
            return text.startswith("STORAGE_UNAVAILABLE: ")
        case _:
            return False


async def listed(victim: Victim) -> list[bytes]:
    """Ids of everything that the node shows to a new program."""
    program = await Attacker.local(victim.target)
    await program.shake_hands_locally()
    found: list[bytes] = []
    has_more = True
    while has_more:
        await program.say(NOTIFICATION, array(uint(0), FALSE))
        _, messages, has_more = await program.hear(NOTIFICATION | OTHER_SIDE)
        found += [one[0] for one in messages]
    await program.leave()
    return found


@contextmanager
def watched(folder: Path, environment: Mapping[str, str], data: Path | None = None) -> Iterator[Watched]:
    pool = Forger()
    stakes = write_stakes(folder / "pools.json", [(pool, 1)])
    victim = Victim(data or folder / "node", stakes, environment=environment)
    with ending([victim]):
        victim.start()
        yield Watched(victim, pool)
        assert victim.terminate() == 0, "the node did not end in order"


# Calls that fail


def failing_calls(
    environment: Mapping[str, str] | None = None, calls_max: int = CALLS_MAX
) -> tuple[Figure, list[str]]:
    """Each call of a write fails once, then each call of opening anew after a failure; also fsync alone, and short writes."""
    with tempfile.TemporaryDirectory() as name:
        control = DiskControl(Path(name) / "control")
        with watched(Path(name), {**control.environment, **(environment or {})}) as node:
            tried = asyncio.run(_fail_calls(node, control, calls_max))
            node.restart_and_look()
    return node.figure("failing calls", **tried), node.faults


async def _fail_calls(node: Watched, control: DiskControl, calls_max: int) -> dict[str, int]:
    await _require_sync_before_yes(node, control)
    await _fail_fsync(node, control)
    tried: dict[str, int] = {}
    for what, error, short in (
        ("calls_of_a_write", errno.EIO, False),
        ("calls_without_space", errno.ENOSPC, False),
        ("short_writes", errno.ENOSPC, True),
    ):
        tried[what] = await _sweep(node, control, calls_max, error=error, short=short)
    tried["calls_of_opening_anew"] = await _sweep(
        node, control, calls_max, kinds=Calls.ALL, broken_before=True
    )
    await node.look()
    # For good, and then not any more.
    control.fail(count=FOR_EVER)
    for _ in range(5):
        node.require(not await node.offer(), "a message was accepted on a disk that fails always")
    node.require(not is_ready(node.victim), "the node says that it is ready while its disk fails")
    control.heal()
    await node.offer_until_taken()
    node.require(is_ready(node.victim), "the node says that it is not ready after its disk is well")
    await node.look()
    return tried


async def _require_sync_before_yes(node: Watched, control: DiskControl) -> None:
    for _ in range(5):
        before = control.syncs
        node.require(await node.offer(), "a good disk was refused")
        node.require(control.syncs > before, "a message was accepted without fsync")


async def _fail_fsync(node: Watched, control: DiskControl) -> None:
    """Whoever trusts a file after a failed fsync may lose what the kernel has dropped: it must be opened anew."""
    before = control.opens
    control.fail(kinds=Calls.SYNCS)
    node.require(not await node.offer(), "a message was accepted although fsync failed")
    control.heal()
    await node.offer_until_taken()
    node.require(control.opens > before, "the file was not opened anew after a failed fsync")


async def _sweep(
    node: Watched,
    control: DiskControl,
    calls_max: int,
    *,
    kinds: Calls = Calls.CHANGES,
    error: int = errno.EIO,
    short: bool = False,
    broken_before: bool = False,
) -> int:
    """Fail the first call, then the second, and so on until there is none; how many there were."""
    missed = 0
    for number in range(1, calls_max + 1):
        if broken_before:
            control.fail()
            node.require(not await node.offer(), "a message was accepted although a write failed")
        control.fail(number, count=2 if short else 1, kinds=kinds, error=error, short=short)
        await node.offer()
        missed = 0 if control.failed else missed + 1
        control.heal()
        await node.offer_until_taken()
        if missed == TRIED_BEYOND or node.faults:
            return number - missed
    return calls_max


def is_ready(victim: Victim) -> bool:
    try:
        victim._fetch("readyz")
    except urllib.error.HTTPError as error:
        error.close()
        return False
    return True


# Disks that are full


def full_filesystem() -> tuple[Figure, list[str]]:
    """A file system of a few megabytes is filled by messages; then a file that has nothing to do with them is deleted."""
    with tempfile.TemporaryDirectory() as name, small_filesystem(Path(name) / "disk") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(os.urandom(BALLAST_BYTES))
        with watched(Path(name), {}, disk / "node") as node:
            asyncio.run(_fill(node))
            ballast.unlink()
            asyncio.run(_recover(node))
            node.restart_and_look()
        return node.figure("full file system", bytes=TMPFS_BYTES), node.faults


def full_files() -> tuple[Figure, list[str]]:
    """The node may not make its files any larger: the last write before the refusal is a short one."""
    with tempfile.TemporaryDirectory() as name, watched(Path(name), {}) as node:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(node.victim.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, hard))
        asyncio.run(_fill(node))
        resource.prlimit(node.victim.pid, resource.RLIMIT_FSIZE, (hard, hard))
        asyncio.run(_recover(node))
        node.restart_and_look()
    return node.figure("limit on file size", bytes=FILE_BYTES_MAX), node.faults


async def _fill(node: Watched) -> None:
    for _ in range(OFFERED_MAX):
        if not await node.offer(BIG_BODY_BYTES):
            break
    else:
        node.faults.append(f"{OFFERED_MAX} messages were accepted on a disk that has no room for them")
    for _ in range(10):
        await node.offer(BIG_BODY_BYTES)
    await node.look()


async def _recover(node: Watched) -> None:
    await node.offer_until_taken()
    for _ in range(10):
        node.require(await node.offer(), "a message was refused after there was space again")
    await node.look()


@contextmanager
def small_filesystem(place: Path) -> Iterator[Path]:
    place.mkdir()
    made = _run("mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES},mode=0700", "tmpfs", str(place))
    if made.returncode:
        raise NotToBeHad(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        assert _run("umount", str(place)).returncode == 0, f"{place} is still in use"


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return subprocess.CompletedProcess(command, 127, "", f"there is no {command[0]}")
