"""Many hostile connections at once. Each storm starts a node of its own and gives a figure and what went wrong.

Times are measured for the figure; only the node's own deadlines, with room for a busy machine, can make a storm fail.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from stagepost.dmq.conform.attacker import (
    HANDSHAKE,
    KEEP_ALIVE,
    SUBMISSION,
    Attacker,
    node_data,
    proposal,
    segment,
)
from stagepost.dmq.conform.cbor_bytes import array, octets, uint
from tests.hostile.honest_driver import honest_driver
from tests.hostile.trial import Cast
from tests.hostile.victim import Victim, write_stakes
from tests.worlds.dmq.node_processes import ending

Figure = dict[str, object]
Storm = Callable[[Victim, Cast], Awaitable[tuple[Figure, list[str]]]]

MANY_CONNECTIONS = 20_000
MEGABYTE = 1_000_000
ROOM_FACTOR = 1.2
SEGMENT_BUFFER_BYTES = 65_543
SUBMISSION_INGRESS_BYTES = 101_640
MESSAGE_BYTES_MAX = 98_000
PER_PEER_BYTES = (
    SEGMENT_BUFFER_BYTES + 2 * (SUBMISSION_INGRESS_BYTES + MESSAGE_BYTES_MAX) + 2 * 1_408 + 2 * 5_760
)
"""What the node's limits allow one peer to make it hold: a segment, and on each of two numbers a queue and a message."""

CALM_CHECKS = 20
"""Messages of the honest program before the storm, to compare those during it with."""
HANDSHAKE_LIMIT_S = 2.0
DEADLINE_ROOM_S = 1.0
BUSY_MACHINE_S = 10.0
SEED_LANE = 17


@contextmanager
def a_node(
    cast: Cast,
    settings: str = "",
    flags: Sequence[str] = ("--unsafe-loopback-unlimited",),
    *,
    many: bool = True,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Victim]:
    """A fresh node that lets everybody in, unless `settings` say otherwise; with `many` False its own limits hold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        limits = (
            f"connections_soft = {MANY_CONNECTIONS}\nconnections_hard = {MANY_CONNECTIONS}\n" if many else ""
        )
        (folder / "stagepost.toml").write_text(f"[node]\n{limits}{settings}")
        with_file = (*flags, "--config", str(folder / "stagepost.toml"))
        stakes = write_stakes(folder / "pools.json", cast.everybody)
        victim = Victim(folder / "node", stakes, flags=with_file, environment=environment or {})
        with ending([victim]):
            victim.start()
            yield victim


def ended_in_order(victim: Victim) -> list[str]:
    """Ends the node; what is wrong with how it went and with what it has logged."""
    faults = [] if victim.terminate() == 0 else ["the node did not end in order"]
    return faults + [f"the node logged {line}" for line in victim.faults_of_its_own()[:3]]


def play(storm: Storm, settings: str = "", calm_checks: int = CALM_CHECKS) -> tuple[Figure, list[str]]:
    """One storm on a fresh node, with an honest program beside it in a process of its own."""
    with honest_driver() as honest:
        cast = Cast(more_pools=[honest.pool])
        with a_node(cast, settings) as victim:
            honest.go_to(victim.target)
            calm = honest.calm(calm_checks)
            honest.serve()
            figure, faults = asyncio.run(_storm(storm, victim, cast))
            during = honest.end()
            if during["fault"] is not None:
                faults.append(f"an honest program was not served: {during['fault']}")
            faults += ended_in_order(victim)
    figure["honest_served"] = during["served"]
    figure["honest_p99_ms"] = during["p99_ms"]
    figure["honest_p99_ms_before"] = calm["p99_ms"]
    return {**figure, "failures": len(faults)}, faults


async def _storm(storm: Storm, victim: Victim, cast: Cast) -> tuple[Figure, list[str]]:
    return await storm(victim, cast)


# N3


async def _hold_much(attacker: Attacker, number: int) -> None:
    """Three ways of making a node keep bytes: a segment, a message, and a slow one."""
    if number % 3 == 0:
        await attacker.raw(segment(SUBMISSION, bytes(65_000), announced=65_535))
    elif number % 3 == 1:
        half = b"\x82\x04\x9f" + octets(bytes(32)) * 1_000  # a request for messages that never ends
        await attacker.say(SUBMISSION, half)
        await attacker.raw(segment(SEED_LANE, bytes(60_000), announced=65_535))
    else:
        await attacker.raw(segment(SUBMISSION, b"\x84", announced=65_535))
        await attacker.drip(bytes(60), every_s=0.05)


def holding_much(connections: int) -> Storm:
    """Oversized, slow and never-finished frames on many connections: memory stays within the limits' sum."""

    async def storm(victim: Victim, cast: Cast) -> tuple[Figure, list[str]]:
        base = victim.resident_bytes
        peak = base
        attackers = await _connected(victim, connections)
        holding = asyncio.gather(*(_hold_much(one, number) for number, one in enumerate(attackers)))
        while not holding.done():
            peak = max(peak, victim.resident_bytes)
            await asyncio.sleep(0.05)
        await holding
        peak = max(peak, victim.resident_bytes)
        await leave(attackers)
        bound = int((base + connections * PER_PEER_BYTES) * ROOM_FACTOR)
        faults = [] if peak <= bound else [f"{peak} bytes resident, the bound is {bound}"]
        figure: Figure = {
            "promise": "N3",
            "target": "memory",
            "inputs": connections,
            "base_mb": round(base / MEGABYTE, 1),
            "peak_mb": round(peak / MEGABYTE, 1),
            "bound_mb": round(bound / MEGABYTE, 1),
        }
        return figure, faults

    return storm


