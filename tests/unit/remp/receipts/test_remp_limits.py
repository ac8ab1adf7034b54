"""What a full node and a validator remember has limits, and the oldest goes first."""

from __future__ import annotations

from random import Random

import pytest

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.chain.ledger import EmbeddedLedger
from stagepost.delivery.transport import Incoming
from stagepost.errors import StagepostError
from stagepost.full_node import complaints
from stagepost.full_node import from_delivery as delivery_intake
from stagepost.full_node import full_node as remp_full_node
from stagepost.full_node.complaints import Complaint, ComplaintBook
from stagepost.full_node.from_delivery import DeliveryIntake
from stagepost.ground.loop.clock import SystemClock
from stagepost.remp.ledger import ShardCommitted
from stagepost.remp.receipts.message_status import New, Timeout
from stagepost.remp.receipts.receipt import ExternalMessageId
from stagepost.remp.shard import BlockId
from stagepost.validator import queue_bridge
from stagepost.validator.queue_bridge import QueueBridge
from stagepost.validator.session_store import MemorySessionStore, SessionsDisk
from stagepost.validator.sessions import Validator
from tests.unit.full_node.test_complaints import chain
from tests.unit.full_node.test_remp_full_node import Desk, at_a_desk, primes
from tests.unit.validator.test_queue_bridge import genesis_of

BLOCK = BlockId(0, 1 << 63, 1, b"r" * 32, b"f" * 32)


def test_so_many_final_messages_are_remembered_and_the_oldest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remp_full_node, "FINALS_KEPT_MAX", 2)

    def scenario(desk: Desk) -> None:
        for number in (10, 11, 12):
            desk.in_a_final_block(primes(number))
        for number in (11, 12):
            with pytest.raises(StagepostError, match="final already"):
                desk.node.submit(primes(number))
        with pytest.raises(StagepostError, match="in a block already"):  # the chain still knows it
            desk.node.submit(primes(10))
        assert desk.kinds == ["Finalized"] * 2

    at_a_desk(scenario)


def test_complaints_keep_so_many_messages_and_receipts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complaints, "MESSAGES_MAX", 2)
    monkeypatch.setattr(complaints, "RECEIPTS_MAX", 3)
    made: list[Complaint] = []
    book = ComplaintBook(seed_of(9), 1_000, made.append)
    ids = [ExternalMessageId(number.to_bytes(32, "big")) for number in (1, 2, 3)]
    for one in ids:
        for linked in chain(New(), New(), New(), New(), message_id=one):
            book.heard(linked.receipt, linked.placed, 10)
    for one, first in ((ids[2], 5), (ids[0], 1), (ids[2], 3)):
        (other,) = chain(Timeout(), message_id=one, first=first)
        book.heard(other.receipt, other.placed, 11)
    assert [one.message_id for one in made] == [ids[2]]


def test_a_bridge_remembers_so_many_messages_of_blocks_that_wait_for_the_masterchain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_bridge, "COMMITTED_MAX", 3)
    monkeypatch.setattr(queue_bridge, "BLOCKS_MAX", 1)
    ledger = EmbeddedLedger(genesis_of(4))
    validator = Validator(
        seed_of(0),
        MemorySessionStore(SessionsDisk()),
        None,  # type: ignore[arg-type]  # nobody is told anything here
        None,  # type: ignore[arg-type]  # and no session begins
        SystemClock(),
        Random(1),
        lambda data: ledger.parse(data).message,
    )
    bridge = QueueBridge(ledger, validator, public_key_of(0), {}, SystemClock())
    bridge.heard([ShardCommitted(b"s" * 32, BLOCK, (b"a" * 32, b"b" * 32))])
    bridge.heard([ShardCommitted(b"s" * 32, BLOCK, (b"c" * 32, b"d" * 32))])
    assert list(bridge._committed) == [b"b" * 32, b"c" * 32, b"d" * 32]
    assert list(bridge._committed_lists) == [(b"c" * 32, b"d" * 32)]


def test_an_intake_remembers_the_network_ids_of_so_many_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_intake, "KEPT_MAX", 2)
    intake = DeliveryIntake(None, "t")  # type: ignore[arg-type]  # nothing is submitted
    for number in range(3):
        intake._note(Incoming("s", "t", bytes(16), 0, 0, (), b"%d" % number, None, bytes([number])))
    assert list(intake._network_ids.values()) == ["01", "02"]
