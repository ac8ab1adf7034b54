"""One run of validators that agree on a chain under attack and faults, and what must hold in the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from tests.worlds.chain import agreement_checker
from tests.worlds.chain.agreement_attackers import ATTACKERS, Attacker, world_with
from tests.worlds.chain.agreement_world import (
    SESSION_ID,
    START,
    Disk,
    Peer,
    World,
    contents_of,
    honest_and_sound,
)

FAULTS_UNTIL_S = 8.0
HEALED_UNTIL_S = 38.0
"""After faults stop, everything that was handed over is final within thirty seconds."""

SPREADS_WITHIN_S = 3.0
REPORTED_WITHIN_S = 60.0
"""So long may a missing quorum go unsaid."""

GOES_ON_WITHIN_S = 240.0
"""Seconds until a quorum that started under loss, without one to spare, has finalised all; slots of dead leaders included."""

CONTENTS = 24
SIZES = (4, 7, 4, 4, 7, 4, 13, 4, 7, 4)

Prepare = Callable[[World], None]


def run_once(seed: int, *, size: int | None = None, prepare: Prepare | None = None) -> World:
    """Raises AssertionError with the seed in it if anything does not hold."""
    random = Random(seed)
    size = SIZES[seed % len(SIZES)] if size is None else size
    faulty = random.sample(range(size), random.randint(0, (size - 1) // 3))
    attackers = {index: random.choice(ATTACKERS) for index in faulty}
    if faulty and random.random() < 0.4:
        # All of one kind, so that they can work together.
        attackers = dict.fromkeys(faulty, random.choice(ATTACKERS))
    rewound: int | None = None
    if faulty and random.random() < 0.3:
        # In place of one attacker: an honest validator whose disk is set back to an earlier day.
        rewound = faulty[0]
        del attackers[rewound]
    world = world_with(size, seed, attackers, loss=random.choice([0.0, 0.05, 0.3]))
    try:
        if prepare is not None:
            prepare(world)
        _play(world, random, rewound)
    except AssertionError as failed:
        names = {index: kind.__name__ for index, kind in attackers.items()}
        raise AssertionError(
            f"seed {seed}, {size} validators, attackers {names}, set back {rewound}: {failed}"
        ) from failed
    return world


def run_start(seed: int, size: int, up: int, *, loss: float = 0.0) -> World:
    """Start `up` of `size` validators together, the rest being dead for good: a quorum starts and goes on; fewer listen,
    answer, sign nothing and say that they wait."""
    world = World(size, seed, loss=loss)
    started, needed = world.peers[:up], world.session.quorum
    for peer in started:
        peer.start()
        peer.say(b"good morning from %d" % peer.index)
    world.run(REPORTED_WITHIN_S)
    where = f"seed {seed}, {up} of {size} validators are up, {needed} are needed"
    for peer in started:
        if up >= needed:
            assert peer.member.is_started, f"{where}: validator {peer.index} has not started"
        else:
            assert not peer.member.is_started, f"{where}: validator {peer.index} has started"
            assert peer.member.answered_by == {one.index for one in started} - {peer.index}, where
            assert peer.stalled, f"{where}: validator {peer.index} does not say that it waits"
            assert peer.stalled[0].heard == tuple(range(up)), where
    if up < needed:
        assert not world.voted, f"{where}: somebody has voted"
        assert not any(peer.disk.records for peer in started), f"{where}: somebody has signed"
        return world
    world.network.loss = 0.0
    ends_at = world.now + GOES_ON_WITHIN_S
    while world.now < ends_at and any(peer.to_say for peer in started):
        for peer in started:
            if peer.to_say:
                peer.want_more(
                    peer.life
                )  # a leader whose slot was skipped wishes again, as the ledger above does
        world.run(world.now + 5.0)
    world.run(world.now + 10.0)  # what is final at its author spreads
    wanted = {b"good morning from %d" % one.index for one in started}
    for peer in started:
        assert wanted <= contents_of(peer).keys(), f"{where}: not all is final at validator {peer.index}"
    return world


def run_without_quorum(seed: int, *, size: int | None = None) -> World:
    """A third of them goes: the rest says that it waits, decides nothing, and goes on when they return."""
    random = Random(seed)
    size = SIZES[seed % len(SIZES)] if size is None else size
    world = World(size, seed)
    try:
        world.start_all()
        world.run(random.uniform(0.5, 3.0))
        gone = random.sample(world.peers, (size + 2) // 3)
        left = [peer for peer in world.peers if peer not in gone]
        for peer in gone:
            peer.crash()
        left[0].say(b"while they are away")
        world.run(world.now + REPORTED_WITHIN_S)
        for peer in left:
            assert peer.stalled, f"validator {peer.index} does not say that it waits for a quorum"
            assert len(peer.stalled[-1].heard) < peer.stalled[-1].needed, "it says that it heard enough"
            assert b"while they are away" not in contents_of(peer), "decided without a quorum"
        heal(world)
        world.run(world.now + HEALED_UNTIL_S - FAULTS_UNTIL_S)
        for peer in world.peers:
            assert b"while they are away" in contents_of(peer), f"validator {peer.index} does not go on"
            assert not peer.evidence, "somebody is blamed"
    except AssertionError as failed:
        raise AssertionError(f"seed {seed}, {size} validators, a third gone: {failed}") from failed
    return world


def _play(world: World, random: Random, rewound: int | None) -> None:
    world.start_all()
    for number in range(CONTENTS):
        peer = random.choice(world.peers)
        world.at(random.uniform(0.5, FAULTS_UNTIL_S), partial(peer.say, b"content %d" % number))
    _plan_faults(world, random, rewound)
    world.run(FAULTS_UNTIL_S)
    heal(world)
    heights = {peer.index: len(peer.chain) for peer in world.honest}
    for peer in honest_and_sound(world):
        world.at(world.now + random.uniform(0, 2.0), partial(peer.say, b"after the faults %d" % peer.index))
    world.run(HEALED_UNTIL_S - SPREADS_WITHIN_S)
    newest = max(world.final, default=0)
    world.run(HEALED_UNTIL_S)
    check(world, heights, newest)


def _plan_faults(world: World, random: Random, rewound: int | None) -> None:
    if random.random() < 0.5:
        split = {index: random.randrange(2) for index in range(world.session.size)}
        at = random.uniform(1.0, FAULTS_UNTIL_S - 3)
        world.at(at, lambda: world.network.groups.update(split))
        world.at(at + random.uniform(0.5, 3.0), world.network.groups.clear)
    if random.random() < 0.4:
        slow = random.sample(range(world.session.size), world.session.size // 2)
        at = random.uniform(0.5, FAULTS_UNTIL_S - 3)
        late = random.uniform(0.2, 1.5)
        world.at(at, lambda: world.network.late.update(dict.fromkeys(slow, late)))
        world.at(at + random.uniform(0.5, 3.0), world.network.late.clear)
    sound = [peer for peer in world.honest if peer.index != rewound]
    for peer in random.sample(sound, random.randint(0, len(sound) // 2)):
        for _ in range(random.choice([1, 1, 3])):
            world.at(
                random.uniform(0.5, FAULTS_UNTIL_S - 1), partial(peer.crash_for, random.uniform(0.02, 1.0))
            )
    if random.random() < 0.15:
        at = random.uniform(1.0, FAULTS_UNTIL_S - 2)
        for peer in sound:  # the lights go out
            world.at(at, partial(peer.crash_for, random.uniform(0.05, 0.5)))
    world.crash_after_write = random.choice([0.0, 0.0, 0.01, 0.03])
    if rewound is not None:
        _plan_older_disk(world, world.peers[rewound], random)


def _plan_older_disk(world: World, peer: Peer, random: Random) -> None:
    image: list[Disk] = []
    taken_at = random.uniform(0.5, FAULTS_UNTIL_S - 3)

    def set_back() -> None:
        peer.crash()
        peer.has_old_disk = True
        peer.disk = image[0]
        world.after(random.uniform(0.02, 0.5), peer.start_if_down)

    world.at(taken_at, lambda: image.append(peer.disk.image()))
    world.at(taken_at + random.uniform(0.05, 2.0), set_back)


def heal(world: World) -> None:
    world.network.loss = 0.0
    world.network.groups.clear()
    world.network.late.clear()
    world.crash_after_write = 0.0
    for peer in world.peers:
        peer.start_if_down()


def check(world: World, heights: dict[int, int], newest: int) -> None:
    """Two final blocks, two certificates and double votes are noticed at once, by the world; here is what comes last."""
    world.check_certified()
    keys = world.session.public_keys
    sound = honest_and_sound(world)
    chains = {peer.index: [one.block_hash for one in peer.chain] for peer in world.honest}
    longest = max((chains[peer.index] for peer in sound), key=len)
    for peer in world.honest:
        mine = chains[peer.index]
        assert mine == longest[: len(mine)], f"validator {peer.index} has another chain"
        assert not peer.disputed, (
            f"validator {peer.index} finds a notarised block bad: {peer.disputed[0].reason}"
        )
        agreement_checker.check_chain(
            START,
            [(one.slot, one.block_hash, one.payload) for one in peer.chain],
            [one.certificate.kind for one in peer.chain],
        )
        for block in peer.chain:
            slot, _, block_hash = agreement_checker.read_certificate(
                block.certificate.encode(), keys, SESSION_ID
            )
            assert (slot, block_hash) == (block.slot, block.block_hash), "a certificate of another block"
    innocent = {peer.index for peer in sound}
    for peer in sound:
        assert peer.halted is None, f"validator {peer.index} stopped: {peer.halted}"
        assert len(chains[peer.index]) > heights[peer.index], (
            f"validator {peer.index}: the chain did not grow"
        )
        assert peer.chain[-1].slot >= newest, f"validator {peer.index} lacks the final block of slot {newest}"
        missing = [
            other.index for other in sound if b"after the faults %d" % other.index not in contents_of(peer)
        ]
        assert not missing, f"validator {peer.index} lacks what {missing} said"
        for evidence in peer.evidence:
            assert evidence.validator not in innocent, f"validator {evidence.validator} is blamed and honest"
            for vote in (evidence.left, evidence.right):
                assert agreement_checker.is_signed(
                    keys[vote.validator], SESSION_ID, vote.slot, vote.kind, vote.block, vote.signature
                ), "evidence that proves nothing"
        wrongly = {one.rule for one in peer.refused if not isinstance(world.peers[one.peer], Attacker)}
        assert not wrongly, f"validator {peer.index} refused what honest ones sent: {wrongly}"
