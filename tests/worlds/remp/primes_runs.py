"""One run of primes: messages from all sides, faults meanwhile, and what must hold in the end."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from random import Random

import msgspec

from rigs.chain_messages import address
from stagepost.chain.configuration import Configuration
from stagepost.chain.contracts import ContractKind
from stagepost.chain.master_state import PlanKind
from stagepost.chain.message_values import NEVER
from stagepost.chain.rotation import Plan
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.receipts.statements import empty_chain
from tests.worlds.chain.chain_oracle import Oracle
from tests.worlds.chain.chain_world import START_MS
from tests.worlds.ground.memoised_signatures import memoised_signatures
from tests.worlds.remp.chain_checks import faults_of_chains
from tests.worlds.remp.primes_attackers import ATTACKERS_BY_NAME
from tests.worlds.remp.primes_checks import (
    bodies_twice_included,
    committed_blocks,
    ids_in,
    out_of_order,
    twice_included,
    voted_for_replays,
)
from tests.worlds.remp.primes_ends import NEVER as PROVED_NEVER
from tests.worlds.remp.primes_ends import times_that_fall
from tests.worlds.remp.primes_liars import FalseProver, HeldSession
from tests.worlds.remp.primes_proofs import faults_of_proofs
from tests.worlds.remp.primes_session_checks import difference, lost_messages, revived_messages
from tests.worlds.remp.primes_storms import WHOLE, PowerCuts
from tests.worlds.remp.primes_world import FAULTS, PrimesWorld, Sum, distinct_sums, seed_of
from tests.worlds.remp.receipt_runs import check_receipts
from tests.worlds.remp.set_changes import FOUNDERS, VALIDATORS, SetChanges

CALM_S = 30.0
"""Seconds after the last fault within which members of a session agree, at most."""

PROVED_WITHIN_S = 60.0
"""Seconds within which every message that has ended has its proof, at most."""

LONGER_BY_MS = 1_000
"""Milliseconds by which a key block makes the windows longer."""

CUT_S = (0.3, 1.5)


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
    """Of one validator; see `primes_world.FAULTS` and `primes_attackers.ATTACKERS_BY_NAME`."""

    within_s: float = 20.0
    """Seconds within which messages are sent, validators crash, and a shard is split and merged."""

    settled_within_s: float = 240.0
    """Seconds within which every message has its end after that."""

    shard_validators: int = 0
    shard_lifetime_ms: int | None = None
    """Milliseconds; None for `lifetime_ms`, which is the masterchain's."""

    chain_guards: bool = True
    """Whether the chain itself refuses bodies that it holds, and remembers messages for longer than they live."""

    window_ms: int = 0
    """Milliseconds, if not 0, that the expiry of every message is ahead of its sending at most, and for which the chain
    remembers a message after that."""

    cuts: int = 0
    """Times that half of the validators are cut off for a moment."""

    challenges: int = 0
    """Times that a validator challenges another one about a message in a queue that both are members of."""

    expiring: float = 0.0
    """Share of the sums that expire while faults last, some before they are sent again."""

    neighbours: bool = False
    """Whether somebody has messages executed for accounts next to the victims', so that they share all bits but a few."""

    longer_windows: int = 0
    """Key blocks that make the windows longer, while messages wait and expire."""

    held: int = 0
    """Times that liars hold a shard's session and show some nodes a block besides the chain."""

    twins: float = 0.0
    """Share of the sums that are sent under two ids."""

    refused: float = 0.0
    """Share of the sums that every validator's executor refuses."""

    doubted: float = 0.0
    """Share of the sums that some validators' executors refuse: too few to end them."""

    storms: bool = False
    """Whether power cuts strike many validators at once around the switches of sessions; see `primes_storms`."""

    changes: bool = False
    """Whether the set of validators changes as in `set_changes`; `validators` is then the number there."""


