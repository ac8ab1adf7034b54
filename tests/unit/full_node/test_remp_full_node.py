"""Full node: messages that it refuses, statuses that it publishes, the end of a message, and sources that may sign."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from rigs.chain_messages import SIMULATED_EXPIRY_S, address
from rigs.memory_topic import MemoryTopic
from stagepost.chain.configuration import Limits
from stagepost.chain.contracts import ContractKind, primes_body
from stagepost.chain.master_state import PlanKind
from stagepost.chain.messages import CanonicalMessage
from stagepost.chain.rotation import Plan
from stagepost.cli import main as command
from stagepost.errors import DecodeError, ErrorCode, StagepostError
from stagepost.full_node.earlier_life import earlier_life
from stagepost.full_node.full_node import FullNode
from stagepost.full_node.known_sets import KnownSets, sets_document
from stagepost.full_node.status_topic import RETRY_S, EarlierIds, StatusTopic
from stagepost.ground.identifiers import SESSIONS_TOPIC
from stagepost.ground.loop.clock import LoopClock
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.ground.wire.tl import key_id
from stagepost.remp.message import MESSAGE_BYTES_MAX, RempMessage
from stagepost.remp.receipts.message_status import Accepted, New
from stagepost.remp.receipts.receipt import ExternalMessageId, Quarantined, Receipt
from stagepost.remp.receipts.statements import PlacedLink
from stagepost.remp.receipts.status import Level
from stagepost.remp.receipts.status_records import STATUSES_TOPIC, StatusRecord, check_record
from stagepost.remp.shard import BlockId
from stagepost.remp.validator_sets import SETS_FILE, ValidatorSets, parse_validator_sets
from stagepost.topics.log.file_topic import create_topic
from stagepost.topics.topic import RetryingWriter
from stagepost.trace.session_records import load_sets, session_record
from tests.worlds.chain.chain_world import LIFETIME_MS, START_MS, DecidedChain, a_configuration, a_genesis
from tests.worlds.pipeline.pipeline_topics import append_all

SEED = sha256(b"a full node").digest()
ACCOUNT = address(ContractKind.SUM_OF_PRIMES, 1)


class _NotingTopic(StatusTopic):
    """Topic of statuses that notes what is published in the same call, before the disk has it."""

    def __init__(self, writer: RetryingWriter, receipts: list[Receipt]) -> None:
        super().__init__(writer)
        self._receipts = receipts

    def publish(
        self,
        receipt: Receipt,
        session_id: bytes | None,
        earlier: EarlierIds,
        settled: Callable[[], None] = lambda: None,
        link: PlacedLink | None = None,
    ) -> None:
        self._receipts.append(receipt)
        super().publish(receipt, session_id, earlier, settled, link)


class Desk:
    """Full node upon a chain that the test decides. `sent` are the frames for validators, `receipts` the published statuses."""

    def __init__(self, known_sets: KnownSets | None = None) -> None:
        self.chain = DecidedChain(a_genesis(a_configuration(limits=Limits())))
        self.sent: list[tuple[bytes, RempMessage]] = []
        self.receipts: list[Receipt] = []
        self.topic = MemoryTopic(STATUSES_TOPIC)
        self.sets: list[ValidatorSets] = []
        self._clock = LoopClock(START_MS / 1_000 + 2.0)
        self.node = self._life(known_sets or KnownSets([]))
        self.node.start()

    def _life(self, known_sets: KnownSets) -> FullNode:
        return FullNode(
            SEED,
            self.chain.ledger,
            self,
            _NotingTopic(self.topic.writer(retry_s=RETRY_S), self.receipts),
            known_sets,
            self._clock,
            Random(1),
            sets_changed=lambda known: self.sets.append(known.sets),
        )

    async def restart(self) -> None:
        """Start the next life with the topic and the chain, and nothing else."""
        self.node.close()
        await self.node._statuses.close()
        self.node = self._life(KnownSets([]))
        source_ids = {self.node.source_id}
        self.node.start(earlier_life(self.topic.reader(), self.node.now_ms, 480_000, source_ids))

    def in_a_shard_block(self, data: bytes) -> None:
        self.chain.shard_block(self.chain.whole.session_id, [self.chain.ledger.parse(data).message])
        self.node.heard(self.chain.heard())

    def send(self, validator: bytes, message: bytes) -> bool:
        self.sent.append((validator, RempMessage.decode(message)))
        return True

    @property
    def kinds(self) -> list[str]:
        return [receipt.kind.name for receipt in self.receipts]

    def records(self) -> list[StatusRecord]:
        reader = self.topic.reader()
        return [
            StatusRecord(one.value, (one.key or b"").decode(), headers=one.headers)
            for batch in reader.batches(0, 0)
            for one in batch
        ]

    def in_a_final_block(self, data: bytes) -> None:
        self.in_a_shard_block(data)
        self.node.heard(self.chain.master_block())


def primes(number: int = 10, account: bytes = ACCOUNT) -> bytes:
    return CanonicalMessage(account, primes_body(number), SIMULATED_EXPIRY_S).encode()


def at_a_desk(scenario: Callable[[Desk], None], known_sets: KnownSets | None = None) -> None:
    async def main() -> None:
        desk = Desk(known_sets)
        scenario(desk)
        await desk.node._statuses.close()
        desk.node.close()

    run_in_virtual_time(main())


def test_a_message_goes_to_a_validator_of_its_shard_signed_by_this_node() -> None:
    def scenario(desk: Desk) -> None:
        message_id = desk.node.submit(primes())
        ((validator, sent),) = desk.sent
        assert validator in {member.key_id for member in desk.chain.whole.facts.members}
        assert sent.message == primes()
        assert sent.message_id == message_id
        assert desk.kinds == []

    at_a_desk(scenario)


def test_what_the_account_would_refuse_is_rejected_with_the_reason_and_sent_to_nobody() -> None:
    def scenario(desk: Desk) -> None:
        data = primes(account=address(ContractKind.ALWAYS_REJECTS))
        desk.node.submit(data, EarlierIds(dmq_id="ab" * 32, delivery_id="cd" * 16))
        assert desk.kinds == ["RejectedByFullnode"]
        assert "52" in json.loads(desk.receipts[0].to_json())["error"]
        assert desk.sent == []
        desk.node.submit(data)  # it may be funded by now, so it may be tried again
        assert desk.kinds == ["RejectedByFullnode"] * 2

    at_a_desk(scenario)


@pytest.mark.parametrize(
    "data",
    [b"", b"no message at all", primes() + b"\0", bytes(MESSAGE_BYTES_MAX + 1)],
    ids=["nothing", "no message", "something behind it", "too large"],
)
def test_bytes_that_are_no_message_are_an_error_to_whoever_brings_them(data: bytes) -> None:
    def scenario(desk: Desk) -> None:
        with pytest.raises(DecodeError):
            desk.node.submit(data)
        assert desk.receipts == []
        assert desk.sent == []

    at_a_desk(scenario)


def test_the_largest_message_is_taken() -> None:
    def scenario(desk: Desk) -> None:
        body = CanonicalMessage(address(ContractKind.HEAVY), b"").encode()
        content = bytes(MESSAGE_BYTES_MAX - len(body) - 4)
        largest = CanonicalMessage(address(ContractKind.HEAVY), content, SIMULATED_EXPIRY_S).encode()
        assert MESSAGE_BYTES_MAX - 4 < len(largest) <= MESSAGE_BYTES_MAX
        desk.node.submit(largest)
        assert len(desk.sent) == 1

    at_a_desk(scenario)


def test_a_message_in_processing_is_an_error_to_whoever_sends_it_again_and_no_status() -> None:
    def scenario(desk: Desk) -> None:
        desk.node.submit(primes(), EarlierIds(delivery_id="first"))
        with pytest.raises(StagepostError, match="in processing already") as caught:
            desk.node.submit(primes(), EarlierIds(delivery_id="second"))
        assert caught.value.code is ErrorCode.MSG_DUPLICATE
        assert desk.receipts == []

    at_a_desk(scenario)


def test_a_final_message_is_published_once_and_not_taken_again() -> None:
    def scenario(desk: Desk) -> None:
        desk.node.submit(primes())
        desk.in_a_final_block(primes())
        assert desk.kinds.count("Finalized") == 1
        final = json.loads(desk.receipts[-1].to_json())
        assert final["mc_block_seqno"] == desk.chain.ledger.master.seqno
        with pytest.raises(StagepostError, match="final already"):
            desk.node.submit(primes())

    at_a_desk(scenario)


def test_what_validators_call_final_is_not_published_for_the_chain_will_say_it() -> None:
    def scenario(desk: Desk) -> None:
        message_id = ExternalMessageId(desk.node.submit(primes()))
        final = Accepted(Level.MASTERCHAIN, BlockId(0, 1 << 63, 5), BlockId(-1, 1 << 63, 5))
        desk.node._publish_counted(Receipt(message_id, final, START_MS, b"v" * 32))
        assert desk.kinds == []

    at_a_desk(scenario)


def test_what_others_have_sent_is_not_ours_to_call_final() -> None:
    def scenario(desk: Desk) -> None:
        desk.in_a_final_block(primes())
        assert desk.kinds == []

    at_a_desk(scenario)


def test_every_status_stands_on_the_topic_with_key_headers_and_a_signature_that_holds() -> None:
    async def main() -> None:
        desk = Desk(KnownSets([]))
        desk.node.known_sets.sets.full_nodes[desk.node.source_id] = desk.node.public_key
        message_id = desk.node.submit(primes(), EarlierIds(dmq_id="ab" * 32, delivery_id="cd" * 16))
        desk.in_a_final_block(primes())
        desk.node.close()
        await desk.node._statuses.close()
        records = desk.records()
        assert [record.key for record in records] == [message_id.hex()] * len(desk.receipts)
        for record in records:
            assert record.headers == {
                "dmq_id": "ab" * 32,
                "delivery_id": "cd" * 16,
                "session": desk.chain.whole.session_id.hex(),
            }
            assert type(check_record(record, desk.node.known_sets.sets)).__name__ == "Counting"

    run_in_virtual_time(main())


# Messages that a block holds, and no master block yet


def restarted_with_a_message_in_a_shard_block(desk: Desk, *, has_said_so: bool) -> Coroutine[Any, Any, bytes]:
    """Restart the node. `has_said_so`: the life before has published a status of the message, by a validator's answer."""

    async def restarted() -> bytes:
        message_id = ExternalMessageId(desk.node.submit(primes(), EarlierIds(delivery_id="first")))
        if has_said_so:
            block = BlockId(0, 1 << 63, 5)
            desk.node._publish_counted(
                Receipt(message_id, Accepted(Level.COLLATOR, block), START_MS, b"v" * 32, "AA==")
            )
        desk.in_a_shard_block(primes())
        await desk.restart()
        desk.receipts.clear()
        return message_id

    return restarted()


