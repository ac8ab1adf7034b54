"""One run of validators under attack and faults, and what must hold in the end: nothing here asks the code under test."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

from stagepost.catchain.block import HashVersion, decode_update
from tests.worlds.catchain.catchain_attackers import ATTACKERS, Attacker, Flooder, is_honest, world_with
from tests.worlds.catchain.catchain_world import World, check_causal_order
from tests.worlds.remp.queue_world import Validator, message

FAULTS_UNTIL_S = 8.0
HEALED_UNTIL_S = 38.0
"""After faults stop, everything is the same again within thirty seconds."""

ON_ITS_WAY_S = 2.0
"""Seconds within which everybody has what anybody has, at most."""

MESSAGES = 25
CHALLENGES = 20
SIZES = (4, 4, 7, 4, 7, 13, 4, 7, 4, 7)

Prepare = Callable[[World], None]


def attackers_for(size: int, random: Random) -> dict[int, type[Attacker]]:
    count = (size - 1) // 3
    return {index: random.choice(ATTACKERS) for index in random.sample(range(size), random.randint(0, count))}


def run_once(
    seed: int,
    *,
    size: int | None = None,
    prepare: Prepare | None = None,
    kinds: Sequence[type[Attacker]] | None = None,
) -> World:
    """Raises AssertionError with the seed in it if anything does not hold. `kinds`: the attackers, else by lot."""
    random = Random(seed)
    size = SIZES[seed % len(SIZES)] if size is None else size
    attackers = attackers_for(size, random)
    if kinds is not None:
        attackers = dict(zip(random.sample(range(size), len(kinds)), kinds, strict=True))
    world = world_with(size, seed, attackers, loss=random.choice([0.0, 0.05, 0.3]))
    if prepare is not None:
        prepare(world)
    world.start_all()
    messages = [message(number) for number in range(MESSAGES)]
    for one in messages:
        receivers = random.sample(range(size), size // 3 + 1)
        for index in receivers:
            peer = world.peers[index]
            assert isinstance(peer, Validator)
            world.at(random.uniform(1.0, FAULTS_UNTIL_S), partial(peer.hand_over, one))
    _plan_faults(world, random)
    _plan_challenges(world, Random(seed))
    world.run(FAULTS_UNTIL_S)
    heal(world)
    try:
        newcomer = message(MESSAGES)
        for peer in world.peers[: size // 3 + 1]:
            assert isinstance(peer, Validator)
            peer.hand_over(newcomer)
        world.run(HEALED_UNTIL_S)
        check(world, {one.message_id for one in (*messages, newcomer)})
        check_bodies(world, {one.message_id for one in (*messages, newcomer)})
        check_progress(world, newcomer.message_id)
    except AssertionError as failed:
        names = {index: kind.__name__ for index, kind in attackers.items()}
        raise AssertionError(f"seed {seed}, {size} members, attackers {names}: {failed}") from failed
    return world


def _plan_faults(world: World, random: Random) -> None:
    if random.random() < 0.5:
        split = {index: random.randrange(2) for index in range(world.size)}
        at = random.uniform(1.0, FAULTS_UNTIL_S - 2)
        world.at(at, lambda: world.network.groups.update(split))
        world.at(at + random.uniform(0.5, 2.0), world.network.groups.clear)
    honest = [peer for peer in world.peers if is_honest(peer)]
    for peer in random.sample(honest, random.randint(0, max(1, len(honest) // 3))):
        at = random.uniform(1.0, FAULTS_UNTIL_S - 1)
        if random.random() < 0.5:
            world.at(at, peer.crash)
        else:
            world.at(at, peer.crash_when_written)
        world.at(at + random.uniform(0.05, 1.0), peer.start_if_down)


def _plan_challenges(world: World, random: Random) -> None:
    """Let members challenge one another, some about the same, also while faults last."""
    for _ in range(CHALLENGES):
        peer = random.choice(world.peers)
        assert isinstance(peer, Validator)
        accused, number = random.randrange(world.size), random.randrange(MESSAGES // 5)
        world.at(random.uniform(1.0, FAULTS_UNTIL_S), partial(peer.challenge, accused, number))


def heal(world: World) -> None:
    world.network.loss = 0.0
    world.network.groups.clear()
    for peer in world.peers:
        peer.start_if_down()


def check_bodies(world: World, handed_over: set[bytes]) -> None:
    """What one honest member has taken and nobody closed is at all of them, with its body."""
    honest = [peer for peer in world.peers if is_honest(peer) and isinstance(peer, Validator)]
    taken = {one for peer in honest for one, statuses in peer.told.items() if statuses} & handed_over
    for peer in honest:
        lacking = [one for one in taken if not _has_body(peer, one)]
        assert not lacking, f"member {peer.index} lacks the bodies of {len(lacking)} messages"


def check_progress(world: World, newcomer: bytes) -> None:
    """What was handed over when faults ended is known to every honest member, with its body."""
    for peer in world.peers:
        if is_honest(peer):
            assert isinstance(peer, Validator)
            cached = peer.cache.get(newcomer)
            assert cached is not None, f"member {peer.index} has not heard of what came after the faults"
            assert cached.body is not None, f"member {peer.index} has not got what came after the faults"


def check(world: World, handed_over: set[bytes]) -> None:
    honest = [peer for peer in world.peers if is_honest(peer) and isinstance(peer, Validator)]
    first = honest[0]
    # Liars announce something new until the end, and the last of it is on its way.
    on_its_way = {
        one.message_id for peer in honest for one in peer.cache if one.first_seen_s > world.now - ON_ITS_WAY_S
    }
    # Bodyless claims of the blamed alone are not repeated to those who did not hear them.
    empty = {
        one
        for peer in honest
        for one in peer.queue.known_ids
        if peer.cache.get(one) is not None and _is_empty_claim(peer, one)
    }
    on_its_way |= empty
    known = first.queue.known_ids - on_its_way
    for peer in honest:
        assert peer.halted is None, f"member {peer.index} stopped: {peer.halted}"
        assert not {other for other in peer.blamed if is_honest(world.peers[other])}, (
            f"member {peer.index} blames honest members: {sorted(peer.blamed)}"
        )
        missing, more = known - peer.queue.known_ids, peer.queue.known_ids - known - on_its_way
        assert not missing, f"member {peer.index} lacks {len(missing)} ids that member {first.index} knows"
        assert not more, f"member {peer.index} knows {len(more)} ids that member {first.index} does not"
        wrong = [one for one in known if peer.queue.rejected_by(one) != first.queue.rejected_by(one)]
        assert not wrong, f"member {peer.index} counts other rejects for {len(wrong)} messages"
        sooner = [one for one in known if _time_of(peer, one) != _time_of(first, one)]
        assert not sooner, f"member {peer.index} dates {len(sooner)} messages otherwise"
        taken = {message_id for message_id, statuses in peer.told.items() if statuses} & handed_over
        assert taken <= known, f"member {peer.index} took a message that member {first.index} never heard of"
        written = [decode_update(frame) for frame in peer.disk]
        version = world.rules.version
        check_causal_order(peer, {peer.member.graph.hash_of(one.reference(version)): one for one in written})
    _check_forkers(world, honest)
    flooders = {
        peer.index
        for peer in world.peers
        if isinstance(peer, Flooder) and peer.is_provable and peer.life == 1
    }
    for peer in honest:
        assert flooders <= peer.blamed, f"member {peer.index} does not blame {sorted(flooders - peer.blamed)}"


def _has_body(peer: Validator, message_id: bytes) -> bool:
    cached = peer.cache.get(message_id)
    return cached is not None and cached.body is not None


def _is_empty_claim(peer: Validator, message_id: bytes) -> bool:
    entry = peer.queue._state.entries[message_id]
    return entry.cached.body is None and bool(entry.announced_by) and entry.announced_by.keys() <= peer.blamed


def _time_of(peer: Validator, message_id: bytes) -> tuple[int, int] | None:
    """The times that order a message at this member; None if nobody has announced it."""
    entry = peer.queue._state.entries[message_id]
    return (entry.timestamp_ms, entry.latest_ms) if entry.announced_by else None


def _check_forkers(world: World, honest: Sequence[Validator]) -> None:
    forkers = _forkers_in((frame for peer in honest for frame in peer.disk), world.rules.version)
    for peer in honest:
        unblamed = forkers - peer.blamed
        assert not unblamed, f"member {peer.index} does not blame {sorted(unblamed)}"
        for forker in _forkers_in(peer.disk, world.rules.version):
            proof = peer.member.graph.blamed[forker]
            assert proof is not None, f"member {peer.index} has both blocks of {forker} and no proof"
            left, right = proof.left, proof.right
            assert (left.source, left.height) == (right.source, right.height) == (forker, left.height)
            assert left.data_hash != right.data_hash, f"member {peer.index} proves one block against {forker}"


def _forkers_in(frames: Iterable[bytes], version: HashVersion) -> set[int]:
    """Return the authors of two different blocks of one height."""
    shown: dict[tuple[int, int], set[bytes]] = defaultdict(set)
    for frame in frames:
        block = decode_update(frame)
        shown[block.source, block.height].add(block.data_hash(version))
    return {source for (source, _), blocks in shown.items() if len(blocks) > 1}
