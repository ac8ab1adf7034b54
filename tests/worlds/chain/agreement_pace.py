"""Runs of validators whose chain must go on although some of them are down or withhold their votes: how long it takes
from one final block to the next."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from random import Random
from types import FrameType
from typing import Any

from stagepost.chain.agreement.pacing import MemberOptions
from tests.worlds.chain.agreement_attackers import FinaliseWithholder, world_with
from tests.worlds.chain.agreement_world import Peer, World

DELAYS_S = (0.05, 0.9)
"""Seconds that a message takes, each on its own."""

STEADY_S = 0.4
DISTURBED_UNTIL_S = 20.0
HOUR_S = 3_600.0
AGREEMENT_FOLDER = "chain/agreement/"

MOST_WITHIN_S = 25.0
"""Seconds without a final block, at most, in 99 of 100 runs with f validators down or withholding."""

ALL_WITHIN_S = 60.0
"""Seconds without a final block, at most, in every such run."""

SIZES = (4, 7, 10, 13, 16, 19, 21)


class Silence:
    """The longest time that an honest validator waited for a final block, and which one it was."""

    def __init__(self, seconds: float, validator: int, at: float) -> None:
        self.seconds = seconds
        self.validator = validator
        self.at = at

    def __str__(self) -> str:
        return f"validator {self.validator} saw no final block for {self.seconds:.1f} s until {self.at:.1f} s"


def keep_busy(world: World) -> None:
    """Give every validator that is up something to say, all the time."""

    def refill() -> None:
        for peer in world.peers:
            if peer.is_up and len(peer.to_say) < 2:
                peer.say(b"%d at %f" % (peer.index, world.now))
            elif peer.is_up:
                peer.want_more(peer.life)
        world.after(0.5, refill)

    refill()


def note_finals(world: World) -> dict[int, list[float]]:
    """Return a table that fills with the times of final blocks of each honest validator."""
    times: dict[int, list[float]] = {peer.index: [] for peer in world.honest}
    note_final = world.note_final

    def noted(peer: Peer, block: object) -> None:
        if peer.is_honest:
            times[peer.index].append(world.now)
        note_final(peer, block)  # type: ignore[arg-type]

    world.note_final = noted  # type: ignore[method-assign]
    return times


def longest_silence(seed: int, size: int, *, is_down: bool, until: float) -> Silence:
    """Run `size` validators with f of them down, or withholding FINALISE, each message taking up to 0.9 s."""
    random = Random(seed)
    faulty = random.sample(range(size), (size - 1) // 3)
    world = world_with(size, seed, {} if is_down else dict.fromkeys(faulty, FinaliseWithholder), loss=0.0)
    world.options = MemberOptions()
    world.network.delay_s = DELAYS_S
    times = note_finals(world)
    up = [peer for peer in world.peers if not (is_down and peer.index in faulty)]
    for peer in up:
        peer.start()
    keep_busy(world)
    world.run(until)
    world.check_certified()
    found = [
        Silence(later - earlier, peer.index, later)
        for peer in up
        if peer.is_honest
        for earlier, later in pairwise([0.0, *times[peer.index], until])
    ]
    return max(found, key=lambda one: one.seconds)


def share_of_final_slots(seed: int, *, until: float) -> float:
    """Run four validators of which one never votes FINALISE: 20 s of disturbance, then 0.4 s for each message.
    Return the share of slots with honest leaders after the disturbance that became final."""
    random = Random(seed)
    liar = random.randrange(4)
    world = world_with(4, seed, {liar: FinaliseWithholder}, loss=0.1)
    world.options = MemberOptions()
    world.network.delay_s = (0.001, random.uniform(0.5, 2.0))
    world.start_all()
    keep_busy(world)
    world.run(DISTURBED_UNTIL_S)
    world.network.loss = 0.0
    world.network.delay_s = (STEADY_S, STEADY_S)
    first = max(peer.member.slot for peer in world.honest)
    world.run(until)
    world.check_certified()
    # The last two slots may still be on their way to finality.
    last = min(peer.member.slot for peer in world.honest) - 3
    led = [slot for slot in range(first, last + 1) if world.session.leader_of(slot) != liar]
    return len([slot for slot in led if slot in world.final]) / len(led)


def run_after_silent_hour(seed: int) -> tuple[float, float]:
    """Let nobody above the validators answer for an hour, then crash one of four. Return the longest time-out and the
    time until the next final block."""
    world = world_with(4, seed, {}, loss=0.0)
    world.options = MemberOptions(ask_every_s=5.0)
    is_deaf = [True]
    for peer in world.peers:
        peer.propose = _unless(is_deaf, peer.propose)  # type: ignore[method-assign]
    times = note_finals(world)
    world.start_all()
    for peer in world.peers:
        peer.say(b"from %d" % peer.index)
    longest_s = 0.0
    while world.now < HOUR_S:
        world.run(world.now + 10.0)
        longest_s = max(longest_s, *(peer.member.timeout_s for peer in world.peers))
    is_deaf.clear()
    world.peers[Random(seed).randrange(4)].crash()
    while not any(times.values()) and world.now < HOUR_S + 600.0:
        world.run(world.now + 1.0)
    return longest_s, world.now - HOUR_S


def _unless(is_deaf: list[bool], act: Callable[..., None]) -> Callable[..., None]:
    return lambda *arguments: None if is_deaf else act(*arguments)


def lines_per_slot(slots: int) -> float:
    """Let four validators, two of whom withhold FINALISE, go through `slots` slots, none of which becomes final. Return
    how many lines of the agreement run in each of the next five slots, for one validator."""
    world = world_with(4, 1, {1: FinaliseWithholder, 2: FinaliseWithholder}, loss=0.0)
    finals = note_finals(world)
    world.start_all()
    keep_busy(world)
    observed = world.peers[0]

    def run_to(slot: int) -> None:
        while observed.member.slot < slot:
            assert world.now < 10 * (slot + 10), f"slot {observed.member.slot} does not end"
            world.run(world.now + 0.05)

    run_to(slots)
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if AGREEMENT_FOLDER not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    before, first = sys.gettrace(), observed.member.slot
    sys.settrace(trace)
    try:
        run_to(first + 5)
    finally:
        sys.settrace(before)
    assert not any(finals.values()), "a block became final without a quorum"
    return lines / (observed.member.slot - first)
