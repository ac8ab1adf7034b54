"""Replay of the statuses topic at the start of a full node: the messages that it waits for, and those that have an end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import pytest

from rigs.memory_topic import MemoryTopic
from stagepost.full_node import earlier_life as module
from stagepost.full_node.earlier_life import earlier_life
from stagepost.full_node.message_record import MessageRecord, RecordState
from stagepost.full_node.staged_sending import MESSAGES_MAX
from stagepost.full_node.status_topic import EarlierIds
from stagepost.ground.loop.virtual_time import run_in_virtual_time
from stagepost.remp.receipts.message_status import Accepted, MessageStatus, New, Rejected, SentToValidators
from stagepost.remp.receipts.receipt import ExternalMessageId, Receipt
from stagepost.remp.receipts.status import Level
from stagepost.remp.receipts.status_records import STATUSES_TOPIC
from stagepost.remp.shard import BlockId
from stagepost.topics.topic import Record

OURS, OTHER_FULL_NODE = b"f" * 32, b"g" * 32
VALIDATORS = [bytes([number]) * 32 for number in range(4)]
BLOCK = BlockId(0, 1 << 63, 5)
FINAL = Accepted(Level.MASTERCHAIN, BLOCK, BlockId(-1, 1 << 63, 5))
IN_BLOCK = Accepted(Level.SHARDCHAIN, BLOCK)
REFUSED = Rejected(Level.FULLNODE, "no")
SENT = SentToValidators(4, 4)
LIFE_MS = 1_000

Said = tuple[int, str, bytes, MessageStatus]
"""Time, message, source and status of a record."""


class Left(msgspec.Struct, frozen=True):
    """Records of an earlier life by their states: `sent` are SETTLED, `begun` INTERRUPTED, `finals` ENDED in their order."""

    sent: dict[bytes, EarlierIds] = {}
    begun: dict[bytes, EarlierIds] = {}
    finals: tuple[bytes, ...] = ()


def left_by(records: Mapping[bytes, MessageRecord]) -> Left:
    by_state: dict[RecordState, dict[bytes, EarlierIds]] = {}
    for message_id, record in records.items():
        by_state.setdefault(record.state, {})[message_id] = record.earlier_ids
        assert not record.is_under_way, "nobody of this life has submitted it"
    found = Left(
        by_state.pop(RecordState.SETTLED, {}),
        by_state.pop(RecordState.INTERRUPTED, {}),
        tuple(by_state.pop(RecordState.ENDED, {})),
    )
    assert not by_state, "an earlier life leaves no other state"
    return found


def an_id(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def read(*said: Said, now_ms: int = 10_000, partitions: int = 1, gone: int = 0) -> Left:
    """Write each record in its own block, let retention take the first `gone` of partition 0, and replay the topic."""

    async def main() -> Left:
        topic = MemoryTopic(STATUSES_TOPIC, partitions)
        for at_ms, name, source, status in said:
            receipt = Receipt(ExternalMessageId(an_id(name)), status, at_ms, source, "AA==")
            headers = {"delivery_id": f"{at_ms}"}
            writer = topic.writer(lambda at_ms=at_ms: at_ms)  # type: ignore[misc]
            await writer.append([Record(an_id(name).hex().encode(), receipt.to_json().encode(), headers)])
            await writer.close()
        topic.forget_before(0, gone)
        await asyncio.sleep(0)
        return left_by(earlier_life(topic.reader(), now_ms, LIFE_MS, {OURS, OTHER_FULL_NODE}))

    return run_in_virtual_time(main())


def names(ids: object) -> list[str]:
    assert hasattr(ids, "__iter__")
    return [one.rstrip(b".").decode() for one in ids]


def test_an_empty_topic_tells_nothing() -> None:
    assert read() == Left()


def test_it_is_sent_when_more_than_a_third_have_answered_and_begun_before() -> None:
    first: Said = (9_500, "a", VALIDATORS[0], New())
    told: Said = (9_501, "a", OURS, SENT)
    second: Said = (9_502, "a", VALIDATORS[1], New())
    again: Said = (9_503, "a", VALIDATORS[0], IN_BLOCK)
    for said in ((first,), (told,), (first, told), (first, second), (first, told, again)):
        life = read(*said)
        assert (names(life.sent), names(life.begun)) == ([], ["a"]), said
    life = read(first, told, second)
    assert (names(life.sent), names(life.begun)) == (["a"], [])
    assert life.sent[an_id("a")] == EarlierIds(delivery_id="9500"), "as it first came"


def test_what_is_final_is_told_and_what_validators_say_behind_it_opens_nothing() -> None:
    life = read((9_500, "a", OURS, SENT), (9_501, "a", OURS, FINAL), (9_502, "a", VALIDATORS[0], IN_BLOCK))
    assert life == Left(finals=(an_id("a"),))


def test_nor_if_the_end_is_older_than_the_life_of_messages_and_they_speak_within_it() -> None:
    life = read((8_999, "a", OURS, FINAL), (9_000, "a", VALIDATORS[0], IN_BLOCK))
    assert life == Left(finals=(an_id("a"),))


def test_what_is_refused_here_is_over_until_it_is_sent_again() -> None:
    before: Said = (9_500, "a", OURS, REFUSED)
    assert read(before) == Left()
    assert names(read(before, (9_501, "a", VALIDATORS[0], New())).begun) == ["a"]
    assert read((9_499, "a", VALIDATORS[0], New()), before) == Left()


def test_a_validator_that_calls_something_final_or_refused_ends_nothing() -> None:
    """Receipts that do not count stand on the topic if an operator wants them kept."""
    for status in (FINAL, REFUSED):
        life = read((9_500, "a", OURS, SENT), (9_501, "a", VALIDATORS[0], status))
        assert names(life.begun) == ["a"]
        assert life.finals == ()


def test_what_another_full_node_of_the_network_has_told_here_is_told() -> None:
    assert names(read((9_500, "a", OTHER_FULL_NODE, FINAL)).finals) == ["a"]


@pytest.mark.parametrize(("now_ms", "is_open"), [(10_500, True), (10_501, False)])
def test_nothing_is_expected_of_a_message_after_its_life(now_ms: int, is_open: bool) -> None:
    life = read((9_500, "a", OURS, SENT), now_ms=now_ms)
    assert names(life.begun) == ["a"] * is_open


def test_so_many_finals_are_given_the_newest_by_time_in_whichever_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert module.FINALS_KEPT_MAX >= MESSAGES_MAX, "receipts come of all that are in processing"
    monkeypatch.setattr(module, "FINALS_KEPT_MAX", 3)
    said: list[Said] = [(9_500 + number, name, OURS, FINAL) for number, name in enumerate("abcdef")]
    for partitions in (1, 2, 5):
        assert names(read(*said, partitions=partitions).finals) == ["d", "e", "f"]
    assert names(read(*said[:3]).finals) == ["a", "b", "c"]


@pytest.mark.parametrize(("limit", "known"), [(2, ["a"]), (1, [])])
def test_ends_are_looked_for_among_so_many_records(
    limit: int, known: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECORDS_READ_MAX", limit)
    assert names(read((1, "a", OURS, FINAL), (2, "b", VALIDATORS[0], New())).finals) == known


def test_what_retention_has_taken_is_not_known_and_the_rest_is() -> None:
    life = read((9_500, "a", OURS, FINAL), (9_501, "b", OURS, FINAL), gone=1)
    assert names(life.finals) == ["b"]


def test_records_of_others_are_passed() -> None:
    async def main() -> Left:
        topic = MemoryTopic(STATUSES_TOPIC)
        writer = topic.writer(lambda: 9_500)
        values = (b"", None, b"no receipt", b'{"kind": "Finalized"}')
        await writer.append([Record(b"k", value) for value in values])
        await writer.close()
        return left_by(earlier_life(topic.reader(), 10_000, LIFE_MS, {OURS}))

    assert run_in_virtual_time(main()) == Left()
