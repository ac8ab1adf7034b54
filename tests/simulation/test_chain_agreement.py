"""Honest validators agree on one chain, whatever fewer than a third of them do; and the runs can tell when they would not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stagepost.chain.agreement import book, evidence, hearing, member, progress
from stagepost.chain.agreement.ballot import Ballot
from stagepost.chain.agreement.effects import Effect
from stagepost.chain.agreement.hearing import BookKeeper
from stagepost.chain.agreement.member import Member
from stagepost.chain.agreement.pacing import Timeouts
from stagepost.chain.agreement.progress import ProgressQueries
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import Vote, VoteKind
from tests.worlds.chain.agreement_attackers import (
    Attacker,
    BadBuilder,
    Forger,
    SignsEverything,
    TwoFacedLeader,
    TwoFacedVoter,
    world_with,
)
from tests.worlds.chain.agreement_runs import HEALED_UNTIL_S, run_once, run_start, run_without_quorum
from tests.worlds.chain.agreement_world import World, contents_of

SEEDS = 40
REGRESSIONS = (16, 73, 87, 96, 2065528180)
"""Seeds that once found something."""


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_once_went_wrong_goes_right(seed: int) -> None:
    assert run_once(seed).now == HEALED_UNTIL_S


@pytest.mark.parametrize("number", range(SEEDS))
def test_honest_validators_have_one_chain_and_it_grows_when_faults_stop(number: int, run_seed: int) -> None:
    """A failure names its own seed, and `run_once(seed)` repeats it."""
    assert run_once(run_seed + number).now == HEALED_UNTIL_S


@pytest.mark.parametrize("attacker", [TwoFacedLeader, TwoFacedVoter, SignsEverything])
def test_who_contradicts_itself_is_blamed_by_all_and_nobody_else_is(attacker: type[Attacker]) -> None:
    world = world_with(7, 5, {2: attacker, 5: attacker}, loss=0.0)
    _talk(world, until=12.0)
    for peer in world.honest:
        assert {one.validator for one in peer.evidence} == {2, 5}


def test_the_lights_go_out_for_everybody_and_the_chain_goes_on_where_it_was() -> None:
    world = world_with(4, 8, {}, loss=0.0)
    _talk(world, until=3.0)
    before = max(len(peer.chain) for peer in world.peers)
    for peer in world.peers:
        peer.crash()
    world.run(4.0)
    for peer in world.peers:
        peer.start()
        peer.say(b"in the morning %d" % peer.index)
    world.run(12.0)
    for peer in world.peers:
        assert len(peer.chain) > before
        assert all(b"in the morning %d" % one in contents_of(peer) for one in range(4))
        assert not peer.evidence


@pytest.mark.parametrize("size", [4, 7, 13])
def test_with_a_third_gone_the_chain_stops_and_says_so_and_goes_on_when_they_return(
    size: int, run_seed: int
) -> None:
    assert run_without_quorum(run_seed, size=size).final


def test_one_seed_gives_one_run() -> None:
    first, second = run_once(12), run_once(12)
    assert first.final == second.final
    assert first.frames_sent == second.frames_sent


def test_a_start_without_a_quorum_says_so() -> None:
    world = world_with(4, 2, {}, loss=0.0)
    world.peers[0].start()
    world.peers[1].start()
    world.run(60.0)
    assert world.peers[0].stalled[0].heard == (0, 1)
    assert not world.peers[0].member.is_started


@pytest.mark.parametrize("loss", [0.0, 0.3])
@pytest.mark.parametrize(
    ("size", "up"),
    [(1, 1), (4, 1), (4, 2), (4, 3), (4, 4), (7, 1), (7, 4), (7, 5), (7, 7), (13, 1), (13, 8), (13, 9)],
)
def test_a_quorum_that_starts_together_starts_and_fewer_never_speak(
    size: int, up: int, loss: float, run_seed: int
) -> None:
    run_start(run_seed, size, up, loss=loss)


@pytest.mark.parametrize("size", [4, 7])
def test_a_lone_validator_starts_when_others_join_it(size: int, run_seed: int) -> None:
    world = run_start(run_seed, size, 1)
    quorum = world.session.quorum
    for peer in world.peers[1 : quorum - 1]:
        peer.start()
    world.run(world.now + 10.0)
    assert not any(peer.member.is_started for peer in world.peers[: quorum - 1])
    world.peers[quorum - 1].start()
    world.run(world.now + 30.0)
    for peer in world.peers[:quorum]:
        assert b"good morning from 0" in contents_of(peer)


def _counts_failed_queries(patch: pytest.MonkeyPatch) -> None:
    ended = ProgressQueries.ended

    def counting(self: ProgressQueries, peer: int, number: int) -> bool:
        was_under_way = ended(self, peer, number)
        if was_under_way:
            self.count_answer(peer)
        return was_under_way

    patch.setattr(ProgressQueries, "ended", counting)


def _listens_in_silence(patch: pytest.MonkeyPatch) -> None:
    query_received = Member.query_received

    def silent(self: Member, peer: int, number: int, data: bytes, now: float) -> list[Effect]:
        return query_received(self, peer, number, data, now) if self.is_started else []

    patch.setattr(Member, "query_received", silent)


@pytest.mark.parametrize(
    ("plant", "up"), [(_counts_failed_queries, 1), (_counts_failed_queries, 2), (_listens_in_silence, 4)]
)
def test_a_planted_defect_of_the_start_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="has started" if up < 4 else "has not started"):
        run_start(1, 4, up)


@pytest.mark.parametrize("delay_s", [2.0, 6.0])
def test_it_lives_under_delays_longer_than_its_time_outs_and_is_quick_again_afterwards(
    delay_s: float,
) -> None:
    world = _under_delay(delay_s)
    slow = [peer.member.timeout_s for peer in world.peers]
    assert min(slow) > delay_s
    world.network.delay_s = (0.001, 0.05)
    _talk(world, until=world.now + 60.0)
    assert all(peer.member.timeout_s < before for peer, before in zip(world.peers, slow, strict=True))


def _under_delay(delay_s: float) -> World:
    world = world_with(4, 3, {}, loss=0.0)
    world.network.delay_s = (delay_s, delay_s * 1.2)
    world.options = type(world.options)(
        start_wait_s=0.3, query_timeout_s=60.0, ask_every_s=5.0, stalled_after_s=1_000.0
    )
    world.start_all()
    world.peers[1].say(b"slowly")
    world.run(400.0)
    assert all(b"slowly" in contents_of(peer) for peer in world.peers), "nothing is final"
    return world


def _talk(world: World, until: float) -> None:
    """Everybody says something now and then."""
    if not world.peers[-1].life:
        world.start_all()
    while world.now < until:
        for peer in world.honest:
            if peer.is_up:
                peer.say(b"%d at %d" % (peer.index, int(world.now * 10)))
        world.run(world.now + 0.7)


# An older disk


def _set_back(world: World) -> None:
    """Validator 2 forgets its last half second, in which it has voted."""
    _talk(world, until=2.0)
    victim = world.peers[2]
    image = victim.disk.image()
    before = len(world.final)
    while len(world.final) < before + 3:
        world.run(world.now + 0.05)
        world.peers[0].say(b"more at %f" % world.now)
    # The others are kept from finishing what it voted on.
    for peer in world.peers:
        world.network.groups[peer.index] = peer.index
    victim.crash()
    victim.has_old_disk = True
    victim.disk = image
    world.network.groups.clear()
    victim.start()
    world.run(world.now + 8.0)


def test_a_restart_from_an_older_disk_is_noticed_and_blames_nobody_else() -> None:
    noticed = 0
    for seed in range(8):
        world = world_with(4, seed, {}, loss=0.0)
        _set_back(world)
        victim = world.peers[2]
        blamed = {one.validator for peer in world.peers for one in peer.evidence}
        assert blamed <= {2}
        noticed += bool(victim.recovered or victim.halted or blamed)
        for peer in world.peers:
            assert len(peer.chain) > 3
    assert noticed >= 4, "votes of its own were shown to it and it did not tell"


def test_a_second_process_with_the_same_key_stops_and_the_chain_goes_on() -> None:
    world = world_with(4, 4, {}, loss=0.0)
    _talk(world, until=2.0)
    twin = world.peers[1]
    other = Vote(1, twin.member.slot, VoteKind.NOTARISE, bytes([5]) * 32, b"")
    signed = Attacker(world, 1).signed(other.slot, other.kind, other.block)
    twin.frame_came(0, signed.encode())
    assert twin.halted is not None
    assert twin.member.is_halted
    before = len(twin.chain)
    _talk(world, until=8.0)
    longest = max(len(peer.chain) for peer in world.peers)
    world.run(12.0)
    assert longest > before
    assert len(twin.chain) >= longest, "who has stopped still follows"


# Planted defects


def _takes_half_for_a_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "quorum", property(lambda self: self.size // 2))
    patch.setattr(hearing, "check_count", lambda *_: None)


def _speaks_before_it_writes(patch: pytest.MonkeyPatch) -> None:
    taken = Member._taken

    def hasty(self: Member) -> list[Effect]:
        self._effects += self._ballot.written(10**9)
        return taken(self)

    patch.setattr(Member, "_taken", hasty)


def _forgets_its_votes_at_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(member, "own_vote", lambda *_: None)
    patch.setattr(Member, "_take_back", lambda self, vote: None)


def _does_not_repeat_what_it_wrote_before_a_crash(patch: pytest.MonkeyPatch) -> None:
    restore, count_own = Member.restore, BookKeeper.count_own

    def forgetful(self: Member, *arguments: Any) -> list[Effect]:
        patch.setattr(BookKeeper, "count_own", lambda *_: None)
        try:
            return restore(self, *arguments)
        finally:
            patch.setattr(BookKeeper, "count_own", count_own)

    patch.setattr(Member, "restore", forgetful)


def _calls_final_what_it_skipped(patch: pytest.MonkeyPatch) -> None:
    sign = Ballot._sign

    def careless(self: Ballot, slot: int, kind: VoteKind, block: bytes) -> Vote:
        own = self._book.at(slot).own
        skipped = own.pop(VoteKind.SKIP, None)
        vote = sign(self, slot, kind, block)
        if skipped is not None:
            own[VoteKind.SKIP] = skipped
        return vote

    def call_final(self: Member, number: int) -> None:
        slot = self.book.get(number)
        certificate = slot.notarised if slot is not None else None
        if (
            slot is not None
            and certificate is not None
            and self._can_speak
            and VoteKind.FINALISE not in slot.own
        ):
            self._ballot.vote(number, VoteKind.FINALISE, certificate.block)

    patch.setattr(Ballot, "_sign", careless)
    patch.setattr(Member, "_call_final", call_final)


def _builds_over_slots_that_were_not_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(book.Book, "not_skipped", lambda *_: [])


def _votes_for_every_candidate(patch: pytest.MonkeyPatch) -> None:
    vote = Member._vote

    def greedy(self: Member, now: float) -> None:
        slot = self.book.at(self.book.current)
        for block in list(slot.candidates):
            if slot.is_good(block) and slot.own.get(VoteKind.NOTARISE) != block:
                slot.own.pop(VoteKind.NOTARISE, None)
                self._ballot.vote(self.book.current, VoteKind.NOTARISE, block)
        vote(self, now)

    def keep_all(self: BookKeeper, proposal: Any) -> None:
        if self._book.is_open(proposal.candidate.slot):
            self._book.add_candidate(proposal.candidate.hash, proposal)
            for proof in proposal.proofs:
                self.hear_certificate(proof)

    patch.setattr(Member, "_vote", greedy)
    patch.setattr(BookKeeper, "hear_proposal", keep_all)


def _believes_every_certificate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hearing, "check_count", lambda *_: None)
    patch.setattr(BookKeeper, "_is_signed", lambda *_: True)


def _keeps_its_time_outs_short(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Timeouts, "slot_failed", lambda *_: None)


def _answers_without_blocks(patch: pytest.MonkeyPatch) -> None:
    def no_blocks(*_: Any) -> Iterator[bytes]:
        return iter(())

    for name in ("_wanted", "_final_blocks", "_open_slots"):
        patch.setattr(progress, name, no_blocks)


def _blames_whoever_votes_and_gives_up(patch: pytest.MonkeyPatch) -> None:
    contradict = evidence.contradict

    def too_strict(left: Vote, right: Vote) -> bool:
        return contradict(left, right) or (
            (left.validator, left.slot) == (right.validator, right.slot)
            and {left.kind, right.kind} == {VoteKind.NOTARISE, VoteKind.SKIP}
        )

    patch.setattr(evidence, "contradict", too_strict)
    patch.setattr(hearing, "contradict", too_strict)


def _judges_a_block_before_its_parent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(book.Book, "is_good", lambda self, block: True)


def _ignores_its_own_older_votes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Member, "_take_back", lambda self, vote: None)
    patch.setattr(hearing.BookKeeper, "_blame", lambda *_: None)


def _seeds_of_four() -> None:
    for seed in range(20):
        run_once(seed, size=4)


def _crashes_in_the_middle_of_a_slot() -> None:
    """Everybody has voted, nobody has heard of it, and the leader has something else to say when it comes back."""
    world = world_with(4, 1, {}, loss=0.0)
    world.start_all()
    world.run(1.0)
    leader = world.peers[world.session.leader_of(world.peers[0].member.slot)]
    slot = leader.member.slot
    world.network.groups = {one: one for one in range(4)}
    leader.say(b"this")
    world.run(2.0)
    assert any((leader.index, slot, kind) in world.voted for kind in VoteKind)
    leader.crash()
    leader.to_say = [b"that"]
    world.network.groups = {}
    leader.start()
    world.run(8.0)
    assert all(b"that" in contents_of(peer) for peer in world.peers)


def _crashes_before_it_speaks() -> None:
    """Every validator crashes after each write for five seconds, so nobody has heard the votes that are on disk."""
    world = world_with(4, 1, {}, loss=0.0)
    world.start_all()
    world.run(1.0)
    world.crash_after_write = 1.0
    for peer in world.peers:
        peer.say(b"from %d" % peer.index)
    world.run(6.0)
    world.crash_after_write = 0.0
    world.run(30.0)
    assert all(b"from %d" % one in contents_of(peer) for peer in world.peers for one in range(4))


def _against(*attackers: type[Attacker]) -> None:
    """All kinds of trouble, by those who can make use of the defect."""
    for seed in range(3):
        world = world_with(7, seed, dict(enumerate(attackers)), loss=0.05)
        _talk(world, until=3.0)
        for peer in world.honest:
            peer.say(b"at last %d" % peer.index)
        world.run(20.0)
        world.check_certified()
        for peer in world.honest:
            assert not peer.disputed
            assert peer.halted is None, peer.halted
            assert all(b"at last %d" % one.index in contents_of(peer) for one in world.honest), (
                "it stands still"
            )


def _crashes_while_it_writes() -> None:
    def prepare(world: World) -> None:
        world.disk_delay = lambda: 0.05  # type: ignore[method-assign]

    for seed in range(4):
        run_once(100 + seed, size=4, prepare=prepare)


DEFECTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]] = [
    (_takes_half_for_a_quorum, lambda: _against(TwoFacedLeader, TwoFacedLeader)),
    (_speaks_before_it_writes, _crashes_while_it_writes),
    (_forgets_its_votes_at_restart, _crashes_in_the_middle_of_a_slot),
    (_does_not_repeat_what_it_wrote_before_a_crash, _crashes_before_it_speaks),
    (_calls_final_what_it_skipped, _seeds_of_four),
    (_builds_over_slots_that_were_not_skipped, lambda: _against(BadBuilder, BadBuilder)),
    (_votes_for_every_candidate, lambda: _against(TwoFacedLeader, TwoFacedLeader)),
    (_believes_every_certificate, lambda: _against(Forger)),
    (_keeps_its_time_outs_short, lambda: _ignored(_under_delay(2.0))),
    (_answers_without_blocks, _seeds_of_four),
    (_blames_whoever_votes_and_gives_up, _seeds_of_four),
    (_judges_a_block_before_its_parent, _seeds_of_four),
    (_ignores_its_own_older_votes, test_a_restart_from_an_older_disk_is_noticed_and_blames_nobody_else),
]


def _ignored(_: object) -> None:
    pass


@pytest.mark.parametrize(("plant", "notice"), DEFECTS, ids=[plant.__name__ for plant, _ in DEFECTS])
def test_a_planted_defect_is_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], notice: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        notice()


@pytest.mark.parametrize(
    "notice",
    [
        lambda: _against(TwoFacedLeader, TwoFacedLeader),
        lambda: _against(BadBuilder, BadBuilder),
        lambda: _against(Forger),
        _crashes_while_it_writes,
        _crashes_in_the_middle_of_a_slot,
        _crashes_before_it_speaks,
    ],
)
def test_without_the_defect_the_same_run_holds(notice: Callable[[], None]) -> None:
    notice()
