"""One run of primes: messages from all sides, faults meanwhile, and what must hold in the end."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec

from rigs.chain_messages import address
from stagepost.chain.contracts import ContractKind
from stagepost.chain.master_state import PlanKind
from stagepost.chain.rotation import Plan
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.queue.session_switch import Shard
from tests.worlds.chain.chain_oracle import Oracle
from tests.worlds.ground.memoised_signatures import memoised_signatures
from tests.worlds.remp.primes_checks import (
    committed_blocks,
    ids_in,
    out_of_order,
    twice_included,
    voted_for_replays,
)
from tests.worlds.remp.primes_world import PrimesWorld, Sum, distinct_sums

SENT_WITHIN_S = 20.0
SETTLED_WITHIN_S = 240.0
WHOLE = Shard(0, 1 << 63)


class PrimesPlan(msgspec.Struct, frozen=True):
    validators: int = 4
    full_nodes: int = 2
    accounts: int = 5
    messages: int = 20
    loss: float = 0.02
    crashes: int = 2
    lifetime_ms: int = 10_000
    resent: float = 0.4
    fault: str | None = None
    """Of one validator; see `primes_world.FAULTS`."""


class PrimesOutcome(msgspec.Struct):
    final: int
    closed: int
    switches: int
    shards_seen: int
    crashes: int
    replays: int
    """Candidates with a message of an earlier block, for which nobody honest has voted."""


def run_primes(seed: int, plan: PrimesPlan) -> PrimesOutcome:
    with memoised_signatures():
        return run_in_virtual_time(_Run(seed, plan).main())


class _Run:
    def __init__(self, seed: int, plan: PrimesPlan) -> None:
        self.seed = seed
        self.plan = plan
        self.random = Random(seed)
        self.crashes = 0
        self.shards_seen = 1

    async def main(self) -> PrimesOutcome:
        plan, random = self.plan, self.random
        world = self.world = PrimesWorld(
            plan.validators,
            self.seed,
            full_nodes=plan.full_nodes,
            loss=plan.loss,
            lifetime_ms=plan.lifetime_ms,
        )
        accounts = [
            address(ContractKind.SUM_OF_PRIMES, number, first_bits=number * 256 // plan.accounts)
            for number in range(plan.accounts)
        ]
        sums = distinct_sums(random, accounts, plan.messages)
        await asyncio.sleep(1.0)
        if plan.fault is not None:
            random.choice(world.validators).misbehave(plan.fault)
        for one in sums:
            self._send_soon(one)
        for _ in range(plan.crashes):
            world.at(random.uniform(1.0, SENT_WITHIN_S), self._crash)
        world.at(random.uniform(2.0, 6.0), lambda: self._plan(PlanKind.SPLIT))
        world.at(random.uniform(12.0, 16.0), lambda: self._plan(PlanKind.MERGE))
        await asyncio.sleep(SENT_WITHIN_S + 3.0)
        await world.until(lambda: self._is_settled(sums), "every message has its end", SETTLED_WITHIN_S)
        await world.until(self._are_level, "everybody follows", 30.0)
        await world.close()
        return self._check(accounts, sums)

    # What happens meanwhile

    def _send_soon(self, one: Sum) -> None:
        random, world = self.random, self.world
        first, *others = random.sample(world.full_nodes, len(world.full_nodes))
        at = random.uniform(0.0, SENT_WITHIN_S)
        world.at(at, lambda: first.submit(one.data))
        for house in others:
            if random.random() < self.plan.resent:
                world.at(at + random.uniform(0.0, 3.0), lambda house=house: house.submit(one.data))  # type: ignore[misc]

    def _crash(self) -> None:
        up = [house for house in self.world.validators if house.validator is not None and house.fault is None]
        if 3 * (len(self.world.validators) - len(up) + 1) < len(self.world.validators):
            house = self.random.choice(up)
            house.crash()
            self.crashes += 1
            self.world.at(self.random.uniform(0.5, 6.0), house.start)

    def _plan(self, kind: PlanKind) -> None:
        at_ms = self.world.now_ms + 1_000
        for house in self.world.validators:
            if house.validator is not None:
                house.validator.chain.plans[:] = [Plan(kind, WHOLE, at_ms)]
        self.world.at(3.0, self._count_shards)

    def _count_shards(self) -> None:
        self.shards_seen = max(self.shards_seen, len(self.world.ledger.master.shards))

    # What must hold

    def _is_settled(self, sums: list[Sum]) -> bool:
        return all(
            house.is_over(one.message_id)
            for house in self.world.full_nodes
            for one in sums
            if one.message_id in house.sent
        )

    def _are_level(self) -> bool:
        if any(house.validator is None for house in self.world.validators):
            return False
        tops = {house.running.ledger.master.block_id for house in self.world.validators}
        tops |= {house.follower.ledger.master.block_id for house in self.world.full_nodes}
        return len(tops) == 1

    def _check(self, accounts: list[bytes], sums: list[Sum]) -> PrimesOutcome:
        world = self.world
        payloads = [kept.payload for kept in world.full_nodes[0].store.blocks()]
        included = world.full_nodes[0].final_ids
        blocks = committed_blocks(payloads)
        assert twice_included(blocks) == [], "a message stands in two blocks"
        assert sorted(included) == sorted(one for block in blocks.values() for one in ids_in(block))
        assert out_of_order(blocks, world.tap) == [], "a block is not in the order that was promised"
        keys = {
            house.number: world.public_keys[house.number] for house in world.validators if house.fault is None
        }
        replays, votes = voted_for_replays(blocks, world.tap, keys)
        assert votes == [], "an honest validator voted for a replay"
        Oracle(world.genesis).run(payloads)
        final = set(included)
        wanted = {account: (0, 0) for account in accounts}
        for one in sums:
            if one.message_id in final:
                total, count = wanted[one.account]
                wanted[one.account] = total + one.amount, count + 1
        assert world.sums(accounts) == list(wanted.values())
        honest = {house.key_id for house in world.validators if house.fault is None}
        for house in world.full_nodes:
            assert house.bad_records() == []
            assert not {one.accused for one in house.complaints} & honest, "nobody honest is accused"
            assert house.contradictions(honest) == []
            for message_id in house.sent:
                finals = house.count_of(message_id, "Finalized")
                assert finals <= 1, "Finalized is published once"
                if not finals and not house.count_of(message_id, "RejectedByFullnode"):
                    assert message_id not in final, f"{message_id.hex()} is final, and nobody was told"
        assert world.overlays.malformed == []
        assert world.overlays.refused == []
        sent = {
            one.message_id for one in sums if any(one.message_id in house.sent for house in world.full_nodes)
        }
        assert len(sent) == len(sums), "every message was taken by somebody"
        return PrimesOutcome(
            len(final),
            len(sent - final),
            world.ledger.master.catchain_seqno - 1,
            self.shards_seen,
            self.crashes,
            replays,
        )
