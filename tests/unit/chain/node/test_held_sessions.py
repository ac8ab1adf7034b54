"""Shard sessions whose quorum lies: what they certify besides the chain stops nobody, whoever is shown it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest

from rigs.agreement_keys import certified_by_all, public_key_of
from rigs.chain_messages import some_primes
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.messages import FinalBlock
from stagepost.chain.agreement.session import Session
from stagepost.chain.agreement.votes import VoteKind
from stagepost.chain.configuration import Configuration
from stagepost.chain.following import FollowedChain
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.node.final_proof import FinalChain
from stagepost.chain.node.follower import ChainFollower
from stagepost.chain.node.following_messages import Final
from stagepost.chain.shard_block import SHARD_BLOCK_ID
from stagepost.chain.shard_blocks import make_block
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.wire.tl import constructor_bytes
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.message import ExternalMessage
from tests.worlds.chain.chain_overlay_world import ChainHouse, ChainOverlayWorld
from tests.worlds.chain.chain_replay import replay

SIZE = 4
Shown = Sequence[tuple[int, FinalBlock]]
"""Blocks with their numbers in the session."""


class Forger:
    """The keys of a whole shard session, in one hand. Blocks stand upon the last block that `house` knows as final."""

    def __init__(self, world: ChainOverlayWorld, house: ChainHouse) -> None:
        self.world = world
        ledger: EmbeddedLedger = house.running.ledger
        (self.session,) = ledger.sessions()
        final: FinalChain = house.running.chains[self.session.session_id]
        self.number, self.slot, self.parent = final.next_number, final._slot + 1, final._top
        chain = ledger.chain(self.session.session_id)
        assert chain is not None
        self.state, self.view, self.configuration = chain.top, ledger.following.view, chain.configuration

    def valid(
        self, messages: Iterable[ExternalMessage] = (), kind: VoteKind = VoteKind.FINALISE, later_s: float = 0
    ) -> tuple[int, FinalBlock]:
        now_ms = int((self.world.clock.unix_s() + later_s) * 1_000)
        applied, _ = make_block(
            self.state, self.session.session_id, self.configuration, self.view, messages, now_ms
        )
        self.state = applied.state
        return self.certified(applied.payload, kind)

    def of_no_master(self) -> tuple[int, FinalBlock]:
        """A block that refers to a master block which never comes."""
        self.view = msgspec.structs.replace(
            self.view,
            block_id=msgspec.structs.replace(self.view.block_id, seqno=self.view.block_id.seqno + 500),
        )
        return self.valid()

    def certified(self, payload: bytes, kind: VoteKind = VoteKind.FINALISE) -> tuple[int, FinalBlock]:
        candidate = Candidate(self.slot, self.parent, payload)
        session_id = self.session.session_id
        session = Session(session_id, self.session.public_keys, session_id)
        made = self.number, certified_by_all(session, candidate, kind)
        self.number, self.slot, self.parent = self.number + 1, self.slot + 1, candidate.hash
        return made


def show(session: LedgerSession, blocks: Shown, houses: Iterable[ChainHouse]) -> None:
    for house in houses:
        for number, block in blocks:
            house.running.pushed(0, Final(session.session_id, number, block.encode()).encode())


def a_second(forger: Forger) -> Shown:
    return [forger.valid(later_s=0.5)]


def two_more(forger: Forger) -> Shown:
    return [forger.valid(later_s=0.5), forger.valid([some_primes(77)], later_s=0.6)]


def final_by_its_child(forger: Forger) -> Shown:
    return [forger.valid(kind=VoteKind.NOTARISE, later_s=0.5), forger.valid(later_s=0.6)]


def no_block(forger: Forger) -> Shown:
    return [forger.certified(b"this is not a block")]


def a_bad_block(forger: Forger) -> Shown:
    return [forger.certified(constructor_bytes(SHARD_BLOCK_ID) + bytes(200))]


def for_no_master(forger: Forger) -> Shown:
    return [forger.of_no_master()]


LIES: dict[str, Callable[[Forger], Shown]] = {
    one.__name__: one
    for one in (a_second, two_more, final_by_its_child, no_block, a_bad_block, for_no_master)
}


def are_level(world: ChainOverlayWorld, houses: Iterable[ChainHouse]) -> bool:
    return (
        len({house.running.ledger.master.hash for house in houses}) == 1
        and all(not house.pending for house in world.validators)
        and all(not house.running.ledger.following.known for house in houses)
    )


async def settled(world: ChainOverlayWorld, within_s: float = 60.0) -> None:
    await world.until(
        lambda: are_level(world, world.houses),
        "every message in the masterchain, one chain for all",
        within_s,
    )


def check_disk(world: ChainOverlayWorld, house: ChainHouse) -> None:
    """The stored blocks are one chain, from the genesis to what the house says."""
    assert house.store is not None
    played = replay(world.genesis, [kept.payload for kept in house.store.blocks()])
    assert played.master.hash == house.running.ledger.master.hash


async def _one_follower_is_shown(
    lie: Callable[[Forger], Shown], case: str, place: int = -1, within_s: float = 60.0
) -> None:
    world = ChainOverlayWorld(SIZE, 12, full_nodes=1)
    world.start()
    world.offer(some_primes(0))
    await settled(world)
    victim = world.houses[place]
    forger = Forger(world, victim)
    if case == "cannot warn others":
        links = world.links[victim.place]
        links.push = lambda peer, frame: False  # type: ignore[method-assign]
    show(forger.session, lie(forger), [victim])
    if case == "restarted":
        await asyncio.sleep(0.05)  # until it is written
        victim.crash()
        victim.start()
    for number in range(1, 4):
        world.offer(some_primes(number))
        await asyncio.sleep(1.0)
    await settled(world, within_s)
    assert victim.running.ledger.master.seqno >= 3
    check_disk(world, victim)
    victim.crash()
    victim.start()
    world.offer(some_primes(4))
    await settled(world, within_s)
    check_disk(world, victim)
    world.check()
    await world.close()


@pytest.mark.parametrize("case", ["running", "restarted", "cannot warn others"])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_liars_certify_for_one_follower_alone_does_not_stop_it(
    lie: Callable[[Forger], Shown], case: str
) -> None:
    run_in_virtual_time(_one_follower_is_shown(lie, case))


@pytest.mark.parametrize("case", ["running", "restarted", "cannot warn others"])
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_liars_certify_for_one_of_their_session_s_members_does_not_stop_it(
    lie: Callable[[Forger], Shown], case: str
) -> None:
    run_in_virtual_time(_one_follower_is_shown(lie, case, place=1))


async def _validators_are_shown_different_blocks(within_s: float = 60.0) -> None:
    def small(configuration: Configuration) -> Configuration:
        return msgspec.structs.replace(configuration, shard_validators=1)

    world = ChainOverlayWorld(SIZE, 13, full_nodes=1, configure=small)
    world.start()
    world.offer(some_primes(0))
    await settled(world)
    (session,) = world.houses[0].running.ledger.sessions()
    liar = next(house for house in world.validators if public_key_of(house.place) in session.public_keys)
    liar.crash()
    honest = [house for house in world.houses if house is not liar]
    for place, house in enumerate(honest):  # to each of them another block
        forger = Forger(world, honest[-1])
        show(session, [forger.valid(later_s=0.1 + place / 10)], [house])
    for number in range(1, 4):
        world.offer(some_primes(number))
        await asyncio.sleep(1.0)

    def goes_on() -> bool:
        at_work = [one.session_id for one in honest[0].running.ledger.sessions()]
        return (
            at_work != [session.session_id] and len({one.running.ledger.master.hash for one in honest}) == 1
        )

    await world.until(goes_on, "the masterchain goes on and ends the held session", within_s)
    liar.start()
    await settled(world, within_s)
    assert all(one.running.counters.passed_over for one in honest)
    for house in world.houses:
        check_disk(world, house)
    world.check()
    await world.close()


def test_the_masterchain_goes_on_when_each_validator_was_shown_another_block() -> None:
    run_in_virtual_time(_validators_are_shown_different_blocks())


def _stays(self: FollowedChain, kept: object) -> bool:
    return False


def test_a_follower_that_stays_with_what_it_was_shown_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FollowedChain, "_give_way", _stays)
    with pytest.raises(AssertionError, match="not within"):
        run_in_virtual_time(_one_follower_is_shown(a_second, "cannot warn others", within_s=20.0))


def test_a_leader_that_commits_what_is_in_dispute_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChainFollower, "_doubt", lambda self, peer, session: None)
    monkeypatch.setattr(ChainFollower, "_compare", lambda self, peer, final: None)
    with pytest.raises(AssertionError, match="not within"):
        run_in_virtual_time(_validators_are_shown_different_blocks(within_s=20.0))