class PrimesOutcome(msgspec.Struct):
    final: int
    closed: int
    switches: int
    """Sessions that ended and were followed by others."""

    shards_seen: int
    crashes: int
    replays: int
    """Candidates with a message of an earlier block, for which nobody honest has voted."""

    settled_after_s: float
    """Simulated seconds from the last fault until all members of a session agreed."""

    never: int
    """Messages of which a committed state proves that they are never executed."""

    receipts: Counter[str]
    """Receipts of honest validators, and lies about them, by outcome; see `receipt_runs`."""

    blaming: int
    """Honest validators that found another one to contradict itself."""

    objections: int
    """Frames of dishonest validators that were refused by name, or that were no frames."""

    proved: Counter[str]
    """Messages by the end that is proved."""

    false_proofs: dict[str, int]
    """False proofs, by kind, that were made and refused."""

    key_blocks: int
    """Key blocks on the way of the newest proofs."""

    shown: int
    """Blocks of held sessions that were shown to a node."""


SESSION_PLAN = PrimesPlan(
    validators=7,
    shard_validators=4,
    accounts=4,
    messages=4,
    within_s=12.0,
    lifetime_ms=60_000,
    shard_lifetime_ms=4_000,
    chain_guards=False,
    cuts=1,
    twins=0.25,
    refused=0.15,
    doubted=0.3,
    challenges=20,
)
"""Sets of four among seven validators that follow one another every four seconds, and a chain that leaves the guard
against repetitions to the queues. Messages outlive the run.
"""


def has_guards(seed: int) -> bool:
    """Return whether the chain of a run has its own guards, as in production, where all messages must expire: in every
    second run. A chain without them forgets at once, and so can take no message that expires.
    """
    return Random(f"guards {seed}").random() < 0.5


SHORT_LIVES_MS = 6_000
"""Milliseconds of a catchain of the masterchain, in runs in which messages expire."""


CHANGES_PLAN = PrimesPlan(
    validators=VALIDATORS,
    accounts=16,
    messages=50,
    crashes=6,
    lifetime_ms=10_000,
    within_s=40.0,
    changes=True,
)
"""Twenty messages a second while the set changes three times, a shard is split and merged, and validators are killed."""


def session_plan(seed: int) -> PrimesPlan:
    """Return the plan of a run over many sessions: each attacker in turn, or nobody, with long lives and with short ones."""
    kinds = (None, *ATTACKERS_BY_NAME)
    turn, place = divmod(seed, len(kinds))
    lifetime_ms = SHORT_LIVES_MS if turn % 2 else SESSION_PLAN.lifetime_ms
    return msgspec.structs.replace(SESSION_PLAN, fault=kinds[place], lifetime_ms=lifetime_ms)


EXPIRING = PrimesPlan(accounts=3, messages=6, expiring=0.6, twins=0.25, within_s=20.0, neighbours=True)
"""Messages of which many expire while the run lasts, and accounts next to one another."""

SHORT = PrimesPlan(
    accounts=3, messages=6, window_ms=8_000, lifetime_ms=4_000, twins=0.2, within_s=20.0, crashes=1
)
"""Windows so short that the chain forgets what it took."""

HELD = msgspec.structs.replace(
    SHORT, validators=7, shard_validators=4, shard_lifetime_ms=4_000, held=4, crashes=0
)
"""Sets of four among seven validators, whose keys liars have now and then."""


def ends_plan(seed: int) -> PrimesPlan:
    """Return the plan of a run in which messages expire: each kind of network in turn, with each attacker or with nobody
    dishonest.
    """
    plans = EXPIRING, SHORT, HELD, msgspec.structs.replace(HELD, held=0, crashes=1)
    kinds = (None, *FAULTS, *ATTACKERS_BY_NAME)
    turn, place = divmod(seed, len(plans))
    fault = kinds[turn % len(kinds)]
    refused, longer = 0.3 if fault == "revives" else 0.0, Random(f"changes {seed}").choice((0, 0, 1, 2))
    return msgspec.structs.replace(plans[place], fault=fault, refused=refused, longer_windows=longer)


