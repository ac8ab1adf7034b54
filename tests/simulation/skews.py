"""S5 in virtual time: two nodes, one with a clock that is off, and programs that keep the true time to the last second."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from rigs.dmq_nodes import NodeFactory, config_of
from stagepost.dmq.profiles import DMQ_NODE
from stagepost.dmq.topology import AccessPoint
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.simulation.history import Made, SubmissionAnswer
from stagepost.simulation.link import LinkSettings
from stagepost.simulation.pools import SimulatedPools, a_body
from stagepost.simulation.programs import submit
from stagepost.simulation.world import NODE_PORT, World

SKEWS_S = (0.0, 1.0, -1.0, 5.0, -5.0, 30.0, -30.0, 3_600.0, -3_600.0)
SKEW_ALLOWED_S = 5.0
LIVES_S = (1, 2, 60, 1_798, 1_799)
"""To the edges of what an honest sender may give a message: it is sent at a whole second, and lives less than 1,800 s."""
ROUNDS = 3
ROUND_S = 20
SETTLED_S = 5.0
"""Disks are slow at times; by then both nodes have what one of them has."""
NAMED = "clocks may differ by 5 s"


@dataclass
class Skewed:
    """What became of honest messages at a node whose clock is off by `skew_s`."""

    skew_s: float
    sent: int = 0
    refused: int = 0
    violations: list[str] = field(default_factory=list)


def run_skew(skew_s: float, seed: int) -> Skewed:
    return run_in_virtual_time(_run(skew_s, seed))


async def _run(skew_s: float, seed: int) -> Skewed:
    found = Skewed(skew_s)
    random = Random(seed)
    pools = SimulatedPools(4)
    configs = {
        "right": config_of("right", []),
        "wrong": config_of("wrong", [AccessPoint("10.0.0.1", NODE_PORT, DMQ_NODE)]),
    }
    world = World(
        seed,
        ["right", "wrong"],
        NodeFactory(configs, pools),
        link=LinkSettings(latency_s=0.01),
        clock_skew_s={"wrong": skew_s},
    )
    async with world:
        await world.start_all()
        await asyncio.sleep(ROUND_S - world.now_s % ROUND_S)  # connected, and at a whole second
        for _ in range(ROUNDS):
            began_s = world.now_s
            for node in ("right", "wrong"):
                for life_s in LIVES_S:
                    answer = await _send(world, pools, random, node, life_s)
                    found.sent += 1
                    _judge(found, node, life_s, answer)
            await asyncio.sleep(SETTLED_S)
            await _compare(world, found)
            await asyncio.sleep(began_s + ROUND_S - world.now_s)
    found.violations += world.history.bugs
    # Beyond the limit a peer's messages look like a broken rule; then the blame names the limit, too.
    is_allowed = abs(skew_s) > SKEW_ALLOWED_S
    found.violations += [text for text in world.history.accusations if not (is_allowed and NAMED in text)]
    return found


async def _send(
    world: World, pools: SimulatedPools, random: Random, node: str, life_s: int
) -> SubmissionAnswer:
    expires_at = int(world.unix_s) + life_s
    message = random.choice(pools.members).message(a_body(random), expires_at)
    world.history.made[message.raw] = Made(expires_at)
    return await submit(world.members[node].seat, message)


def _judge(found: Skewed, node: str, life_s: int, answer: SubmissionAnswer) -> None:
    if answer.accepted:
        return
    found.refused += 1
    if node == "right" or abs(found.skew_s) <= SKEW_ALLOWED_S:
        found.violations.append(f"{node} refused an honest message of {life_s} s: {answer.reason}")
    elif found.skew_s < 0 and NAMED not in answer.reason:
        found.violations.append(f"a refusal does not name how far clocks may differ: {answer.reason}")
    elif found.skew_s > 0 and answer.reason != "expired":
        found.violations.append(f"a message that looks expired was refused with {answer.reason}")


async def _compare(world: World, found: Skewed) -> None:
    """Within the limit both nodes hold the same; beyond it a message may be refused, and none is invented."""
    right, wrong = await world.list_all("spot")
    if abs(found.skew_s) <= SKEW_ALLOWED_S:
        alive = {raw for raw, made in world.history.made.items() if made.expires_at > world.unix_s + 1}
        for listing in (right, wrong):
            if missing := len(alive - set(listing.raws)):
                found.violations.append(f"{listing.node} lacks {missing} messages at {world.now_s:.1f} s")