@pytest.mark.parametrize("has_said_so", [True, False], ids=["a status on the topic", "nothing on the topic"])
def test_restarted_between_shard_and_master_block_it_refuses_nothing_and_tells_the_end_once(
    has_said_so: bool,
) -> None:
    async def main() -> None:
        desk = Desk()
        message_id = await restarted_with_a_message_in_a_shard_block(desk, has_said_so=has_said_so)
        for _ in range(2):  # the record of the topic of messages comes again, and a program tries again
            with pytest.raises(StagepostError, match="already") as caught:
                desk.node.submit(primes(), EarlierIds(delivery_id="again"))
            assert caught.value.code is ErrorCode.MSG_DUPLICATE
            assert caught.value.message_id == message_id
        assert desk.kinds == []
        assert len(desk.sent) == 1, "and nobody is told again"
        desk.node.heard(desk.chain.master_block())
        assert desk.kinds == ["Finalized"]
        assert desk.node.rejected == 0
        await desk.node._statuses.close()
        desk.node.close()

    run_in_virtual_time(main())


def test_another_message_with_the_body_of_one_in_a_block_is_still_refused() -> None:
    def scenario(desk: Desk) -> None:
        desk.in_a_shard_block(primes())
        other = CanonicalMessage(ACCOUNT, primes_body(10), SIMULATED_EXPIRY_S, salt=1).encode()
        assert desk.node.receive(other).refused is not None
        assert desk.kinds == ["RejectedByFullnode"]

    at_a_desk(scenario)


