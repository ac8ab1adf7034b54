"""The six acceptance criteria of the requirement, one test each, named after them."""

from __future__ import annotations

import asyncio

import pytest

from stagepost.delivery import (
    DeliveryStatus,
    ErrAckTimeout,
    ErrNoConnectedPeers,
    ErrQueueEvicted,
    MemoryNetwork,
)
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
    an_acked_config,
    now,
    settle,
    virtually,
)


def test_publish_without_a_connection_returns_err_no_connected_peers() -> None:
    async def main() -> None:
        async with a_publisher(MemoryNetwork().join("alice")) as publisher:
            with pytest.raises(ErrNoConnectedPeers):
                await publisher.publish(TOPIC, b"hello")

            assert publisher.stats().queue_len == 0

    virtually(main)


def test_publish_queued_without_a_connection_enqueues_and_returns_the_message_id() -> None:
    async def main() -> None:
        async with a_publisher(MemoryNetwork().join("alice")) as publisher:
            message_id = await publisher.publish_queued(TOPIC, b"hello")

            assert len(bytes.fromhex(message_id)) == 32
            assert publisher.stats().queue_len == 1
            assert await publisher.status(message_id) is QUEUED

    virtually(main)


def test_publish_with_ack_waits_for_the_ack() -> None:
    async def main() -> None:
        network = MemoryNetwork(delay=0.3)
        transport = network.join("alice")
        async with (
            Listener(network, "bob") as bob,
            a_publisher(transport, an_acked_config("bob")) as publisher,
        ):
            result = await publisher.publish_with_ack(TOPIC, b"hello")

            assert result.status is DeliveryStatus.ACKED
            assert result.acked_by == ("bob",)
            assert bob.data == [b"hello"]
            assert now() == pytest.approx(0.6)

    virtually(main)


def test_publish_with_ack_returns_an_error_on_time_out() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        Peer(network, "bob")
        async with a_publisher(transport, an_acked_config("bob", max_retries=0)) as publisher:
            with pytest.raises(ErrAckTimeout) as caught:
                await publisher.publish_with_ack(TOPIC, b"hello")

            assert now() == pytest.approx(5.0)
            assert caught.value.result is not None
            assert caught.value.result.missing == ("bob",)
            assert caught.value.may_have_been_delivered

    virtually(main)


def test_queue_is_flushed_by_itself_when_the_network_recovers() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob") as bob, a_publisher(transport) as publisher:
            network.cut("alice")
            for number in range(25):
                await publisher.publish_queued(TOPIC, b"%d" % number)
            await asyncio.sleep(7.3)
            assert bob.data == []

            network.heal("alice")
            await asyncio.sleep(0.1)

            assert bob.data == [b"%d" % number for number in range(25)]
            assert publisher.stats().queue_len == 0

    virtually(main)


def test_delivery_status_callbacks_are_called() -> None:
    async def main() -> None:
        network = MemoryNetwork()
        transport = network.join("alice")
        async with Listener(network, "bob"), a_publisher(transport, an_acked_config("bob")) as publisher:
            watch = Watch(publisher)
            await publisher.publish_with_ack(TOPIC, b"acked")
            network.cut("alice")
            message_id = await publisher.publish_queued(TOPIC, b"queued")
            with pytest.raises(ErrNoConnectedPeers):
                await publisher.publish(TOPIC, b"lost")
            network.heal("alice")
            await settle()

            assert list(watch.paths.values()) == [
                [PENDING, SENT, ACKED],
                [PENDING, QUEUED, SENT],
                [PENDING, FAILED],
            ]
            assert watch.path(message_id)[-1] is SENT

    virtually(main)


def test_full_queue_evicts_by_lru() -> None:
    async def main() -> None:
        async with a_publisher(MemoryNetwork().join("alice"), a_config(queue_size=2)) as publisher:
            watch = Watch(publisher)
            first, second, third = [
                await publisher.publish_queued(TOPIC, data) for data in (b"a", b"b", b"c")
            ]
            await settle()

            assert await publisher.status(first) is FAILED
            assert await publisher.status(second) is await publisher.status(third) is QUEUED
            error = watch.error(first)
            assert isinstance(error, ErrQueueEvicted)
            assert error.evicted_by == third
            assert publisher.stats().queue_len == 2

    virtually(main)
