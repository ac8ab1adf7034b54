"""Full nodes that hear of a message: those that sent it here, and eight whose signature other members show."""

from __future__ import annotations

import msgspec
import pytest

from rigs.catchain_keys import public_key_of, seed_of
from stagepost.ground.wire.tl import key_id
from stagepost.remp.message import Origin, RempMessage, header_of, names_its_sender
from stagepost.remp.queue.effects import Tell
from stagepost.remp.queue.message_cache import ORIGINS_MAX, LifeWindow, MessageCache
from stagepost.remp.queue.records import UNSIGNED, HandOver, Header, Totals, decode_payload, encode_payload
from stagepost.remp.queue.reliable_queue import ReliableQueue
from stagepost.remp.queue.session_switch import Shard, to_forward
from stagepost.remp.queue.state import OVERLOADED, QueueOptions, QueueSession, QueueState
from stagepost.remp.receipts.message_status import Rejected
from stagepost.remp.receipts.status import Level
from tests.worlds.remp.queue_world import SEQNO, message

FULL_NODES = {key_id(public_key_of(number)): public_key_of(number) for number in range(40, 60)}
TRUE, *FRIENDS = FULL_NODES
SEEDS = {key_id(public_key_of(number)): seed_of(number) for number in range(40, 60)}
LIAR, HONEST = 3, 1
_FULL = Rejected(Level.QUEUE, OVERLOADED)


def a_queue(messages_max: int = 100, *, knows_full_nodes: bool = True) -> ReliableQueue:
    window = LifeWindow()
    window.advance(SEQNO, 0)
    session = QueueSession(SEQNO, 0, frozenset(range(4)), 4)
    vouches = (lambda header: names_its_sender(header, FULL_NODES)) if knows_full_nodes else None
    return ReliableQueue(session, MessageCache(window), QueueOptions(messages_max=messages_max), vouches)


def signed(number: int, full_node: bytes, *, seqno: int = SEQNO, signer: bytes | None = None) -> Header:
    one = message(number)
    sent = RempMessage(b"", one.message_id, 5)
    sent = msgspec.structs.replace(
        sent, signature=sent.sign(SEEDS[signer or full_node]).signature if full_node in SEEDS else b""
    )
    hand_over = HandOver(5, sent.signature) if sent.signature else UNSIGNED
    return header_of(one, Origin(full_node, 0, 1, hand_over), seqno)


def hear(queue: ReliableQueue, source: int, *headers: Header, now: float = 1.0) -> list[bytes]:
    """Return the full nodes that are told something."""
    effects = queue.block_delivered(source, encode_payload([Totals(), *headers], 1), now)
    return [one.full_node for one in effects if isinstance(one, Tell)]


def invented() -> list[Header]:
    return [signed(1, bytes([number + 1]) * 32) for number in range(ORIGINS_MAX)]


def test_invented_full_nodes_do_not_keep_the_true_one_from_hearing() -> None:
    queue = a_queue()
    for header in invented():
        assert hear(queue, LIAR, header) == [], "nobody has signed that"
    assert hear(queue, HONEST, signed(1, TRUE)) == []  # introduced, see below
    cached = queue.cache.get(message(1).message_id)
    assert cached is not None
    assert list(cached.origins) == [TRUE]


def test_where_keys_are_not_known_eight_names_are_taken_as_they_come() -> None:
    queue = a_queue(knows_full_nodes=False)
    for header in invented():
        hear(queue, LIAR, header)
    hear(queue, HONEST, signed(1, TRUE))
    cached = queue.cache.get(message(1).message_id)
    assert cached is not None
    assert len(cached.origins) == ORIGINS_MAX
    assert TRUE not in cached.origins


@pytest.mark.parametrize("fault", ["of another full node", "of another message", "of another time", "none"])
def test_a_signature_counts_for_its_full_node_message_and_time_alone(fault: str) -> None:
    good = signed(1, TRUE)
    bad = {
        "of another full node": signed(1, TRUE, signer=FRIENDS[0]),
        "of another message": msgspec.structs.replace(good, message_id=message(2).message_id),
        "of another time": msgspec.structs.replace(good, hand_over=HandOver(6, good.hand_over.signature)),
        "none": msgspec.structs.replace(good, hand_over=UNSIGNED),
    }[fault]
    assert names_its_sender(good, FULL_NODES)
    assert not names_its_sender(bad, FULL_NODES)
    assert not names_its_sender(good, {})


def test_eight_signed_ones_of_others_are_told_and_those_with_a_direct_link_have_their_own_place() -> None:
    queue = a_queue()
    for full_node in FRIENDS[: ORIGINS_MAX + 1]:
        hear(queue, HONEST, signed(1, full_node))
    cached = queue.cache.get(message(1).message_id)
    assert cached is not None
    assert list(cached.origins) == FRIENDS[:ORIGINS_MAX]
    queue.offer(message(1), TRUE, 2.0)
    queue.offer(message(1), FRIENDS[0], 2.0)  # its place among the eight is free now
    hear(queue, HONEST, signed(1, FRIENDS[ORIGINS_MAX]))
    assert list(cached.origins) == [*FRIENDS[:ORIGINS_MAX], TRUE, FRIENDS[ORIGINS_MAX]]


# Who pays for an entry


def rejected_for_room(queue: ReliableQueue, numbers: range) -> list[int]:
    return [number for number in numbers if queue.status(message(number).message_id) == _FULL]