def storm_plan(seed: int) -> PrimesPlan:
    """Return the plan of a run in which messages expire, and power cuts strike around short sessions."""
    plan = msgspec.structs.replace(
        ends_plan(seed), crashes=0, lifetime_ms=SHORT.lifetime_ms, settled_within_s=400.0, storms=True
    )
    return plan if seed % 2 == 0 else msgspec.structs.replace(plan, shard_lifetime_ms=SHORT.lifetime_ms)


def run_primes(seed: int, plan: PrimesPlan) -> PrimesOutcome:
    with memoised_signatures():
        return run_in_virtual_time(_Run(seed, plan).main())


class _Run:
    def __init__(self, seed: int, plan: PrimesPlan) -> None:
        self.seed = seed
        self.plan = plan
        self.random = Random(seed)
        self.sent_after_s: dict[bytes, float] = {}
        self.crashes = 0
        self.shards_seen = 1

    async def main(self) -> PrimesOutcome:
        plan, random = self.plan, self.random
        kind = ATTACKERS_BY_NAME.get(plan.fault or "")
        attackers = {} if kind is None else {random.randrange(plan.validators): kind}
        world = self.world = PrimesWorld(
            plan.validators,
            self.seed,
            full_nodes=plan.full_nodes,
            loss=plan.loss,
            lifetime_ms=plan.lifetime_ms,
            shard_validators=plan.shard_validators,
            configure=self._configure,
            attackers=attackers,
            founders=FOUNDERS if plan.changes else None,
        )
        self.changes = SetChanges(world, Random(f"changes {self.seed}")) if plan.changes else None
        accounts = [
            address(ContractKind.SUM_OF_PRIMES, number, first_bits=number * 256 // plan.accounts)
            for number in range(plan.accounts)
        ]
        if plan.neighbours:
            accounts += [bytes([*one[:30], one[30] ^ 1, one[31]]) for one in accounts]
        sums = self._with_twins(self._with_expiries(distinct_sums(random, accounts, plan.messages)))
        self.sums = sums
        for house in world.full_nodes:
            house.ends.watch(one.data for one in sums)
        first = world.full_nodes[0]
        seeds = {key: seed_of(number) for number, key in enumerate(world.public_keys)}
        self.prover = FalseProver(
            first.follower, first.proofs, [one.data for one in sums], Random(self.seed), seeds
        )
        self.held = HeldSession(seeds, Random(f"held {self.seed}"))
        changing = Random(f"times of changes {self.seed}")
        for _ in range(plan.longer_windows):
            world.at(changing.uniform(2.0, plan.within_s), self._change)
        for _ in range(plan.held):
            world.at(random.uniform(1.0, plan.within_s), self._hold)
        self._let_executors_refuse(sums)
        self.storms = PowerCuts(
            world,
            Random(f"storm {self.seed}"),
            plan.shard_lifetime_ms or plan.lifetime_ms,
            self._cut,
        )
        if plan.storms:
            self.storms.watch(plan.within_s)
        await asyncio.sleep(1.0)
        if plan.fault is not None and kind is None:
            random.choice(world.validators).misbehave(plan.fault)
        for one in sums:
            self._send_soon(one)
        for _ in range(plan.crashes):
            world.at(random.uniform(1.0, plan.within_s), self._crash)
        within_s = plan.within_s
        world.at(random.uniform(0.1 * within_s, 0.3 * within_s), lambda: self._plan(PlanKind.SPLIT))
        world.at(random.uniform(0.6 * within_s, 0.8 * within_s), lambda: self._plan(PlanKind.MERGE))
        for _ in range(plan.cuts):
            world.at(random.uniform(1.0, plan.within_s), self._cut)
        self.challenging = Random(f"challenges {self.seed}")
        for _ in range(plan.challenges):
            world.at(self.challenging.uniform(1.0, plan.within_s), self._challenge)
        began = asyncio.get_running_loop().time()
        if self.changes is not None:
            await self.changes.play(plan.within_s)
        await asyncio.sleep(max(0.0, began + plan.within_s + 3.0 - asyncio.get_running_loop().time()))
        settled_after_s = await self._calm_down(sums) if plan.shard_validators else 0.0
        await world.until(lambda: self._is_settled(sums), "every message has its end", plan.settled_within_s)
        await world.until(
            lambda: all(map(self._has_its_end, sums)),
            "every expired message has a proved end",
            PROVED_WITHIN_S,
        )
        await world.until(self._are_level, "everybody follows", 30.0)
        await self._proofs_come()
        await world.close()
        return self._check(accounts, sums, settled_after_s)

    def _configure(self, configuration: Configuration) -> Configuration:
        plan = self.plan
        configuration = msgspec.structs.replace(
            configuration, shard_lifetime_ms=plan.shard_lifetime_ms or plan.lifetime_ms
        )
        if plan.window_ms:
            return msgspec.structs.replace(
                configuration, expiry_ahead_max_ms=plan.window_ms, proof_window_ms=plan.window_ms
            )
        if plan.chain_guards:
            return configuration
        return msgspec.structs.replace(
            configuration, guards_uids=False, expiry_ahead_max_ms=0, proof_window_ms=0, must_expire=False
        )

    def _with_expiries(self, sums: list[Sum]) -> list[Sum]:
        random = Random(f"expiries {self.seed}")
        first_s = START_MS // 1_000 + 2
        return [
            msgspec.structs.replace(one, expires_at_s=first_s + random.randrange(1, int(self.plan.within_s)))
            if random.random() < self.plan.expiring
            else one
            for one in sums
        ]

    def _with_twins(self, sums: list[Sum]) -> list[Sum]:
        if not self.plan.chain_guards:
            sums = [msgspec.structs.replace(one, expires_at_s=NEVER) for one in sums]
        elif self.plan.window_ms:
            sums = [self._expiring(one) for one in sums]
        if not self.plan.twins:
            return sums
        chosen = self.random.sample(sums, round(self.plan.twins * len(sums)))
        return sums + [msgspec.structs.replace(one, salt=1) for one in chosen]

    def _expiring(self, one: Sum) -> Sum:
        random, plan = self.random, self.plan
        at = random.uniform(0.0, plan.within_s)
        life_s = random.uniform(-3.0, plan.window_ms / 1_000 - 1.0)
        # The run begins two seconds after the chain.
        short = msgspec.structs.replace(one, expires_at_s=int(START_MS / 1_000 + 2.0 + at + life_s))
        self.sent_after_s[short.message_id] = at
        return short

    def _has_its_end(self, one: Sum) -> bool:
        """Whether a message that has expired has an end that a committed state proves."""
        return not one.expires_soon or all(
            house.ends.end_of(one.message_id) for house in self.world.full_nodes
        )

    def _let_executors_refuse(self, sums: list[Sum]) -> None:
        plan, random = self.plan, self.random
        if not plan.refused and not plan.doubted:
            return
        everybody = range(plan.validators)
        twins = {(one.account, one.up_to) for one in sums if one.salt}
        two_thirds = -(-2 * (plan.shard_validators or plan.validators) // 3)
        too_few = two_thirds - 1 - (plan.fault is not None)
        for one in sums:
            if (one.account, one.up_to) in twins:
                continue  # of two with one body the one that is refused would take the other with it
            lot = random.random()
            if lot < plan.refused:
                self.world.refused_by[one.message_id] = frozenset(everybody)
            elif lot < plan.refused + plan.doubted:
                self.world.refused_by[one.message_id] = frozenset(random.sample(everybody, too_few))

    async def _calm_down(self, sums: list[Sum]) -> float:
        """Wait until the members of every session agree. Return how long that took, in simulated seconds."""
        world = self.world
        world.overlays.loss = 0.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (reason := difference(world, sums, set(world.full_nodes[0].final_ids))) is not None:
            assert loop.time() < began + CALM_S, f"not settled after {CALM_S:g} s: {reason}"
            await asyncio.sleep(0.25)
        return loop.time() - began

    # What happens meanwhile

    def _challenge(self) -> None:
        random = self.challenging
        houses = [house for house in self.world.validators if house.validator is not None]
        runners = list(random.choice(houses).running.queues.sessions.values()) if houses else []
        runner = random.choice(runners) if runners else None
        if runner is not None and runner.queue.known_ids:
            message_id = random.choice(sorted(runner.queue.known_ids))
            accused = random.randrange(len(runner.plan.public_keys))
            runner.challenge(accused, empty_chain(runner.plan.session_id, message_id))

    def _cut(self) -> None:
        validators = self.world.validators
        cut = {one.number for one in self.random.sample(validators, len(validators) // 2)}
        self.world.overlays.cut |= cut
        self.world.at(self.random.uniform(*CUT_S), lambda: self.world.overlays.cut.difference_update(cut))

    def _hold(self) -> None:
        """Show some nodes, and not all, a block of a shard's session whose keys liars have."""
        running = [
            house.running.chain.follower for house in self.world.validators if house.validator is not None
        ]
        nodes = [*running, *(house.follower for house in self.world.full_nodes)]
        random = self.held.random
        victims = random.sample(nodes, random.randrange(1, len(nodes)))
        self.held.strike(random.choice(nodes), victims, self.world.now_ms)

    def _send_soon(self, one: Sum) -> None:
        random, world = self.random, self.world
        first, *others = random.sample(world.full_nodes, len(world.full_nodes))
        at = self.sent_after_s.get(one.message_id, random.uniform(0.0, self.plan.within_s))
        world.at(at, lambda: first.submit(one.data))
        for house in others:
            if random.random() < self.plan.resent:
                world.at(at + random.uniform(0.0, 3.0), lambda house=house: house.submit(one.data))  # type: ignore[misc]

    def _crash(self) -> None:
        at_work = [
            house
            for house in self.world.validators
            if self.changes is None or house.number in self.changes.present
        ]
        up = [house for house in at_work if house.validator is not None and house.fault is None]
        if 3 * (len(at_work) - len(up) + 1) < len(at_work):
            house = self.random.choice(up)
            house.crash()
            self.crashes += 1
            self.world.at(self.random.uniform(0.5, 6.0), house.start)

    def _plan(self, kind: PlanKind) -> None:
        at_ms = self.world.now_ms + 1_000
        for house in self.world.validators:
            if house.validator is not None:
                house.validator.chain.plans[:] = [Plan(kind, WHOLE, at_ms)]
        for seconds in (3.0, 8.0):
            self.world.at(seconds, self._count_shards)

    def _change(self) -> None:
        """Have all validators want longer windows, also those that start meanwhile, until a key block says them."""
        present = self.world.ledger.master.configuration
        wider = msgspec.structs.replace(
            present,
            expiry_ahead_max_ms=present.expiry_ahead_max_ms + LONGER_BY_MS,
            proof_window_ms=present.proof_window_ms + LONGER_BY_MS,
        )
        self._want(wider)

    def _want(self, wider: Configuration) -> None:
        if self.world.ledger.master.configuration.expiry_ahead_max_ms >= wider.expiry_ahead_max_ms:
            return
        for house in self.world.validators:
            if house.validator is not None:
                house.validator.chain.want_configuration(wider)
        self.world.at(0.5, lambda: self._want(wider))

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

    async def _proofs_come(self) -> None:
        """Wait for the last proofs; one that does not come is found when all is over."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + PROVED_WITHIN_S
        while not self._are_proved() and loop.time() < ends:
            await asyncio.sleep(0.25)

    def _are_proved(self) -> bool:
        """Return whether no full node awaits the end of a message that is in a block, or that expires."""
        expiring = {one.message_id for one in self.sums if one.expires_soon}
        return all(
            not house.proofs.keeper.awaits(message_id)
            for house in self.world.full_nodes
            for message_id in {*house.final_ids, *expiring}
        )

    def _are_level(self) -> bool:
        if any(house.validator is None for house in self.world.validators):
            return False
        tops = {house.running.ledger.master.block_id for house in self.world.validators}
        tops |= {house.follower.ledger.master.block_id for house in self.world.full_nodes}
        return len(tops) == 1

    def _check(self, accounts: list[bytes], sums: list[Sum], settled_after_s: float) -> PrimesOutcome:
        world = self.world
        payloads = [kept.payload for kept in world.full_nodes[0].store.blocks()]
        included = world.full_nodes[0].final_ids
        blocks = committed_blocks(payloads)
        for house in world.full_nodes:
            assert house.ends.contradictions() == [], "a message has two ends"
        assert times_that_fall(payloads, world.genesis.time_ms) == [], "a block is not later than its parent"
        assert twice_included(blocks) == [], "a message stands in two blocks"
        assert bodies_twice_included(blocks, world.full_nodes[0].final_at) == [], (
            "a body stands in two blocks"
        )
        assert sorted(included) == sorted(one for block in blocks.values() for one in ids_in(block))
        assert out_of_order(blocks, world.tap, world.genesis.configuration.skew_ms) == [], (
            "a block is not in the order that was promised"
        )
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
        catchains = world.full_nodes[0].catchain_after
        made_under = {
            message_id: catchains[block.master.seqno]
            for block in blocks.values()
            for message_id in ids_in(block)
        }
        assert revived_messages(world, made_under) == [], "an expired message was revived"
        assert lost_messages(world, sums, final) == [], "a message was closed while it lived"
        dishonest = {house.number for house in world.validators if house.fault is not None}
        handed_on = {one for sender, one in world.tap.final_handed_on if sender not in dishonest}
        assert not handed_on - world.relabelled, "a validator hands on bodies of what is final"
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
        assert faults_of_chains(world, honest) == []
        objections = [*world.overlays.malformed, *world.overlays.refused]
        assert [one for one in objections if one.against not in dishonest] == []
        blamed = [one.blamed for one in world.validators if one.fault is None]
        assert not set().union(*blamed) - dishonest, "an honest validator is blamed"
        assert [one.halted for one in world.validators if one.fault is None and one.halted] == []
        assert [one.recovered for one in world.validators if one.fault is None and one.recovered] == [], (
            "a validator has lost blocks of its own in a crash"
        )
        sent = {
            one.message_id for one in sums if any(one.message_id in house.sent for house in world.full_nodes)
        }
        assert len(sent) == len(sums), "every message was taken by somebody"
        self.prover.lie(final)
        assert self.prover.believed == [], "a false proof is believed"
        proved: dict[bytes, set[str]] = defaultdict(set)
        expired = {one.message_id for one in sums if one.expires_soon}
        for house in world.full_nodes:
            faults = faults_of_proofs(house.proofs, final, expired)
            assert not faults, "; ".join(faults)
            for message_id, end in house.proofs.ends.items():
                proved[message_id].add(end.kind)
        assert {one: kinds for one, kinds in proved.items() if len(kinds) > 1} == {}, "a message has two ends"
        return PrimesOutcome(
            len(final),
            len(sent - final),
            world.full_nodes[0].sessions_ended,
            self.shards_seen,
            self.crashes + self.storms.crashes,
            replays,
            settled_after_s,
            sum(world.full_nodes[0].ends.end_of(one.message_id) == PROVED_NEVER for one in sums),
            check_receipts(world, self.seed),
            sum(bool(one) for one in blamed),
            len(objections),
            Counter(kind for kinds in proved.values() for kind in kinds),
            self.prover.tried,
            len(world.full_nodes[0].proofs.key_blocks()),
            self.held.shown,
        )
