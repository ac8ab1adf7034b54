"""A whole network of REMP in virtual time: validators and full nodes as they are assembled, links and disks in memory.

Everybody sends distinct sums to contracts that would take the same message again and again; what they hold in the end
tells whether each message counted once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from random import Random

import msgspec

from rigs.memory_overlays import MemoryOverlay, MemoryOverlays, Objection
from rigs.memory_topic import MemoryTopic
from stagepost.catchain.effects import BlameReport, Halt, RecoveryReport
from stagepost.catchain.member import MemberOptions as GraphOptions
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.configuration import ChainValidator as SetMember
from stagepost.chain.configuration import Configuration, ValidatorSet
from stagepost.chain.contracts import primes_body, sum_in, sum_of_primes
from stagepost.chain.declined import Switches
from stagepost.chain.genesis import FIRST_CATCHAIN, Genesis
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.node.agreement_runner import Notice
from stagepost.chain.node.follower import ChainFollower
from stagepost.chain.node.own_memory import OwnMemory
from stagepost.chain.node.store import ChainDisk, MemoryChainStore
from stagepost.chain.node.validator import ChainOptions
from stagepost.errors import DecodeError, ErrorCode, StagepostError
from stagepost.full_node.complaints import Complaint
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.known_sets import KnownSets
from stagepost.full_node.status_topic import RETRY_S, StatusTopic
from stagepost.ground.crypto import ed25519
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.wire.tl import ZERO_INT256, key_id
from stagepost.remp.ledger import LedgerEvent, LedgerSession, MasterApplied
from stagepost.remp.links.switchboard import Switchboard
from stagepost.remp.message import RempMessage
from stagepost.remp.queue.state import QueueOptions
from stagepost.remp.receipts.compact import CombinedReceipt
from stagepost.remp.receipts.message_status import Rejected
from stagepost.remp.receipts.receipt import Quarantined, Receipt
from stagepost.remp.receipts.statements import PacketStatement, StatementLink, is_asked_challenge
from stagepost.remp.receipts.status import Kind, Level, Status, is_legal_step
from stagepost.remp.receipts.status_records import STATUSES_TOPIC, StatusRecord, check_record
from stagepost.validator.session_plan import SessionEvent, SessionOptions, SessionPlan
from stagepost.validator.session_runner import SessionRunner
from stagepost.validator.session_store import MemorySessionStore, SessionsDisk
from stagepost.validator.validator import RempValidator
from tests.worlds.chain.chain_world import EXPIRES_AT_S, START_MS
from tests.worlds.remp.primes_attackers import HostileSeat, SessionAttack
from tests.worlds.remp.primes_checks import Wiretap
from tests.worlds.remp.primes_ends import EndsWatch
from tests.worlds.remp.primes_faults import (
    backdate,
    foredate,
    is_finalise,
    refuse_some,
    replay_everything,
    revive,
)
from tests.worlds.remp.primes_proofs import ProofShelf

UP_TO_MAX = 2_000
FAULTS = (
    "ignores", "refuses", "leaves_out", "liar", "replays", "backdates", "foredates", "revives", "withholds",
)  # fmt: skip
"""A validator that never votes, one that votes against everything, one whose master blocks hold nothing, one that
tells full nodes that it refused all messages, one whose blocks hold what earlier ones held, one whose blocks are as early
as they may be and hold whatever expired since, one whose blocks are a minute ahead, one whose blocks hold what others
rejected, and one that sends no vote or certificate that makes a block final."""

CHAIN_OPTIONS = ChainOptions(member=MemberOptions(start_wait_s=0.2))
SESSION_OPTIONS = SessionOptions(member=GraphOptions(start_wait_s=0.2, idle_timeout_s=4.0))


def seed_of(number: int) -> bytes:
    return sha256(b"a member of the network %d" % number).digest()


class ValidatorHouse:
    """A validator's machine: the disks outlive the process."""

    def __init__(self, world: PrimesWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.seed = seed_of(number)
        self.key_id = key_id(ed25519.public_key(self.seed))
        self.chain_disk = ChainDisk(lambda: world.random.uniform(0.0005, 0.004))
        self.sessions_disk = SessionsDisk(lambda: world.random.uniform(0.0005, 0.004))
        self.validator: RempValidator | None = None
        self.notices: Counter[str] = Counter()
        self.crashes = 0
        self.fault: str | None = None
        self.attack: SessionAttack | None = None
        self.switches = Switches()
        self.final_ids: set[bytes] = set()
        self.is_handing_on = False
        self.blamed: set[int] = set()
        """Numbers of the validators that contradicted themselves in a session's graph, as this one found."""
        self.recovered: list[int] = []
        """Heights of its blocks in queues that others had, and its own disk had not."""
        self.halted: list[str] = []
        self.memory = OwnMemory()
        self.lies: dict[tuple[bytes, bytes, int], bytes] = {}
        """Hash of each lie that it told full nodes, by session, message and number in the chain."""

    @property
    def running(self) -> RempValidator:
        assert self.validator is not None
        return self.validator

    def start(self) -> None:
        world = self.world
        validator = RempValidator(
            world.genesis,
            self.seed,
            MemoryChainStore(self.chain_disk, world.genesis),
            MemorySessionStore(self.sessions_disk),
            world.public_keys,
            self,
            world.clock_of(self.number),
            Random(world.random.getrandbits(64)),
            full_node_keys=world.full_node_keys,
            chain_options=CHAIN_OPTIONS,
            session_options=msgspec.structs.replace(SESSION_OPTIONS, queue=world.queue_options),
            switches=self.switches,
            memory=self.memory,
            on_events=self._chain_went_on,
            on_notice=self._noticed,
            on_event=self._queue_spoke,
        )
        self.validator = validator
        self._watch_switches(validator)
        refuse_some(validator.ledger, self._refuses)
        if self.attack is not None:
            self.attack.enter(validator)
        elif self.fault is not None:
            self.misbehave(self.fault)
        overlay = world.join(self.number, validator.board)
        send = overlay.push

        def push(peer: int, frame: bytes) -> bool:
            return (self.fault == "withholds" and is_finalise(frame)) or send(peer, frame)

        overlay.push = push  # type: ignore[method-assign]  # it is this validator's own
        validator.start(overlay)
        for house in world.full_nodes:
            validator.queues.full_node_linked(house.key_id)
            house.validator_linked(self.key_id)

    def _refuses(self, message_id: bytes) -> bool:
        return self.fault != "revives" and self.number in self.world.refused_by.get(message_id, ())

    def _lie(self, combined_receipt: bytes, statement: bytes) -> tuple[bytes, bytes]:
        """Everything was refused, it says, and signs that; its chains hold the lies."""
        packet = CombinedReceipt.decode(combined_receipt)
        lies = [
            Receipt(one.message_id, Rejected(Level.COLLATOR, "a lie"), one.timestamp_ms, b"").sign(self.seed)
            for one in packet.receipts
        ]
        packet = CombinedReceipt(packet.source_id, tuple(lies))
        links = []
        for lie, true in zip(lies, PacketStatement.decode(statement).links, strict=True):
            before = self.lies.get((*true.chain, true.number - 1), ZERO_INT256)
            self.lies[*true.chain, true.number] = lie.hash
            links.append(StatementLink(*true.chain, true.number, before, lie.hash))
        return packet.encode(), PacketStatement(packet.source_id, tuple(links)).sign(self.seed).encode()

    def _chain_went_on(self, events: Sequence[LedgerEvent]) -> None:
        for event in events:
            if isinstance(event, MasterApplied):
                for block in event.blocks:
                    self.final_ids.update(message.message_id for message in block.messages)

    def _queue_spoke(self, plan: SessionPlan, event: SessionEvent) -> None:
        if isinstance(event, BlameReport):
            self.blamed.add(self.world.public_keys.index(plan.public_keys[event.source]))
        elif isinstance(event, RecoveryReport):
            self.recovered.append(event.height)
        elif isinstance(event, Halt):
            self.halted.append(event.text)

    def _watch_switches(self, validator: RempValidator) -> None:
        """Note when the validator hands messages on to a session that follows."""
        queues = validator.queues
        forward = queues._forward

        def hand_on(old: SessionRunner, new: SessionRunner) -> None:
            self.is_handing_on = True
            forward(old, new)
            self.is_handing_on = False

        queues._forward = hand_on  # type: ignore[method-assign]  # it does the same, and is seen doing it

    def _noticed(self, session: LedgerSession, notice: Notice) -> None:
        self.notices[type(notice).__name__] += 1

    def misbehave(self, fault: str) -> None:
        """From now on, also after a crash."""
        self.fault = fault
        if fault == "replays":
            replay_everything(self.running.ledger, Random(self.number))
        elif fault == "backdates":
            backdate(self.running.ledger)
        elif fault == "foredates":
            foredate(self.running.ledger)
        elif fault == "revives":
            revive(self.running.ledger)
        elif fault not in ("liar", "withholds"):
            setattr(self.running.ledger.switches, fault, lambda block_id: True)

    def crash(self) -> None:
        """Power is cut."""
        self.crashes += 1
        self.running.stop()
        self.world.overlays.leave_all(self.number)
        self.chain_disk.crash()
        self.sessions_disk.crash()
        self.validator = None

    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        if self.fault == "liar":
            combined_receipt, statement = self._lie(combined_receipt, statement)
        house = next((one for one in self.world.full_nodes if one.key_id == full_node), None)
        if house is None:
            return False  # an attacker has invented it

        def arrive() -> None:
            for data in filter(None, (statement, combined_receipt)):
                house.node.receipts_came(self.key_id, data)

        return self.world.overlays.carry(self.number, house.number, arrive, is_lossless=True)


class FullHouse:
    def __init__(self, world: PrimesWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.seed = seed_of(number)
        self.key_id = key_id(ed25519.public_key(self.seed))
        self.topic = MemoryTopic(STATUSES_TOPIC)
        self.kinds: dict[bytes, list[tuple[bytes, str]]] = defaultdict(list)
        self.sent: set[bytes] = set()
        self.final_ids: list[bytes] = []
        self.taken_at: dict[bytes, int] = {}
        """Catchain of the masterchain under which a message was submitted."""
        self.brought_at: dict[bytes, int] = {}
        """Catchain under which a message came to a validator last."""
        self.received_under: dict[bytes, int] = {}
        """Lowest catchain of a validator, by its own chain, when it was sent a message; it may have come back behind the others."""
        self.closed_at: dict[bytes, int] = {}
        """Latest catchain that any validator had reached when the last closing receipt came."""
        self.final_at: dict[bytes, int] = {}
        self.catchain_after: dict[int, int] = {0: FIRST_CATCHAIN}
        """Catchain of the masterchain after each of its blocks, by number."""
        self.sessions_ended = 0
        self.receipts: list[Receipt] = []
        self.complaints: list[Complaint] = []
        self.listeners: list[Callable[[Receipt], None]] = []
        self.ends = EndsWatch()

    def start(self) -> None:
        world = self.world
        self.store = MemoryChainStore(ChainDisk(), world.genesis, keeps_all=True)
        self.follower = ChainFollower(
            world.genesis,
            self.store,
            world.public_keys,
            ed25519.public_key(self.seed),
            world.clock_of(self.number),
            Random(world.random.getrandbits(64)),
            self._chain_went_on,
        )
        self.proofs = ProofShelf(world.genesis)
        self.proofs.follow(self.follower)
        self._statuses = StatusTopic(
            self.topic.writer(lambda: int(world.clock_of(self.number).unix_s() * 1_000), retry_s=RETRY_S)
        )
        self.node = FullNode(
            self.seed,
            self.follower.ledger,
            self,
            self._statuses,
            KnownSets([ed25519.public_key(self.seed)]),
            world.clock_of(self.number),
            Random(world.random.getrandbits(64)),
            on_status=self._heard,
            complain=self.complaints.append,
            expect=self.proofs.expect,
        )
        overlay = world.join(self.number, self.follower.board)
        self.follower.start(overlay)
        self.node.start()

    def _chain_went_on(self, events: Sequence[LedgerEvent]) -> None:
        for event in events:
            if isinstance(event, MasterApplied):
                self.sessions_ended += len(event.ended)
                self.catchain_after[event.master_id.seqno] = event.catchain_seqno
                for block in event.blocks:
                    self.final_ids += [message.message_id for message in block.messages]
                    self.final_at |= {
                        message.message_id: block.master_catchain_seqno for message in block.messages
                    }
                    self.ends.executed(message.message_id for message in block.messages)
        following = self.follower.ledger.following
        self.ends.look(following.states, following.master.configuration.expiry_ahead_max_ms)
        self.node.heard(events)

    def _heard(self, receipt: Receipt) -> None:
        self.receipts.append(receipt)
        if receipt.kind.status in (Status.REJECTED, Status.TIMEOUT):
            self.closed_at[receipt.message_id] = self.world.catchain_seqno
        for listener in self.listeners:
            listener(receipt)
        self.kinds[receipt.message_id].append((receipt.source_id, receipt.kind.name))

    def validator_linked(self, validator: bytes) -> None:
        self.node.validator_linked(validator)

    def submit(self, data: bytes) -> None:
        """Somebody who sends the same again is told so, and that is all."""
        try:
            message_id = self.node.submit(data)
            self.sent.add(message_id)
            self.taken_at[message_id] = self.world.catchain_seqno
        except StagepostError as error:
            if error.code is not ErrorCode.MSG_DUPLICATE:
                raise

    def send(self, validator: bytes, message: bytes) -> bool:
        house = next(one for one in self.world.validators if one.key_id == validator)
        if house.validator is None:
            return False

        def arrive() -> None:
            if house.validator is not None:
                if not is_asked_challenge(message):
                    message_id, own = (
                        RempMessage.decode(message).message_id,
                        house.validator.queues.cache.window.current,
                    )
                self.brought_at[message_id] = self.world.catchain_seqno
                self.received_under[message_id] = min(own, self.received_under.get(message_id, own))
                try:
                    house.validator.queues.message_came(self.key_id, message)
                except DecodeError as error:
                    self.world.overlays.malformed.append(Objection(self.number, error.text))

        return self.world.overlays.carry(self.number, house.number, arrive, is_lossless=True)

    async def close(self) -> None:
        self.node.close()
        self.follower.stop()
        await self._statuses.close()
        await self.proofs.keeper.close()

    def count_of(self, message_id: bytes, kind: str) -> int:
        return sum(one == kind for _, one in self.kinds[message_id])

    def is_over(self, message_id: bytes) -> bool:
        """Return whether a message is final, refused here, or closed by every validator that ever had it."""
        if self.count_of(message_id, "Finalized") or self.count_of(message_id, "RejectedByFullnode"):
            return True
        last = dict(self.kinds[message_id])
        last.pop(self.key_id, None)
        return bool(last) and all(_is_closing(kind) for kind in last.values())

    def contradictions(self, sources: set[bytes]) -> list[str]:
        """Steps that no honest validator takes, however often it crashes."""
        lanes: dict[tuple[bytes, bytes], list[Receipt]] = defaultdict(list)
        for receipt in self.receipts:
            if receipt.source_id in sources:
                lanes[receipt.message_id, receipt.source_id].append(receipt)
        found: list[str] = []
        for (message_id, source), receipts in lanes.items():
            before: Kind | None = None
            for receipt in sorted(receipts, key=lambda one: one.timestamp_ms):
                if not is_legal_step(before, receipt.kind):
                    name = "nothing" if before is None else before.name
                    found.append(
                        f"{message_id.hex()[:8]} {source.hex()[:8]}: {receipt.kind.name} after {name}"
                    )
                before = receipt.kind
        return found

    def records(self) -> list[StatusRecord]:
        return [
            StatusRecord(one.value, (one.key or b"").decode(), headers=one.headers)
            for batch in self.topic.reader().batches(0, 0)
            for one in batch
        ]

    def bad_records(self) -> list[str]:
        """Records of the topic that nobody should believe."""
        sets = self.node.known_sets.sets
        checked = [check_record(record, sets) for record in self.records()]
        return [f"{one.reason}: {one.text}" for one in checked if isinstance(one, Quarantined)]


def _is_closing(kind: str) -> bool:
    return kind == "Timeout" or kind.startswith("Rejected")


class PrimesWorld:
    """To be made inside of a virtual-time loop."""

    def __init__(
        self,
        size: int,
        seed: int,
        *,
        full_nodes: int = 1,
        loss: float = 0.0,
        lifetime_ms: int = 60_000,
        shard_validators: int = 0,
        balances: tuple[tuple[bytes, int], ...] = (),
        queue_options: QueueOptions | None = None,
        configure: Callable[[Configuration], Configuration] = lambda configuration: configuration,
        attackers: Mapping[int, type[HostileSeat]] | None = None,
        founders: int | None = None,
        own_clocks: Collection[int] = (),
    ) -> None:
        """`founders`: number of validators in the first set; None for all. `own_clocks`: numbers of members whose wall clock can be
        set without that of the others."""
        self.queue_options = queue_options or QueueOptions()
        self.random = Random(seed)
        self.overlays = MemoryOverlays(Random(seed + 1), loss=loss)
        self.tap = self.overlays.tap = Wiretap(self._is_final_and_handed_on)
        self.relabelled: set[bytes] = set()
        """Messages that attackers have announced as younger than they are."""
        self.refused_by: dict[bytes, frozenset[int]] = {}
        """Numbers of the validators whose executors refuse a message."""
        self.clock = LoopClock(START_MS / 1_000 + 1.0)
        self._own_clocks = {number: LoopClock(START_MS / 1_000 + 1.0) for number in own_clocks}
        self.public_keys = tuple(ed25519.public_key(seed_of(one)) for one in range(size + full_nodes))
        members = tuple(SetMember(key, sha256(key).digest()) for key in self.public_keys[: founders or size])
        configuration = Configuration(
            ValidatorSet(START_MS, START_MS + 86_400_000, members),
            master_lifetime_ms=lifetime_ms,
            shard_lifetime_ms=lifetime_ms,
            shard_validators=shard_validators,
        )
        self.genesis = Genesis("primes", START_MS, configure(configuration), balances)
        self.full_node_keys = {key_id(key): key for key in self.public_keys[size:]}
        self.validators = [ValidatorHouse(self, number) for number in range(size)]
        self.full_nodes = [FullHouse(self, size + number) for number in range(full_nodes)]
        for number, kind in (attackers or {}).items():
            self.validators[number].fault = kind.__name__
            self.validators[number].attack = SessionAttack(self.validators[number], kind)
        for house in self.full_nodes:
            house.start()
        for one in self.validators:
            one.start()

    def _is_final_and_handed_on(self, sender: int, message_id: bytes) -> bool:
        if sender >= len(self.validators):
            return False
        house = self.validators[sender]
        return house.is_handing_on and message_id in house.final_ids

    def join(self, number: int, events: Switchboard) -> MemoryOverlay:
        return self.overlays.join(self.genesis.hash, range(len(self.public_keys)), number, events)

    def clock_of(self, number: int) -> LoopClock:
        return self._own_clocks.get(number, self.clock)

    @property
    def now_ms(self) -> int:
        return int(self.clock.unix_s() * 1_000)

    @property
    def ledger(self) -> EmbeddedLedger:
        return self.full_nodes[0].follower.ledger

    @property
    def catchain_seqno(self) -> int:
        """The latest catchain of the masterchain that any validator has reached."""
        ledgers = [one.running.ledger for one in self.validators if one.validator is not None]
        return max(ledger.master.catchain_seqno for ledger in (self.ledger, *ledgers))

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, act)

    async def until(self, condition: Callable[[], bool], what: str, within_s: float) -> None:
        ends = asyncio.get_running_loop().time() + within_s
        while not condition():
            assert asyncio.get_running_loop().time() < ends, f"{what}: not within {within_s:g} s"
            await asyncio.sleep(0.25)

    async def close(self) -> None:
        for house in self.full_nodes:
            await house.close()
        for one in self.validators:
            if one.validator is not None:
                one.validator.stop()

    def sums(self, accounts: list[bytes]) -> list[tuple[int, int]]:
        found = [self.ledger.account(0, account) for account in accounts]
        return [(0, 0) if one is None else sum_in(one.memory) for one in found]


class Sum(msgspec.Struct, frozen=True):
    account: bytes
    up_to: int
    salt: int = 0
    expires_at_s: int = EXPIRES_AT_S

    @property
    def expires_soon(self) -> bool:
        """Return whether the message expires while a run lasts."""
        return 0 < self.expires_at_s < EXPIRES_AT_S

    @property
    def data(self) -> bytes:
        return CanonicalMessage(self.account, primes_body(self.up_to), self.expires_at_s, self.salt).encode()

    @property
    def message_id(self) -> bytes:
        return sha256(self.data).digest()

    @property
    def amount(self) -> int:
        return sum_of_primes(self.up_to)


def distinct_sums(random: Random, accounts: list[bytes], each: int) -> list[Sum]:
    """In no order; no two to one account are equal, for equal ones count once."""
    found = [
        Sum(account, up_to) for account in accounts for up_to in random.sample(range(2, UP_TO_MAX), each)
    ]
    random.shuffle(found)
    return found