def test_a_message_that_another_full_node_has_sent_is_told_the_end_of_to_whoever_brings_it_here() -> None:
    def scenario(desk: Desk) -> None:
        desk.in_a_shard_block(primes())
        with pytest.raises(StagepostError, match="in a block already"):
            desk.node.receive(primes())
        desk.node.heard(desk.chain.master_block())
        assert desk.kinds == ["Finalized"]

    at_a_desk(scenario)


def test_and_so_if_it_is_final_by_then_but_once() -> None:
    def scenario(desk: Desk) -> None:
        desk.in_a_final_block(primes())
        for _ in range(2):
            with pytest.raises(StagepostError, match="final already"):
                desk.node.receive(primes())
        assert desk.kinds == ["Finalized"]

    at_a_desk(scenario)


# Answers of validators, and the next session


def answer(desk: Desk, message_id: bytes, validator: bytes) -> None:
    receipt = Receipt(ExternalMessageId(message_id), New(), START_MS, validator, "AA==")
    desk.node._receipt_checked(receipt, None)


def test_sent_to_validators_is_published_before_every_answer_and_the_last_answer_settles() -> None:
    def scenario(desk: Desk) -> None:
        settled: list[Receipt] = []
        desk.node.on_settled = settled.append
        message_id = desk.node.submit(primes())
        members = [member.key_id for member in desk.chain.whole.facts.members]
        answer(desk, message_id, members[0])
        assert desk.kinds == [], "one of four is not more than a third"
        assert desk.node.is_under_way(message_id)
        answer(desk, message_id, members[1])
        assert desk.kinds == ["SentToValidators", "PutIntoQueue", "PutIntoQueue"]
        assert [one.source_id for one in desk.receipts] == [desk.node.source_id, *members[:2]]
        answer(desk, message_id, members[2])
        assert desk.kinds[3:] == ["PutIntoQueue"]
        assert not desk.node._records[message_id].waiting

    at_a_desk(scenario)


