"""Validators of an embedded chain in virtual time: real ledgers, and real agreement for every session of theirs.

Links deliver late and in no order; nobody lies here. What agreement does under attack has worlds of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from itertools import count
from random import Random

from rigs.agreement_keys import public_key_of, seed_of
from stagepost.chain.agreement.candidate import Candidate
from stagepost.chain.agreement.effects import (
    Ask,
    Broadcast,
    CheckCandidate,
    DisputedBlock,
    Effect,
    FinalisedBlock,
    Persist,
    Propose,
    Reply,
    StalledSlot,
)
from stagepost.chain.agreement.member import Member
from stagepost.chain.agreement.pacing import MemberOptions
from stagepost.chain.agreement.session import Session
from stagepost.chain.configuration import ChainValidator, Configuration, ValidatorSet
from stagepost.chain.declined import MAY_WAIT, DeclinedCandidate
from stagepost.chain.genesis import Genesis
from stagepost.chain.history import MemoryHistory
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.chain.rotation import Plan
from stagepost.remp.ledger import LedgerSession, MasterApplied, ShardCommitted, ShardDropped
from stagepost.remp.message import ExternalMessage
from tests.worlds.catchain.members_world import verify_once
from tests.worlds.chain.chain_world import START_MS

LIFETIME_MS = 6_000
LOOK_EVERY_S = 0.1
OPTIONS = MemberOptions(start_wait_s=0.2, ask_every_s=0.3, ask_when_idle_s=1.0)


def genesis_of(size: int, balances: tuple[tuple[bytes, int], ...]) -> Genesis:
    keys = (public_key_of(number) for number in range(size))
    members = tuple(ChainValidator(key, sha256(key).digest()) for key in keys)
    configuration = Configuration(
        ValidatorSet(START_MS, START_MS + 86_400_000, members),
        master_lifetime_ms=LIFETIME_MS,
        shard_lifetime_ms=LIFETIME_MS,
    )
    return Genesis("validators", START_MS, configuration, balances)


class Seat:
    """One validator in one session."""

    def __init__(self, validator: ChainNode, session: LedgerSession) -> None:
        self.validator = validator
        self.session_id = session.session_id
        self.is_master = session.facts.workchain == -1
        key = public_key_of(validator.index)
        world = validator.world
        self.index = session.public_keys.index(key)
        self.peers = [world.by_key[one] for one in session.public_keys]
        self.waiting: list[CheckCandidate] = []
        self.archive: list[FinalisedBlock] = []
        self.member = Member(
            Session(session.session_id, session.public_keys, session.session_id),
            self.index,
            seed_of(validator.index),
            Random(world.random.random()),
            world.now,
            OPTIONS,
            archive=self.archived,
            verify=verify_once,
        )
        self.wake()

    def archived(self, slot: int) -> bytes | None:
        return next((one.record for one in self.archive if one.slot >= slot), None)

    def wake(self) -> None:
        world = self.validator.world
        self.perform(self.member.tick(world.now))
        world.at(max(world.now + 1e-3, self.member.next_wake), self.wake)

    def perform(self, effects: list[Effect]) -> None:
        world = self.validator.world
        for effect in effects:
            match effect:
                case Persist(number):
                    world.at(world.now + 0.001, partial(self.persisted, number))
                case Broadcast(frame):
                    for place, peer in enumerate(self.peers):
                        if place != self.index:
                            world.send(partial(peer.frame_came, self.session_id, self.index, frame))
                case Ask(place, number, query):
                    world.send(
                        partial(self.peers[place].query_came, self.session_id, self.index, number, query)
                    )
                case Reply(place, number, answer):
                    world.send(
                        partial(self.peers[place].answer_came, self.session_id, self.index, number, answer)
                    )
                case Propose(slot, parent, is_wanted):
                    self.propose(slot, parent, is_wanted)
                case CheckCandidate():
                    self.check(effect)
                case FinalisedBlock():
                    self.archive.append(effect)
                    self.validator.finalised(self, effect)
                case DisputedBlock() | StalledSlot() if self.session_id not in self.validator.at_work:
                    pass  # others may not have heard yet that the session has ended
                case _:
                    raise AssertionError(f"among honest validators: {effect}")

    def persisted(self, number: int) -> None:
        self.perform(self.member.persisted(number, self.validator.world.now))

    def propose(self, slot: int, parent: bytes, is_wanted: bool) -> None:
        validator = self.validator
        payload = validator.payload_for(self, parent, is_wanted)
        if payload is not None:
            candidate = Candidate(slot, parent, payload).hash
            validator.ledger.check(self.session_id, candidate, parent, payload, validator.world.now_ms)
        self.perform(self.member.proposed(slot, payload, validator.world.now))

    def check(self, asked: CheckCandidate) -> None:
        validator = self.validator
        answer = validator.ledger.check(
            self.session_id, asked.block_hash, asked.parent_hash, asked.payload, validator.world.now_ms
        )
        if isinstance(answer, DeclinedCandidate):
            if answer.rule in MAY_WAIT:
                self.waiting.append(asked)
                return
            if self.session_id in validator.at_work:
                validator.declined.append(answer)
        reason = answer.reason if isinstance(answer, DeclinedCandidate) else None
        self.perform(self.member.checked(asked.block_hash, reason, validator.world.now))

    def check_again(self) -> None:
        waiting, self.waiting = self.waiting, []
        for asked in waiting:
            self.check(asked)


class ChainNode:
    def __init__(self, world: ChainWorld, index: int) -> None:
        self.world = world
        self.index = index
        self.kept = MemoryHistory()
        self.ledger = EmbeddedLedger(world.genesis, self.kept)
        self.pending: dict[bytes, ExternalMessage] = {}
        self.seats: dict[bytes, Seat] = {}
        self.early: dict[bytes, list[Callable[[], None]]] = {}
        self.declined: list[DeclinedCandidate] = []
        self.plans: list[Plan] = []
        self.applied: list[MasterApplied] = []

    @property
    def at_work(self) -> set[bytes]:
        return {self.ledger.master.session.session_id, *self.ledger.following.chains}

    def start(self) -> None:
        for session in (self.ledger.master_session(), *self.ledger.sessions()):
            self.sit_down(session)
        self.look()

    def sit_down(self, session: LedgerSession) -> None:
        seat = Seat(self, session)
        self.seats[seat.session_id] = seat
        for event in self.early.pop(seat.session_id, []):
            event()

    # What to build

    def payload_for(self, seat: Seat, parent: bytes, is_wanted: bool) -> bytes | None:
        now_ms = self.world.now_ms
        if seat.is_master:
            if not is_wanted and not self.ledger.is_master_block_wanted(now_ms):
                return None
            plans, self.plans = self.plans, []
            return self.ledger.collate_master(seat.session_id, parent, now_ms, plans=plans)
        session = next((one for one in self.ledger.sessions() if one.session_id == seat.session_id), None)
        if session is None:
            return None
        mine = [one for one in self.pending.values() if session.shard.holds(one.workchain, one.account)]
        if not mine and not is_wanted and not self.ledger.is_block_wanted(seat.session_id):
            return None
        collated = self.ledger.collate(seat.session_id, parent, mine, now_ms)
        return None if collated is None else collated.payload

    def look(self) -> None:
        """Whether a session has something to do."""
        world = self.world
        for session in (self.ledger.master_session(), *self.ledger.sessions()):
            seat = self.seats[session.session_id]
            if seat.is_master:
                is_wanted = bool(self.plans) or self.ledger.is_master_block_wanted(world.now_ms)
            else:
                shard = session.shard
                is_wanted = self.ledger.is_block_wanted(session.session_id) or any(
                    shard.holds(one.workchain, one.account) for one in self.pending.values()
                )
            if is_wanted:
                seat.perform(seat.member.wants_block(world.now))
        world.at(world.now + LOOK_EVERY_S, self.look)

    # What is final

    def finalised(self, seat: Seat, block: FinalisedBlock) -> None:
        self.ledger.finalised(seat.session_id, block.block_hash, block.payload, block.certificate.encode())
        for event in self.ledger.events():
            match event:
                case ShardCommitted(_, _, message_ids):
                    for message_id in message_ids:
                        self.pending.pop(message_id, None)
                case ShardDropped(_, _, message_ids):
                    for message_id in message_ids:
                        self.pending[message_id] = self.world.offered[message_id]
                case MasterApplied():
                    self.applied.append(event)
                    for session in event.started:
                        self.world.at(self.world.now, partial(self.sit_down, session))
        self.world.at(self.world.now, self.check_again)

    def check_again(self) -> None:
        for seat in list(self.seats.values()):
            seat.check_again()

    # Arrivals

    def frame_came(self, session: bytes, sender: int, frame: bytes) -> None:
        self._for(session, lambda seat: seat.member.frame_received(sender, frame, self.world.now))

    def query_came(self, session: bytes, sender: int, number: int, query: bytes) -> None:
        self._for(session, lambda seat: seat.member.query_received(sender, number, query, self.world.now))

    def answer_came(self, session: bytes, sender: int, number: int, answer: bytes) -> None:
        self._for(session, lambda seat: seat.member.answered(sender, number, answer, self.world.now))

    def _for(self, session: bytes, event: Callable[[Seat], list[Effect]]) -> None:
        """Others may have begun a session before us: what they say waits."""
        seat = self.seats.get(session)
        if seat is None:
            self.early.setdefault(session, []).append(lambda: self._for(session, event))
        else:
            seat.perform(event(seat))


class ChainWorld:
    def __init__(self, size: int, seed: int, balances: tuple[tuple[bytes, int], ...]) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()
        self.offered: dict[bytes, ExternalMessage] = {}
        self.genesis = genesis_of(size, balances)
        self.nodes = [ChainNode(self, index) for index in range(size)]
        self.by_key = {public_key_of(node.index): node for node in self.nodes}
        for node in self.nodes:
            node.start()

    @property
    def now_ms(self) -> int:
        return START_MS + 1_000 + int(self.now * 1_000)

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), event))

    def send(self, event: Callable[[], None]) -> None:
        self.at(self.now + self.random.uniform(0.001, 0.04), event)

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def offer(self, message: ExternalMessage) -> None:
        """As the queue would: every validator has it."""
        self.offered[message.message_id] = message
        for node in self.nodes:
            node.pending[message.message_id] = message
