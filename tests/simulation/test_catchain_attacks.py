"""Every class of attack                     attacker                                                 where
----------------------------------  -------------------------------------------------------  -----------------------------
equivocate to halves                Equivocator; EquivocatorSeat                             here; test_primes_sessions
withhold from one                   Withholder; WithholderSeat                               here; test_primes_sessions
withhold from all but one           Whisperer; WhispererSeat                                 here; test_primes_sessions
stale or missing dependencies       StaleBuilder; Phantom                                    here
deep dependency request storms      Avalanche; Stormer                                       here, with memory bounded
replay of an old session            Replayer; ReplayerSeat, OldSessionReplayer, Resubmitter  here; test_primes_sessions
forged receipt                      `_lies` of receipt_runs                                  test_primes_sessions
receipt for another set             `_lies` of receipt_runs                                  test_primes_sessions
selective forwarding at switch      Forgetter, FavouringForwarder, FalseForwarder            test_primes_sessions
late flood before a switch          LateFlooder                                              test_primes_sessions
crash between persist and send      `crash_when_written` of honest members                   here, test_catchain_agreement
restore from an older disk image    OlderDisk                                                here
clock far ahead                     FarAhead, Foredater; Liar dates a message 2^60 ms ahead  here
dates before the session            Backdater                                                here; test_announced_dates
more than the budget allows         Flooder, TurnedBackDates                                 here; test_budgets
challenges that are floods          ChallengeFlooder, RepeatedChallenger, Unanswering         here; test_challenges
totals that are false or absent     FalseTotals, Undated                                     here
duplicate identity                  Twin; TwinSeat                                           here; test_primes_sessions
id announced but never served       Liar; LiarSeat, Miser                                    here; test_primes_sessions
size announced falsely              FalseSizes                                               here
more replies than requested         Overanswerer                                             here
collating what is in the chain      `replay_everything` of primes_faults                     test_primes
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stagepost.catchain.member import HEIGHTS_AHEAD_MAX
from tests.worlds.catchain.catchain_attackers import (
    ATTACKERS,
    LATER_ATTACKERS,
    Attacker,
    Avalanche,
    Equivocator,
    FalseSizes,
    FalseTotals,
    FarAhead,
    Flooder,
    LateBodies,
    OlderDisk,
    Overanswerer,
    Phantom,
    Replayer,
    StaleBuilder,
    Stormer,
    TurnedBackDates,
    Twin,
    Undated,
    is_honest,
    world_with,
)
from tests.worlds.catchain.catchain_runs import HEALED_UNTIL_S, check, run_once
from tests.worlds.catchain.catchain_world import Peer, World
from tests.worlds.remp.queue_world import Validator, message

SIZE = 7
ATTACKERS_AT_ONCE = 2


def refusals(world: World) -> set[str]:
    return {one.rule for peer in world.peers if is_honest(peer) for one in peer.refused}


def attackers_of(world: World) -> list[Peer]:
    return [peer for peer in world.peers if not is_honest(peer)]


def all_blamed(world: World) -> bool:
    indices = {peer.index for peer in attackers_of(world)}
    return all(indices <= peer.blamed for peer in world.peers if is_honest(peer))


def memory_is_bounded(world: World) -> bool:
    """Whatever attackers show, an honest member keeps no more of each than so far ahead of what is delivered."""
    for peer in world.peers:
        if is_honest(peer):
            graph = peer.member.graph
            waiting = len(graph.undelivered())
            assert waiting <= ATTACKERS_AT_ONCE * HEIGHTS_AHEAD_MAX, f"{waiting} blocks wait"
            delivered = sum(graph.top(index).height for index in range(graph.size))
            held = len(graph) - delivered
            assert held <= 2 * ATTACKERS_AT_ONCE * HEIGHTS_AHEAD_MAX, (
                f"{held} blocks beyond what is delivered"
            )
    return True


def has_late_bodies(world: World) -> bool:
    """Whatever was brought late is in every honest queue again, with its body, and counts as open."""
    brought = {one for peer in attackers_of(world) if isinstance(peer, Validator) for one in peer.bodies}
    for peer in world.peers:
        if is_honest(peer):
            assert isinstance(peer, Validator)
            bodies = {
                one
                for one in brought
                if (known := peer.cache.get(one)) is not None and known.body is not None
            }
            assert len(bodies) >= len(brought) // 2, f"{len(bodies)} of {len(brought)} bodies"
            assert not any(peer.queue._state.entries[one].is_parked for one in bodies)
    return bool(brought)


NOTICED: dict[type[Attacker], Callable[[World], bool]] = {
    Equivocator: all_blamed,
    Twin: all_blamed,
    StaleBuilder: all_blamed,
    Flooder: all_blamed,
    FalseTotals: all_blamed,
    TurnedBackDates: all_blamed,
    Undated: all_blamed,
    FalseSizes: lambda world: refusals(world) >= {"TooLarge", "Malformed"} and all_blamed(world),
    Replayer: lambda world: refusals(world) >= {"WrongIncarnation", "Malformed"},
    Overanswerer: lambda world: "WrongAnswer" in refusals(world),
    Stormer: memory_is_bounded,
    LateBodies: has_late_bodies,
    Avalanche: memory_is_bounded,
    Phantom: memory_is_bounded,
    OlderDisk: lambda world: all(peer.recovered or peer.halted for peer in attackers_of(world)),
}
"""What shows that the attack took place and met its answer; the others must merely do no harm."""


@pytest.mark.parametrize("kind", [*ATTACKERS, *LATER_ATTACKERS])
def test_two_of_seven_do_no_harm_and_are_noticed_where_they_can_be(
    kind: type[Attacker], run_seed: int
) -> None:
    world = run_once(run_seed, size=SIZE, kinds=[kind] * ATTACKERS_AT_ONCE)
    assert world.now == HEALED_UNTIL_S
    noticed = NOTICED.get(kind)
    assert noticed is None or noticed(world), f"seed {run_seed}: {kind.__name__} was not noticed"


def test_an_older_disk_is_noticed_where_its_member_speaks_late() -> None:
    """Seed 2770043422: one of the two attackers has made no block when its disk is to go back, and so waits."""
    world = run_once(2770043422, size=SIZE, kinds=[OlderDisk] * ATTACKERS_AT_ONCE)
    assert NOTICED[OlderDisk](world)


def test_a_crash_between_persisting_and_sending_makes_no_forker() -> None:
    world = world_with(4, 5, {}, loss=0.0)
    world.start_all()
    world.run(1.0)
    victim = world.peers[1]
    assert isinstance(victim, Validator)
    for number in range(4):
        lives = victim.life
        victim.crash_when_written()
        victim.hand_over(message(number))
        world.run(world.now + 4.0)
        assert victim.life > lives, "it went down and came up again"
    check(world, {message(number).message_id for number in range(4)})
    assert all(not peer.blamed for peer in world.peers)


def test_what_is_dated_a_year_ahead_counts_from_its_block_on_and_is_known_to_all() -> None:
    world = world_with(4, 6, {0: FarAhead}, loss=0.0)
    world.start_all()
    world.run(1.0)
    ahead, honest = world.peers[0], world.peers[1]
    assert isinstance(ahead, FarAhead)
    assert isinstance(honest, Validator)
    ahead.hand_over(message(1))
    world.run(2.0)
    honest.hand_over(message(2))
    world.run(4.0)
    for peer in world.peers[1:]:
        assert isinstance(peer, Validator)
        taken, _ = peer.queue.take(world.now, 10)
        assert [one.message_id for one in taken] == [message(1).message_id, message(2).message_id]
