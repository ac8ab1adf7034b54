"""Between ledger and queues: plans of queues from sessions of the ledger, and every event on its way to a receipt.

The ledgers are real, and one for each validator; what is final, the test decides.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256
from random import Random

import pytest

from rigs.catchain_keys import public_key_of, seed_of
from rigs.chain_messages import address, external
from rigs.memory_overlays import MemoryOverlay, MemoryOverlays
from stagepost.catchain.member import MemberOptions
from stagepost.chain.configuration import ChainValidator, Configuration, ValidatorSet
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.declined import DeclinedCandidate
from stagepost.chain.genesis import Genesis
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.master_state import PlanKind
from stagepost.chain.rotation import Plan
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.wire.tl import ZERO_INT256, key_id
from stagepost.remp.ledger import LedgerSession
from stagepost.remp.links.overlay import OverlayEvents
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.effects import Tell
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import New, Timeout
from stagepost.remp.receipts.receipt import ExternalMessageId
from stagepost.remp.shard import BlockId
from stagepost.validator.queue_bridge import QueueBridge
from stagepost.validator.receipts import ReceiptSender, Statements
from stagepost.validator.session_plan import SessionOptions, SessionPlan, queue_plan, queue_session_id
from stagepost.validator.session_store import MemorySessionStore, SessionsDisk, StatementRow
from stagepost.validator.sessions import Validator
from tests.worlds.chain.chain_world import START_MS

FULL_NODE = sha256(b"a full node").digest()
SIZE = 4
ACCOUNTS = [address(ContractKind.SUM_OF_PRIMES, number, first) for number, first in enumerate((0x10, 0xE0))]


def genesis_of(size: int) -> Genesis:
    keys = [public_key_of(number) for number in range(size)]
    members = tuple(ChainValidator(key, sha256(key).digest()) for key in keys)
    until_ms = START_MS + 86_400_000
    return Genesis("bridge", START_MS, Configuration(ValidatorSet(START_MS, until_ms, members)))


class Node:
    """One validator: ledger, queues and what joins them."""

    def __init__(self, world: World, number: int, store: MemorySessionStore | None = None) -> None:
        self.world = world
        self.number = number
        self.ledger = EmbeddedLedger(world.genesis)
        self.kinds: dict[bytes, list[str]] = defaultdict(list)
        self.validator = Validator(
            seed_of(number),
            store or MemorySessionStore(SessionsDisk()),
            self,
            self._overlay,
            world.clock,
            Random(number),
            lambda data: self.ledger.parse(data).message,
            options=SessionOptions(member=MemberOptions(start_wait_s=0.1, idle_timeout_s=2.0)),
        )
        keys = {key_id(public_key_of(one)): public_key_of(one) for one in range(SIZE)}
        self.bridge = QueueBridge(self.ledger, self.validator, public_key_of(number), keys, world.clock)

    def _overlay(self, plan: SessionPlan, events: OverlayEvents) -> MemoryOverlay:
        members = [self.world.numbers[key] for key in plan.public_keys]
        return self.world.overlays.join(plan.session_id, members, self.number, events)

    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        for receipt in CombinedReceipt.decode(combined_receipt).receipts:
            self.kinds[receipt.message_id].append(receipt.kind.name)
        return True

    def hear(self) -> None:
        self.bridge.heard(self.ledger.events())


class World:
    def __init__(self) -> None:
        self.genesis = genesis_of(SIZE)
        self.clock = LoopClock(START_MS / 1_000 + 1.0)
        self.overlays = MemoryOverlays(Random(5))
        self.numbers = {public_key_of(number): number for number in range(SIZE)}
        self.nodes = [Node(self, number) for number in range(SIZE)]
        for node in self.nodes:
            node.bridge.start()

    @property
    def now_ms(self) -> int:
        return int(self.clock.unix_s() * 1_000)

    def session(self, account: bytes) -> LedgerSession:
        shard = self.nodes[0].ledger.shard_of(0, account)
        assert shard is not None
        session = self.nodes[0].ledger.session(shard)
        assert session is not None
        return session

    def offer(self, message: ExternalMessage, number: int = 0) -> None:
        validator = self.nodes[number].validator
        runner = validator._runner_for(message.workchain, message.account)
        assert runner is not None
        runner.offer(message, FULL_NODE)

    def candidate(self, session: bytes, number: int = 0) -> tuple[BlockId, bytes]:
        """What a validator's collator makes of what its queue has."""
        node = self.nodes[number]
        chain = node.ledger.chain(session)
        assert chain is not None
        taken = node.bridge.take(session)
        collated = node.ledger.collate(session, chain.top_hash, taken, self.now_ms)
        assert collated is not None
        node.bridge.collated(session, taken, collated.reports)
        node.hear()
        return collated.block_id, collated.payload

    def check(self, session: bytes, payload: bytes) -> list[str | None]:
        """What the others' queues and ledgers say of it."""
        found: list[str | None] = []
        for node in self.nodes[1:]:
            chain = node.ledger.chain(session)
            assert chain is not None
            messages = node.ledger.messages_of(payload)
            found.append(node.bridge.fault_in(session, messages))
            if found[-1] is None:
                hash_ = sha256(payload).digest()
                node.ledger.check(session, hash_, chain.top_hash, payload, self.now_ms)
                node.hear()
        return found

    def finalise(self, session: bytes, payload: bytes) -> None:
        for node in self.nodes:
            node.ledger.finalised(session, sha256(payload).digest(), payload, b"certified")
            node.hear()

    def master_block(self, *plans: Plan) -> None:
        ledger = self.nodes[0].ledger
        session = ledger.master.session.session_id
        payload = ledger.collate_master(session, ledger.following.master_hash, self.now_ms, plans=plans)
        assert payload is not None
        self.finalise(session, payload)


