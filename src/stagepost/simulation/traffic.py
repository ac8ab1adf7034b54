"""The traffic of a run: honest messages, replays of them, and messages that no node may accept."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from stagepost.dmq.message import DmqMessage
from stagepost.dmq.profiles import PROFILES, SEED, Profile
from stagepost.ground.crypto.hashing import blake2b_256
from stagepost.simulation.history import Made, SubmissionAnswer
from stagepost.simulation.pools import SimulatedPools, a_body, a_flawed_message
from stagepost.simulation.programs import submit
from stagepost.simulation.world import World

LIVES_S = (15, 40, 120, 900, 1_700, 1_700, 1_700)
"""Seconds of lifetime, to choose from: some messages expire during the run, most outlive it."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of all submissions that are repeats, flawed, or in the older layout."""

    replay: float = 0.15
    flawed: float = 0.1
    old_layout: float = 0.0


class Traffic:
    """Submitter at random nodes at random times; each submission is a task of its own, so that none waits for
    another."""

    def __init__(
        self, world: World, pools: SimulatedPools, random: Random, shares: Shares | None = None
    ) -> None:
        self._world = world
        self._pools = pools
        self._random = random
        self._shares = shares or Shares()
        self._made: list[DmqMessage] = []
        self._under_way: list[asyncio.Task[SubmissionAnswer]] = []

    def begin(self, count: int, duration_s: float) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._run(count, duration_s))

    def an_honest_message(self, life_s: int | None = None) -> DmqMessage:
        expires_at = int(self._world.unix_s) + (life_s or self._random.choice(LIVES_S))
        pool = self._random.choice(self._pools.members)
        is_old = self._random.random() < self._shares.old_layout
        body = a_body(self._random)
        if is_old:
            message = pool.message_in_old_layout(blake2b_256(body), body, expires_at)
        else:
            message = pool.message(body, expires_at)
        self._world.history.made[message.raw] = Made(expires_at, is_old_layout=is_old)
        self._made.append(message)
        return message

    def submit_at(self, node: str, message: DmqMessage) -> asyncio.Task[SubmissionAnswer]:
        seat = self._world.members[node].seat
        profile = SEED if message.layout.value == 4 else self._profile()
        task = asyncio.get_running_loop().create_task(submit(seat, message, profile))
        self._under_way.append(task)
        return task

    async def settle(self) -> None:
        """Wait until every submission has been answered, or cannot be any more."""
        await asyncio.gather(*self._under_way)

    async def _run(self, count: int, duration_s: float) -> None:
        start_s = self._world.now_s
        for at_s in sorted(self._random.uniform(0, duration_s) for _ in range(count)):
            await asyncio.sleep(max(0.0, start_s + at_s - self._world.now_s))
            node = self._random.choice(list(self._world.members))
            self.submit_at(node, self._next_message())

    def _next_message(self) -> DmqMessage:
        draw = self._random.random()
        if draw < self._shares.replay and self._made:
            return self._random.choice(self._made)
        if draw < self._shares.replay + self._shares.flawed:
            message, flaw = a_flawed_message(self._random, self._pools, self._world.unix_s)
            self._world.history.made[message.raw] = Made(message.expires_at, flaw)
            return message
        return self.an_honest_message()

    def _profile(self) -> Profile:
        return self._random.choice(list(PROFILES.values()))
