"""Members that go silent, and the others' watch over their number."""

from __future__ import annotations

from functools import partial
from random import Random

from stagepost.catchain.block import decode_update
from stagepost.catchain.member import MemberOptions
from stagepost.catchain.quorum_watch import REPORT_WITHIN_S, QuorumReport, QuorumWatch
from tests.worlds.catchain.catchain_world import Peer, World

LOOK_EVERY_S = 2.0
CLEARED_WITHIN_S = 30.0
SETTLED_S = 25.0


class WatchingPeer(Peer):
    """Looks every few seconds, as a shell does."""

    def __init__(self, world: World, index: int) -> None:
        super().__init__(world, index)
        self.reports: list[tuple[float, QuorumReport]] = []
        self.watch: QuorumWatch

    def start(self) -> None:
        super().start()
        self.watch = QuorumWatch(self.member, self.world.now)
        self._look(self.life)

    def _look(self, life: int) -> None:
        if self.is_up and life == self.life:
            report = self.watch.look(self.world.now)
            if report is not None:
                self.reports.append((self.world.now, report))
            self.world.after(LOOK_EVERY_S, partial(self._look, life))


def watching_world(size: int, seed: int, loss: float = 0.0) -> tuple[World, list[WatchingPeer]]:
    world = World(size, seed, loss=loss, options=MemberOptions(), make_peer=WatchingPeer)
    return world, [peer for peer in world.peers if isinstance(peer, WatchingPeer)]


def run_quorum(seed: int) -> float:
    """A third or more fall silent, by crash or by partition, in idleness or in talk. How long until all have told."""
    random = Random(seed)
    size = random.choice([4, 7, 13])
    silent_count = random.randint(-(-size // 3), size - 1)
    world, peers = watching_world(size, seed, loss=random.choice([0.0, 0.2]))
    world.start_all()
    world.run(SETTLED_S)
    where = f"seed {seed}, {size} members, {silent_count} silent"
    assert not any(peer.reports for peer in peers), f"{where}: told before anything happened"
    silent = random.sample(peers, silent_count)
    for peer in silent:
        if random.random() < 0.5:
            peer.crash()
        else:
            # Each alone: they hear nobody, and nobody hears them.
            world.network.groups[peer.index] = peer.index + 1
    left = [peer for peer in peers if peer not in silent]
    if random.random() < 0.5:
        left[0].say(b"is anybody there")
    began = world.now
    world.run(began + REPORT_WITHIN_S)
    for peer in left:
        assert peer.reports, f"{where}: member {peer.index} has not told"
        report = peer.reports[0][1]
        assert report.is_lost, where
        assert report.heard < report.needed, where
        assert {one.index for one in silent} <= set(report.silent), where
    longest = max(peer.reports[0][0] - began for peer in left)
    world.network.groups.clear()
    for peer in peers:
        peer.start_if_down()
    healed = world.now
    world.run(healed + CLEARED_WITHIN_S)
    for peer in left:
        assert not peer.watch.is_lost, f"{where}: member {peer.index} still misses a quorum"
        assert not peer.reports[-1][1].is_lost, where
    return longest


def run_start(seed: int, size: int, up: int, *, loss: float = 0.0) -> World:
    """Start `up` of `size` members together, the rest being dead for good: a quorum starts and speaks; fewer listen,
    answer, and make no block."""
    world, peers = watching_world(size, seed, loss=loss)
    needed, started = 2 * size // 3 + 1, peers[:up]
    for peer in started:
        peer.start()
        peer.say(b"good morning from %d" % peer.index)
    world.run(REPORT_WITHIN_S)
    where = f"seed {seed}, {up} of {size} members are up, {needed} are needed"
    for peer in started:
        if up >= needed:
            assert peer.member.is_started, f"{where}: member {peer.index} has not started"
            heard = {payload for _, _, _, payload in peer.delivered}
            wanted = {b"good morning from %d" % one.index for one in started}
            assert wanted <= heard, f"{where}: member {peer.index} has not heard everybody"
        else:
            assert not peer.member.is_started, f"{where}: member {peer.index} has started"
            assert peer.member.answered_by == {one.index for one in started} - {peer.index}, where
            assert peer.member.answers_needed == needed - 1, where
            assert not peer.disk, f"{where}: member {peer.index} has a block"
            assert peer.reports, f"{where}: member {peer.index} does not tell that a quorum is missing"
            assert peer.reports[0][1].is_lost, where
    return world


def run_lost_disk(seed: int) -> World:
    """Let a member lose its disk and start again while it can reach nobody: it must not write other blocks at the heights
    that it has used, so it waits for the others, gets its own blocks back, and is blamed by nobody."""
    world, peers = watching_world(4, seed)
    world.start_all()
    world.run(SETTLED_S)
    victim = peers[1]
    for number in range(3):
        victim.say(b"before %d" % number)
        world.run(world.now + 1.0)
    height = victim.member.graph.top(victim.index).height
    victim.crash()
    victim.disk.clear()
    world.network.groups[victim.index] = 1
    victim.start()
    victim.say(b"after")
    world.run(world.now + 30.0)
    # Blocks of others that were on their way when the victim was cut off may still have come.
    own = [frame for frame in victim.disk if decode_update(frame).source == victim.index]
    assert not own, f"seed {seed}: alone, it made a block"
    world.network.groups.clear()
    world.run(world.now + 30.0)
    for peer in peers:
        assert not peer.blamed, f"seed {seed}: member {peer.index} blames {peer.blamed}"
        later = {one[3] for one in peer.delivered if one[0] == victim.index and one[1] > height}
        assert b"after" in later, f"seed {seed}: member {peer.index} has not heard of it again"
    assert victim.recovered >= 3, f"seed {seed}: its blocks have not come back"
    return world


def run_quiet(seed: int, for_s: float = 240.0) -> None:
    """Loss, short partitions, and fewer than a third away: nothing is told."""
    random = Random(seed)
    size = random.choice([4, 7])
    world, peers = watching_world(size, seed, loss=0.3)
    world.start_all()
    world.run(SETTLED_S)
    away = random.sample(peers, (size - 1) // 3)
    for peer in away:
        peer.crash()
    while world.now < for_s:
        groups = {index: random.randrange(2) for index in range(size)}
        world.network.groups.update(groups)
        world.run(world.now + random.uniform(1.0, 20.0))
        world.network.groups.clear()
        world.run(world.now + 20.0)
    for peer in peers:
        assert not peer.reports, f"seed {seed}: member {peer.index} tells {peer.reports[0]}"
