"""Runs over many sessions: a switch in every round, faults around it, calm behind it; and what must hold then."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.queue.state import QueueOptions
from tests.worlds.remp.queue_world import message
from tests.worlds.remp.session_attackers import SESSION_ATTACKERS
from tests.worlds.remp.session_chain import WHOLE
from tests.worlds.remp.session_checks import CALM_S, SessionRun, Truth, check_always, check_closed, unsettled
from tests.worlds.remp.session_seats import Seat
from tests.worlds.remp.session_world import SessionWorld

LARGE_EVERY = 8
"""So often a run has sets of seven, among fourteen nodes; the others have sets of four among ten."""

FAULTS_S = 5.0
MESSAGES_PER_ROUND = 12
DEPTH_MAX = 2

Change = tuple[list[Shard], list[tuple[Shard, list[int]]]]


def run_sessions(seed: int, rounds: int, *, kinds: Sequence[type[Seat]] | None = None) -> SessionRun:
    """Raises AssertionError with the seed in it if anything does not hold. `kinds`: the attackers, else by lot."""
    random = Random(seed)
    is_large = seed % LARGE_EVERY == LARGE_EVERY - 1
    nodes, set_size = (14, 7) if is_large else (10, 4)
    if kinds is None:
        most = (set_size - 1) // 3
        kinds = random.sample(SESSION_ATTACKERS, most) if random.random() < 0.8 else ()
    faulty = dict(zip(random.sample(range(nodes), len(kinds)), kinds, strict=True))
    truth = Truth(all_nodes=frozenset(range(nodes)))
    timeout_s = random.choice([240.0, 240.0, 12.0])
    world = SessionWorld(
        nodes, seed, faulty, verdict=truth.verdict, queue_options=QueueOptions(message_timeout_s=timeout_s)
    )
    run = SessionRun(world, truth, random, set_size=set_size)
    try:
        world.begin(WHOLE, _draw(run, ()))
        world.timeline.run(1.0)
        for number in range(rounds):
            _round(run, number)
        check_closed(run)
    except AssertionError as failed:
        names = {number: kind.__name__ for number, kind in faulty.items()}
        raise AssertionError(
            f"seed {seed}, round {run.switches}, attackers {names}, at {world.timeline.now:.1f} s: {failed}"
        ) from failed
    return run


# One round


def _round(run: SessionRun, number: int) -> None:
    world, random, start = run.world, run.random, run.world.timeline.now
    world.network.loss = random.choice([0.0, 0.1, 0.3])
    for _ in range(MESSAGES_PER_ROUND):
        at = start + random.uniform(0.0, FAULTS_S)
        world.timeline.at(at, partial(_hand_over, run, _new_messages(run)))
    switch_at = start + random.uniform(1.0, FAULTS_S - 0.5)
    world.timeline.at(switch_at - 0.4, partial(_warn_attackers, world))
    world.timeline.at(switch_at, partial(_switch, run, number))
    if random.random() < 0.3:
        # Another one right behind it, before the first has settled.
        world.timeline.at(switch_at + random.uniform(0.05, 0.5), partial(_switch, run, number, quickly=True))
    if random.random() < 0.5:
        groups = {node.number: random.randrange(2) for node in world.nodes}
        cut_at = start + random.uniform(0.0, FAULTS_S - 1.0)
        world.timeline.at(cut_at, partial(world.network.groups.update, groups))
        world.timeline.at(cut_at + random.uniform(0.3, 1.5), world.network.groups.clear)
    for node in random.sample(world.honest, random.randint(0, 2)):
        crash_at = switch_at + random.uniform(-0.5, 1.0)
        world.timeline.at(crash_at, node.crash)
        world.timeline.at(crash_at + random.uniform(0.1, 3.0), node.start_if_down)
    world.timeline.run(start + FAULTS_S)
    world.network.loss = 0.0
    world.network.groups.clear()
    for node in world.nodes:
        node.start_if_down()
    _calm_down(run)
    check_always(run)


def _calm_down(run: SessionRun) -> None:
    world = run.world
    healed_at = world.timeline.now
    while (reason := unsettled(run)) is not None:
        assert world.timeline.now < healed_at + CALM_S, f"not settled after {CALM_S:.0f} s: {reason}"
        world.timeline.run(world.timeline.now + 1.0)
    run.settled_after_s.append(world.timeline.now - healed_at)


def _new_messages(run: SessionRun) -> list[ExternalMessage]:
    """One; or two with one body for one account, of which one may stand in the chain."""
    random, truth = run.random, run.truth
    run.numbers += 2
    kind = random.random()
    if kind < 0.15:
        body = b"twins %d" % run.numbers
        return [message(run.numbers + two, account=run.numbers, body=body) for two in (0, 1)]
    one = message(run.numbers)
    if kind < 0.3:
        truth.refused_by[one.message_id] = truth.all_nodes
    elif kind < 0.6:
        refusing = random.sample(sorted(truth.all_nodes), run.most_that_refuse)
        truth.refused_by[one.message_id] = frozenset(refusing)
    return [one]


def _hand_over(run: SessionRun, ones: list[ExternalMessage]) -> None:
    """A full node tells a third of the validators, and one more; who takes it under a later catchain counts."""
    world, truth = run.world, run.truth
    for one in ones:
        current = world.chain.head_for(one).plan.current
        for number in run.random.sample(current, len(current) // 3 + 1):
            node = world.nodes[number]
            is_known = node.cache.get(one.message_id) is not None
            if node.hand_over(one) and node.is_honest and node.told[one.message_id] and not is_known:
                seqno = node.cache.window.current
                truth.messages[one.message_id] = one
                truth.last_seqno[one.message_id] = max(seqno, truth.last_seqno.get(one.message_id, 0))


def _warn_attackers(world: SessionWorld) -> None:
    for number in world.seat_kinds:
        for seat in world.nodes[number].seats():
            if seat.is_up:
                seat.switch_is_near()


def _switch(run: SessionRun, number: int, *, quickly: bool = False) -> None:
    """A split, a merge, new validators for some shards, or the same for all; the master catchain goes on with it or
    without it."""
    world, random = run.world, run.random
    shards = sorted(world.chain.heads, key=lambda shard: shard.prefix)
    advances = random.random() < 0.5 and not quickly
    kind = random.random()
    pairs = [
        (shard, other)
        for shard in shards
        for other in shards
        if shard.bits and shard.parent == other.parent and shard.prefix < other.prefix
    ]
    splittable = [shard for shard in shards if shard.bits < DEPTH_MAX]
    changes: list[Change]
    if kind < 0.3 and splittable and len(shards) < 3:
        shard = random.choice(splittable)
        changes = [([shard], [(child, _draw(run, (shard,))) for child in shard.children])]
    elif kind < 0.6 and pairs:
        pair = random.choice(pairs)
        changes = [(list(pair), [(pair[0].parent, _draw(run, pair))])]
    elif kind < 0.7 and advances:
        changes = []
    else:
        chosen = random.sample(shards, random.randint(1, len(shards)))
        changes = [([shard], [(shard, _draw(run, (shard,)))]) for shard in chosen]
    run.switches += len(changes)
    world.switch(changes, advances=advances)


def _draw(run: SessionRun, previous: Sequence[Shard]) -> list[int]:
    """The same validators, some of them, or others; never a third of a queue's members that are not honest."""
    world, random = run.world, run.random
    before = {number for shard in previous for number in world.chain.heads[shard].plan.current}
    while True:
        kind = random.random()
        if before and kind < 0.2:
            pool = sorted(before)
        elif before and kind < 0.5:
            pool = sorted(run.truth.all_nodes - before)
        else:
            pool = sorted(run.truth.all_nodes)
        if len(pool) < run.set_size:
            continue
        drawn = random.sample(pool, run.set_size)
        if all(3 * len(run.faulty & group) < len(group) for group in (set(drawn), before | set(drawn))):
            return drawn