def in_world(scenario: Callable[[World], object]) -> None:
    async def main() -> None:
        world = World()
        await asyncio.sleep(1.0)
        await scenario(world)  # type: ignore[misc]  # a coroutine function, whatever it gives back
        for node in world.nodes:
            await node.validator.close()

    run_in_virtual_time(main())


def primes(number: int, account: bytes = ACCOUNTS[0]) -> ExternalMessage:
    return external(account, primes_body(10 + number), number)


# Plans


def test_a_chain_of_receipts_goes_on_although_its_next_receipt_waited_for_long_after_a_restart() -> None:
    async def scenario(world: World) -> None:
        disk, node = SessionsDisk(), world.nodes[0]
        earlier = Statements(MemorySessionStore(disk), lambda: 0)
        older, message_id = (
            sha256(b"an older session").digest(),
            ExternalMessageId(sha256(b"a message").digest()),
        )
        ReceiptSender(seed_of(0), node, world.clock, earlier).tell(
            older, [Tell(FULL_NODE, message_id, New())]
        )
        await asyncio.sleep(1.0)
        disk.crash()
        world.overlays.leave_all(0)
        world.nodes[0] = node = Node(world, 0, MemorySessionStore(disk))
        node.bridge.start()
        validator = node.validator
        validator._tell(older, [Tell(FULL_NODE, message_id, Timeout())])
        assert validator.receipts.signed == 0, "it waits until a quorum is heard"
        validator.master_advanced(10, world.now_ms)
        await asyncio.sleep(5.0)
        newest = validator.statements.chains.newest(older, message_id)
        assert newest is not None
        assert newest.number == 2, "a first link that comes twice would convict"

    in_world(scenario)


def test_a_validator_remembers_after_a_restart_what_an_earlier_run_has_told_is_over() -> None:
    async def main() -> None:
        disk, over = SessionsDisk(), sha256(b"a message that was over").digest()
        removed = StatementRow(1, CombinedReceipt(ZERO_INT256, ()).encode(), over=over)
        MemorySessionStore(disk).remove_statements(1, removed)
        await asyncio.sleep(1.0)
        disk.crash()
        node = Node(World(), 0, MemorySessionStore(disk))
        node.validator.master_advanced(2, 1)
        assert node.validator.cache.was_let_go(over)
        assert not node.validator.cache.was_let_go(ZERO_INT256)

    run_in_virtual_time(main())


def test_a_queue_has_the_previous_members_first_and_each_once() -> None:
    ledger = EmbeddedLedger(genesis_of(7))
    (session,) = ledger.sessions()
    own = public_key_of(2)
    keys = {key_id(public_key_of(one)): public_key_of(one) for one in range(7)}
    first = queue_plan(session, own, keys)
    assert first is not None
    assert first.current == frozenset(range(7))
    assert first.public_keys == session.public_keys
    assert first.session_id == queue_session_id(session) != session.session_id


def test_somebody_who_is_no_validator_has_no_plan() -> None:
    (session,) = EmbeddedLedger(genesis_of(4)).sessions()
    assert queue_plan(session, public_key_of(99), {}) is None


# From the ledger to receipts


def test_a_message_goes_from_one_queue_into_a_block_that_all_hear_of() -> None:
    async def scenario(world: World) -> None:
        message = primes(1)
        session = world.session(ACCOUNTS[0]).session_id
        world.offer(message)
        await asyncio.sleep(1.0)
        assert all(node.bridge.has_messages(session) for node in world.nodes)
        _, payload = world.candidate(session)
        assert world.check(session, payload) == [None] * 3
        world.finalise(session, payload)
        world.master_block()
        await asyncio.sleep(1.0)
        first, *others = [node.kinds[message.message_id] for node in world.nodes]
        assert first == ["PutIntoQueue", "IncludedIntoBlock", "IncludedIntoAcceptedBlock"]
        assert others == [["PutIntoQueue", "Duplicate", "IncludedIntoAcceptedBlock"]] * 3
        assert not any(node.bridge.has_messages(session) for node in world.nodes)

    in_world(scenario)


