"""Validators and a full node of the real shell, in virtual time: links in memory in place of sockets, a simulated disk.

Links keep the order of what they carry, delay it and, where a run says so, lose it. A crash takes everything that was
not written. Whatever crosses a link is counted by what it is.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import sha256
from random import Random

from rigs.catchain_keys import public_key_of, seed_of
from rigs.memory_overlays import MemoryOverlay, MemoryOverlays, Objection
from rigs.memory_topic import MemoryTopic
from rigs.one_session_ledger import WHOLE_SHARD, OneSessionLedger
from stagepost.catchain.block import decode_update
from stagepost.catchain.member import MemberOptions
from stagepost.errors import DecodeError
from stagepost.full_node.complaints import ChallengeReport
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.known_sets import KnownSets
from stagepost.full_node.staged_sending import SendingOptions
from stagepost.full_node.status_topic import RETRY_S, StatusTopic
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.wire.tl import constructor_bytes, key_id
from stagepost.remp.links.overlay import OverlayEvents
from stagepost.remp.message import BODY_ID, ExternalMessage
from stagepost.remp.queue.message_cache import MessageCache
from stagepost.remp.queue.records import decode_payload
from stagepost.remp.queue.session_switch import Shard
from stagepost.remp.receipts.receipt import Receipt
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.validator.session_plan import SessionEvent, SessionOptions, SessionPlan
from stagepost.validator.session_store import MemorySessionStore, SessionsDisk
from stagepost.validator.sessions import Validator

START_UNIX_S = 1_800_000_000.0
SEQNO = 10
FULL_NODE_SEED = sha256(b"a full node").digest()
OPTIONS = SessionOptions(member=MemberOptions(start_wait_s=0.5, idle_timeout_s=4.0))

_BODY = constructor_bytes(BODY_ID)


# Messages


def message_bytes(number: int, *, account: int | None = None, content: bytes | None = None) -> bytes:
    """Workchain, account and content, one after the other."""
    destination = sha256(b"account %d" % (number if account is None else account)).digest()
    return (0).to_bytes(4, "big") + destination + (b"content %d" % number if content is None else content)


def parse(data: bytes) -> ExternalMessage:
    if len(data) < 36:
        raise DecodeError(f"a message has at least 36 bytes, found {len(data)}", offset=len(data))
    return ExternalMessage(
        sha256(data).digest(), sha256(data[36:]).digest(), int.from_bytes(data[:4], "big"), data[4:36], data
    )


FULL_NODE = -1
"""Number of the full node's end of the links."""