def test_answers_that_wait_are_published_when_the_message_ends_first() -> None:
    def scenario(desk: Desk) -> None:
        message_id = desk.node.submit(primes())
        answer(desk, message_id, desk.chain.whole.facts.members[0].key_id)
        desk.in_a_final_block(primes())
        assert desk.kinds == ["SentToValidators", "PutIntoQueue", "Finalized"]

    at_a_desk(scenario)


def test_a_message_that_too_few_have_answered_for_moves_to_the_session_that_follows() -> None:
    def scenario(desk: Desk) -> None:
        message_id = desk.node.submit(primes())
        before = desk.chain.whole
        desk.node.heard(desk.chain.master_block(after_ms=LIFETIME_MS))
        after = desk.chain.whole
        assert after.session_id != before.session_id
        history = desk.node.sending.get(message_id)
        assert history is not None
        assert history.targets == {member.key_id for member in after.facts.members}
        new = [member.key_id for member in after.facts.members]
        for validator in new[:2]:
            answer(desk, message_id, validator)
        assert desk.kinds == ["SentToValidators", "PutIntoQueue", "PutIntoQueue"]

    at_a_desk(scenario)


def test_a_member_of_the_next_session_that_is_ahead_of_this_node_is_heard_when_the_session_begins() -> None:
    def scenario(desk: Desk) -> None:
        message_id = desk.node.submit(primes())
        until_ms = desk.chain.now_ms + LIFETIME_MS
        (coming,) = desk.chain.ledger.coming(0, ACCOUNT, until_ms - 1_000, until_ms)
        known = {member.key_id for member in desk.chain.whole.facts.members}
        new = next(member.key_id for member in coming.facts.members if member.key_id not in known)
        fault = Quarantined(ErrorCode.RECEIPT_SOURCE, "nobody has this key id")
        receipt = Receipt(ExternalMessageId(message_id), New(), until_ms, new, "AA==")
        desk.node._receipt_checked(receipt, fault)
        assert desk.node.counters.quarantined[ErrorCode.RECEIPT_SOURCE] == 1, (
            "far from a switch it is a stranger"
        )
        desk._clock = LoopClock((until_ms - 1_000) / 1_000)
        desk.node._clock = desk._clock
        desk.node._receipt_checked(receipt, fault)
        assert desk.node._ahead == [(receipt, None)]
        desk.node._receipt_checked(msgspec.structs.replace(receipt, source_id=b"x" * 32), fault)
        assert desk.node.counters.quarantined[ErrorCode.RECEIPT_SOURCE] == 2
        desk.node.heard(desk.chain.master_block(after_ms=LIFETIME_MS))
        assert desk.node._ahead == []
        # Its session is known now, and the rest of it is looked at; this one has no signature that holds.
        assert desk.node.counters.quarantined[ErrorCode.RECEIPT_SOURCE] == 2
        assert sum(desk.node.counters.quarantined.values()) == 3

    at_a_desk(scenario)


