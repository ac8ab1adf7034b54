"""Faults in a devnet, all from its seed: links that lose messages, validators that break the rules, and
members that are killed without a farewell and come back from their disks.

    plan = with_faults(plan)
    async with devnet(plan, data) as network, faults_in(network) as killed: …
    told_of(network, data)                 # complaints of the full node, by name
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec

from stagepost.chain.agreement.votes import faulty_max
from stagepost.devnet.behaviours import Behaviour
from stagepost.devnet.devnet import Devnet, DevnetPlan
from stagepost.full_node.running import COMPLAINTS_FILE
from stagepost.ground.wire.tl import key_id

LOSS = 0.02
UP_S = (0.7, 2.0)
DOWN_S = (0.2, 1.5)


def with_faults(plan: DevnetPlan) -> DevnetPlan:
    """Return the plan with as many faulty validators as the network can spare: fewer than a third."""
    random = Random(plan.seed_of("faults"))
    names = random.sample(plan.names[:-1], faulty_max(plan.validators))
    behaviours = random.sample(list(Behaviour), len(Behaviour))
    chosen = {name: behaviours[number % len(behaviours)] for number, name in enumerate(names)}
    return msgspec.structs.replace(plan, loss=LOSS, behaviours=chosen)


@asynccontextmanager
async def faults_in(network: Devnet) -> AsyncIterator[Counter[str]]:
    """Kill and restart members while the context lasts; at its end all members run. Gives the number of kills
    by name, as they happen.
    """
    killed: Counter[str] = Counter()
    over = asyncio.Event()
    task = asyncio.create_task(_kill_some(network, killed, over))
    try:
        yield killed
    finally:
        over.set()
        await task


async def _kill_some(network: Devnet, killed: Counter[str], over: asyncio.Event) -> None:
    """Kill one member after the other, the full node among them, all of them in turn, in an order from the
    seed.

    While one is down the others may have to wait for it: with the faulty validators, more than a third may be
    missing.
    """
    random = Random(network.plan.seed)
    members = network.members
    waiting: list[str] = []
    while not await _passed(over, random.uniform(*UP_S)):
        waiting = waiting or random.sample(list(members), len(members))
        name = waiting.pop()
        member = members[name]
        killed[name] += 1
        await member.kill()
        await _passed(over, random.uniform(*DOWN_S))
        await member.start()


async def _passed(over: asyncio.Event, seconds: float) -> bool:
    """Wait for `seconds`, or until `over` is set. Return whether it is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(over.wait(), seconds)
    return over.is_set()


class _Accusation(msgspec.Struct):
    kind: str
    source_id: str


def told_of(network: Devnet, data: Path) -> dict[str, Counter[str]]:
    """Return the kinds of complaints about each validator, by its name."""
    names = {key_id(member.key).hex(): member.name for member in network.network.members}
    found: dict[str, Counter[str]] = {}
    path = data / COMPLAINTS_FILE
    for line in path.read_bytes().splitlines() if path.exists() else []:
        accusation = msgspec.json.decode(line, type=_Accusation)
        found.setdefault(names[accusation.source_id], Counter())[accusation.kind] += 1
    return found