class House:
    """One validator's machine: what outlives a crash, and the process that does not."""

    def __init__(self, world: OverlayWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.key_id = key_id(public_key_of(number))
        self.disk = SessionsDisk(lambda: world.random.uniform(0.0005, 0.004))
        self.events: list[SessionEvent] = []
        self.plans: list[SessionPlan] = []
        self.is_safe = True
        self.validator: Validator | None = None

    # What the validator sends to full nodes.

    def tell(self, full_node: bytes, combined_receipt: bytes, statement: bytes = b"") -> bool:
        world = self.world
        if full_node != world.full_node.source_id or not world.is_full_node_linked:
            return False
        world.counts["receipt packet"] += 1

        def arrive() -> None:
            for data in filter(None, (statement, combined_receipt)):
                world.full_node.receipts_came(self.key_id, data)

        return world.wires.carry(self.number, FULL_NODE, arrive)

    def start(self) -> None:
        world = self.world
        store = MemorySessionStore(self.disk, is_safe=self.is_safe)
        self.validator = Validator(
            seed_of(self.number),
            store,
            self,
            self._make_overlay,
            world.clock,
            Random(world.random.random()),
            parse,
            cache=MessageCache(),
            options=world.options,
            full_node_keys={world.full_node.source_id: world.full_node.public_key},
            on_event=lambda plan, event: self.events.append(event),
        )
        for plan in self.plans:
            self.validator.begin_session(plan)

    def begin(self, plan: SessionPlan) -> None:
        self.plans.append(plan)
        assert self.validator is not None
        self.validator.begin_session(plan)

    def crash(self) -> None:
        """Power is cut: what was not written is gone, and nothing is said any more."""
        assert self.validator is not None
        self.validator.stop()
        self.world.wires.leave_all(self.number)
        self.disk.crash()
        self.validator = None

    @property
    def running(self) -> Validator:
        assert self.validator is not None
        return self.validator

    def _make_overlay(self, plan: SessionPlan, events: OverlayEvents) -> MemoryOverlay:
        members = [self.world.number_of(key) for key in plan.public_keys]
        return self.world.wires.join(plan.session_id, members, self.number, events)


class OverlayWorld:
    """To be made inside of a virtual-time loop."""

    def __init__(
        self,
        size: int,
        seed: int,
        *,
        loss: float = 0.0,
        delay_s: tuple[float, float] = (0.001, 0.01),
        options: SessionOptions = OPTIONS,
        sending: SendingOptions | None = None,
    ) -> None:
        self.random = Random(seed)
        self.options = options
        self.clock = LoopClock(START_UNIX_S)
        self.wires = MemoryOverlays(Random(seed + 1), delay_s=delay_s, loss=loss)
        self.wires.tap = self._count_push
        self.counts = self.wires.counts
        self.malformed = self.wires.malformed
        self.is_full_node_linked = True
        self.houses = [House(self, number) for number in range(size)]
        self.receipts: list[Receipt] = []
        self.challenged: list[ChallengeReport] = []
        self.topic = MemoryTopic(STATUSES_TOPIC)
        self.full_node = FullNode(
            FULL_NODE_SEED,
            OneSessionLedger(parse, map(public_key_of, range(size)), SEQNO),
            self,
            StatusTopic(self.topic.writer(retry_s=RETRY_S)),
            KnownSets([]),
            self.clock,
            Random(seed + 2),
            options=sending,
            on_status=self.receipts.append,
            challenged=self.challenged.append,
        )
        self.full_node.start()

    def plan_for(
        self,
        number: int,
        name: bytes = b"first",
        *,
        seqno: int = SEQNO,
        members: tuple[int, ...] | None = None,
        shard: Shard = WHOLE_SHARD,
    ) -> SessionPlan:
        numbers = members or tuple(range(len(self.houses)))
        return SessionPlan(
            sha256(b"session " + name).digest(),
            tuple(public_key_of(one) for one in numbers),
            numbers.index(number),
            frozenset(range(len(numbers))),
            seqno,
            shard,
        )

    def start(self) -> None:
        for house in self.houses:
            house.start()
            house.begin(self.plan_for(house.number))

    # The full node

    def send(self, validator: bytes, message: bytes) -> bool:
        house = next(house for house in self.houses if house.key_id == validator)

        def arrive() -> None:
            if house.validator is not None:
                try:
                    house.validator.message_came(self.full_node.source_id, message)
                except DecodeError as error:
                    self.malformed.append(Objection(FULL_NODE, error.text))

        self.counts["message to a validator"] += 1
        return self.wires.carry(FULL_NODE, house.number, arrive)

    def hand_over(self, data: bytes) -> bytes:
        return self.full_node.submit(data)

    def kinds_of(self, message_id: bytes) -> dict[bytes, list[str]]:
        """Receipt kinds by source, in order."""
        found: dict[bytes, list[str]] = defaultdict(list)
        for receipt in self.receipts:
            if receipt.message_id == message_id:
                found[receipt.source_id].append(receipt.kind.name)
        return found

    def number_of(self, public_key: bytes) -> int:
        return next(house.number for house in self.houses if public_key_of(house.number) == public_key)

    def _count_push(self, sender: int, frame: bytes) -> None:
        if frame[:4] == _BODY:
            self.counts["body"] += 1
            return
        self.counts["block"] += 1
        try:
            for record in decode_payload(decode_update(frame).payload):
                self.counts[type(record).__name__] += 1
        except DecodeError:
            self.counts["block without records"] += 1
