"""Power cuts of many validators at once, around the switches of sessions, while a shard is to be split or merged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from stagepost.chain.master_state import PlanKind
from stagepost.chain.rotation import Plan
from stagepost.remp.queue.session_switch import Shard
from tests.worlds.remp.primes_world import PrimesWorld

LOOK_EVERY_S = 0.02
BEFORE_SWITCH_S = 0.0, 0.02, 0.1, 0.3, 0.6
"""Seconds, one of them drawn each time, before the switch that is expected next."""

AROUND_S = 0.05
PLANNED_IN_MS = 0, 1, 50, 200, 1_000
DARK_S = 0.01, 3.0
"""Seconds, at least and at most, until a validator has power again."""

WHOLE = Shard(0, 1 << 63)


class PowerCuts:
    """`cut` cuts half of the validators off for a moment."""

    def __init__(self, world: PrimesWorld, random: Random, lifetime_ms: int, cut: Callable[[], None]) -> None:
        self.strikes = 0
        self.crashes = 0
        self._world = world
        self._random = random
        self._lifetime_s = lifetime_ms / 1_000
        self._cut = cut
        self._until_ms = 0
        self._sessions: frozenset[bytes] | None = None

    def watch(self, seconds: float) -> None:
        """Strike around the switches of so many seconds, which begin in a second."""
        self._until_ms = self._world.now_ms + int(seconds * 1_000)
        self._world.at(1.0, self._look)

    def _look(self) -> None:
        world, random = self._world, self._random
        if world.now_ms >= self._until_ms:
            return
        ledger = world.ledger
        sessions = frozenset(one.session_id for one in ledger.sessions()) | {ledger.master.session.session_id}
        if self._sessions is not None and sessions != self._sessions:
            if random.random() < 0.5:
                self._strike()
            ahead_s = random.choice(BEFORE_SWITCH_S) + random.uniform(-AROUND_S, AROUND_S)
            world.at(max(0.0, self._lifetime_s - ahead_s), self._strike)
        self._sessions = sessions
        world.at(LOOK_EVERY_S, self._look)

    def _strike(self) -> None:
        """Have everybody want a split or a merge, and cut the power of one honest validator, some, or all of them."""
        world, random = self._world, self._random
        if world.now_ms > self._until_ms:
            return
        self.strikes += 1
        plan = Plan(
            random.choice((PlanKind.SPLIT, PlanKind.MERGE)),
            WHOLE,
            world.now_ms + random.choice(PLANNED_IN_MS),
        )
        for house in world.validators:
            if house.validator is not None:
                house.validator.chain.plans[:] = [plan]
        size = len(world.validators)
        up = [house for house in world.validators if house.validator is not None and house.fault is None]
        for house in random.sample(up, min(random.choice((1, size // 3, size // 2, len(up))), len(up))):
            house.crash()
            self.crashes += 1
            world.at(random.uniform(*DARK_S), house.start)
        if random.random() < 0.4:
            self._cut()
