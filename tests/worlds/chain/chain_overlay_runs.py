"""Whole runs of the embedded chain on links, from one seed: loss, crashes, subsets, splits and merges, and what must hold
when everybody is back."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import msgspec

from rigs.chain_messages import some_primes
from stagepost.chain.agreement.effects import BlamedValidator, DisputedBlock, Halt, RecoveredVotes
from stagepost.chain.configuration import Configuration
from stagepost.chain.master_state import PlanKind
from stagepost.chain.node.follower import ChainFollower
from stagepost.chain.rotation import Plan
from stagepost.ground.loop.virtual_time import Patience, run_in_virtual_time
from tests.worlds.chain.chain_overlay_world import ChainHouse, ChainOverlayWorld
from tests.worlds.chain.chain_replay import replay

MESSAGES = 60
SHARDS_MAX = 4
SETTLED_WITHIN_S = 200.0


def run_once(seed: int) -> None:
    """`AssertionError` with the seed in it, if anything does not hold."""
    try:
        run_in_virtual_time(_run(seed), Patience(real_s_max=300.0))
    except AssertionError as failed:
        raise AssertionError(f"seed {seed}: {failed}") from failed


async def _run(seed: int) -> None:
    random = Random(seed)

    def configure(configuration: Configuration) -> Configuration:
        return msgspec.structs.replace(configuration, shard_validators=random.choice([0, 4]))

    world = ChainOverlayWorld(
        random.choice([4, 5, 7]),
        seed,
        full_nodes=2,
        loss=random.choice([0.0, 0.02, 0.08]),
        keeps_all=random.random() < 0.5,
        configure=configure,
    )
    world.start()
    down: list[ChainHouse] = []
    for number in range(MESSAGES):
        world.offer(some_primes(number, salt=number))
        await asyncio.sleep(random.uniform(0.0, 1.0))
        chance = random.random()
        if chance < 0.15 and not down:
            down.append(random.choice(world.houses))
            down[0].crash()
        elif chance < 0.4 and down:
            down.pop().start()
        elif chance < 0.5:
            _plan(world, random)
    for house in down:
        house.start()
    await world.until(lambda: _is_settled(world), "one chain with everything in it", SETTLED_WITHIN_S)
    _check(world)
    await world.close()


def _plan(world: ChainOverlayWorld, random: Random) -> None:
    ledger = next(house.follower for house in world.houses if house.follower is not None).ledger
    shard = random.choice([session.shard for session in ledger.sessions()])
    at_ms = ledger.master.time_ms + 1_000
    if len(ledger.sessions()) < SHARDS_MAX:
        plan = Plan(PlanKind.SPLIT, shard, at_ms)
    else:
        plan = Plan(PlanKind.MERGE, shard.parent, at_ms)
    for house in world.validators:
        if house.validator is not None:
            house.validator.plans.append(plan)


def _is_settled(world: ChainOverlayWorld) -> bool:
    followers: list[ChainFollower] = [house.running for house in world.houses]
    return (
        not any(house.pending for house in world.validators)
        and not any(one.ledger.following.known for one in followers)
        and len({one.ledger.master.hash for one in followers}) == 1
    )


def _check(world: ChainOverlayWorld) -> None:
    world.check()
    for house in world.houses:
        bad = [
            one
            for _, one in house.notices
            if isinstance(one, BlamedValidator | DisputedBlock | Halt | RecoveredVotes)
        ]
        assert bad == [], f"among honest validators: {bad[0]}"
        if world.keeps_all:
            assert house.store is not None
            played = replay(world.genesis, [kept.payload for kept in house.store.blocks()])
            assert played.master.hash == house.running.ledger.master.hash, "a replay leads elsewhere"
            included = Counter(message_id for block in played.order for message_id in block.message_ids)
            assert included == Counter(dict.fromkeys(world.offered, 1)), "a message is lost or doubled"
