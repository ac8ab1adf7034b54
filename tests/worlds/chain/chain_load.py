"""An embedded chain under load, from one seed: shards split and merge, sessions switch, blocks get lost in every way.

One decider says what is final. What the world is told by events is all that it knows of its messages, as a queue would.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from random import Random

import msgspec

from rigs.chain_messages import a_transfer, address, external
from stagepost.chain.configuration import CALL_WEIGHT_MAX, Limits
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.declined import DeclinedCandidate, Switches
from stagepost.chain.history import KeptBlock
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.master_state import PlanKind
from stagepost.chain.rotation import Plan
from stagepost.chain.snapshots import restored, snapshot_of
from stagepost.remp.ledger import (
    CandidateLost,
    CandidateRefused,
    LedgerEvent,
    MasterApplied,
    ShardCommitted,
    ShardDropped,
)
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.collation import ExecutedMessage, RefusedMessage, SkippedMessage
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.shard import BlockId
from tests.worlds.chain.chain_oracle import Oracle
from tests.worlds.chain.chain_replay import replay
from tests.worlds.chain.chain_world import LIFETIME_MS, DecidedChain, a_configuration, a_genesis, a_set

ACCOUNTS = 40
START_BALANCE = 1_000
LIFE_S = LIFETIME_MS // 1_000 - 1
"""Seconds from the making of a message to its expiry: as far ahead as the chain looks."""


class LoadedChain(DecidedChain):
    """`pending`: messages that wait for a block; `in_block`: those in one whose fate is open."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.is_quiet = False
        self.balances = [address(ContractKind.BALANCE, number) for number in range(ACCOUNTS)]
        self.unfunded = [address(ContractKind.UNTIL_FUNDED, number) for number in range(6)]
        configuration = a_configuration(
            limits=Limits(messages_max=20, bytes_max=65_535, weight_max=CALL_WEIGHT_MAX),
            shard_bits_max=4,
            expiry_ahead_max_ms=LIFETIME_MS,
        )
        funded = [(one, START_BALANCE) for one in self.balances]
        super().__init__(a_genesis(configuration, funded), self._switches())
        self.pending: dict[bytes, ExternalMessage] = {}
        self.in_block: dict[bytes, tuple[BlockId, ExternalMessage]] = {}
        self.included: dict[bytes, BlockId] = {}
        self.rejected: dict[bytes, str] = {}
        self.returned: Counter[object] = Counter()
        self.seen_bits = 0
        self.splits = self.merges = self.switches_of_session = 0
        self.messages: dict[bytes, ExternalMessage] = {}
        self._number = 0

    def _switches(self) -> Switches:
        def some(share: float) -> bool:
            return not self.is_quiet and self.random.random() < share

        return Switches(
            loses=lambda _: some(0.03),
            refuses=lambda _: some(0.03),
            ignores=lambda _: some(0.03),
            leaves_out=lambda _: some(0.15),
        )

    # Messages

    def offer(self) -> None:
        """A message of any kind; now and then one that was offered before, or its body under another id."""
        random = self.random
        self._number += 1
        kind = random.randrange(10)
        expires_at_s = self.now_ms // 1_000 + LIFE_S
        if kind < 5:
            to = random.choice([*self.balances, *self.unfunded])
            amount = random.randrange(1, 400)
            one = a_transfer(random.choice(self.balances), to, amount, self._number, expires_at_s)
        elif kind < 8:
            account = address(ContractKind.SUM_OF_PRIMES, random.randrange(20))
            one = external(account, primes_body(random.randrange(200)), self._number, expires_at_s)
        elif kind == 8:
            account = random.choice([*self.unfunded, address(ContractKind.ALWAYS_REJECTS, 1)])
            one = external(account, b"%d" % self._number, self._number, expires_at_s)
        else:
            one = external(address(ContractKind.HEAVY, self._number), b"%d" % self._number, 0, expires_at_s)
        known = list(self.included) if random.random() < 0.1 else []
        if known:
            self.offer_again(random.choice(known[-50:]))
        self.pending.setdefault(one.message_id, one)

    def offer_again(self, message_id: bytes) -> None:
        """Straight to the collator, past every queue: the chain itself must not take it twice."""
        shard = self.ledger.shard_of(0, self.messages[message_id].account)
        assert shard is not None
        session = self.session(shard)
        chain = self.ledger.chain(session.session_id)
        assert chain is not None
        collated = self.ledger.collate(
            session.session_id, chain.top_hash, [self.messages[message_id]], self.now_ms + 1
        )
        if collated is not None:
            assert not isinstance(collated.reports[0][1], ExecutedMessage), "taken again, within its window"
        self.take_in(self.heard())

    # Blocks

    def work(self, shard: Shard) -> None:
        """One candidate of a shard, and what becomes of it."""
        session = self.session(shard).session_id
        chain = self.ledger.chain(session)
        assert chain is not None
        waiting = [one for one in self.pending.values() if shard.holds(one.workchain, one.account)]
        parent = chain.top_hash
        self.now_ms += 20
        collated = self.ledger.collate(session, parent, iter(waiting), self.now_ms)
        if collated is None:
            self.take_in(self.heard())
            return
        for message_id, report in collated.reports:
            match report:
                case ExecutedMessage(block_id):
                    self.in_block[message_id] = block_id, self.pending.pop(message_id)
                case RefusedMessage(_, error):
                    self.rejected[message_id] = error
                    del self.pending[message_id]
                case SkippedMessage():
                    pass
        candidate = sha256(session + parent + collated.payload).digest()
        answer = self.ledger.check(session, candidate, parent, collated.payload, self.now_ms)
        if isinstance(answer, BlockId):
            self.ledger.finalised(session, candidate, collated.payload, b"certified")
        elif not isinstance(answer, DeclinedCandidate):
            # Ignored by everybody: the slot passes, and whatever comes next takes its place.
            pass
        self.take_in(self.heard())

    def master(self, plans: list[Plan], after_ms: int = 100) -> None:
        session, before = self.ledger.master.session.session_id, self.ledger.master
        configuration = None
        if not self.is_quiet and self.random.random() < 0.02:
            following = a_set(7, f"set of {before.seqno}", self.now_ms + self.random.randrange(40_000))
            configuration = msgspec.structs.replace(before.configuration, next=following)
            self.ledger.wanted.add(configuration.hash)
        payload = self.master_payload(plans, configuration, after_ms)
        candidate = sha256(session + payload).digest()
        answer = self.ledger.check(
            session, candidate, self.ledger.following.master_hash, payload, self.now_ms
        )
        assert isinstance(answer, BlockId), answer
        self.ledger.finalised(session, candidate, payload, b"certified")
        self.take_in(self.heard())
        old = {entry.shard: entry.session.session_id for entry in before.shards}
        new = {entry.shard: entry.session.session_id for entry in self.ledger.master.shards}
        self.splits += sum(1 for shard in old if shard not in new and shard.children[0] in new)
        self.merges += sum(1 for shard in new if shard not in old and shard.children[0] in old)
        self.switches_of_session += sum(1 for shard, one in new.items() if old.get(shard, one) != one)
        self.seen_bits = max(self.seen_bits, *(shard.bits for shard in new))

    def some_plans(self) -> list[Plan]:
        """To split a shard or to merge two, at once or in a while; those that cannot be are left out."""
        shards = [entry.shard for entry in self.ledger.master.shards]
        shard = self.random.choice(shards)
        at_ms = self.now_ms + self.random.choice([0, 0, 3_000])
        if self.random.random() < (0.35 if len(shards) < 8 else 0.65) and shard.bits:
            return [Plan(PlanKind.MERGE, shard.parent, at_ms)]
        return [Plan(PlanKind.SPLIT, shard, at_ms)]

    # Events

    def take_in(self, events: list[LedgerEvent]) -> None:
        for event in events:
            match event:
                case CandidateLost(_, block_id) | CandidateRefused(_, block_id):
                    self._return(type(event), block_id)
                case ShardDropped(_, block_id):
                    self._return(type(event), block_id)
                case ShardCommitted(_, block_id, message_ids):
                    for message_id in message_ids:
                        assert self.in_block[message_id][0] == block_id
                case MasterApplied(blocks=blocks):
                    for final in blocks:
                        for message in final.messages:
                            assert message.message_id not in self.included, "included twice"
                            self.included[message.message_id] = final.block_id
                            self.messages[message.message_id] = message
                            del self.in_block[message.message_id]
                case _:
                    pass

    def _return(self, kind: object, block_id: BlockId) -> None:
        for message_id, (of_block, message) in list(self.in_block.items()):
            if of_block == block_id:
                del self.in_block[message_id]
                self.pending[message_id] = message
                self.returned[kind] += 1

    # A whole run

    def run(self, changes: int) -> None:
        while self.splits + self.merges + self.switches_of_session < changes or self.seen_bits < 3:
            for _ in range(self.random.randrange(12)):
                self.offer()
            for entry in self.ledger.master.shards:
                if self.random.random() < 0.8:
                    self.work(entry.shard)
            plans = self.some_plans() if self.random.random() < 0.3 else []
            self.master(plans, after_ms=self.random.choice([100, 400, 1_500]))
        self.is_quiet = True
        for _ in range(60):
            if not self.pending and not self.in_block and not self.ledger.master.dues:
                break
            for entry in self.ledger.master.shards:
                self.work(entry.shard)
            self.master([])