def test_a_candidate_that_loses_its_place_gives_its_messages_back() -> None:
    async def scenario(world: World) -> None:
        message = primes(1)
        session = world.session(ACCOUNTS[0]).session_id
        world.offer(message)
        await asyncio.sleep(1.0)
        _, lost = world.candidate(session)
        world.check(session, lost)
        other = world.nodes[1].ledger
        chain = other.chain(session)
        assert chain is not None
        empty = other.collate(session, chain.top_hash, [], world.now_ms)
        assert empty is not None
        world.nodes[1].hear()
        world.finalise(session, empty.payload)
        await asyncio.sleep(1.0)
        for node in world.nodes:
            assert node.kinds[message.message_id][-2:] == ["IgnoredByShardchain", "PutIntoQueue"]
            assert node.bridge.has_messages(session)

    in_world(scenario)


def test_a_message_that_stands_in_a_committed_block_is_declined_and_never_taken_again() -> None:
    async def scenario(world: World) -> None:
        message = primes(1)
        session = world.session(ACCOUNTS[0]).session_id
        world.offer(message)
        await asyncio.sleep(1.0)
        _, payload = world.candidate(session)
        world.finalise(session, payload)
        for node in world.nodes:
            chain = node.ledger.chain(session)
            assert chain is not None
            # The very block may be asked about late, and is fine; upon itself the ledger knows it for a replay.
            assert node.bridge.fault_in(session, [message]) is None
            answer = node.ledger.check(session, b"x" * 32, chain.top_hash, payload, world.now_ms)
            assert isinstance(answer, DeclinedCandidate)
            fault = node.bridge.fault_in(session, [message, primes(7)])
            assert fault is not None
            assert "before" in fault
        world.master_block()
        world.offer(message)
        await asyncio.sleep(1.0)
        assert world.nodes[0].bridge.take(session) == []

    in_world(scenario)


def test_a_queue_that_hears_of_a_message_after_its_block_does_not_collate_it() -> None:
    async def scenario(world: World) -> None:
        message = primes(1)
        session = world.session(ACCOUNTS[0]).session_id
        world.overlays.cut.add(3)
        world.offer(message)
        await asyncio.sleep(1.0)
        _, payload = world.candidate(session)
        world.finalise(session, payload)
        world.overlays.cut.clear()
        await asyncio.sleep(10.0)
        late = world.nodes[3]
        assert message.message_id in next(iter(late.validator.sessions.values())).queue
        assert late.bridge.take(session) == []
        await asyncio.sleep(1.0)
        assert late.kinds[message.message_id] == ["PutIntoQueue", "IncludedIntoAcceptedBlock"]

    in_world(scenario)


def test_a_candidate_with_a_message_that_nobody_announced_is_declined() -> None:
    async def scenario(world: World) -> None:
        session = world.session(ACCOUNTS[0]).session_id
        ledger = world.nodes[0].ledger
        chain = ledger.chain(session)
        assert chain is not None
        collated = ledger.collate(session, chain.top_hash, [primes(1)], world.now_ms)
        assert collated is not None
        messages = world.nodes[1].ledger.messages_of(collated.payload)
        assert world.nodes[1].bridge.has_unknown(session, messages)
        fault = world.nodes[1].bridge.fault_in(session, messages)
        assert fault is not None
        assert "not known" in fault
        # Agreement may ask before the queue is there: that is no reason against anybody.
        assert world.nodes[1].bridge.has_unknown(b"s" * 32, [])

    in_world(scenario)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_split_hands_open_messages_to_the_child_that_serves_them(is_committed: bool) -> None:
    """One of two messages stands in a shard block when the split comes; if the masterchain has not taken it by then,
    it is free again."""

    async def scenario(world: World) -> None:
        waiting, in_block = primes(1, ACCOUNTS[0]), primes(2, ACCOUNTS[1])
        whole = world.session(ACCOUNTS[0])
        world.master_block(Plan(PlanKind.SPLIT, whole.shard, world.now_ms + 5_000))
        await asyncio.sleep(6.0)
        world.offer(in_block)
        await asyncio.sleep(1.0)
        _, payload = world.candidate(whole.session_id)
        if is_committed:
            world.finalise(whole.session_id, payload)
        world.offer(waiting, 1)
        await asyncio.sleep(1.0)
        world.master_block()  # which splits
        await asyncio.sleep(1.0)
        left, right = (world.session(account) for account in ACCOUNTS)
        assert left.shard != right.shard
        for node in world.nodes:
            assert len(node.validator.current) == 2
            assert node.bridge.has_messages(left.session_id)
            assert node.bridge.has_messages(right.session_id) is not is_committed
        for session in [left.session_id] if is_committed else [left.session_id, right.session_id]:
            _, payload = world.candidate(session)
            assert world.check(session, payload) == [None] * 3
            world.finalise(session, payload)
        world.master_block()
        sums = [world.nodes[2].ledger.account(0, account) for account in ACCOUNTS]
        assert all(account is not None and account.memory[8] == 1 for account in sums)

    in_world(scenario)
