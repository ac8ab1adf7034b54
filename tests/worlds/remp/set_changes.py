"""Changes of the validator set while a run of primes lasts: three validators join, one takes the place of another, two leave.

A quorum of the present set approves each change, the others do not. As a validator's disk keeps what its operator approved, so
does this: a validator that was away wants the change again when it is back.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from random import Random

import msgspec

from stagepost.chain.agreement.votes import quorum
from stagepost.chain.configuration import ChainValidator, Configuration, ValidatorSet
from stagepost.network.founding import SET_LIFETIME_MS, shard_session_size
from tests.worlds.remp.primes_world import PrimesWorld

LOOK_EVERY_S = 0.5
CHANGED_WITHIN_S = 60.0
AHEAD_MS = 1_000
TOO_FEW_FOR = 12
"""Looks for which one approval is missing."""

FOUNDERS = 4
CHANGES: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3, 4, 5, 6), (0, 7, 2, 3, 4, 5, 6), (7, 3, 4, 5, 6))
"""Numbers of the validators of each set after the first."""

VALIDATORS = 8


class SetChanges:
    """`present`: numbers of the validators of the set in force."""

    def __init__(self, world: PrimesWorld, random: Random) -> None:
        self.present: tuple[int, ...] = tuple(range(FOUNDERS))
        self.done = 0
        self._world = world
        self._random = random
        self._wanted: Configuration | None = None
        self._approving: frozenset[int] = frozenset()

    async def play(self, within_s: float) -> None:
        """Make every change, the first at once; they take `within_s` at least, so that messages flow between them."""
        for numbers in CHANGES:
            await self._change(numbers)
            await asyncio.sleep(self._random.uniform(0.5, 1.5) * within_s / len(CHANGES))

    @property
    def _in_force(self) -> Configuration:
        return self._world.ledger.master.configuration

    async def _change(self, numbers: tuple[int, ...]) -> None:
        world, base = self._world, self._in_force
        members = tuple(
            ChainValidator(world.public_keys[one], sha256(world.public_keys[one]).digest()) for one in numbers
        )
        from_ms = world.now_ms + AHEAD_MS
        following = ValidatorSet(from_ms, from_ms + SET_LIFETIME_MS, members)
        self._wanted = msgspec.structs.replace(
            base, next=following, shard_validators=shard_session_size(len(members))
        )
        approving = self._random.sample(self.present, quorum(len(self.present)))
        self._approving = frozenset(approving[:-1])
        for _ in range(TOO_FEW_FOR):
            self._approve(base)
            await asyncio.sleep(LOOK_EVERY_S)
        assert self._in_force == base, "fewer approvals than a quorum changed the set"
        self._approving = frozenset(approving)
        loop = asyncio.get_running_loop()
        ends = loop.time() + CHANGED_WITHIN_S
        while self._in_force.current.validators != members:
            assert loop.time() < ends, f"the set {numbers} is not in force within {CHANGED_WITHIN_S:g} s"
            self._approve(base)
            await asyncio.sleep(LOOK_EVERY_S)
        self._wanted = None
        self._approve(base)
        self.present = numbers
        self.done += 1

    def _approve(self, base: Configuration) -> None:
        for house in self._world.validators:
            if house.validator is None:
                continue
            chain = house.validator.chain
            is_wanted = house.number in self._approving and chain.ledger.master.configuration == base
            wanted = [] if self._wanted is None or not is_wanted else [self._wanted]
            if {one.hash for one in wanted} != chain.ledger.wanted:
                chain.want_only(wanted)
