"""N7: ten thousand plain connections that stay open, all of them answered by one node within little memory."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stagepost.dmq.conform.attacker import NodeTarget
from stagepost.dmq.conform.forged_messages import message
from stagepost.dmq.conform.honest_program import submit
from tests.hostile.storms import MEGABYTE, Figure, a_node, ended_in_order
from tests.hostile.trial import Cast
from tests.hostile.victim import Victim

ROOT = Path(__file__).parents[2]
RESIDENT_BYTES_MAX = 500 * MEGABYTE
PER_ADDRESS = 16
"""The node's own limit: it is not lifted for the crowd, which comes from many addresses instead."""
DESCRIPTORS_SPARE = 200
PROCESSES = 2
LEFT_WITHIN_S = 120.0


class TooFewDescriptors(Exception):
    """This machine does not let a process open so many files."""


def allow_descriptors(wanted: int) -> None:
    """For this process and those that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise TooFewDescriptors(f"a process may open {hard} files here, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass
class Driver:
    """One process that holds a part of the crowd."""

    process: subprocess.Popen[str]
    count: int

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def answer(self, command: str) -> int:
        assert self.process.stdout is not None
        word, _, count = self.process.stdout.readline().partition(" ")
        assert word == command, f"a crowd answered {word!r} to {command}"
        return int(count)


@contextmanager
def drivers(target: NodeTarget, programs: int, peers: int) -> Iterator[list[Driver]]:
    """Programs on the Unix socket in two processes, peers over TCP in a third."""
    shares = [programs // PROCESSES + (number < programs % PROCESSES) for number in range(PROCESSES)]
    places = [(str(target.socket), share) for share in shares] + [(str(target.port), peers)]
    found: list[Driver] = []
    try:
        for place, count in places:
            command = [sys.executable, "-m", "tests.hostile.crowd_driver", place, str(target.magic)]
            process = subprocess.Popen(
                [*command, str(count), str(PER_ADDRESS), "0"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            found.append(Driver(process, count))
        yield found
        for driver in found:
            driver.process.communicate(timeout=120)
    finally:
        for driver in found:
            driver.process.kill()
            driver.process.communicate()


def everybody(crowd: Sequence[Driver], command: str) -> list[str]:
    """What went wrong when all were told so, if anything."""
    for driver in crowd:
        driver.tell(command)
    answered = [driver.answer(command) for driver in crowd]
    wanted = [driver.count for driver in crowd]
    return [] if answered == wanted else [f"{command}: {answered} of {wanted} connections were answered"]


async def _alone_again(victim: Victim) -> None:
    """Ten thousand farewells take their time; a stop in the midst of them is not what is tried here."""
    async with asyncio.timeout(LEFT_WITHIN_S):
        while (await victim.status())["peers"]:
            await asyncio.sleep(0.2)


def gathering(programs: int, peers: int) -> tuple[Figure, list[str]]:
    """All come, ask, ask again while all are there, and are told of one message."""
    allow_descriptors(programs + peers + DESCRIPTORS_SPARE)
    cast = Cast()
    began = time.monotonic()
    with a_node(cast, flags=()) as victim:
        base = victim.resident_bytes
        with drivers(victim.target, programs, peers) as crowd:
            faults = everybody(crowd, "open")
            faults += everybody(crowd, "ask")
            faults += everybody(crowd, "wait")
            answer = asyncio.run(submit(victim.target, message(cast.pool)))
            if answer != [1]:
                faults.append(f"an honest message was answered with {answer!r}")
            faults += everybody(crowd, "told")
            resident = victim.resident_bytes
            status = asyncio.run(victim.status())
        asyncio.run(_alone_again(victim))
        faults += ended_in_order(victim)
    if len(status["peers"]) != peers:
        faults.append(f"the node knows of {len(status['peers'])} connected peers, {peers} were there")
    if resident > RESIDENT_BYTES_MAX:
        faults.append(f"{resident} bytes resident, at most {RESIDENT_BYTES_MAX} are allowed")
    figure: Figure = {
        "promise": "N7",
        "target": "open connections",
        "connections": programs + peers,
        "programs": programs,
        "peers": peers,
        "addresses": -(-peers // PER_ADDRESS),
        "base_mb": round(base / MEGABYTE, 1),
        "resident_mb": round(resident / MEGABYTE, 1),
        "kb_per_connection": round((resident - base) / (programs + peers) / 1_000, 1),
        "seconds": round(time.monotonic() - began, 1),
        "failures": len(faults),
    }
    return figure, faults
