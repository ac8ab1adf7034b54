"""S2, S3, S4 and S6 on the way into a node, in virtual time: random lives of one node, judged by a model of dictionaries.

A life mixes good messages, flawed ones and replays with waiting, clocks that are set, restarts, crashes and disks that fail.

One seed again: PYTHONPATH=src python -m tests.simulation.intake_model SEED
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import msgspec

from stagepost.dmq.mempool import MESSAGES_MAX, Mempool, MempoolLimits
from stagepost.dmq.message import FIVE_AND_FOUR, DmqMessage
from stagepost.dmq.node.intake import Intake
from stagepost.dmq.node.memory_store import MemoryDisk, MemoryStore
from stagepost.dmq.outcome import Accepted, Outcome, Rejected
from stagepost.dmq.validation import MessageValidator, ValidationRules, rules_for
from stagepost.errors import ConfigError, DecodeError, ErrorCode, StorageError
from stagepost.ground.identifiers import PoolId
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.signatures.verifier import InlineVerifier
from tests.worlds.dmq.altered_messages import altered
from tests.worlds.dmq.pool_signers import NOW, KnownPools, Signer, decoded

POOLS = 4
STRANGER = 60
PAUPER = 61
STEPS = 400
HELD_MAX = 100_000
SMALL_MEMPOOL = 6
"""Messages in the mempools of half of the lives: these are full at times."""
RULES = (ValidationRules(), rules_for(42))
SHARES = {"fresh": 22, "flawed": 30, "replay": 32, "wait": 8, "set the clock": 4, "restart": 3, "fail": 1}
WAITS_S = (0.1, 1.0, 20.0, 61.0, 300.0, 1_000.0, 2_500.0)
CLOCK_STEPS_S = (-86_400.0, -3_000.0, -600.0, -30.0, 30.0, 600.0)
STARTS_WITHIN_S = 3_600.0
"""A node does not start with a clock further behind than this; an operator then sets it."""


@dataclass
class Findings:
    """What happened in one life or in many, and what must not have."""

    rejected: int = 0
    replayed: int = 0
    counters: int = 0
    steps_back: int = 0
    restarts: int = 0
    accepted: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        self.rejected += other.rejected
        self.replayed += other.replayed
        self.counters += other.counters
        self.steps_back += other.steps_back
        self.restarts += other.restarts
        self.accepted += other.accepted
        self.violations += other.violations


class Life:
    """One node on one disk, through restarts; and what an onlooker remembers of it."""

    def __init__(self, seed: int) -> None:
        self.found = Findings()
        self._seed = seed
        self._random = Random(seed)
        self._rules = self._random.choice(RULES)
        self._stakes: dict[PoolId, int] = {Signer(number).pool_id: 1 for number in range(POOLS)}
        self._stakes[Signer(PAUPER).pool_id] = 0
        self._limits = MempoolLimits(messages_max=self._random.choice((MESSAGES_MAX, SMALL_MEMPOOL)))
        self._disk = MemoryDisk()
        self._clock = LoopClock(NOW)
        self._tag = 0
        self._accepted: list[DmqMessage] = []
        self._counters: dict[bytes, int] = {}

    async def run(self, steps: int) -> Findings:
        self._begin()
        kinds, weights = list(SHARES), list(SHARES.values())
        for kind in self._random.choices(kinds, weights, k=steps):
            match kind:
                case "fresh":
                    await self._submit(self._a_fresh_message())
                case "flawed":
                    await self._submit(self._a_flawed_message(), may_pass=False)
                case "replay":
                    await self._replay()
                case "wait":
                    await asyncio.sleep(self._random.choice(WAITS_S))
                case "set the clock":
                    step_s = self._random.choice(CLOCK_STEPS_S)
                    self._clock.step(step_s)
                    self.found.steps_back += step_s < 0
                case "restart":
                    await self._restart()
                case _:
                    self._disk.fail_next()
                    await self._submit(self._a_fresh_message())
        await self._end()
        return self.found

    # Lives of the node

    def _begin(self) -> None:
        self._mempool = Mempool(self._limits)
        self._validator = MessageValidator(self._rules, KnownPools(self._stakes))
        self._store = MemoryStore(self._disk)
        self._intake = Intake(
            self._validator, self._mempool, self._store, self._clock, verifier=InlineVerifier()
        )
        self._intake.restore()
        self._sweeping = asyncio.create_task(self._intake.expire_loop())

    async def _end(self) -> None:
        self._sweeping.cancel()
        with suppress(asyncio.CancelledError):
            await self._sweeping
        await self._intake.close()

    async def _restart(self) -> None:
        await self._end()
        if self._random.random() < 0.5:
            with suppress(StorageError):  # it may end on a disk that fails just then
                await self._store.close()
        self._disk.crash()
        self.found.restarts += 1
        try:
            self._begin()
        except ConfigError:
            self._disk.crash()
            self._clock.step(self._behind_s() - STARTS_WITHIN_S * self._random.random())
            self._begin()

    def _behind_s(self) -> float:
        """How far the stored time is ahead of the clock, as the node itself would read it at its start."""
        store = MemoryStore(self._disk)
        ahead_s = store.load().highest_ms / 1_000 - self._clock.unix_s()
        self._disk.crash()
        return ahead_s

    # Messages

    def _a_fresh_message(self) -> DmqMessage:
        """Good in everything but, at times, its certificate's number."""
        self._tag += 1
        pool = self._random.randrange(POOLS)
        known = self._counters.get(Signer(pool).pool_id, 1)
        issue_number = max(0, known + self._random.choice((-1, 0, 0, 0, 1, 7)))
        return Signer(pool, issue_number).sign(self._tag, expires_at=self._an_expiry())

    def _an_expiry(self) -> int:
        return int(self._intake.clock.unix_s()) + self._random.choice((2, 30, 300, 1_700))

    def _a_flawed_message(self) -> DmqMessage:
        good = self._a_fresh_message()
        certificate = good.operational_certificate
        now = int(self._intake.clock.unix_s())
        flaws: Sequence[Callable[[], DmqMessage]] = (
            lambda: altered(good, kes_signature=bytes(448)),
            lambda: altered(good, message_id=self._random.randbytes(32)),
            lambda: altered(
                good,
                operational_certificate=msgspec.structs.replace(
                    certificate, issue_number=certificate.issue_number + 9
                ),
            ),
            lambda: altered(
                good, operational_certificate=msgspec.structs.replace(certificate, start_kes_period=1)
            ),
            lambda: Signer(STRANGER, 3).sign(self._tag, expires_at=good.expires_at),
            lambda: Signer(PAUPER, 3).sign(self._tag, expires_at=good.expires_at),
            lambda: Signer(0, 99).sign(self._tag, expires_at=now - 10 - self._random.randrange(1_000)),
            lambda: Signer(0, 99).sign(self._tag, expires_at=now + 1_806 + self._random.randrange(1_000)),
            lambda: self._flipped(good),
        )
        return self._random.choice(flaws)()

    def _flipped(self, good: DmqMessage) -> DmqMessage:
        while True:
            with suppress(DecodeError):
                return decoded(good, flip_at=self._random.randrange(len(good.raw)))

    # Submitting

    async def _submit(self, message: DmqMessage, *, may_pass: bool = True) -> None:
        before = self._state_now()
        outcome = await self._intake.submit(message, "program")
        pool_id = message.pool_id
        number, highest = message.operational_certificate.issue_number, self._counters.get(pool_id)
        is_lower = highest is not None and number < highest
        if isinstance(outcome, Accepted):
            self.found.accepted += 1
            self.found.counters += 1
            self._require(may_pass, "S1", "accepted a flawed message")
            self._require(not is_lower, "S6", f"accepted certificate {number} after {highest}")
            self._accepted.append(message)
            self._counters[pool_id] = max(number, highest or 0)
            return
        self.found.rejected += 1
        self._require(self._state() == before, "S2", f"changed its state while it refused: {outcome}")
        if code_of(outcome) is ErrorCode.OPCERT_COUNTER:
            self.found.counters += 1
            self._require(is_lower, "S6", f"refused certificate {number} though {highest} was the highest")

    async def _replay(self) -> None:
        if not self._accepted:
            return
        message = self._random.choice(self._accepted)
        before = self._state_now()
        outcome = await self._intake.submit(message, "replay")
        self.found.replayed += 1
        self.found.rejected += 1
        expired_s = self._intake.clock.unix_s() - message.expires_at
        self._require(
            not isinstance(outcome, Accepted), "S3", f"accepted a replay {expired_s:.0f} s after its expiry"
        )
        if not isinstance(outcome, Accepted):
            self._require(self._state() == before, "S2", f"changed its state while it refused: {outcome}")

    def _state_now(self) -> object:
        """After a sweep: what expires is no effect of the message that is submitted next."""
        self._intake.sweep()
        return self._state()

    def _state(self) -> object:
        entries = self._mempool.after(0, HELD_MAX, FIVE_AND_FOUR)
        remembered = self._validator.pools_remembered.export(0, 0)
        return [entry.index for entry in entries], remembered, self._disk.messages_synced

    def _require(self, holds: bool, promise: str, text: str) -> None:
        if not holds:
            self.found.violations.append(
                f"{promise}: the node {text}; again with: PYTHONPATH=src python -m tests.simulation.intake_model {self._seed}"
            )


def code_of(outcome: Outcome) -> ErrorCode | None:
    return outcome.code if isinstance(outcome, Rejected) else None


def run_life(seed: int, steps: int = STEPS) -> Findings:
    async def main() -> Findings:
        return await Life(seed).run(steps)

    return run_in_virtual_time(main())


if __name__ == "__main__":
    print(run_life(int(sys.argv[1])))
