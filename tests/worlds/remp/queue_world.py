"""Validators' queues upon one graph in virtual time: full nodes hand messages over, everything that is told is kept."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from hashlib import sha256

import msgspec

from rigs.catchain_keys import public_key_of
from stagepost.catchain.budgets import AuthorAccount
from stagepost.catchain.effects import BlameReport, Deliver, Effect
from stagepost.ground.wire.tl import key_id
from stagepost.remp.message import ExternalMessage, Origin, header_of
from stagepost.remp.queue.effects import (
    AnswerChallenge,
    AskForBody,
    BroadcastBody,
    QueueEffect,
    SpeakSoon,
    Tell,
)
from stagepost.remp.queue.message_cache import LifeWindow, MessageCache
from stagepost.remp.queue.records import Header
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.queue.state import QueueOptions, QueueSession
from stagepost.remp.receipts.message_status import MessageStatus
from stagepost.remp.receipts.statements import StatementLink, empty_chain
from tests.worlds.catchain.catchain_world import SESSION, Peer, World

FULL_NODE = sha256(b"full node").digest()
SEQNO = 10


def message(number: int, *, account: int | None = None, body: bytes | None = None) -> ExternalMessage:
    """`number` makes the id; equal bodies share a uid."""
    content = b"%d" % number if body is None else body
    destination = number if account is None else account
    return ExternalMessage(
        sha256(b"message %d" % number + content).digest(),
        sha256(content).digest(),
        0,
        sha256(b"account %d" % destination).digest(),
        content,
    )


class Validator(Peer):
    """A member of the graph with a queue upon it."""

    queue: ReliableQueue
    cache: MessageCache
    queue_options: QueueOptions | None = None

    def __init__(self, world: World, index: int) -> None:
        super().__init__(world, index)
        self.told: dict[bytes, list[MessageStatus]] = defaultdict(list)
        self.bodies: dict[bytes, ExternalMessage] = {}
        self.offers: dict[bytes, Header] = {}

    def start(self) -> None:
        window = LifeWindow()
        window.advance(SEQNO, int(self.world.now * 1_000))
        self.cache = MessageCache(window)
        dates = self.world.dates
        session = QueueSession(SEQNO, self.index, frozenset(range(self.world.size)), self.world.size)
        if dates is not None:
            session = msgspec.structs.replace(session, budget=dates.budget)
        self.queue = ReliableQueue(session, self.cache, self.queue_options)
        super().start()
        for body in self.bodies.values():
            self.do(self.queue.body_came(body, self.world.now))
        for message_id, header in self.offers.items():
            if message_id not in self.queue.known_ids:
                self.do(self.queue.forward_into([header], [self.bodies[message_id]], self.world.now))

    def next_payload(self, is_due: bool, account: AuthorAccount) -> bytes | None:
        return self.queue.next_payload(self.world.now, account, is_due=is_due)

    def hand_over(self, one: ExternalMessage) -> None:
        if self.is_up:
            # On disk before the answer: the answer is a promise.
            origin = Origin(FULL_NODE, self.index, int(self.world.now * 1_000))
            self.offers.setdefault(one.message_id, header_of(one, origin, self.cache.window.current))
            self.bodies[one.message_id] = one
            self.do(self.queue.offer(one, FULL_NODE, self.world.now))

    def wake(self, life: int) -> None:
        if self.is_up and life == self.life:
            self.do(self.queue.tick(self.world.now))
        super().wake(life)

    def perform(self, effects: list[Effect]) -> None:
        super().perform(effects)
        for effect in effects:
            match effect:
                case Deliver(source, _, _, payload, floor_ms, unanswered):
                    now = self.world.now
                    self.do(self.queue.block_delivered(source, payload, now, floor_ms, unanswered))
                case BlameReport(source):
                    self.do(self.queue.member_blamed(source, self.world.now))

    def do(self, effects: Sequence[QueueEffect]) -> None:
        for effect in effects:
            match effect:
                case Tell(_, message_id, status):
                    self.told[message_id].append(status)
                case SpeakSoon():
                    if hasattr(self, "member"):
                        self.perform(self.member.speak_soon(self.world.now))
                case BroadcastBody(message_id):
                    for peer in range(self.world.size):
                        if peer != self.index:
                            self.send_body(peer, message_id)
                case AnswerChallenge(session_id, message_id):
                    self.answer(empty_chain(session_id, message_id))
                case AskForBody(member, message_id):
                    self.world.send(self.index, member, partial(_body_wanted, self.index, message_id))

    def challenge(self, accused: int, number: int) -> None:
        """Challenge another member about a message of this session."""
        if self.is_up and accused != self.index:
            last = empty_chain(SESSION, message(number).message_id)
            self.do(self.queue.challenge(key_id(public_key_of(accused)), last))

    def answer(self, newest: StatementLink) -> None:
        self.do(self.queue.answer(newest))

    def send_body(self, peer: int, message_id: bytes) -> None:
        body = self.bodies.get(message_id)
        if body is not None:
            self.world.send(self.index, peer, partial(_body_came, body))

    def body_wanted(self, sender: int, message_id: bytes) -> None:
        self.send_body(sender, message_id)

    def body_came(self, body: ExternalMessage) -> None:
        # The network may be faster than the graph: a body is kept for a while before its header is here.
        self.bodies[body.message_id] = body
        self.do(self.queue.body_came(body, self.world.now))


def _body_wanted(sender: int, message_id: bytes, to: Peer) -> None:
    assert isinstance(to, Validator)
    to.body_wanted(sender, message_id)


def _body_came(body: ExternalMessage, to: Peer) -> None:
    assert isinstance(to, Validator)
    to.body_came(body)


def validators(size: int, seed: int, loss: float = 0.0) -> tuple[World, list[Validator]]:
    world = World(size, seed, loss=loss, make_peer=Validator)
    found = [peer for peer in world.peers if isinstance(peer, Validator)]
    return world, found