async def _connected(victim: Victim, count: int) -> list[Attacker]:
    async def one() -> Attacker:
        attacker = await Attacker.tcp(victim.target)
        await attacker.shake_hands(1, 2)
        await attacker.say(KEEP_ALIVE, array(uint(0), uint(1)))
        return attacker

    attackers: list[Attacker] = []
    while len(attackers) < count:  # in bunches, so that no queue of connections runs over
        bunch = min(50, count - len(attackers))
        attackers += await asyncio.gather(*(one() for _ in range(bunch)))
    return attackers


async def leave(attackers: Sequence[Attacker]) -> None:
    await asyncio.gather(*(attacker.leave() for attacker in attackers))


# N4


def dripping(connections: int) -> Storm:
    """A byte a second from many: each is gone when its time is over."""

    async def storm(victim: Victim, cast: Cast) -> tuple[Figure, list[str]]:
        data = node_data(victim.target.magic, initiator_only=True)
        said = proposal((1, data), (2, data))
        drip = b"".join(segment(HANDSHAKE, said[at : at + 1]) for at in range(len(said)))

        async def one(number: int) -> float | None:
            await asyncio.sleep(number / connections)  # a byte a second from each, and not from all at once
            attacker = await Attacker.tcp(victim.target)
            dripping = asyncio.create_task(attacker.drip(drip))
            lived_s = await attacker.wait_ended(HANDSHAKE_LIMIT_S + DEADLINE_ROOM_S + BUSY_MACHINE_S)
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            await attacker.leave()
            return lived_s

        lived: list[float | None] = list(await asyncio.gather(*map(one, range(connections))))
        faults = [f"{lived.count(None)} connections outlived their deadline"] if None in lived else []
        longest = max((lived_s for lived_s in lived if lived_s is not None), default=0.0)
        figure: Figure = {
            "promise": "N4",
            "target": "slow connections",
            "inputs": connections,
            "deadline_s": HANDSHAKE_LIMIT_S,
            "longest_s": round(longest, 2),
            "late": sum(
                lived_s is None or lived_s > HANDSHAKE_LIMIT_S + DEADLINE_ROOM_S for lived_s in lived
            ),
        }
        return figure, faults

    return storm