# Who may sign


def test_sessions_come_with_the_chain_and_go_with_time_to_speak_their_last() -> None:
    def scenario(desk: Desk) -> None:
        whole = desk.chain.whole
        assert list(desk.sets[-1].sessions) == [whole.session_id]
        desk.chain.master_block([Plan(PlanKind.SPLIT, whole.shard, desk.chain.now_ms + 1_000)])
        desk.node.heard(desk.chain.master_block(after_ms=2_000))
        ended_ms = desk.chain.ledger.master.time_ms
        known = desk.sets[-1].sessions
        assert len(known) == 3
        assert known[whole.session_id].to_ms == ended_ms + 60_000
        assert sum(session.to_ms is None for session in known.values()) == 2

    at_a_desk(scenario, KnownSets([], message_timeout_ms=60_000))


def test_the_file_of_sets_says_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    chain = DecidedChain()
    known = KnownSets([sha256(b"f").digest()])
    known.began([chain.whole])
    known.ended([chain.whole.session_id], START_MS + 99_000)
    known.write(tmp_path / SETS_FILE)
    append_all(
        create_topic(tmp_path, SESSIONS_TOPIC), [session_record(one, {}) for one in known.take_changed()]
    )
    again = load_sets(tmp_path)
    assert sets_document(again) == sets_document(known.sets)
    assert list(again.full_nodes) == [key_id(sha256(b"f").digest())]


def test_sets_export_writes_a_file_that_can_be_used(tmp_path: Path) -> None:
    known = KnownSets([sha256(b"f").digest()])
    known.began([DecidedChain().whole])
    known.write(tmp_path / SETS_FILE)
    append_all(
        create_topic(tmp_path, SESSIONS_TOPIC), [session_record(one, {}) for one in known.take_changed()]
    )
    out = tmp_path / "sets.json"
    assert command.run(["sets", "export", "--data", str(tmp_path), "--out", str(out)]) == 0
    assert sets_document(parse_validator_sets(out.read_bytes(), "out")) == sets_document(known.sets)


def test_sets_export_of_a_folder_without_a_full_node_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.run(["sets", "export", "--data", str(tmp_path), "--out", "-"]) == 3
    assert SETS_FILE in capsys.readouterr().err
