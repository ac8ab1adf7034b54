"""Seconds from a message's submission to SentToValidators, near a switch of sessions and far from one, in virtual time.

python -m tests.worlds.remp.switch_pace 7
"""

from __future__ import annotations

import asyncio
import logging
import sys
from random import Random

import msgspec

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind
from stagepost.chain.master_state import PlanKind
from stagepost.chain.rotation import Plan
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.ledger import LedgerEvent, MasterApplied
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.shard import Shard
from tests.worlds.ground.memoised_signatures import memoised_signatures
from tests.worlds.remp.primes_world import PrimesWorld, Sum, distinct_sums

VALIDATORS, SESSION = 9, 5
LIFETIME_MS = 30_000
NEAR_S = 2.0
"""Seconds before and after a switch in which a message counts as near to it."""

ACCOUNTS = 5
WHOLE = Shard(0, 1 << 63)


class SwitchPace(msgspec.Struct, frozen=True):
    """Seconds, sorted, by the distance of each message's submission from the nearest switch of its account's session."""

    near: list[float]
    far: list[float]
    switches: int
    out_of_order: int
    """Messages with a PutIntoQueue before SentToValidators on the topic."""

    unfinished: int

    @property
    def text(self) -> str:
        return (
            f"{len(self.near)} messages within {NEAR_S:g} s of {self.switches} switches: SentToValidators p50 "
            f"{share(self.near, 0.5):.3f} s, p99 {share(self.near, 0.99):.3f} s; {len(self.far)} far from one: p50 "
            f"{share(self.far, 0.5):.3f} s, p99 {share(self.far, 0.99):.3f} s; ratio of p99 {self.ratio:.2f}; "
            f"{self.out_of_order} with PutIntoQueue first, {self.unfinished} without an end"
        )

    @property
    def ratio(self) -> float:
        return share(self.near, 0.99) / share(self.far, 0.99)


def share(values: list[float], part: float) -> float:
    """Return the least of the sorted `values` that is no smaller than this part of them."""
    return values[min(len(values) - 1, int(part * len(values)))]


class _PaceRun:
    def __init__(self, seed: int, messages: int, validators: int) -> None:
        self.random = Random(seed)
        self.validators = validators
        self.seed = seed
        self.messages = messages
        self.begun: dict[bytes, float] = {}
        self.sent: dict[bytes, float] = {}
        self.switched: list[float] = []

    async def main(self) -> SwitchPace:
        world = self.world = PrimesWorld(
            self.validators, self.seed, lifetime_ms=LIFETIME_MS, shard_validators=SESSION
        )
        node = self.node = world.full_nodes[0]
        node.listeners.append(self._heard)
        self._watch_switches()
        accounts = [
            address(ContractKind.SUM_OF_PRIMES, number, first_bits=number * 256 // ACCOUNTS)
            for number in range(ACCOUNTS)
        ]
        sums = distinct_sums(self.random, accounts, self.messages // ACCOUNTS)
        await asyncio.sleep(2.0)
        # So many sessions that a fifth of the messages are near a switch; a split and a merge among the switches.
        lasts_s = LIFETIME_MS / 1_000 * 4
        for one in sums:
            world.at(self.random.uniform(0.0, lasts_s), lambda one=one: self._submit(one))  # type: ignore[misc]
        # The split is planned close behind the end of a session, the merge close before one.
        first_end_s = (LIFETIME_MS - world.now_ms % LIFETIME_MS) / 1_000
        world.at(first_end_s - 12.0, lambda: self._plan(PlanKind.SPLIT, 12.0 + 5.0))
        world.at(first_end_s + 2 * LIFETIME_MS / 1_000 - 14.0, lambda: self._plan(PlanKind.MERGE, 14.0 - 4.0))
        await asyncio.sleep(lasts_s + 2.0)
        await world.until(
            lambda: all(node.count_of(one.message_id, "Finalized") for one in sums),
            "every message is final",
            120.0,
        )
        await world.close()
        return self._outcome(sums)

    def _watch_switches(self) -> None:
        before = self.node.follower._on_events

        def on_events(events: list[LedgerEvent]) -> None:
            if any(isinstance(one, MasterApplied) and one.started for one in events):
                self.switched.append(self.world.clock.mono_s())
            before(events)

        self.node.follower._on_events = on_events  # type: ignore[assignment]  # it does the same, and is seen doing it

    def _plan(self, kind: PlanKind, in_s: float) -> None:
        plan = Plan(kind, WHOLE, self.world.now_ms + int(in_s * 1_000))
        for house in self.world.validators:
            house.running.chain.plans.append(plan)

    def _submit(self, one: Sum) -> None:
        self.begun[one.message_id] = self.world.clock.mono_s()
        self.node.submit(one.data)

    def _heard(self, receipt: Receipt) -> None:
        if receipt.kind.name == "SentToValidators":
            self.sent.setdefault(receipt.message_id, self.world.clock.mono_s())

    def _outcome(self, sums: list[Sum]) -> SwitchPace:
        near: list[float] = []
        far: list[float] = []
        for one in sums:
            begun = self.begun[one.message_id]
            is_near = any(abs(begun - at) <= NEAR_S for at in self.switched)
            took = self.sent.get(one.message_id, begun + 1_000.0) - begun
            (near if is_near else far).append(took)
        wrong = 0
        for one in sums:
            kinds = [kind for _, kind in self.node.kinds[one.message_id]]
            if "PutIntoQueue" in kinds and kinds.index("PutIntoQueue") < kinds.index("SentToValidators"):
                wrong += 1
        unfinished = sum(not self.node.count_of(one.message_id, "Finalized") for one in sums)
        return SwitchPace(sorted(near), sorted(far), len(self.switched), wrong, unfinished)


def run_pace(seed: int, messages: int = 1_000, validators: int = VALIDATORS) -> SwitchPace:
    """Play a network with sessions smaller than the set through switches, a split and a merge."""
    with memoised_signatures():
        return run_in_virtual_time(_PaceRun(seed, messages, validators).main())


def main(seed: str) -> None:
    logging.disable(logging.CRITICAL)
    print(f"seed {seed}: {run_pace(int(seed)).text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
