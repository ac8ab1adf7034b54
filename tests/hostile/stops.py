"""O4 and S3 on real nodes: SIGTERM in the midst of work, again and again; nothing accepted is lost, no replay passes.

Each stop must end within ten seconds, whatever programs and peers are doing at that moment.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from stagepost.dmq.conform.attacker import (
    KEEP_ALIVE,
    LOCAL_SUBMISSION,
    NOTIFICATION,
    OTHER_SIDE,
    Attacker,
    NodeClosed,
)
from stagepost.dmq.conform.cbor_bytes import TRUE, array, uint
from stagepost.dmq.conform.forged_messages import ForgedMessage, Forger, message
from tests.hostile.bad_disks import listed
from tests.hostile.storms import Figure
from tests.hostile.victim import Victim, write_stakes
from tests.worlds.dmq.node_processes import ending

STOPPED_WITHIN_S = 10.0
PROGRAMS = 4
WORKS_S = (0.05, 0.4)
STOPS_ON_ONE_FOLDER = 10
REPLAYS_PER_STOP = 120
ALREADY_RECEIVED = [2, [1]]


@dataclass
class Work:
    """What programs sent to a node and were told about it."""

    accepted: dict[bytes, ForgedMessage] = field(default_factory=dict)
    unanswered: int = 0
    refused: list[object] = field(default_factory=list)

    async def submit_on(self, victim: Victim, pool: Forger) -> None:
        """As fast as one program can, until the node goes away."""
        program: Attacker | None = None
        with suppress(NodeClosed, OSError):
            program = await Attacker.local(victim.target)
            await program.shake_hands_locally()
            while True:
                sent = message(pool)
                await program.say(LOCAL_SUBMISSION, array(uint(0), sent.raw))
                try:
                    answer = await program.hear(LOCAL_SUBMISSION | OTHER_SIDE)
                except NodeClosed:
                    self.unanswered += 1
                    raise
                if answer == [1]:
                    self.accepted[sent.identifier] = sent
                else:
                    self.refused.append(answer)
        if program is not None:
            await program.leave()


async def _idle_on(victim: Victim) -> None:
    """A program that waits for news and a peer that says nothing more: they do not hold up an end either."""
    guests: list[Attacker] = []
    with suppress(NodeClosed, OSError):
        guests.append(await Attacker.local(victim.target))
        await guests[0].shake_hands_locally()
        await guests[0].say(NOTIFICATION, array(uint(0), TRUE))
        guests.append(await Attacker.tcp(victim.target))
        await guests[1].shake_hands(1, 2)
        await guests[1].say(KEEP_ALIVE, array(uint(0), uint(1)))
        await guests[1].wait_ended(60.0)
    for guest in guests:
        await guest.leave()


async def _work_and_stop(victim: Victim, pool: Forger, work: Work, works_s: float) -> tuple[float, int]:
    """How long the end took, and the exit status."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(PROGRAMS):
            tasks.create_task(work.submit_on(victim, pool))
        tasks.create_task(_idle_on(victim))
        await asyncio.sleep(works_s)
        began = time.monotonic()
        status = await asyncio.to_thread(victim.terminate)
        return time.monotonic() - began, status


async def _replay(victim: Victim, messages: list[ForgedMessage]) -> int:
    """How many of them were not refused as held already."""
    program = await Attacker.local(victim.target)
    await program.shake_hands_locally()
    passed = 0
    for one in messages:
        await program.say(LOCAL_SUBMISSION, array(uint(0), one.raw))
        passed += await program.hear(LOCAL_SUBMISSION | OTHER_SIDE) != ALREADY_RECEIVED
    await program.leave()
    return passed


def stopping(stops: int, seed: int) -> tuple[Figure, list[str]]:
    chance = Random(seed)
    faults: list[str] = []
    took_s: list[float] = []
    accepted = unanswered = replays = 0
    while len(took_s) < stops:
        with tempfile.TemporaryDirectory() as name:
            pool, work = Forger(), Work()
            victim = Victim(Path(name) / "node", write_stakes(Path(name) / "pools.json", [(pool, 1)]))
            with ending([victim]):
                victim.start()
                for _ in range(min(STOPS_ON_ONE_FOLDER, stops - len(took_s))):
                    stop_s, status = asyncio.run(_work_and_stop(victim, pool, work, chance.uniform(*WORKS_S)))
                    took_s.append(stop_s)
                    if status != 0 or stop_s > STOPPED_WITHIN_S:
                        faults.append(f"a stop ended with status {status} after {stop_s:.1f} s")
                    victim.start()
                    lost = len(work.accepted.keys() - set(asyncio.run(listed(victim))))
                    if lost:
                        faults.append(f"{lost} accepted messages were lost at a stop")
                    again = chance.sample(
                        list(work.accepted.values()), min(REPLAYS_PER_STOP, len(work.accepted))
                    )
                    replays += len(again)
                    if passed := asyncio.run(_replay(victim, again)):
                        faults.append(f"{passed} replays were accepted after a restart")
                victim.terminate()
                faults += [f"the node logged {line}" for line in victim.faults_of_its_own()[:3]]
            faults += [f"a good message was answered with {answer!r}" for answer in work.refused[:3]]
            accepted += len(work.accepted)
            unanswered += work.unanswered
    figure: Figure = {
        "promise": "O4",
        "target": "SIGTERM under load",
        "stops": stops,
        "longest_s": round(max(took_s), 2),
        "accepted": accepted,
        "unanswered": unanswered,
        "replays_after_restart": replays,
        "lost": sum("lost" in fault for fault in faults),
        "seed": seed,
        "failures": len(faults),
    }
    return figure, faults
