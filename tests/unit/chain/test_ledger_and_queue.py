"""The queue of external messages upon the embedded chain: what full nodes are told, from queue to masterchain and back."""

from __future__ import annotations

from collections.abc import Sequence

from rigs.chain_messages import address, external, some_primes
from stagepost.chain.contracts import ContractKind
from stagepost.remp.ledger import (
    CandidateBuilt,
    CandidateLost,
    CandidateRefused,
    LedgerEvent,
    MasterApplied,
    ShardCommitted,
    ShardDropped,
)
from stagepost.remp.message import ExternalMessage
from stagepost.remp.queue.collation import UnusedMessage
from stagepost.remp.queue.effects import QueueEffect, Tell
from stagepost.remp.queue.message_cache import LifeWindow, MessageCache
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.queue.session_switch import to_forward
from stagepost.remp.queue.state import QueueSession
from stagepost.remp.receipts.message_status import MessageStatus, kind_of
from tests.worlds.chain.chain_world import LIFETIME_MS, DecidedChain, a_configuration, a_genesis

FULL_NODE = b"f" * 32


class Station:
    """One validator: its ledger, and the queue that hears of everything that happens there."""

    def __init__(self, chain: DecidedChain) -> None:
        self.chain = chain
        self.told: dict[bytes, list[str]] = {}
        window = LifeWindow()
        window.advance(chain.ledger.master.catchain_seqno, chain.now_ms)
        self.window = window
        self.cache = MessageCache(window)
        self.queue = self.a_queue()

    def a_queue(self) -> ReliableQueue:
        session = self.chain.whole
        everybody = frozenset(range(len(session.public_keys)))
        return ReliableQueue(
            QueueSession(session.master_catchain_seqno, 0, everybody, len(everybody)), self.cache
        )

    @property
    def now(self) -> float:
        return self.chain.now_ms / 1_000

    def offer(self, message: ExternalMessage) -> None:
        parsed = self.chain.ledger.parse(message.body)
        self.do(self.queue.offer(parsed.message, FULL_NODE, self.now))

    def collate(self) -> bytes | None:
        """Takes from the queue, builds a candidate, and tells the queue what became of each message."""
        messages = self.take()
        collated = self.chain.propose(self.chain.whole.session_id, iter(messages))
        assert collated is not None
        asked = {message_id for message_id, _ in collated.reports}
        rest = [(one.message_id, UnusedMessage()) for one in messages if one.message_id not in asked]
        self.do(self.queue.collated([*collated.reports, *rest], self.now))
        return collated.payload

    def take(self) -> list[ExternalMessage]:
        """After a block of the queue: what nobody has announced is not taken."""
        payload = self.queue.next_payload(self.now)
        if payload is not None:
            self.do(self.queue.block_delivered(self.queue.session.index, payload, self.now))
        messages, effects = self.queue.take(self.now, 100)
        self.do(effects)
        return messages

    def hear(self, events: Sequence[LedgerEvent]) -> None:
        for event in events:
            match event:
                case CandidateBuilt(_, block_id, message_ids, is_own):
                    if not is_own:
                        self.do(self.queue.candidate_seen(block_id, message_ids, self.now))
                case CandidateLost(_, block_id):
                    self.do(self.queue.candidate_lost(block_id, self.now))
                case CandidateRefused(_, block_id, replayed):
                    self.do(self.queue.candidate_refused(block_id, self.now, replayed))
                case ShardCommitted(_, block_id, message_ids):
                    self.do(self.queue.shard_committed(block_id, message_ids, self.now))
                case ShardDropped(_, block_id, message_ids):
                    self.do(self.queue.shard_dropped(block_id, message_ids, self.now))
                case MasterApplied(master_id, blocks=blocks):
                    for final in blocks:
                        self.do(
                            self.queue.master_committed(final.block_id, master_id, final.messages, self.now)
                        )

    def do(self, effects: Sequence[QueueEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell):
                self.told.setdefault(effect.message_id, []).append(_name(effect.status))

    def finalise(self, payload: bytes) -> None:
        self.chain.finalise(self.chain.whole.session_id, payload)
        self.hear(self.chain.heard())


def _name(status: MessageStatus) -> str:
    return kind_of(status).name


def test_a_message_is_told_of_on_its_whole_way() -> None:
    station = Station(DecidedChain())
    message = some_primes(1)
    station.offer(message)
    payload = station.collate()
    assert payload is not None
    station.finalise(payload)
    station.hear(station.chain.master_block())

    assert station.told[message.message_id] == [
        "PutIntoQueue",
        "IncludedIntoBlock",
        "IncludedIntoAcceptedBlock",
    ]
    status = station.queue.status(message.message_id)
    assert status is not None
    assert _name(status) == "Finalized"


def test_what_the_contract_rejects_and_what_does_not_fit_is_told_too() -> None:
    station = Station(DecidedChain())
    rejected = external(address(ContractKind.ALWAYS_REJECTS), b"x")
    heavy = external(address(ContractKind.HEAVY), b"x")
    for message in (rejected, some_primes(1), heavy):
        station.offer(message)
        station.chain.now_ms += 10
    station.collate()

    assert station.told[rejected.message_id][-1] == "RejectedByCollator"
    assert station.told[some_primes(1).message_id][-1] == "IncludedIntoBlock"
    assert "IgnoredByCollator" in station.told[heavy.message_id]


def test_what_the_masterchain_drops_is_collated_again_in_the_next_session() -> None:
    station = Station(DecidedChain())
    message = some_primes(1)
    station.offer(message)
    payload = station.collate()
    assert payload is not None
    station.finalise(payload)
    station.chain.ledger.switches.leaves_out = lambda _: True
    station.hear(station.chain.master_block(after_ms=LIFETIME_MS))
    assert "IgnoredByMasterchain" in station.told[message.message_id]

    station.window.advance(station.chain.ledger.master.catchain_seqno, station.chain.now_ms)
    session = station.chain.whole
    forwarding = to_forward(station.queue, session.master_catchain_seqno, session.shard, lambda _: False)
    assert [body.message_id for body in forwarding.bodies] == [message.message_id]
    following = station.a_queue()
    station.do(following.forward_into(forwarding.records, forwarding.bodies, station.now))
    spoken = following.next_payload(station.now)
    assert spoken is not None
    station.do(following.block_delivered(0, spoken, station.now))
    station.queue = following
    station.chain.ledger.switches.leaves_out = lambda _: False
    payload = station.collate()
    assert payload is not None
    station.finalise(payload)
    station.hear(station.chain.master_block())

    assert _name(station.cache.get(message.message_id).status) == "Finalized"  # type: ignore[union-attr]
    taken = [one for final in station.chain.ledger.history(0) for one in final.messages]
    assert taken == [message]


def test_a_candidate_that_is_lost_or_refused_gives_its_messages_back() -> None:
    chain = DecidedChain(a_genesis(a_configuration()))
    station = Station(chain)
    message = some_primes(1)
    station.offer(message)
    session = chain.whole.session_id
    payload = station.collate()
    assert payload is not None
    chain.heard()
    chain.ledger.switches.refuses = lambda _: True
    chain.ledger.check(session, b"c" * 32, session, payload, chain.now_ms)
    station.hear(chain.heard())
    assert station.told[message.message_id][-2:] == ["IgnoredByShardchain", "PutIntoQueue"]
    chain.ledger.switches.refuses = lambda _: False
    payload = station.collate()
    assert payload is not None
    other = chain.shard_block(session, [])
    assert other.payload != payload
    station.hear(chain.heard())
    messages = station.take()

    assert [one.message_id for one in messages] == [message.message_id]
