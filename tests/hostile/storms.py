"""Many hostile connections at once. Each storm starts a node of its own and gives a figure and what went wrong.

Times are measured for the figure; only the node's own deadlines, with room for a busy machine, can make a storm fail.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.hostile.attacker import (
    HANDSHAKE,
    KEEP_ALIVE,
    SUBMISSION,
    Attacker,
    node_data,
    proposal,
    segment,
)
from tests.hostile.cbor_bytes import array, octets, uint
from tests.hostile.honest_program import HonestProgram
from tests.hostile.trial import Cast
from tests.hostile.victim import Victim, write_stakes
from tests.node_processes import ending

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

HANDSHAKE_LIMIT_S = 10.0
DEADLINE_ROOM_S = 1.0
BUSY_MACHINE_S = 10.0
SEED_LANE = 17


def play(storm: Storm, settings: str = "") -> tuple[Figure, list[str]]:
    """One storm on a fresh node that lets everybody in."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "stagepost.toml").write_text(
            "[node]\n"
            f"connections_soft = {MANY_CONNECTIONS}\nconnections_hard = {MANY_CONNECTIONS}\n{settings}"
        )
        cast = Cast()
        flags = ("--unsafe-loopback-unlimited", "--config", str(folder / "stagepost.toml"))
        victim = Victim(folder / "node", write_stakes(folder / "pools.json", cast.stakes), flags=flags)
        with ending([victim]):
            victim.start()
            figure, faults = asyncio.run(_play(storm, victim, cast))
            if victim.terminate() != 0:
                faults.append("the node did not end in order")
            faults += [f"the node logged {line}" for line in victim.faults_of_its_own()[:3]]
    return {**figure, "failures": len(faults)}, faults


async def _play(storm: Storm, victim: Victim, cast: Cast) -> tuple[Figure, list[str]]:
    honest = HonestProgram(victim.target, cast.pool)
    for _ in range(20):
        await honest.check()
    calm = list(honest.latencies_s)
    honest.latencies_s.clear()
    ended = asyncio.Event()

    async def serve_all_along() -> int:
        count = 0
        while not ended.is_set():
            await honest.check()
            count += 1
        return count

    serving = asyncio.create_task(serve_all_along())
    try:
        figure, faults = await storm(victim, cast)
    finally:
        ended.set()
    try:
        figure["honest_served"] = await serving
    except Exception as fault:
        faults.append(f"an honest program was not served: {fault!r}")
    await honest.leave()
    figure["honest_p99_ms"] = _p99_ms(honest.latencies_s)
    figure["honest_p99_ms_before"] = _p99_ms(calm)
    return figure, faults


def _p99_ms(latencies_s: Sequence[float]) -> float | None:
    ordered = sorted(latencies_s)
    return round(ordered[int(len(ordered) * 0.99)] * 1_000, 2) if ordered else None


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

        async def one() -> float | None:
            attacker = await Attacker.tcp(victim.target)
            dripping = asyncio.create_task(attacker.drip(drip))
            lived_s = await attacker.wait_ended(HANDSHAKE_LIMIT_S + DEADLINE_ROOM_S + BUSY_MACHINE_S)
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)
            await attacker.leave()
            return lived_s

        lived: list[float | None] = list(await asyncio.gather(*(one() for _ in range(connections))))
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
