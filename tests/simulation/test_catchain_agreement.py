"""Honest validators agree, whatever fewer than a third of them do; and the runs can tell when they would not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stagepost.catchain.block import decode_update
from stagepost.catchain.catching_up import BlockSync, SyncOptions
from stagepost.catchain.effects import Effect, Persist, Send
from stagepost.catchain.graph import Outcome
from stagepost.catchain.member import Member, MemberOptions
from stagepost.catchain.queries import Answer
from tests.worlds.catchain.catchain_attackers import Equivocator, Twin, is_honest, world_with
from tests.worlds.catchain.catchain_runs import HEALED_UNTIL_S, check, heal, run_once
from tests.worlds.catchain.catchain_world import Peer, World
from tests.worlds.remp.queue_world import Validator, message

SEEDS = 40
LARGE_SEEDS = 2
REGRESSIONS = (0, 5, 9)
"""Seeds that once found something."""


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_once_went_wrong_goes_right(seed: int) -> None:
    assert run_once(seed).now == HEALED_UNTIL_S


@pytest.mark.parametrize("number", range(SEEDS))
def test_honest_members_end_with_the_same_messages_and_blame_the_same_forkers(
    number: int, run_seed: int
) -> None:
    """A failure names its own seed, and `run_once(seed)` repeats it."""
    assert run_once(run_seed + number).now == HEALED_UNTIL_S


@pytest.mark.parametrize("number", range(LARGE_SEEDS))
def test_twenty_one_members_agree(number: int, run_seed: int) -> None:
    assert run_once(run_seed + number, size=21).now == HEALED_UNTIL_S


@pytest.mark.parametrize("neighbours", [1, 3])
def test_members_that_pass_blocks_on_as_older_networks_do_agree_as_well(neighbours: int) -> None:
    sync = SyncOptions(neighbours=neighbours)
    world = World(7, 1, loss=0.2, options=MemberOptions(start_wait_s=0.5, sync=sync), make_peer=Validator)
    world.start_all()
    world.run(1.0)
    messages = [message(number) for number in range(10)]
    for one in messages:
        peer = world.peers[world.random.randrange(7)]
        assert isinstance(peer, Validator)
        peer.hand_over(one)
    world.run(10.0)
    check(world, {one.message_id for one in messages})
    for peer in world.peers:
        assert isinstance(peer, Validator)
        assert peer.queue.known_ids == {one.message_id for one in messages}


def test_a_restart_from_an_older_disk_is_reported_and_blames_nobody_else() -> None:
    world = world_with(4, 1, {}, loss=0.0)
    world.start_all()
    world.run(1.0)
    victim = world.peers[2]
    assert isinstance(victim, Validator)
    for number in range(5):
        victim.hand_over(message(number))
        world.run(world.now + 0.5)
    victim.crash()
    own = [frame for frame in victim.disk if victim.index == _source(frame)]
    victim.disk = [frame for frame in victim.disk if frame not in own[-2:]]
    victim.start()
    world.run(world.now + 10.0)
    assert victim.recovered or victim.halted, "it must be noticed"
    assert all(peer.blamed <= {victim.index} for peer in world.peers)
    check(world, {message(number).message_id for number in range(5)})


def _source(frame: bytes) -> int:
    return decode_update(frame).source


def test_a_member_that_hears_its_own_key_from_elsewhere_stops() -> None:
    world = world_with(4, 3, {0: Twin}, loss=0.0)
    world.start_all()
    world.run(2.0)
    twin = world.peers[0]
    assert isinstance(twin, Twin)
    twin.hand_over(message(1))
    world.run(4.0)
    assert all(0 in peer.blamed for peer in world.peers[1:])


def test_with_a_third_gone_nothing_wrong_is_said() -> None:
    """Two of four are away: the rest goes on as far as it can, and nobody honest is blamed."""
    world = world_with(4, 2, {}, loss=0.0)
    world.start_all()
    world.run(1.0)
    for index in (0, 1):
        world.peers[index].crash()
    left = world.peers[2]
    assert isinstance(left, Validator)
    left.hand_over(message(1))
    world.run(20.0)
    heal(world)
    world.run(40.0)
    check(world, {message(1).message_id})


# Planted defects; those of sessions stand in test_primes_sessions


def _sends_before_it_persists(patch: pytest.MonkeyPatch) -> None:
    make = Member._make

    def make_and_send(self: Member, *arguments: Any) -> None:
        make(self, *arguments)
        own = [one for one in self._effects if isinstance(one, Persist) and one.is_own]
        others = [peer for peer in range(self.graph.size) if peer != self.index]
        self._effects += [Send(peer, one.frame) for one in own for peer in others]

    patch.setattr(Member, "_make", make_and_send)


def _crashes_while_it_writes() -> None:
    """Hold every block that leaves its maker against the maker's disk. A restarted member gets back what others heard of
    it, so a block that was sent too early does not always end in a fork."""

    def prepare(world: World) -> None:
        world.disk_delay = lambda: 0.2  # type: ignore[method-assign]
        for peer in world.peers:
            if is_honest(peer):
                _check_what_leaves(peer)
        for number in range(6):
            peer = world.peers[number % world.size]
            world.at(1.5 + number, peer.crash)
            world.at(1.6 + number, peer.start_if_down)

    for seed in range(8):
        run_once(100 + seed, size=4, prepare=prepare)


def _check_what_leaves(peer: Peer) -> None:
    perform = peer.perform

    def checked(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and decode_update(effect.frame).source == peer.index:
                assert effect.frame in peer.disk, f"member {peer.index} spoke before it wrote"
        perform(effects)

    peer.perform = checked  # type: ignore[method-assign]  # a member that is overheard


def _forgets_forks_at_restart(patch: pytest.MonkeyPatch) -> None:
    restore = Member.restore

    def forgetful(self: Member, *arguments: Any) -> list[Effect]:
        effects = restore(self, *arguments)
        self.graph._blamed.clear()
        return effects

    patch.setattr(Member, "restore", forgetful)


def _restarts_after_a_fork() -> None:
    world = world_with(4, 7, {3: Equivocator}, loss=0.0)
    world.start_all()
    world.run(1.0)
    forker = world.peers[3]
    assert isinstance(forker, Equivocator)
    for number in range(5):
        forker.hand_over(message(number))
        world.run(world.now + 1.0)
    for peer in world.peers[:3]:
        assert 3 in peer.blamed
    world.peers[0].crash()
    world.peers[0].start()
    # At once, from its own disk: until others tell it again it would build on the forker's blocks.
    assert 3 in world.peers[0].member.graph.blamed, "the fork is forgotten"


def _blames_a_mere_delay(patch: pytest.MonkeyPatch) -> None:
    answered = BlockSync.answered

    def impatient(self: BlockSync, peer: int, number: int, answer: Answer | None) -> bool:
        if answer is None and number in self._asked:
            self._graph._blame(peer, None, Outcome())
        return answered(self, peer, number, answer)

    patch.setattr(BlockSync, "answered", impatient)


def _some_seeds() -> None:
    for seed in range(40):
        world = run_once(200 + seed)
        for peer in world.peers:
            honest = {one.index for one in world.peers if type(one) is Validator}
            if peer.index in honest:
                assert not set(peer.member.graph.blamed) & honest, "an honest member is blamed"


DEFECTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = [
    (_sends_before_it_persists, _crashes_while_it_writes),
    (_forgets_forks_at_restart, _restarts_after_a_fork),
    (_blames_a_mere_delay, _some_seeds),
]


@pytest.mark.parametrize(("plant", "notice"), DEFECTS, ids=[plant.__name__ for plant, _ in DEFECTS])
def test_a_planted_defect_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], notice: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        notice()


@pytest.mark.parametrize("notice", [_crashes_while_it_writes, _restarts_after_a_fork])
def test_without_the_defect_the_same_run_holds(notice: Callable[[], None]) -> None:
    notice()
