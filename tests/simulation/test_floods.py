"""Floods of announcements without bodies: honest messages are served as in calm, and nothing is lost for good."""

from __future__ import annotations

from functools import partial

import pytest

from stagepost.catchain.budgets import Rates
from stagepost.remp.queue import body_search
from stagepost.remp.queue.records import date_rules
from stagepost.remp.queue.state import SKEW_MS, QueueOptions, QueueState
from tests.worlds.catchain.catchain_attackers import (
    RATES,
    Attacker,
    Flooder,
    LawfulFlooder,
    is_honest,
    world_with,
)
from tests.worlds.catchain.catchain_world import World
from tests.worlds.remp.queue_world import Validator, message

MESSAGES = 80
SLOWER_AT_MOST = 3.0
LOOK_EVERY_S = 0.005
LOST_S = 60.0


class RowFlooder(Flooder):
    """Sends 159 blocks, 2 MB, with 10,000 announcements: more than a queue holds."""

    headers = 10_000


def validators(world: World) -> list[Validator]:
    return [peer for peer in world.peers if is_honest(peer) and isinstance(peer, Validator)]


def latencies(world: World, seed: int, *, from_s: float = 4.0) -> list[float]:
    """Return for each of many messages the seconds until all honest validators can collate it."""
    honest = validators(world)
    waiting: dict[bytes, float] = {}
    taken_s: list[float] = []

    def hand_over(number: int) -> None:
        waiting[message(number).message_id] = world.now
        for place in (0, 1):
            honest[(number + place) % len(honest)].hand_over(message(number))

    def look() -> None:
        for message_id, since in list(waiting.items()):
            if all(is_served(peer, message_id) for peer in honest):
                taken_s.append(world.now - since)
                del waiting[message_id]
        world.after(LOOK_EVERY_S, look)

    for number in range(MESSAGES):
        world.at(from_s + number * 0.1 + seed % 7 * 0.01, partial(hand_over, number))
    world.at(from_s, look)
    world.run(from_s + MESSAGES * 0.1 + 10.0)
    return sorted(taken_s) + [LOST_S] * len(waiting)


def is_served(peer: Validator, message_id: bytes) -> bool:
    entry = peer.queue._state.entries.get(message_id)
    return (
        entry is not None
        and entry.is_announced
        and entry.cached.body is not None
        and message_id in peer.queue._state._open
    )


def p99_of(size: int, kinds: list[type[Attacker]], rates: Rates, seed: int) -> tuple[float, World]:
    attackers = dict(zip(range(size - len(kinds), size), kinds, strict=True))
    world = world_with(size, seed, attackers, loss=0.0)
    world.dates = date_rules(0, SKEW_MS, rates)
    world.start_all()
    found = latencies(world, seed)
    return found[len(found) * 99 // 100], world


SCENES: dict[str, tuple[int, list[type[Attacker]], Rates, int]] = {
    "10,000 at once": (4, [RowFlooder], Rates(), 10_000),
    "two for ever within their budgets": (7, [LawfulFlooder, LawfulFlooder], RATES, 500),
}


@pytest.mark.parametrize("scene", SCENES)
def test_honest_messages_are_served_under_a_flood_as_in_calm(
    scene: str, run_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, kinds, rates, messages_max = SCENES[scene]
    monkeypatch.setattr(Validator, "queue_options", QueueOptions(messages_max=messages_max))
    calm_s, _ = p99_of(size, [Attacker] * len(kinds), rates, run_seed)
    flood_s, world = p99_of(size, kinds, rates, run_seed)
    assert flood_s <= SLOWER_AT_MOST * calm_s, f"seed {run_seed}: {flood_s:.3f} s instead of {calm_s:.3f} s"
    blamed = set(range(size - len(kinds), size)) if RowFlooder in kinds else set()
    for peer in validators(world):
        assert peer.blamed == blamed, f"seed {run_seed}: member {peer.index} blames {peer.blamed}"


def test_a_planted_defect_lets_two_floods_stop_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that refuses whoever comes last serves those who flood it."""
    monkeypatch.setattr(Validator, "queue_options", QueueOptions(messages_max=300))
    monkeypatch.setattr(QueueState, "make_room", lambda self, charged_to: not self.is_full)
    flood_s, _ = p99_of(7, [LawfulFlooder] * 2, RATES, 1)
    assert flood_s == LOST_S


def test_a_planted_defect_keeps_what_has_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_search.BodySearch, "give_up", lambda *_: [])
    with pytest.raises(AssertionError):
        test_what_has_no_body_leaves_the_queue_and_comes_back_with_it()


def test_what_has_no_body_leaves_the_queue_and_comes_back_with_it() -> None:
    world = world_with(4, 1, {}, loss=0.0)
    world.start_all()
    world.run(2.0)
    author, others = validators(world)[0], validators(world)[1:]
    one = message(1)
    author.send_body = lambda peer, message_id: None  # type: ignore[method-assign]
    author.hand_over(one)
    world.run(4.0)
    assert all(peer.queue.open_count == 1 for peer in others)
    world.run(9.0)
    for peer in others:
        assert peer.queue.open_count == 0
        assert one.message_id in peer.queue, "what was announced is not forgotten"
        assert not peer.blamed
        taken, _ = peer.queue.take(world.now, 10)
        assert taken == []
    del author.send_body
    world.run(20.0)
    for peer in others:
        assert peer.queue.open_count == 1, "its body was asked for again"
        assert [found.message_id for found in peer.queue.take(world.now, 10)[0]] == [one.message_id]