def follow(chain: DecidedChain, random: Random) -> EmbeddedLedger:
    """Another validator, whose links bring each session's blocks in order, and sessions in no order at all."""
    ledger = EmbeddedLedger(chain.genesis)
    by_session: dict[bytes, list[KeptBlock]] = {}
    for kept in chain.kept.blocks():
        by_session.setdefault(kept.session_id, []).append(kept)
    lanes = [list(reversed(one)) for one in by_session.values()]
    while lanes:
        # Mostly from near the front: a link may be late, but not by the whole chain.
        lane = lanes[min(int(random.expovariate(0.7)), len(lanes) - 1)]
        kept = lane.pop()
        ledger.finalised(kept.session_id, kept.candidate, kept.payload, kept.certificate)
        if not lane:
            lanes.remove(lane)
    return ledger


def run_once(seed: int, changes: int = 50) -> LoadedChain:
    """A whole run, held against everybody who can tell what must have come of it."""
    chain = LoadedChain(seed)
    chain.run(changes)
    assert not chain.pending
    assert not chain.in_block

    oracle = Oracle(chain.genesis)
    oracle.run(chain.payloads())
    assert oracle.taken == dict.fromkeys(chain.included, 1)

    again = replay(chain.genesis, chain.payloads())
    told = [
        one.block_id for event in chain.events if isinstance(event, MasterApplied) for one in event.blocks
    ]
    assert again.master == chain.ledger.master
    assert [one.block_id for one in again.order] == told

    ledgers = [follow(chain, Random(seed)), restored(chain.genesis, chain.kept)]
    chain.kept.keep_snapshot(snapshot_of(chain.ledger))
    ledgers.append(restored(chain.genesis, chain.kept))
    for session in chain.ledger.sessions():
        here = chain.ledger.chain(session.session_id)
        assert here is not None
        assert again.shards[session.shard].hash == here.top.hash
        for ledger in ledgers:
            there = ledger.chain(session.session_id)
            assert there is not None
            assert (there.top.hash, there.top_hash) == (here.top.hash, here.top_hash)
            assert ledger.session(session.shard) == session
            assert ledger.master == chain.ledger.master
    return chain
