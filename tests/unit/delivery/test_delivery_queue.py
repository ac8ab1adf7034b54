"""The queue: FIFO to send, LRU to evict, never what is in flight; keys, dead letters and replays."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from stagepost.delivery import (
    ErrKeyConflict,
    ErrMessageTooLarge,
    ErrQueueEvicted,
    ErrQueueFull,
    MemoryNetwork,
    ReliablePublisher,
)
from stagepost.delivery.entry import ClockTimes, OutboxEntry, Phase
from stagepost.delivery.outbox import Outbox
from stagepost.delivery.publisher import PublisherCore
from stagepost.delivery.status import Tier
from stagepost.delivery.transport import SendFailed
from stagepost.delivery.transports.memory import MemoryTransport
from tests.worlds.delivery.delivery_world import (
    ACKED,
    FAILED,
    PENDING,
    QUEUED,
    SENT,
    TOPIC,
    Listener,
    Peer,
    Watch,
    a_config,
    a_publisher,
    ack,
    an_acked_config,
    assert_balanced,
    settle,
    virtually,
)


def test_in_flight_entries_survive_ten_thousand_inserts() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob", queue_size=10)) as publisher:
            watch = Watch(publisher)
            calls = [asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"%d" % n)) for n in range(3)]
            await settle()
            network.cut("alice")
            for number in range(10_000):
                await publisher.publish_queued(TOPIC, b"offline %d" % number)
                assert publisher.stats()["queue_len"] <= 7
            network.heal("alice")
            for message in bob.heard[:3]:
                bob.say(ack(message))

            assert [(await call).status for call in calls] == [ACKED] * 3
            assert publisher.stats()["evicted"] == 9_993
            assert_balanced(publisher)
            await settle(20_000)
            failed = [error for _, status, error in watch.events if status is FAILED]
            assert len(failed) == 9_993
            assert {type(error) for error in failed} == {ErrQueueEvicted}

    virtually(main)


def test_a_queue_full_of_messages_in_flight_refuses_and_nothing_else_changes() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob", queue_size=2)) as publisher:
            calls = [asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"%d" % n)) for n in range(2)]
            await settle()
            before = dict(publisher.stats())
            with pytest.raises(ErrQueueFull) as caught:
                await publisher.publish_queued(TOPIC, b"one more")

            assert dict(publisher.stats()) == before
            assert caught.value.limit == 2
            for call in calls:
                call.cancel()

    virtually(main)


def test_reject_new_refuses_instead_of_evicting() -> None:
    async def main() -> None:
        config = a_config(queue_size=2, overflow="reject_new")
        async with a_publisher(MemoryNetwork().join("alice"), config) as publisher:
            kept = [await publisher.publish_queued(TOPIC, data) for data in (b"a", b"b")]
            with pytest.raises(ErrQueueFull):
                await publisher.publish_queued(TOPIC, b"c")

            assert [await publisher.status(message_id) for message_id in kept] == [QUEUED, QUEUED]
            assert publisher.stats()["published"] == 2

    virtually(main)


def test_an_attempt_refreshes_an_entry() -> None:
    core = PublisherCore(
        a_config(queue_size=2),
        "alice",
        nonce_prefix=bytes(8),
        volatile_prefix=bytes(8),
        random=Random(1),
    )
    now = ClockTimes(0.0, 0)
    older, newer = (core.offer(Tier.QUEUED, TOPIC, data, now) for data in (b"older", b"newer"))
    assert isinstance(older, OutboxEntry)
    assert isinstance(newer, OutboxEntry)
    core.accept(older, now)
    core.accept(newer, now)

    core.connectivity(1, now)
    assert core.attempts.next_to_send(now) is older
    core.attempts.begin_send(older, now)
    core.attempts.send_failed(older, SendFailed("not now", 50.0), now)
    newest = core.offer(Tier.QUEUED, TOPIC, b"newest", now)

    assert isinstance(newest, OutboxEntry)
    assert newest.evicted == (newer,)


def test_last_used_decides_who_goes() -> None:
    async def main() -> None:
        async with a_publisher(MemoryNetwork().join("alice"), a_config(queue_size=3)) as publisher:
            a = await publisher.publish_queued(TOPIC, b"a", key="a")
            b = await publisher.publish_queued(TOPIC, b"b", key="b")
            c = await publisher.publish_queued(TOPIC, b"c", key="c")
            await publisher.publish_queued(TOPIC, b"a", key="a")
            await publisher.status(b)
            d = await publisher.publish_queued(TOPIC, b"d")
            assert [await publisher.status(i) for i in (a, b, c, d)] == [QUEUED, FAILED, QUEUED, QUEUED]
            e = await publisher.publish_queued(TOPIC, b"e")

            assert [await publisher.status(i) for i in (a, c, d, e)] == [QUEUED, FAILED, QUEUED, QUEUED]

    virtually(main)


def test_entries_without_a_waiting_caller_go_first() -> None:
    async def main() -> None:
        transport = MemoryNetwork().join("alice")
        async with a_publisher(transport, an_acked_config("bob", queue_size=2)) as publisher:
            watch = Watch(publisher)
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"waited for"))
            await settle()
            queued = await publisher.publish_queued(TOPIC, b"queued")
            newest = await publisher.publish_queued(TOPIC, b"newest")
            await settle()
            assert not call.done()
            assert await publisher.status(queued) is FAILED

            other = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"another"))
            await settle()
            assert await publisher.status(newest) is FAILED
            third = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"third"))
            with pytest.raises(ErrQueueEvicted) as caught:
                await call

            assert caught.value.evicted_by == list(watch.paths)[-1]
            other.cancel()
            third.cancel()

    virtually(main)


def test_bytes_are_capped_too_and_several_may_have_to_go() -> None:
    async def main() -> None:
        config = a_config(queue_max_bytes=100)
        async with a_publisher(MemoryNetwork().join("alice"), config) as publisher:
            small = [await publisher.publish_queued("t", b"x" * 29) for _ in range(3)]
            assert publisher.stats()["queue_bytes"] == 90
            await publisher.publish_queued("t", b"y" * 69)

            assert [await publisher.status(message_id) for message_id in small] == [FAILED, FAILED, QUEUED]
            assert publisher.stats()["queue_bytes"] == 100
            await publisher.publish_queued("t", b"z" * 99)
            with pytest.raises(ErrMessageTooLarge):
                await publisher.publish_queued("t", b"z" * 100)
            assert publisher.stats()["queue_len"] == 1

    virtually(main)


def test_no_byte_cap_at_zero() -> None:
    async def main() -> None:
        async with a_publisher(MemoryNetwork().join("alice"), a_config(queue_max_bytes=0)) as publisher:
            for _ in range(20):
                await publisher.publish_queued(TOPIC, bytes(60_000))

            assert publisher.stats()["queue_len"] == 20

    virtually(main)


def test_a_message_that_failed_keeps_its_place_but_does_not_block_the_rest() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob") as bob, a_publisher(transport) as publisher:
            network.cut("alice")
            for data in (b"bad", b"2", b"3"):
                await publisher.publish_queued(TOPIC, data)
            transport.fail_next(1)
            network.heal("alice")
            await settle()
            assert bob.data == [b"2", b"3"]
            await publisher.publish_queued(TOPIC, b"4")
            await asyncio.sleep(0.11)

            assert bob.data == [b"2", b"3", b"4", b"bad"]

    virtually(main)


def test_strict_order_blocks_instead_of_skipping() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        config = an_acked_config("bob", strict_order=True)
        async with Listener(network, "bob") as bob, a_publisher(transport, config) as publisher:
            network.cut("alice")
            for number in range(12):
                await publisher.publish_queued(TOPIC, b"%d" % number)
            transport.fail_next(2)
            network.heal("alice")
            await settle()
            assert bob.data == []
            call = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"12"))
            await settle()
            assert bob.data == []
            await asyncio.sleep(0.31)

            assert bob.data == [b"%d" % number for number in range(13)]
            assert (await call).status is ACKED

    virtually(main)


def test_strict_order_goes_on_when_the_head_is_cancelled_or_fails() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        config = a_config(strict_order=True, max_retries=1, retry_delay=10.0, retry_delay_max=10.0)
        async with Listener(network, "bob") as bob, a_publisher(transport, config) as publisher:
            network.cut("alice")
            ids = [await publisher.publish_queued(TOPIC, b"%d" % number) for number in range(4)]
            transport.fail_next(1)
            network.heal("alice")
            await settle()
            assert bob.data == []
            transport.fail_next(2)
            assert await publisher.cancel(ids[0])
            await asyncio.sleep(30)

            assert await publisher.status(ids[1]) is FAILED
            assert bob.data == [b"2", b"3"]

    virtually(main)


def test_the_same_key_stores_nothing_and_gives_the_same_id() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob") as bob, a_publisher(transport) as publisher:
            network.cut("alice")
            first = await publisher.publish_queued(TOPIC, b"x", key="k")
            assert await publisher.publish_queued(TOPIC, b"x", key=b"k") == first
            assert publisher.stats()["queue_len"] == 1
            network.heal("alice")
            await settle()
            assert await publisher.publish_queued(TOPIC, b"x", key="k") == first
            await settle()

            assert bob.data == [b"x"]
            assert publisher.stats()["published"] == 1
            other = await publisher.publish_queued(TOPIC, b"x")
            assert other not in (first, await publisher.publish_queued(TOPIC, b"x"))

    virtually(main)


def test_the_same_key_at_a_full_queue_is_a_no_op_and_not_full() -> None:
    async def main() -> None:
        config = a_config(queue_size=1, overflow="reject_new")
        async with a_publisher(MemoryNetwork().join("alice"), config) as publisher:
            first = await publisher.publish_queued(TOPIC, b"x", key="k")

            assert await publisher.publish_queued(TOPIC, b"x", key="k") == first

    virtually(main)


def test_acked_calls_with_the_same_key_share_one_outcome() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            calls = [
                asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x", key="k")) for _ in range(3)
            ]
            await settle()
            assert len(bob.heard) == 1
            calls[0].cancel()
            await settle()
            bob.say(ack(bob.heard[0]))
            results = [await call for call in calls[1:]]
            again = await publisher.publish_with_ack(TOPIC, b"x", key="k")

            assert len({result.message_id for result in [*results, again]}) == 1
            assert again.acked_by == ("bob",)
            assert len(bob.heard) == 1

    virtually(main)


@pytest.mark.parametrize("moment", ["live", "done"])
def test_the_same_key_with_other_content_is_a_conflict(moment: str) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            await publisher.publish_queued(TOPIC, b"x", key="k")
            if moment == "done":
                network.join("bob")
                await settle()
            before = dict(publisher.stats())
            for topic, data in ((TOPIC, b"y"), ("other", b"x")):
                with pytest.raises(ErrKeyConflict):
                    await publisher.publish_queued(topic, data, key="k")
            with pytest.raises(ErrKeyConflict, match="tier queued"):
                await publisher.publish_with_ack(TOPIC, b"x", key="k")

            assert dict(publisher.stats()) == before

    virtually(main)


def test_a_dead_letter_can_be_replayed_under_its_id_and_a_new_attempt() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob") as bob, a_publisher(transport) as publisher:
            watch = Watch(publisher)
            transport.fail_next(4)
            message_id = await publisher.publish_queued(TOPIC, b"x")
            await asyncio.sleep(10)
            (letter,) = publisher.dead_letters()
            assert (letter.message_id, letter.error, letter.attempts) == (message_id, "ErrMaxRetries", 4)
            assert bob.data == []

            assert await publisher.replay(message_id) == message_id
            await settle()

            assert bob.data == [b"x"]
            assert publisher.dead_letters() == ()
            assert transport.sends[-1][1].attempt == 4
            assert watch.path(message_id) == [PENDING, QUEUED, FAILED, PENDING, SENT]
            assert publisher.stats()["published"] == 2
            assert_balanced(publisher)
            with pytest.raises(KeyError):
                await publisher.replay(message_id)

    virtually(main)


async def fail_twice(publisher: ReliablePublisher, transport: MemoryTransport) -> str:
    """Publish a message twice under one key, each time without success. Return its id."""
    for _ in range(2):
        transport.fail_next(4)
        message_id = await publisher.publish_queued(TOPIC, b"x", key="k")
        await asyncio.sleep(10)
    return message_id


def test_each_copy_of_a_message_that_failed_twice_has_its_own_place() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob") as bob, a_publisher(transport) as publisher:
            message_id = await fail_twice(publisher, transport)
            older, newer = publisher.dead_letters()
            assert (older.message_id, newer.message_id) == (message_id, message_id)
            assert older.sequence < newer.sequence
            assert publisher.stats()["dead_letters"] == 2

            assert await publisher.replay(message_id, sequence=older.sequence) == message_id
            await settle()
            assert publisher.dead_letters() == (newer,)
            with pytest.raises(KeyError):
                await publisher.replay(message_id, sequence=older.sequence)
            with pytest.raises(KeyError):
                await publisher.replay("ab" * 32, sequence=newer.sequence)

            assert await publisher.replay(message_id) == message_id
            await settle()
            assert publisher.dead_letters() == ()
            assert bob.data == [b"x"], "receivers handle it once"
            assert_balanced(publisher)

    virtually(main)


def test_copies_that_are_replayed_together_go_out_as_one_message() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob") as bob, a_publisher(transport) as publisher:
            message_id = await fail_twice(publisher, transport)
            network.cut("alice")
            for letter in publisher.dead_letters():
                assert await publisher.replay(letter.message_id, sequence=letter.sequence) == message_id
            assert publisher.dead_letters() == ()
            assert publisher.stats()["queue_len"] == 1
            assert_balanced(publisher)
            network.heal("alice")
            await settle()

            assert bob.data == [b"x"]

    virtually(main)


def test_a_copy_with_another_promise_waits_until_the_live_one_has_ended() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            for require_ack in (False, True):
                sent = publisher.publish_queued(TOPIC, b"x", key="k", require_ack=require_ack)
                message_id = await sent
                await publisher.cancel(message_id)
            plain, confirmed = publisher.dead_letters()

            await publisher.replay(message_id, sequence=plain.sequence)
            await publisher.replay(message_id, sequence=confirmed.sequence)
            assert publisher.dead_letters() == (confirmed,)
            await publisher.cancel(message_id)
            await publisher.replay(message_id, sequence=confirmed.sequence)
            (left,) = publisher.dead_letters()
            assert left.required == 0

    virtually(main)


def test_the_oldest_dead_letter_goes_first() -> None:
    async def main() -> None:
        config = a_config(queue_size=1, dead_letters_max=2)
        async with a_publisher(MemoryNetwork().join("alice"), config) as publisher:
            ids = [await publisher.publish_queued(TOPIC, b"%d" % number) for number in range(5)]

            assert [letter.message_id for letter in publisher.dead_letters()] == ids[2:4]

    virtually(main)


def test_a_failed_message_can_be_published_again_with_its_key() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        async with a_publisher(network.join("alice")) as publisher:
            first = await publisher.publish_queued(TOPIC, b"x", key="k")
            await publisher.cancel(first)
            again = await publisher.publish_queued(TOPIC, b"x", key="k")

            assert again == first
            assert await publisher.status(again) is QUEUED

    virtually(main)


def test_a_burst_on_a_network_that_takes_everything_at_once_evicts_nothing() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with (
            Listener(network, "bob") as bob,
            a_publisher(transport, a_config(queue_size=20)) as publisher,
        ):
            await asyncio.gather(*(publisher.publish_queued(TOPIC, b"%d" % n) for n in range(500)))
            await asyncio.sleep(0.1)

            assert publisher.stats()["evicted"] == 0
            assert len(bob.got) == 500

    virtually(main)


def test_a_turn_that_is_not_used_passes_to_the_next_that_is_held_back() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        bob = Peer(network, "bob")
        config = a_config(critical_peers=("bob",), max_in_flight=1)
        async with a_publisher(transport, config) as publisher:
            ids = [await publisher.publish_queued(TOPIC, b"%d" % n, require_ack=True) for n in range(4)]
            await settle()
            assert len(bob.heard) == 1
            network.cut("alice")
            bob.say(ack(bob.heard[0]))
            # The second has the free place now, but does not get to use it.
            assert await publisher.cancel(ids[1])
            bob.answer = ack
            network.heal("alice")
            await settle()

            assert [message.payload for message in bob.heard] == [b"0", b"2", b"3"]
            assert publisher.stats()["live"] == 0

    virtually(main)


def test_an_entry_that_waited_several_times_is_evicted_once() -> None:
    box = Outbox(size_max=10, bytes_max=100, in_flight_max=1, is_strict=False, may_evict=True)
    entries = [
        OutboxEntry(n, bytes([n]) * 32, Tier.QUEUED, "t", b"x" * 39, bytes(16), 0, None) for n in (1, 2)
    ]
    for entry in entries:
        box.add(entry)
        box.use(entry)
        box.become(entry, QUEUED)
        box.make_ready(entry)
    for _ in range(3):
        box.enter(entries[0], Phase.BACKING_OFF)
        box.make_ready(entries[0])

    assert box.room_for(60) == (entries[0],)
    for _ in range(3):
        box.enter(entries[0], Phase.BACKING_OFF)
        box.make_ready(entries[0])
    assert box.room_for(100) == tuple(entries)