def test_a_forwarded_message_is_charged_to_the_full_node_that_signed_it() -> None:
    state = a_queue()._state
    old = SEQNO - 1
    assert state.charge_for(HONEST, signed(1, TRUE, seqno=old)) == TRUE
    assert state.charge_for(HONEST, signed(1, TRUE, seqno=old, signer=FRIENDS[0])) == HONEST
    assert state.charge_for(HONEST, signed(1, bytes(32), seqno=old)) == HONEST
    assert state.charge_for(HONEST, signed(1, TRUE)) == HONEST, "not forwarded"


def test_in_a_full_queue_the_author_with_most_entries_loses_its_newest() -> None:
    queue = a_queue(6)
    for number in range(5):
        hear(queue, LIAR, signed(number, bytes(32)))
        queue.body_came(message(number), 1.0)
    hear(queue, HONEST, signed(5, TRUE))
    assert queue.open_count == 6
    hear(queue, HONEST, signed(6, TRUE))
    assert rejected_for_room(queue, range(7)) == [4], "the newest of the liar"
    hear(queue, LIAR, signed(7, bytes(32)))
    assert rejected_for_room(queue, range(8)) == [4, 7], "the newcomer itself, of whoever has most"
    assert queue.open_count == 6


def test_what_loses_its_place_without_a_body_comes_back_with_the_body() -> None:
    queue = a_queue(3)
    for number in range(3):
        hear(queue, LIAR, signed(number, bytes(32)))
    hear(queue, HONEST, signed(3, TRUE))
    queue.body_came(message(3), 1.0)
    assert queue.open_count == 3
    assert rejected_for_room(queue, range(4)) == []
    queue.lives_over(
        [cached for cached in queue.entries() if cached.message_id == message(0).message_id], 2.0
    )
    assert queue.open_count == 2
    queue.body_came(message(2), 2.0)
    assert queue.open_count == 3


def test_a_direct_full_node_pays_for_its_own_messages() -> None:
    queue = a_queue(4)
    for number in range(4):
        queue.offer(message(number), FRIENDS[0], 1.0)
    queue.offer(message(4), TRUE, 1.0)
    assert rejected_for_room(queue, range(5)) == [3]
    effects = queue.offer(message(5), FRIENDS[0], 1.0)
    assert [one for one in effects if isinstance(one, Tell)] == [
        Tell(FRIENDS[0], message(5).message_id, _FULL)
    ]


def test_a_planted_defect_refuses_whoever_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueState, "make_room", lambda self, charged_to: not self.is_full)
    with pytest.raises(AssertionError):
        test_in_a_full_queue_the_author_with_most_entries_loses_its_newest()


def test_a_planted_defect_believes_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueState, "names_its_source", lambda self, header: True)
    with pytest.raises(AssertionError):
        test_invented_full_nodes_do_not_keep_the_true_one_from_hearing()


# Announcements by others


def headers_in(queue: ReliableQueue) -> list[Header]:
    payload = queue.next_payload(2.0)
    return [] if payload is None else [one for one in decode_payload(payload) if isinstance(one, Header)]


def offer(queue: ReliableQueue, full_node: bytes, header: Header) -> None:
    queue.offer(message(1), full_node, 1.0, header.hand_over)


@pytest.mark.parametrize("is_first", [True, False], ids=["before it came here", "before our block"])
@pytest.mark.parametrize(
    "lie",
    [signed(1, b"x" * 32), signed(1, TRUE, signer=FRIENDS[0]), signed(1, FRIENDS[0])],
    ids=["invented", "the true one without its signature", "a friend"],
)
def test_who_announces_first_and_names_another_keeps_nobody_from_hearing_of_the_true_one(
    lie: Header, is_first: bool
) -> None:
    queue = a_queue()
    if is_first:
        hear(queue, LIAR, lie)
    offer(queue, TRUE, signed(1, TRUE))
    if not is_first:
        hear(queue, LIAR, lie)
    (ours,) = headers_in(queue)
    assert (ours.source_key_id, ours.hand_over) == (TRUE, signed(1, TRUE).hand_over)


def test_an_announcement_that_names_the_true_one_is_not_repeated() -> None:
    heard_first, sent_first = a_queue(), a_queue()
    hear(heard_first, HONEST, signed(1, TRUE))
    offer(heard_first, TRUE, signed(1, TRUE))
    offer(sent_first, TRUE, signed(1, TRUE))
    hear(sent_first, HONEST, signed(1, TRUE))
    assert headers_in(heard_first) == headers_in(sent_first) == []


def test_of_many_full_nodes_no_more_are_announced_than_others_take() -> None:
    queue = a_queue()
    for one in FULL_NODES:
        offer(queue, one, signed(1, one))
    announced = [one.source_key_id for one in headers_in(queue)]
    assert announced == list(FULL_NODES)[:ORIGINS_MAX]


def test_a_switch_hands_on_a_name_that_is_true() -> None:
    queue = a_queue()
    hear(queue, LIAR, signed(1, b"x" * 32))
    offer(queue, TRUE, signed(1, TRUE))
    cached = queue.cache.get(message(1).message_id)
    assert cached is not None
    (handed_on,) = to_forward(queue, SEQNO + 1, Shard(0, 1 << 63), lambda message_id: False).records
    assert isinstance(handed_on, Header)
    assert (handed_on.source_key_id, handed_on.hand_over) == (TRUE, signed(1, TRUE).hand_over)
    assert handed_on.timestamp_ms == cached.header.timestamp_ms
