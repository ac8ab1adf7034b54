"""When the queue is sent: by itself, at once after a reconnect, on request; and what being offline costs, which is nothing."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from stagepost.delivery import ErrClosed, ErrNoConnectedPeers, MemoryNetwork
from stagepost.delivery.transport import Outgoing, Published, SendFailed
from stagepost.delivery.transports.memory import MemoryTransport
from tests.worlds.delivery.delivery_world import (
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
    an_acked_config,
    now,
    settle,
    virtually,
)


def test_sixty_seconds_offline_lose_nothing_and_cost_no_attempt() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob") as bob, a_publisher(transport) as publisher:
            watch = Watch(publisher)
            network.cut("alice")
            ids = [await publisher.publish_queued(TOPIC, b"%d" % number) for number in range(100)]
            await asyncio.sleep(60)
            assert transport.sends == []
            network.heal("alice")
            await asyncio.sleep(0.1)

            assert bob.data == [b"%d" % number for number in range(100)]
            assert {message.attempt for _, message in transport.sends} == {0}
            assert all(watch.path(message_id) == [PENDING, QUEUED, SENT] for message_id in ids)

    virtually(main)


def test_a_send_that_fails_because_the_connection_is_lost_costs_no_attempt() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")

        async def fails_with_the_connection(message: Outgoing) -> Published:
            network.cut("alice")
            raise SendFailed("the connection broke")

        async with (
            Listener(network, "bob") as bob,
            a_publisher(transport, a_config(max_retries=0)) as publisher,
        ):
            publish = transport.publish
            for _ in range(5):
                transport.publish = fails_with_the_connection  # type: ignore[method-assign]
                await publisher.publish_queued(TOPIC, b"x", key="k")
                network.heal("alice")
                await settle()
            transport.publish = publish  # type: ignore[method-assign]
            assert publisher.stats()["queue_len"] == 1
            network.heal("alice")
            await settle()

            assert bob.data == [b"x"]
            assert bob.got[0].attempt == 0

    virtually(main)


def test_reconnection_flushes_within_a_tenth_of_a_second_and_clears_back_off() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        config = a_config(retry_delay=300.0, retry_delay_max=300.0, flush_interval=100.0)
        async with Listener(network, "bob") as bob, a_publisher(transport, config) as publisher:
            await asyncio.sleep(5)
            transport.fail_next(1)
            await publisher.publish_queued(TOPIC, b"backing off")
            await settle()
            network.cut("alice")
            await publisher.publish_queued(TOPIC, b"waiting")
            await asyncio.sleep(2)
            assert bob.data == []
            network.heal("alice")
            await asyncio.sleep(0.099)

            assert bob.data == [b"backing off", b"waiting"]

    virtually(main)


def test_edges_closer_than_half_a_second_clear_back_off_only_once() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        config = a_config(retry_delay=300.0, retry_delay_max=300.0, max_retries=100, dedup_window=1e9)
        async with Listener(network, "bob"), a_publisher(transport, config) as publisher:
            await asyncio.sleep(10)
            transport.fail_next(1_000)
            await publisher.publish_queued(TOPIC, b"x")
            await settle()
            for _ in range(20):
                network.cut("alice")
                await asyncio.sleep(0.01)
                network.heal("alice")
                await asyncio.sleep(0.01)
            await asyncio.sleep(2)

            # The first try, the first edge, and one for all the others.
            assert [at for at, _ in transport.sends] == pytest.approx([10.0, 10.01, 10.51])

    virtually(main)


def test_a_short_gap_does_not_hold_back_what_is_ready() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob") as bob, a_publisher(transport) as publisher:
            await asyncio.sleep(10)
            for number in range(3):
                network.cut("alice")
                await publisher.publish_queued(TOPIC, b"%d" % number)
                network.heal("alice")
                await asyncio.sleep(0.05)
                assert len(bob.got) == number + 1

    virtually(main)


def test_batches_follow_each_other_at_once_and_yield_in_between() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        turns: list[int] = []

        async def count_turns() -> None:
            while True:
                turns.append(len(transport.sends))
                await asyncio.sleep(0)

        async with a_publisher(transport, a_config(flush_batch_size=10)) as publisher:
            for number in range(1_000):
                await publisher.publish_queued(TOPIC, b"%d" % number)
            counter = asyncio.ensure_future(count_turns())
            network.join("bob")
            await settle(300)
            counter.cancel()

            assert now() == 0.0
            assert len(transport.sends) == 1_000
            steps = [later - before for before, later in pairwise(turns)]
            assert max(steps) == 10

    virtually(main)


def test_a_missed_event_is_made_up_for_by_the_tick() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        transport.on_connectivity = lambda callback: lambda: None  # type: ignore[method-assign]
        async with a_publisher(transport, a_config(flush_interval=1.0)) as publisher:
            await publisher.publish_queued(TOPIC, b"x")
            await asyncio.sleep(10.2)
            network.join("bob")
            await asyncio.sleep(1.0)

            assert len(transport.sends) == 1

    virtually(main)


def test_flush_queue_of_an_empty_queue_is_zero_even_offline() -> None:
    async def main() -> None:
        async with a_publisher(MemoryNetwork().join("alice")) as publisher:
            assert await publisher.flush_queue() == 0

    virtually(main)


def test_flush_queue_offline_raises() -> None:
    async def main() -> None:
        async with a_publisher(MemoryNetwork().join("alice")) as publisher:
            await publisher.publish_queued(TOPIC, b"x")
            with pytest.raises(ErrNoConnectedPeers):
                await publisher.flush_queue()

            assert publisher.stats()["queue_len"] == 1

    virtually(main)


def test_flush_queue_ignores_back_off_and_counts_what_became_sent() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        config = a_config(retry_delay=300.0, retry_delay_max=300.0)
        async with Listener(network, "bob") as bob, a_publisher(transport, config) as publisher:
            transport.fail_next(3)
            for number in range(3):
                await publisher.publish_queued(TOPIC, b"%d" % number)
            await settle()
            assert bob.data == []
            transport.fail_next(1)

            assert await publisher.flush_queue() == 2
            assert bob.data in ([b"1"], [b"1", b"2"])
            assert await publisher.flush_queue() == 1
            await settle()
            assert bob.data == [b"1", b"2", b"0"]
            assert now() == 0.0

    virtually(main)


class SlowTransport(MemoryTransport):
    """Each send takes a second."""

    begun: list[bytes]

    async def publish(self, message: Outgoing) -> Published:
        self.begun.append(message.payload)
        await asyncio.sleep(1)
        return await super().publish(message)


def a_slow_transport(network: MemoryNetwork, name: str) -> SlowTransport:
    transport = network.join(name)
    transport.__class__ = SlowTransport
    assert isinstance(transport, SlowTransport)
    transport.begun = []
    return transport


def test_a_caller_who_left_during_the_send_is_not_cancelled_again_by_the_end_of_the_message() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = a_slow_transport(network, "alice")
        Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:

            async def leave_and_go_on() -> str:
                try:
                    await publisher.publish_with_ack(TOPIC, b"x", key="k", timeout=3)
                except asyncio.CancelledError:
                    await asyncio.sleep(10)
                return "went on"

            first = asyncio.ensure_future(leave_and_go_on())
            await settle()
            second = asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"x", key="k"))
            await asyncio.sleep(0.5)
            assert transport.begun == [b"x"]
            network.cut("alice")
            first.cancel()

            with pytest.raises(ErrNoConnectedPeers):
                await second
            assert now() == pytest.approx(3.0)
            assert await first == "went on"

    virtually(main)


def test_a_second_flush_joins_the_running_one() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = a_slow_transport(network, "alice")
        async with a_publisher(transport) as publisher:
            for number in range(3):
                await publisher.publish_queued(TOPIC, b"%d" % number)
            network.join("bob")
            first = asyncio.ensure_future(publisher.flush_queue())
            await asyncio.sleep(1.5)
            await publisher.publish_queued(TOPIC, b"later")
            second = asyncio.ensure_future(publisher.flush_queue())

            assert [await first, await second] == [3, 3]
            assert now() == pytest.approx(2.0)

    virtually(main)


@pytest.mark.parametrize(("strict_order", "seconds"), [(False, 4), (True, 30)])
def test_a_slow_network_gets_a_batch_at_once_begun_in_order_unless_order_is_strict(
    strict_order: bool, seconds: int
) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = a_slow_transport(network, "alice")
        async with (
            Listener(network, "bob") as bob,
            a_publisher(transport, a_config(strict_order=strict_order)) as publisher,
        ):
            network.cut("alice")
            for number in range(30):
                await publisher.publish_queued(TOPIC, b"%d" % number)
            network.heal("alice")

            assert await publisher.flush_queue() == 30
            assert now() == pytest.approx(seconds)
            await settle()
            assert transport.begun == [b"%d" % number for number in range(30)]
            assert sorted(bob.data) == sorted(transport.begun)

    virtually(main)


def test_stopping_breaks_off_a_batch_and_reports_every_message_of_it() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = a_slow_transport(network, "alice")
        publisher = a_publisher(transport)
        await publisher.start()
        watch = Watch(publisher)
        for number in range(8):
            await publisher.publish_queued(TOPIC, b"%d" % number)
        network.join("bob")
        await asyncio.sleep(1.5)
        assert publisher.stats()["in_flight"] == 7
        await publisher.stop()

        assert sorted(path[-1] for path in watch.paths.values()) == [FAILED] * 7 + [SENT]
        assert publisher.stats()["live"] == 0
        assert now() == 1.5

    virtually(main)


def test_a_flush_that_loses_the_connection_says_so() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = a_slow_transport(network, "alice")
        async with a_publisher(transport) as publisher:
            for number in range(3):
                await publisher.publish_queued(TOPIC, b"%d" % number)
            network.join("bob")
            flush = asyncio.ensure_future(publisher.flush_queue())
            await asyncio.sleep(1.5)
            network.cut("alice")
            with pytest.raises(ErrNoConnectedPeers, match="after 1 messages"):
                await flush
            await asyncio.sleep(3)
            assert publisher.stats()["queue_len"] == 2
            assert {message.attempt for _, message in transport.sends} == {0}
            network.heal("alice")
            flush = asyncio.ensure_future(publisher.flush_queue())
            await settle()
            await publisher.stop()
            with pytest.raises(ErrClosed):
                await flush

    virtually(main)


def test_publish_is_not_delayed_by_a_running_flush() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with a_publisher(transport) as publisher:
            for number in range(1_000):
                await publisher.publish_queued(TOPIC, b"%d" % number)
            network.join("bob")
            await settle(2)
            waited = 0
            while publisher.stats()["queue_len"]:
                before = len(transport.sends)
                await publisher.publish(TOPIC, b"now")
                waited = max(waited, len(transport.sends) - before)
                await asyncio.sleep(0)

            assert waited == 1

    virtually(main)


def test_a_slow_send_of_the_flusher_delays_no_acked_call() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = a_slow_transport(network, "alice")
        bob = Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob")) as publisher:
            await publisher.publish_queued(TOPIC, b"slow")
            await settle()
            calls = [asyncio.ensure_future(publisher.publish_with_ack(TOPIC, b"%d" % n)) for n in range(5)]
            await asyncio.sleep(1.01)

            assert len(bob.heard) == 6
            for call in calls:
                call.cancel()

    virtually(main)


def test_a_transport_that_names_a_time_is_asked_again_then_and_it_costs_nothing() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")
        transport.fail_next(5, SendFailed("too frequent", 7.0, costs_attempt=False))
        async with a_publisher(transport, a_config(max_retries=0)) as publisher:
            message_id = await publisher.publish_queued(TOPIC, b"x")
            await asyncio.sleep(40)

            assert [at for at, _ in transport.sends] == pytest.approx([0, 7, 14, 21, 28, 35])
            assert {message.attempt for _, message in transport.sends} == {0}
            assert await publisher.status(message_id) is SENT

    virtually(main)


def test_a_bug_in_the_transport_is_a_failed_send() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        network.join("bob")

        async def broken(message: Outgoing) -> Published:
            raise ZeroDivisionError("bug")

        transport.publish = broken  # type: ignore[method-assign]
        async with a_publisher(transport, a_config(max_retries=1)) as publisher:
            watch = Watch(publisher)
            message_id = await publisher.publish_queued(TOPIC, b"x")
            await asyncio.sleep(5)

            assert watch.path(message_id) == [PENDING, QUEUED, FAILED]
            assert "ZeroDivisionError" in str(watch.error(message_id))

    virtually(main)
